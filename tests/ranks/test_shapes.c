/* test_shapes.c: trains on N ranks of M devices, and prints a hash of the outcome, which depends on
 * the product NM alone. The script `bits` compares what runs have printed.
 *
 *     CK_FORK=no LEAVES=4 samples/mpirun -n 2 test_shapes      two ranks of two devices
 *     test_shapes                                              all shapes, with ranks as threads
 *
 * STEPS sets the number of steps: by default 10 with LEAVES, else 5. Devices are GPUs if
 * EVENKEEL_TEST_DEVICES is "cuda". Then NCCL carries the sums of threads. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "devices.h"
#include "job.h"
#include "kit/exact.h"
#include "kit/ranks.h"
#include "launch/launcher.h"

enum {
    MOST = 8, /* leaves; on GPUs GPUS */
    GPUS = 4,
    EACH = 2 /* samples of a device */
};

typedef struct shape {
    int steps;
    int devices;                   /* of a rank */
    int offset;                    /* rank r has the devices from r * offset on */
    uint64_t bits[EXACT_TASKS][2]; /* by dtype */
} shape;

static uint64_t bits_of(exact_task task, ek_dtype dtype, const shape *s, ek_process_group *group)
{
    int size = ek_dist_get_world_size(group), rank = ek_dist_get_rank(group);
    int64_t count = EACH * s->devices, total = count * size;
    ek_device_list devices = {.count = s->devices};
    for (int d = 0; d < s->devices; d++)
        devices.devices[d] = test_device(rank * s->offset + d);
    ek_scope scope = ek_scope_begin();
    exact_job job = exact_make(task, dtype);
    CHECK_OK(exact_wrap_devices(&job, EXACT_BALANCED, devices, group));
    ek_optimizer *optimizer = ek_sgd(job.model, .lr = 0.02, .momentum = 0.9);
    for (int step = 0; step < s->steps; step++) {
        ek_zero_grad(optimizer);
        CHECK_OK(ek_backward(exact_loss(&job, step * total + rank * count, count)));
        CHECK_OK(ek_step(optimizer));
    }
    uint64_t bits = exact_bits(job.model);
    CHECK(bits, "%s", ek_error_message());
    ek_optimizer_free(optimizer);
    exact_free(&job);
    ek_scope_end(&scope);
    return bits;
}

static const char *run(ek_process_group *group, void *user)
{
    shape *s = user, own = *s;
    int rank = ek_dist_get_rank(group), size = ek_dist_get_world_size(group);
    for (int task = 0; task < EXACT_TASKS; task++)
        for (int wide = 0; wide < 2; wide++) {
            own.bits[task][wide] = bits_of((exact_task)task, wide ? EK_F64 : EK_F32, &own, group);
            if (rank == 0)
                printf("%s %s, %d leaves: %016" PRIx64 "\n", exact_name((exact_task)task),
                       wide ? "f64" : "f32", size * s->devices, own.bits[task][wide]);
        }
    if (rank == 0)
        *s = own;
    return NULL;
}

/* Makes the devices, and returns how many there are. */
static int shape_devices(void)
{
    if (test_kind() == EK_CUDA) {
        CHECK_OK(ek_cuda_devices_configure("0,1,2,3"));
        ek_use_deterministic_algorithms(true);
        return GPUS;
    }
    char devices[12];
    snprintf(devices, sizeof devices, "%d", MOST);
    CHECK_OK(ek_host_devices_configure(devices));
    CHECK_OK(ek_device_set_threads(ek_cpu(), 1)); /* sums depend on how many threads make them */
    for (int d = 0; d < MOST; d++)
        CHECK_OK(ek_device_set_threads(ek_host(d), 1));
    return MOST;
}

TEST(shapes)
{
    ek_launched launched;
    const char *leaves = getenv("LEAVES"), *wanted = getenv("STEPS");
    const int steps = wanted ? atoi(wanted) : leaves ? 10 : 5;
    CHECK_OK(ek_launcher_find(&launched));
    int most = shape_devices();
    if (leaves) {
        shape s = {.steps = steps, .devices = atoi(leaves) / launched.size};
        CHECK_OK(ek_dist_init_process_group());
        job_rank = ek_dist_get_rank(NULL);
        job_size = ek_dist_get_world_size(NULL);
        run(ek_dist_world(), &s);
        CHECK_OK(ek_shutdown());
        return;
    }
    /* With 3 leaves the average of 3 ranks is not exact, and bits may differ. */
    for (int all = 4; all <= most; all *= 2) {
        shape first = {.steps = steps, .devices = all};
        ranks_check(1, 7, run, &first);
        for (int ranks = 2; ranks <= all; ranks *= 2) {
            shape s = {.steps = steps, .devices = all / ranks, .offset = all / ranks};
            ranks_check(ranks, 7, run, &s);
            for (int task = 0; task < EXACT_TASKS; task++)
                for (int wide = 0; wide < 2; wide++)
                    CHECK(s.bits[task][wide] == first.bits[task][wide],
                          "%s: %d ranks of %d devices have other bits than %d devices",
                          exact_name((exact_task)task), ranks, s.devices, all);
        }
    }
}
