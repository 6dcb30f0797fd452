/* test_units.c: parameters that are sharded over ranks and gathered unit by unit: a model that is
 * larger than a device, and what its parameters show. That training gives the same numbers as
 * without sharding is in test_shard.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "evenkeel/evenkeel.h"
#include "job.h"
#include "nn/module_table.h"

#if defined(__SANITIZE_THREAD__) /* which is slow */
enum { WIDTH = 64 };
#else
enum { WIDTH = 512 };
#endif
enum { LAYERS = 24, FEW = 4, ROWS = 8, STEPS = 3, UNIT = (WIDTH + 1) * WIDTH * 4 };

/* Linear layers of 1 MB each. */
static ek_module *net_of(int layers)
{
    ek_module *parts[2 * LAYERS];
    int count = 0;
    ek_manual_seed(1);
    for (int i = 0; i < layers; i++) {
        if (i > 0)
            parts[count++] = ek_relu();
        parts[count++] = ek_linear(WIDTH, WIDTH);
    }
    ek_module *net = ek_sequential_of(parts, count);
    CHECK(net, "%s", ek_error_message());
    return net;
}

typedef enum way { CPU, CLASSIC, BALANCED, BALANCED_SHARDED } way;

typedef struct training {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
} training;

static training training_of(ek_module *net, way how, ek_shard_policy shard)
{
    training t = {.net = net};
    ek_device_list devices = ek_devices(EK_HOST, 2);
    ek_module_retain(net);
    t.criterion = ek_mse_loss();
    if (how >= BALANCED) {
        net = ek_data_parallel_model(net, .device_ids = devices,
                                     .shard = how == BALANCED_SHARDED ? EK_SHARD_PARAMETERS
                                                                      : EK_SHARD_NONE);
        t.criterion = ek_data_parallel_criterion(t.criterion, devices);
    }
    t.criterion = ek_distributed_criterion(t.criterion);
    t.model = how == CLASSIC
                  ? ek_distributed_data_parallel(net, .device_ids = devices, .shard = shard)
                  : ek_distributed_data_parallel(net, .shard = shard);
    CHECK(t.model && t.criterion, "way %d: %s", how, ek_error_message());
    t.optimizer = ek_adam(t.model, .lr = 1e-3);
    CHECK(t.optimizer, "%s", ek_error_message());
    return t;
}

static void training_free(training *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->criterion);
    ek_module_free(t->model);
    ek_module_free(t->net);
}

static ek_tensor *rows(int step)
{
    ek_manual_seed(100 + (uint64_t)(step * job_size + job_rank));
    return ek_randn(EK_SHAPE(ROWS, WIDTH));
}

static int training_step(const training *t, int step, int micro_batches, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_value x = EK_VALUE(rows(step));
    int rc =
        ek_train_step(loss, .model = t->model, .criterion = t->criterion, .optimizer = t->optimizer,
                      .input = x, .target = x, .micro_batches = micro_batches);
    ek_scope_end(&scope);
    return rc;
}

/* ---- larger than a device ---- */

static void limit_devices(uint64_t nbytes)
{
    for (int d = 0; d < 2; d++)
        CHECK_OK(ek_memory_set_capacity(ek_host(d), nbytes));
}

static void trains_a_model_larger_than_a_device(way how)
{
    double expected[STEPS], loss;
    char hashes[2][65];
    training whole =
        training_of(net_of(LAYERS), how == CLASSIC ? CLASSIC : BALANCED, EK_SHARD_OPTIMIZER);
    for (int i = 0; i < STEPS; i++)
        CHECK_OK(training_step(&whole, i, 1, &expected[i]));
    CHECK_OK(ek_module_sha256(whole.net, hashes[0]));
    const uint64_t all = 16 * (uint64_t)ek_module_numel(whole.net);
    training_free(&whole);

    /* Two units, the gradients that a device may be ahead (autograd/run.h), and two that are
     * summed, and what a step needs. */
    const uint64_t share = all / (2 * (uint64_t)job_size);
    const uint64_t most = share + 2 * UNIT + (12 << 20) + 4 * UNIT;
    if (WIDTH > 64 && job_size == 2)
        limit_devices(most + 4 * UNIT); /* some is free between blocks */
    training t = training_of(net_of(LAYERS), how, EK_SHARD_PARAMETERS);
    for (int d = 0; d < 2; d++)
        ek_memory_reset_peak(ek_host(d));
    for (int i = 0; i < STEPS; i++) {
        CHECK_OK(training_step(&t, i, 1, &loss));
        CHECK(memcmp(&loss, &expected[i], sizeof loss) == 0, "way %d, step %d: %.17g is not %.17g",
              how, i, loss, expected[i]);
    }
    CHECK_OK(ek_module_sha256(t.net, hashes[1]));
    CHECK(strcmp(hashes[1], hashes[0]) == 0, "way %d: other parameters", how);
    for (int d = 0; d < 2; d++) {
        ek_memory_stats memory;
        CHECK_OK(ek_memory_get_stats(ek_host(d), &memory));
        if (getenv("SHOW"))
            printf("way %d rank %d host:%d: peak %.2f MB; a share is %.2f, a unit %.2f\n", how,
                   job_rank, d, (double)memory.peak / 1e6, (double)share / 1e6, (double)UNIT / 1e6);
        CHECK(WIDTH == 64 || memory.peak <= most, "host:%d: peak %llu of %llu", d,
              (unsigned long long)memory.peak, (unsigned long long)most);
    }
    training_free(&t);
    limit_devices(0);
}

