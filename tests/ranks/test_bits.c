/* test_bits.c: trains on ranks and prints a hash of the outcome: the same in every run, for any
 * size of buckets, with any MPI, and for ranks that are threads. The script `bits` compares what
 * runs have printed.
 *
 *     CK_FORK=no samples/mpirun -n 3 test_bits
 *     test_bits                                   as many threads, with messages that are delayed
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "job.h"
#include "kit/exact.h"
#include "kit/ranks.h"
#include "launch/launcher.h"

enum { RANKS = 3, MOST = 8, LAYERS = 16, WIDTH = 512, EACH = 2 };

/* All ranks of the group have these bits; rank 0 prints them. */
static void tell(uint64_t bits, const char *what, ek_process_group *group)
{
    ek_tensor *all[MOST], *own = ek_from_data(&bits, EK_SHAPE(1), EK_I64, .device = ek_cpu());
    int rank = ek_dist_get_rank(group), size = ek_dist_get_world_size(group);
    CHECK(bits && own, "%s: %s", what, ek_error_message());
    for (int r = 0; r < size; r++)
        all[r] = ek_zeros(EK_SHAPE(1), .dtype = EK_I64, .device = ek_cpu());
    CHECK_OK(ek_dist_all_gather(own, all, .group = group));
    for (int r = 0; r < size; r++)
        CHECK(*(uint64_t *)ek_tensor_data(all[r]) == bits, "%s: rank %d has other bits", what, r);
    if (rank == 0)
        printf("%s: %016" PRIx64 "\n", what, bits);
}

/* ---- sizes of buckets ---- */

/* Uniform numbers of variance 1 / WIDTH, by a generator that costs little under sanitizers. */
static int fill(const char *path, ek_tensor *parameter, void *user)
{
    uint32_t *state = user;
    float *values = ek_tensor_data(parameter), scale = (float)sqrt(3. / WIDTH) * 0x1p-31f;
    (void)path;
    for (int64_t i = 0; i < ek_tensor_count(parameter); i++) {
        *state = *state * 1664525 + 1013904223;
        values[i] = (float)(int32_t)*state * scale;
    }
    ek_tensor_touch(parameter);
    return 0;
}

/* 16 MiB of parameters, and no bucket need be larger than 1 MiB. */
static ek_module *make_net(void)
{
    ek_module *layers[2 * LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] = ek_linear(WIDTH, WIDTH, .bias = false);
        layers[2 * i + 1] = ek_tanh();
    }
    ek_module *net = ek_sequential_of(layers, 2 * LAYERS);
    uint32_t state = 3;
    CHECK(net, "%s", ek_error_message());
    CHECK_OK(ek_module_parameters(net, fill, &state));
    return net;
}

static ek_tensor *numbers(int rank, int salt)
{
    ek_tensor *x = ek_empty(EK_SHAPE(EACH, WIDTH), .device = ek_cpu());
    CHECK(x, "%s", ek_error_message());
    float *values = ek_tensor_data(x);
    for (int i = 0; i < EACH * WIDTH; i++)
        values[i] = (float)sin(1.3 * i + 11 * rank + salt);
    ek_tensor_touch(x);
    return x;
}

/* The number of buckets, and the bits after a step. */
static int train_in_buckets(double cap, uint64_t *bits, ek_process_group *group)
{
    int rank = ek_dist_get_rank(group);
    ek_distributed_stats stats;
    ek_scope scope = ek_scope_begin();
    ek_module *model =
        ek_distributed_data_parallel(make_net(), .process_group = group, .bucket_cap_mb = cap);
    CHECK(model, "%s", ek_error_message());
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.01, .momentum = 0.9);
    ek_tensor *x = numbers(rank, 1), *y = numbers(rank, 5);
    CHECK_OK(ek_backward(ek_mean(ek_square(ek_sub(ek_apply(model, x), y)))));
    CHECK_OK(ek_step(optimizer));
    CHECK_OK(ek_distributed_get_stats(model, &stats));
    *bits = exact_bits(model);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_scope_end(&scope);
    return (int)stats.buckets;
}

static void sizes_of_buckets(ek_process_group *group)
{
    static const double caps[] = {1, 5, 25};
    uint64_t bits, first = 0;
    int before = 0;
    for (int i = 0; i < 3; i++) {
        char what[80];
        int buckets = train_in_buckets(caps[i], &bits, group);
        first = i ? first : bits;
        CHECK(bits == first, "buckets of %g MiB: other bits than with 1 MiB", caps[i]);
        CHECK(buckets > 1 && (i == 0 || buckets < before), "%d buckets of %g MiB, after %d",
              buckets, caps[i], before);
        before = buckets;
        snprintf(what, sizeof what, "%d buckets of at most %g MiB", buckets, caps[i]);
        tell(bits, what, group);
    }
}

/* ---- models ---- */

enum { STEPS = 5 };

static void check_task(exact_task task, ek_dtype dtype, exact_way way, ek_process_group *group)
{
    static const int64_t counts[MOST] = {2, 0, 5, 1, 3, 1, 0, 2};
    int rank = ek_dist_get_rank(group);
    int64_t first = 0, total = 0;
    for (int r = 0; r < MOST; r++) {
        first += r < rank ? counts[r] : 0;
        total += counts[r];
    }
    ek_scope scope = ek_scope_begin();
    exact_job job = exact_make(task, dtype);
    CHECK_OK(exact_wrap(&job, way, group));
    ek_optimizer *optimizer = ek_sgd(job.model, .lr = 0.02, .momentum = 0.9);
    for (int step = 0; step < STEPS; step++) {
        ek_zero_grad(optimizer);
        CHECK_OK(ek_backward(exact_loss(&job, step * total + first, counts[rank])));
        CHECK_OK(ek_step(optimizer));
    }
    char what[80];
    snprintf(what, sizeof what, "%s %s%s", exact_name(task), ek_dtype_name(dtype),
             way == EXACT_ONE_DEVICE ? "" : ", two devices a rank");
    tell(exact_bits(job.model), what, group);
    ek_optimizer_free(optimizer);
    exact_free(&job);
    ek_scope_end(&scope);
}

static void check_tasks(exact_way way, ek_process_group *group)
{
    for (int task = 0; task < EXACT_TASKS; task++) {
        check_task((exact_task)task, EK_F64, way, group);
        check_task((exact_task)task, EK_F32, way, group);
    }
}

static const char *run(ek_process_group *group, void *user)
{
    (void)user;
    check_tasks(EXACT_ONE_DEVICE, group);
    sizes_of_buckets(group);
    return NULL;
}

TEST(bits)
{
    ek_launched launched;
    CHECK_OK(ek_launcher_find(&launched));
    CHECK_OK(ek_host_devices_configure("2"));
    const ek_device devices[] = {ek_cpu(), ek_host(0), ek_host(1)};
    for (int i = 0; i < 3; i++) /* sums depend on how many threads make them */
        CHECK_OK(ek_device_set_threads(devices[i], 1));
    if (launched.size == 1) {
        ranks_check(RANKS, 7, run, NULL);
        return;
    }
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    ek_scope scope = ek_scope_begin();
    run(ek_dist_world(), NULL);
    check_tasks(EXACT_BALANCED, NULL); /* of a process's own devices, which threads would share */
    ek_scope_end(&scope);
    CHECK_OK(ek_shutdown());
}
