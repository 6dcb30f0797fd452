/* bench_buckets.c: what several GPUs exchange in a training step.
 *
 *     EK_EMULATOR_DEVICES=8 bench_buckets [NET [DEVICES]]
 *
 * NET is gpt2, resnet50 or small. The loss is a sum over the net's parameters, so that gradients
 * have the net's sizes and the step little else to compute. The emulator counts, after a step that
 * warms up: groups of NCCL on each GPU, bytes that leave a GPU by NCCL, kernels, copies and fills,
 * in forward (the refresh of replicas), backward (the sums) and step. Then come the host's time for
 * one sum of all gradients by ek_reduce_add_coalesced, without waiting for the GPUs, and a digest
 * of the parameters. */
#include <emulator.h>
#include <evenkeel/evenkeel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PARAMETERS = 1024, BUCKET = 25 << 20, ROUNDS = 5 };

typedef struct lists {
    int count;
    ek_tensor *tensors[MOST_PARAMETERS];
} lists;

static int list_add(const char *path, ek_tensor *tensor, void *user)
{
    lists *list = user;
    (void)path;
    if (list->count < MOST_PARAMETERS)
        list->tensors[list->count++] = tensor;
    return 0;
}

/* ---- the module: its child's parameters are all that it reads ---- */

typedef struct touching {
    ek_module module;
    ek_module *net;
} touching;

/* Scaled by the device's part of the batch, so that devices differ. */
static ek_value touching_forward(ek_module *module, const ek_args *args)
{
    lists list = {0};
    ek_tensor *sum = ek_sum(ek_arg_tensor(args, 0));
    if (!sum || ek_module_parameters(((touching *)module)->net, list_add, &list) < 0)
        return ek_value_error();
    for (int i = 0; i < list.count; i++)
        sum = ek_add(sum, ek_mul(sum, ek_sum(ek_square(list.tensors[i]))));
    return ek_value_of_tensor(ek_reshape(sum, EK_SHAPE(1)));
}

static const ek_module_type touching_type = {.name = "touching",
                                             .size = sizeof(touching),
                                             .forward = touching_forward};

static ek_module *touching_new(const char *net)
{
    touching *self = (touching *)ek_module_new(&touching_type);
    ek_module *child = strcmp(net, "gpt2") == 0 ? ek_gpt2(50257, .dropout = 0)
                       : strcmp(net, "resnet50") == 0
                           ? ek_resnet50(1000)
                           : ek_gpt2(512, .context = 64, .width = 128, .layers = 4, .heads = 4);
    if (!self || ek_register_module(&self->module, "net", &self->net, child) < 0)
        return NULL;
    return &self->module;
}

/* ---- a step ---- */

static void print_counters(const char *what, int devices)
{
    ek_emulator_counters c;
    for (int d = 0; d < devices; d++)
        (void)ek_synchronize(ek_cuda(d));
    ek_emulator_count(&c);
    printf("%-9s %9.1f %10.2f %9llu %8llu %7llu %10.2f\n", what, (double)c.groups / devices,
           (double)c.sent / 1e6, (unsigned long long)c.kernels, (unsigned long long)c.copies,
           (unsigned long long)c.fills, (double)c.peer / 1e6);
    ek_emulator_reset_counters();
}

static int make_step(ek_module *model, ek_optimizer *optimizer, ek_tensor *x, int devices,
                     bool prints)
{
    ek_scope scope = ek_scope_begin();
    ek_emulator_reset_counters();
    ek_tensor *y = ek_apply(model, x);
    if (prints)
        print_counters("forward", devices);
    ek_tensor *loss = ek_sum(y);
    int rc = loss ? ek_backward(loss) : ek_error_status();
    if (prints)
        print_counters("backward", devices);
    if (rc >= 0)
        rc = ek_step(optimizer);
    if (prints)
        print_counters("step", devices);
    ek_module_zero_grad(model);
    ek_scope_end(&scope);
    return rc;
}

static int count_step(const char *net, int devices)
{
    ek_module *model = ek_data_parallel(touching_new(net), ek_devices(EK_CUDA, devices));
    ek_optimizer *optimizer = model ? ek_sgd(model, .lr = 1e-9) : NULL;
    lists list = {0};
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_mul_scalar(ek_add_scalar(ek_arange(devices, EK_F32, ek_cpu()), 1), 1e-6);
    printf("%-9s %9s %10s %9s %8s %7s %10s\n", net, "groups", "MB sent", "kernels", "copies",
           "fills", "MB peer");
    int rc = optimizer && x ? make_step(model, optimizer, x, devices, false) : ek_error_status();
    if (rc >= 0)
        rc = make_step(model, optimizer, x, devices, true);
    uint64_t digest = 14695981039346656037u;
    if (rc >= 0)
        rc = ek_module_parameters(model, list_add, &list);
    for (int i = 0; i < list.count && rc >= 0; i++) {
        ek_scope inner = ek_scope_begin();
        ek_tensor *host = ek_to_device(list.tensors[i], ek_cpu());
        const uint32_t *bits = host ? ek_tensor_data(host) : NULL;
        for (int64_t k = 0; bits && k < ek_tensor_count(host); k++)
            digest = (digest ^ bits[k]) * 1099511628211u;
        rc = bits ? 0 : ek_error_status();
        ek_scope_end(&inner);
    }
    printf("digest %016llx\n", (unsigned long long)digest);
    ek_scope_end(&scope);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    return rc;
}

/* ---- the host's time ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int time_sums(const char *net, int devices)
{
    ek_scope scope = ek_scope_begin();
    ek_module *model = touching_new(net);
    lists list = {0};
    int rc = model ? ek_module_parameters(model, list_add, &list) : ek_error_status();
    ek_tensor **inputs = calloc((size_t)(devices * list.count) + 1, sizeof *inputs);
    ek_tensor **sums = calloc((size_t)list.count + 1, sizeof *sums);
    rc = inputs && sums ? rc : -1;
    double best = 1e9, nbytes = 0;
    for (int i = 0; i < list.count && rc >= 0; i++)
        nbytes += 4 * (double)ek_tensor_count(list.tensors[i]);
    for (int k = 0; k < devices * list.count && rc >= 0; k++) {
        inputs[k] = ek_zeros(ek_tensor_shape(list.tensors[k % list.count]),
                             .device = ek_cuda(k / list.count));
        rc = inputs[k] ? 0 : ek_error_status();
    }
    for (int round = 0; round < ROUNDS && rc >= 0; round++) {
        ek_scope inner = ek_scope_begin();
        double begin = now();
        rc = ek_reduce_add_coalesced(inputs, devices, list.count, ek_cuda(0), BUCKET, sums);
        double took = now() - begin;
        best = took < best ? took : best;
        for (int d = 0; d < devices; d++)
            (void)ek_synchronize(ek_cuda(d));
        ek_scope_end(&inner);
    }
    printf("the host's time for sums of %.1f MB: %.0f us, %.0f us for each 25 MiB\n", nbytes / 1e6,
           1e6 * best, 1e6 * best * BUCKET / nbytes);
    free(sums);
    free(inputs);
    ek_module_free(model);
    ek_scope_end(&scope);
    return rc;
}

int main(int argc, char **argv)
{
    const char *net = argc > 1 ? argv[1] : "small";
    const int devices = argc > 2 ? atoi(argv[2]) : 4;
    ek_manual_seed(1);
    int rc = count_step(net, devices);
    if (rc >= 0)
        rc = time_sums(net, devices);
    if (rc < 0)
        fprintf(stderr, "bench_buckets: %s\n", ek_error_message());
    return ek_shutdown() < 0 || rc < 0;
}
