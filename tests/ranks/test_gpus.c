/* test_gpus.c: ranks whose tensors lie on GPUs, a share of them for each rank: what they train is
 * what one GPU trains. Emulated GPUs are a process's own, so that nothing but MPI connects them;
 * that they cannot have NCCL is found out with the first call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/evenkeel.h"
#include "job.h"

enum { TOTAL = 9, STEPS = 3, CLASSES = 4 };

static ek_device_list own; /* this rank's GPUs */

static double number_of(int64_t i, int salt)
{
    return sin((double)(i * 7 + salt * 1013) * 0.77);
}

static ek_tensor *numbers(ek_shape shape, ek_dtype dtype, int salt, ek_device device)
{
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64, .device = ek_cpu());
    CHECK(x, "%s", ek_error_message());
    double *values = ek_tensor_data(x);
    for (int64_t i = 0; i < ek_tensor_count(x); i++)
        values[i] = number_of(i, salt);
    ek_tensor_touch(x);
    x = ek_to_device(ek_to_dtype(x, dtype), device);
    CHECK(x, "%s", ek_error_message());
    return x;
}

static ek_tensor *targets(ek_device device)
{
    int64_t classes[TOTAL];
    for (int i = 0; i < TOTAL; i++)
        classes[i] = i * 5 % CLASSES;
    ek_tensor *y = ek_from_data(classes, EK_SHAPE(TOTAL), EK_I64, .device = device);
    CHECK(y, "%s", ek_error_message());
    return y;
}

/* ---- calls ---- */

static void check_is(ek_tensor *x, double first, double last)
{
    int64_t n = ek_tensor_count(x);
    float *values = malloc((size_t)n * sizeof *values);
    CHECK_OK(ek_to_data(x, values, (size_t)n * sizeof *values));
    CHECK(values[0] == (float)first && values[n - 1] == (float)last, "%g .. %g, not %g .. %g",
          (double)values[0], (double)values[n - 1], first, last);
    free(values);
}

static void check_calls(void)
{
    enum { N = 1000 };
    ek_device gpu = own.devices[0];
    ek_tensor *x = ek_add_scalar(ek_arange(N, EK_F32, gpu), job_rank), *list[2];
    CHECK(x, "%s", ek_error_message());
    double first = 0;
    for (int r = 0; r < job_size; r++)
        first += r;
    CHECK_OK(ek_dist_all_reduce(x));
    check_is(x, first, first + job_size * (N - 1.0));
    if (job_rank == 0)
        CHECK_OK(ek_dist_send(x, 1, .tag = 7));
    else if (job_rank == 1)
        CHECK(ek_dist_recv(x, EK_DIST_ANY, .tag = 7) == 0, "%s", ek_error_message());
    ek_tensor *own_part = ek_full(job_rank + 1, EK_SHAPE(N), .device = gpu);
    for (int r = 0; r < 2; r++)
        list[r] = ek_zeros(EK_SHAPE(N), .device = gpu);
    CHECK_OK(ek_dist_all_gather(own_part, list));
    check_is(list[0], 1, 1);
    check_is(list[1], 2, 2);
    ek_value value = ek_dist_broadcast_value(ek_value_of_tensor(own_part), 1, NULL);
    CHECK(value.kind == EK_VALUE_TENSOR, "%s", ek_error_message());
    check_is(value.as.tensor, 2, 2);
    ek_tensor *whole = ek_dist_join(own_part, 0, NULL);
    CHECK(whole && ek_tensor_device(whole).kind == EK_CUDA, "%s", ek_error_message());
    check_is(whole, 1, 2);
}

/* ---- training ---- */

static int fill(const char *path, ek_tensor *parameter, void *user)
{
    int *number = user;
    ek_device there = ek_tensor_device(parameter);
    (void)path;
    return ek_copy_(parameter,
                    ek_mul_scalar(numbers(ek_tensor_shape(parameter), ek_tensor_dtype(parameter),
                                          90 + ++*number, there),
                                  0.4))
               ? 0
               : -1;
}

static ek_module *make_net(ek_dtype dtype)
{
    int number = 0;
    ek_module *net =
        ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_sync_batch_norm(4), ek_relu(),
                      ek_conv2d(4, 3, 3, .stride = 2), ek_sync_batch_norm(3), ek_tanh(),
                      ek_flatten(1, -1), ek_linear(12, CLASSES));
    CHECK(net, "%s", ek_error_message());
    CHECK_OK(ek_module_to_dtype(net, dtype));
    CHECK_OK(ek_module_to_device(net, own.devices[0]));
    bool enabled = ek_set_grad_enabled(false);
    CHECK_OK(ek_module_parameters(net, fill, &number));
    ek_set_grad_enabled(enabled);
    return net;
}

