/* test_exact.c: ranks of two devices each make the loss, gradients and running statistics of one
 * device in one process. Every rank trains all samples alone first. Then they look for the largest
 * batch. */
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

/* ---- the largest batch ---- */

typedef struct search {
    int64_t most;   /* that this rank has memory for */
    int64_t broken; /* the batch that fails for another reason; 0: none */
} search;

static int run_batch(int64_t batch, void *user)
{
    const search *s = user;
    if (batch == s->broken) /* an error of this rank's own */
        return ek_dist_send(NULL, 0);
    if (batch > s->most)
        return EK_E_OUT_OF_MEMORY;
    return ek_dist_barrier();
}

static void ranks_find_one_batch(void)
{
    static const int64_t most[RANKS] = {90, 21, 700, 40};
    search s = {.most = most[job_rank]};
    ek_device_list devices = ek_devices(EK_HOST, 1);
    ek_module *model = ek_distributed_data_parallel(ek_linear(3, 2));
    CHECK(model, "%s", ek_error_message());
    int64_t batch = ek_find_batch(run_batch, &s, .device_ids = devices, .model = model);
    CHECK(batch == 21, "%d: %s", (int)batch, ek_error_message());
    s.broken = job_rank == 1 ? 16 : 0;
    batch = ek_find_batch(run_batch, &s, .device_ids = devices, .model = model);
    CHECK(batch == (job_rank == 1 ? EK_E_INVALID : EK_E_ABORTED), "%d: %s", (int)batch,
          ek_error_message());
    ek_error_clear();
    ek_module_free(model);
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
    ranks_find_one_batch();
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}