/* ---- what parameters show ---- */

static ek_tensor *weight_of(const training *t)
{
    return ek_module_tensor(t->net, "0.weight");
}

static double first_of(ek_tensor *tensor)
{
    static float room[WIDTH * WIDTH];
    CHECK_OK(ek_to_data(tensor, room, sizeof room));
    return room[WIDTH * WIDTH - 1];
}

static void are_read_and_written_as_always(void)
{
    ek_scope scope = ek_scope_begin();
    training t = training_of(net_of(FEW), BALANCED, EK_SHARD_PARAMETERS);
    ek_set_grad_enabled(false);
    if (job_rank == 0) { /* alone, while the others are elsewhere */
        ek_value y = ek_forward(t.model, ek_ones(EK_SHAPE(2, WIDTH)));
        CHECK(y.kind != EK_VALUE_ERROR, "%s", ek_error_message());
    }
    CHECK_OK(ek_dist_barrier());
    CHECK(first_of(weight_of(&t)) < 0.1, "not as made");
    CHECK(ek_fill_(weight_of(&t), 0.5), "%s", ek_error_message());
    ek_set_grad_enabled(true);
    double loss;
    CHECK_OK(training_step(&t, 0, 1, &loss));
    const double after = first_of(weight_of(&t));
    CHECK(after > 0.49 && after < 0.51 && after != 0.5, "%g", after);
    training_free(&t);
    ek_scope_end(&scope);
}

static void becomes_whole_when_the_wrapper_is_freed(void)
{
    char before[65], after[65];
    double loss;
    training t = training_of(net_of(FEW), BALANCED, EK_SHARD_PARAMETERS);
    CHECK_OK(training_step(&t, 0, 1, &loss));
    CHECK_OK(ek_module_sha256(t.net, before));
    ek_optimizer_free(t.optimizer);
    ek_module_free(t.criterion);
    ek_module_free(t.model);
    CHECK_OK(ek_dist_barrier());
    CHECK_OK(ek_module_sha256(t.net, after));
    CHECK(strcmp(before, after) == 0, "other parameters");
    ek_module_free(t.net);
}

/* Parts of a batch are averaged one by one, so that last bits differ. */
static void trains_in_parts(void)
{
    double one, parts;
    training a = training_of(net_of(FEW), BALANCED, EK_SHARD_OPTIMIZER);
    training b = training_of(net_of(FEW), BALANCED, EK_SHARD_PARAMETERS);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(training_step(&a, i, 4, &one));
        CHECK_OK(training_step(&b, i, 4, &parts));
        CHECK(one - parts < 1e-5 && parts - one < 1e-5, "%.9g and %.9g", one, parts);
    }
    training_free(&a);
    training_free(&b);
}

/* Rank 0's backward is ahead of the others'. */
static void keeps_few_copies_of_gradients(void)
{
    ek_memory_stats before, after;
    training t = training_of(net_of(LAYERS), BALANCED, EK_SHARD_PARAMETERS);
    double loss;
    CHECK_OK(training_step(&t, 0, 1, &loss));
    ek_scope scope = ek_scope_begin();
    ek_value x = EK_VALUE(rows(1));
    ek_tensor *error = ek_loss(t.criterion, ek_forward(t.model, x), x);
    ek_zero_grad(t.optimizer);
    CHECK_OK(ek_dist_barrier());
    CHECK_OK(ek_memory_reset_peak(ek_cpu()));
    CHECK_OK(ek_memory_get_stats(ek_cpu(), &before));
    if (job_rank > 0)
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    CHECK_OK(ek_backward(error));
    CHECK_OK(ek_memory_get_stats(ek_cpu(), &after));
    CHECK(WIDTH == 64 || job_rank > 0 || after.peak - before.in_use <= 4 * UNIT,
          "%llu bytes of copies", (unsigned long long)(after.peak - before.in_use));
    ek_scope_end(&scope);
    training_free(&t);
}

/* ---- what is refused ---- */

static void is_refused(void)
{
    ek_module *net = net_of(FEW);
    if (job_rank == 0)
        CHECK_OK(ek_shard_unit(net));
    ek_module *model = ek_distributed_data_parallel(net, .shard = EK_SHARD_PARAMETERS);
    CHECK(!model && ek_error_status() == EK_E_STATE && strstr(ek_error_message(), "unit"), "%s",
          ek_error_message());
    ek_error_clear();
    model = ek_distributed_data_parallel(net_of(FEW), .shard = (ek_shard_policy)7);
    CHECK(!model && ek_error_status() == EK_E_INVALID && strstr(ek_error_message(), "policy"), "%s",
          ek_error_message());
    ek_error_clear();
}

/* ---- odd modules and ends ---- */