static void train(ek_module *model, ek_module *criterion, ek_dtype dtype, int first, int count)
{
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.2, .momentum = 0.9);
    CHECK(optimizer, "%s", ek_error_message());
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = numbers(EK_SHAPE(TOTAL, 2, 6, 6), dtype, step, own.devices[0]);
        ek_tensor *y = targets(own.devices[0]);
        ek_tensor *loss = ek_loss(criterion, ek_forward(model, ek_narrow(x, 0, first, count)),
                                  ek_narrow(y, 0, first, count));
        ek_zero_grad(optimizer);
        CHECK_OK(ek_backward(loss));
        CHECK_OK(ek_step(optimizer));
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
}

typedef struct list {
    ek_tensor *tensors[32];
    int count;
} list;

static int collect(const char *path, ek_tensor *x, void *user)
{
    list *l = user;
    (void)path;
    x = ek_to_device(ek_to_dtype(ek_detach(x), EK_F64), ek_cpu());
    l->tensors[l->count++] = x ? ek_reshape(x, EK_SHAPE(-1)) : NULL;
    return 0;
}

/* Parameters and running statistics, one after another. */
static ek_tensor *outcome_of(ek_module *net)
{
    list l = {0};
    CHECK_OK(ek_module_parameters(net, collect, &l));
    CHECK_OK(ek_module_buffers(net, collect, &l));
    ek_tensor *outcome = ek_cat(l.tensors, l.count, 0);
    CHECK(outcome, "%s", ek_error_message());
    return outcome;
}

static double distance(const ek_tensor *a, const ek_tensor *b)
{
    const double *x = ek_tensor_data((ek_tensor *)a), *y = ek_tensor_data((ek_tensor *)b);
    double sum = 0, norm = 0;
    CHECK(ek_tensor_count(a) == ek_tensor_count(b), "other sizes");
    for (int64_t i = 0; i < ek_tensor_count(a); i++) {
        sum += (x[i] - y[i]) * (x[i] - y[i]);
        norm += y[i] * y[i];
    }
    return sqrt(sum / norm);
}

static uint64_t communication_nbytes(void)
{
    ek_memory_stats stats;
    CHECK_OK(ek_memory_get_stats(ek_cpu(), &stats));
    return stats.now[EK_MEMORY_COMMUNICATION];
}

/* `gpus`: how many of its own a rank uses. */
static void check_training(ek_dtype dtype, int gpus, ek_shard_policy shard)
{
    static const int cuts[][3] = {{0, 9, 9}, {0, 5, 9}};
    ek_scope scope = ek_scope_begin();
    ek_module *alone = make_net(dtype), *net = make_net(dtype);
    ek_module *criterion = ek_cross_entropy_loss();
    train(alone, criterion, dtype, 0, TOTAL);
    ek_tensor *expected = outcome_of(alone);
    ek_device_list used = ek_device_list_of(own.devices, gpus);
    uint64_t before = communication_nbytes(); /* sharding makes its memory with the wrapper */
    ek_module *model = ek_distributed_data_parallel(net, .device_ids = used, .shard = shard);
    CHECK(model, "%s", ek_error_message());
    criterion = ek_distributed_criterion(criterion);
    const int *cut = &cuts[job_size - 1][job_rank];
    train(model, criterion, dtype, cut[0], cut[1] - cut[0]);
    CHECK(job_size == 1 || communication_nbytes() > before, "no memory is counted");
    double apart = distance(outcome_of(net), expected);
    CHECK(apart <= (dtype == EK_F64 ? 1e-12 : 1e-5), "%d GPUs, dtype %d, sharding %d: %g apart",
          gpus, dtype, shard, apart);
    ek_module_free(model);
    ek_module_free(criterion);
    ek_module_free(alone);
    CHECK(communication_nbytes() == before, "%d bytes are left", (int)communication_nbytes());
    ek_scope_end(&scope);
}

int main(void)
{
    if (ek_device_count(EK_CUDA) < 1) {
        ek_error_clear();
        return 77;
    }
    ek_allow_tf32_convolution(false); /* numbers are compared as closely as f32 allows */
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    own = ek_dist_devices(EK_CUDA);
    int all = ek_device_count(EK_CUDA);
    CHECK(own.count >= 1, "%s", ek_error_message());
    if (all % job_size == 0)
        CHECK(own.count == all / job_size && own.devices[0].index == job_rank * own.count,
              "%d GPUs from %d on", own.count, own.devices[0].index);
    ek_scope scope = ek_scope_begin();
    if (job_size == 2)
        check_calls();
    for (int gpus = 1; gpus <= own.count; gpus++)
        for (int k = 0; k < 6; k++)
            check_training(k % 2 ? EK_F64 : EK_F32, gpus, (ek_shard_policy)(k / 2));
    ek_scope_end(&scope);
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks of %d GPUs: all is well\n", job_size, own.count);
    return 0;
}
