/* test_exact.c: ranks of two devices each make the loss, gradients and running statistics of one
 * device in one process. Every rank trains all samples alone first. */
#include <stdio.h>

#include "job.h"
#include "kit/exact.h"

enum { TOTAL = 9, RANKS = 4 };

static const int64_t cuts[][RANKS] = {{5, 4},    {2, 7},    {9, 0},       {1, 8},      {3, 3, 3},
                                      {4, 0, 5}, {2, 1, 6}, {2, 3, 2, 2}, {0, 1, 8, 0}};

static int ranks_of(const int64_t *counts)
{
    int ranks = 0;
    for (int r = 0; r < RANKS; r++)
        ranks = counts[r] > 0 || r < 2 ? r + 1 : ranks;
    return counts == cuts[8] ? RANKS : ranks;
}

typedef enum way { ONE_DEVICE, CLASSIC, BALANCED, WAYS } way;

static exact_job wrapped(exact_task task, way how)
{
    exact_job job = exact_make(task);
    ek_device_list devices = ek_devices(EK_HOST, 2);
    CHECK(job.model, "%s", ek_error_message());
    if (how == BALANCED)
        job.model = ek_data_parallel_model(job.model, .device_ids = devices);
    job.model = how == CLASSIC ? ek_distributed_data_parallel(job.model, .device_ids = devices)
                               : ek_distributed_data_parallel(job.model);
    CHECK(job.model, "%s", ek_error_message());
    for (int i = 0; i < 2 && job.criteria[i]; i++) {
        if (how == BALANCED)
            job.criteria[i] = ek_data_parallel_criterion(job.criteria[i], .device_ids = devices);
        job.criteria[i] = ek_distributed_criterion(job.criteria[i]);
        CHECK(job.criteria[i], "%s", ek_error_message());
    }
    return job;
}

static ek_tensor *outcome_of(exact_job *job, int64_t first, int64_t count)
{
    ek_tensor *loss = exact_loss(job, first, count);
    CHECK(loss, "%s", ek_error_message());
    CHECK_OK(ek_backward(loss));
    ek_tensor *outcome = exact_outcome(job, loss);
    CHECK(outcome, "%s", ek_error_message());
    exact_free(job);
    return outcome;
}

static void check_cut(exact_task task, way how, const int64_t *counts, const ek_tensor *expected)
{
    int64_t first = 0;
    for (int r = 0; r < job_rank; r++)
        first += counts[r];
    ek_scope scope = ek_scope_begin();
    exact_job job = wrapped(task, how);
    ek_tensor *outcome = outcome_of(&job, first, counts[job_rank]);
    double distance = exact_distance(outcome, expected);
    CHECK(distance <= 1e-12, "task %d, way %d, samples %d %d ..: %g apart", task, how,
          (int)counts[0], (int)counts[1], distance);
    ek_scope_end(&scope);
}

int main(void)
{
    CHECK_OK(ek_host_devices_configure("2"));
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    ek_scope scope = ek_scope_begin();
    for (int task = 0; task < EXACT_TASKS; task++) {
        exact_job alone = exact_make((exact_task)task);
        ek_tensor *expected = outcome_of(&alone, 0, TOTAL);
        for (int c = 0; c < (int)(sizeof cuts / sizeof cuts[0]); c++)
            for (int how = 0; how < WAYS && ranks_of(cuts[c]) == job_size; how++)
                check_cut((exact_task)task, (way)how, cuts[c], expected);
    }
    ek_scope_end(&scope);
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
