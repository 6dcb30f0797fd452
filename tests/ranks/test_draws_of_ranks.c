/* test_draws_of_ranks.c: with Philox, ranks drop out what one process of all their samples does, as
 * strided samplers deal these out: with a plain module, and with one or two devices each.
 *
 *     samples/mpirun -n 2 test_draws_of_ranks */
#include <stdio.h>

#include "evenkeel/evenkeel.h"
#include "job.h"

enum { EACH = 5, WIDTH = 12, STEPS = 3, MOST = 4, WAYS = 3 };

static ek_module *make(void)
{
    ek_manual_seed(5);
    return ek_sequential(ek_dropout(0.3), ek_linear(WIDTH, WIDTH), ek_checkpoint(ek_dropout(0.5)));
}

/* The samples first, first + step, ... of `count` in all. */
static ek_tensor *samples(int first, int step, int count)
{
    float values[MOST * EACH][WIDTH];
    int n = 0;
    for (int s = first; s < count; s += step, n++)
        for (int i = 0; i < WIDTH; i++)
            values[n][i] = 1 + (float)((s * WIDTH + i) % 17);
    return ek_from_data(values, EK_SHAPE(n, WIDTH));
}

int main(void)
{
    static float whole[STEPS][MOST * EACH][WIDTH], part[EACH][WIDTH];
    CHECK_OK(ek_host_devices_configure("2"));
    CHECK_OK(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_scope scope = ek_scope_begin();
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    ek_module *model = make();
    CHECK(model, "%s", ek_error_message());
    for (int step = 0; step < STEPS; step++) { /* alone: no wrapper */
        ek_tensor *y = ek_apply(model, samples(0, 1, job_size * EACH));
        CHECK(y, "%s", ek_error_message());
        CHECK_OK(
            ek_to_data(ek_detach(y), whole[step], sizeof whole[step][0] * (size_t)job_size * EACH));
    }
    ek_module_free(model);
    for (int way = 0; way < WAYS; way++) {
        model = way == 0
                    ? ek_distributed_data_parallel(make())
                    : ek_distributed_data_parallel(make(), .device_ids = ek_devices(EK_HOST, way));
        CHECK(model, "%s", ek_error_message());
        for (int step = 0; step < STEPS; step++) {
            ek_tensor *x = samples(job_rank, job_size, job_size * EACH);
            ek_tensor *y = ek_apply(model, way == 1 ? ek_to_device(x, ek_host(0)) : x);
            CHECK(y, "%s", ek_error_message());
            CHECK_OK(ek_to_data(ek_to_device(ek_detach(y), ek_cpu()), part, sizeof part));
            for (int s = 0; s < EACH; s++)
                for (int i = 0; i < WIDTH; i++) {
                    float got = part[s][i], wanted = whole[step][s * job_size + job_rank][i];
                    CHECK(got - wanted <= 1e-4f && wanted - got <= 1e-4f &&
                              (got == 0) == (wanted == 0),
                          "way %d, step %d, sample %d, element %d: %g instead of %g", way, step, s,
                          i, got, wanted);
                }
            CHECK_OK(ek_backward(ek_sum(y)));
        }
        ek_module_free(model);
    }
    ek_scope_end(&scope);
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
