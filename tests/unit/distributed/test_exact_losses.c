/* Ranks, as threads, make the loss and the gradients of one process: synchronised statistics,
 * ek_distributed_criterion, and gradient penalties, for even, uneven and empty batches. */
#include "kit/exact.h"
#include "kit/ranks.h"

enum { TOTAL = 9 };

/* How many of the samples each rank has. */
static const struct cut {
    int ranks;
    int64_t counts[4];
} cuts[] = {{2, {5, 4}},    {2, {7, 2}},    {2, {2, 7}},    {2, {9, 0}},       {2, {0, 9}},
            {3, {3, 3, 3}}, {3, {1, 6, 2}}, {3, {4, 0, 5}}, {4, {2, 3, 2, 2}}, {4, {0, 1, 8, 0}}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

typedef struct setting {
    exact_task task;
    const struct cut *cut;
    ek_tensor *expected; /* what one process has; kept */
    bool gives_group;    /* to the batch normalisations, and not by the wrapper */
} setting;

static ek_tensor *outcome_of(const exact_job *job, int64_t first, int64_t count)
{
    ek_tensor *loss = exact_loss(job, first, count);
    return loss && ek_backward(loss) >= 0 ? exact_outcome(job, loss) : NULL;
}

static ek_tensor *one_process(exact_task task)
{
    exact_job job = exact_make(task, EK_F64);
    assert_made(job.model);
    ek_tensor *outcome = outcome_of(&job, 0, TOTAL);
    assert_made(outcome);
    exact_free(&job);
    return outcome;
}

/* In the wrappers of ranks, with the group given to the batch normalisations and not by the
 * wrapper. */
static int wrap_with_groups(exact_job *job, ek_process_group *world)
{
    ek_module *net = ek_convert_sync_batch_norm_over(job->model, world);
    job->model =
        ek_distributed_data_parallel(net, .process_group = world, .sync_statistics = false);
    for (int i = 0; i < 2; i++)
        if (job->criteria[i])
            job->criteria[i] = ek_distributed_criterion(job->criteria[i], .process_group = world);
    return job->model && job->criteria[0] ? 0 : ek_error_status();
}

static const char *one_rank(ek_process_group *world, void *user)
{
    const setting *s = user;
    exact_job job = exact_make(s->task, EK_F64);
    LOOP_CHECK(job.model);
    RANKS_OK(s->gives_group ? wrap_with_groups(&job, world)
                            : exact_wrap(&job, EXACT_ONE_DEVICE, world));
    int64_t first = 0;
    for (int r = 0; r < world->rank; r++)
        first += s->cut->counts[r];
    ek_tensor *outcome = outcome_of(&job, first, s->cut->counts[world->rank]);
    if (!outcome)
        return loop_failure(__FILE__, __LINE__, "rank %d: %s", world->rank, ek_error_message());
    double distance = exact_distance(outcome, s->expected);
    if (!(distance <= 1e-12))
        return loop_failure(__FILE__, __LINE__, "task %d, rank %d: %g apart", s->task, world->rank,
                            distance);
    exact_free(&job);
    return NULL;
}

TEST_LOOP(ranks_make_the_gradients_of_one_process, 0, EXACT_TASKS *CUTS)
{
    setting s = {.task = (exact_task)(_i / CUTS), .cut = &cuts[_i % CUTS]};
    s.expected = one_process(s.task);
    s.gives_group = _i % 2;
    ranks_check(s.cut->ranks, (uint64_t)_i, one_rank, &s);
}