/* A parameter without elements, frozen, which is alone in its bucket. */
static void a_parameter_without_elements_is_sharded(void)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(1);
    ek_module *net = ek_sequential(ek_linear(3, 4), ek_linear(4, 2));
    ek_tensor *none = ek_zeros(EK_SHAPE(0, 3));
    CHECK_OK(ek_register_parameter(net, "none", NULL, none));
    CHECK_OK(ek_tensor_set_requires_grad(none, false));
    ek_module *model = ek_distributed_data_parallel(net, .shard = EK_SHARD_PARAMETERS);
    CHECK(model, "%s", ek_error_message());
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1);
    CHECK_OK(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(2, 3))))));
    CHECK_OK(ek_step(optimizer));
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_scope_end(&scope);
}

/* A backward with a history adds to the mean of one before. */
static void gradients_with_a_history_are_added(void)
{
    float sums[2][4];
    for (int k = 0; k < 2; k++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(1);
        ek_module *model =
            ek_distributed_data_parallel(ek_linear(3, 4),
                                         .shard = k ? EK_SHARD_PARAMETERS : EK_SHARD_OPTIMIZER);
        CHECK(model, "%s", ek_error_message());
        ek_tensor *x = ek_ones(EK_SHAPE(2 + job_rank, 3));
        CHECK_OK(ek_backward(ek_sum(ek_square(ek_apply(model, x)))));
        CHECK_OK(ek_backward(ek_sum(ek_square(ek_apply(model, x))), .create_graph = true));
        ek_tensor *whole = ek_gather_grad(ek_module_tensor(model, "bias"));
        CHECK(whole, "%s", ek_error_message());
        CHECK_OK(ek_to_data(ek_detach(whole), sums[k], sizeof sums[k]));
        ek_module_free(model);
        ek_scope_end(&scope);
    }
    for (int i = 0; i < 4; i++)
        CHECK(sums[0][i] - sums[1][i] < 1e-4 && sums[1][i] - sums[0][i] < 1e-4, "%g and %g",
              sums[0][i], sums[1][i]);
}

/* A wrapper may be freed after the job has ended. What was read ahead has come by then. */
static void is_freed_after_the_job(void)
{
    ek_scope scope = ek_scope_begin();
    training t = training_of(net_of(FEW), CPU, EK_SHARD_PARAMETERS);
    double loss;
    CHECK_OK(training_step(&t, 0, 1, &loss));
    ek_set_grad_enabled(false);
    CHECK(ek_apply(t.model, rows(1)), "%s", ek_error_message());
    ek_set_grad_enabled(true);
    CHECK_OK(ek_dist_destroy_process_group(NULL));
    ek_module_free(t.net);
    t.net = NULL;
    training_free(&t);
    ek_scope_end(&scope);
}

/* ---- failures ---- */

/* Rank 0 has no memory for a step: all ranks get an error, no parameter changes, and the step can
 * be made again. */
static void survives_a_rank_without_memory(void)
{
    char before[65], after[65];
    double expected = 0, loss;
    training reference = training_of(net_of(FEW), BALANCED, EK_SHARD_PARAMETERS);
    for (int i = 0; i < 2; i++)
        CHECK_OK(training_step(&reference, i, 1, &expected));
    training_free(&reference);
    training t = training_of(net_of(FEW), BALANCED, EK_SHARD_PARAMETERS);
    CHECK_OK(training_step(&t, 0, 1, &loss));
    CHECK_OK(ek_module_sha256(t.net, before));
    CHECK_OK(ek_dist_barrier());
    int failed = 0;
    for (int part = 1; part < 8; part++) {
        for (int d = 0; d < 2 && job_rank == 0; d++) {
            ek_memory_stats memory;
            CHECK_OK(ek_memory_get_stats(ek_host(d), &memory));
            CHECK_OK(ek_memory_set_capacity(ek_host(d), memory.in_use + (uint64_t)part * UNIT / 3));
        }
        int rc = training_step(&t, 1, 1, &loss);
        limit_devices(0);
        if (rc >= 0)
            break;
        failed++;
        ek_error_clear();
        CHECK_OK(ek_module_sha256(t.net, after));
        CHECK(strcmp(before, after) == 0, "other parameters after failure %d", failed);
        CHECK_OK(ek_dist_barrier());
    }
    CHECK(failed > 0 || WIDTH == 64, "nothing failed");
    if (failed == 7)
        CHECK_OK(training_step(&t, 1, 1, &loss));
    CHECK(loss == expected, "%.17g is not %.17g", loss, expected);
    training_free(&t);
}

int main(void)
{
    CHECK_OK(ek_host_devices_configure("2"));
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    trains_a_model_larger_than_a_device(CLASSIC);
    trains_a_model_larger_than_a_device(BALANCED_SHARDED);
    are_read_and_written_as_always();
    becomes_whole_when_the_wrapper_is_freed();
    trains_in_parts();
    keeps_few_copies_of_gradients();
    is_refused();
    a_parameter_without_elements_is_sharded();
    gradients_with_a_history_are_added();
    survives_a_rank_without_memory();
    is_freed_after_the_job();
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
