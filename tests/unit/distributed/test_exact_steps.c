/* ek_train_step on ranks, in micro-batches, against the same step of one process. */
#include "kit/exact.h"
#include "kit/ranks.h"

enum { TOTAL = 7, IN = 6, OUT = 3, STEPS = 3 };

static ek_tensor *rows(int64_t count, int64_t columns, int64_t first)
{
    ek_tensor *x = ek_empty(EK_SHAPE(count, columns), .dtype = EK_F64, .device = ek_cpu());
    double *values = ek_tensor_data(x);
    for (int64_t i = 0; i < count * columns; i++)
        values[i] = sin((double)(first * columns + i) * 1.9);
    ek_tensor_touch(x);
    return x;
}

static ek_tensor *classes(int64_t count, int64_t first)
{
    ek_tensor *x = ek_empty(EK_SHAPE(count), .dtype = EK_I64, .device = ek_cpu());
    int64_t *values = ek_tensor_data(x);
    for (int64_t i = 0; i < count; i++)
        values[i] = first + i < 2 ? 255 : (first + i) % OUT; /* two samples don't count */
    ek_tensor_touch(x);
    return x;
}

/* The target of cross entropy, or those of triplet_margin_loss. */
static ek_value targets(bool several, int64_t count, int64_t first)
{
    return several ? EK_LIST(rows(count, OUT, first), rows(count, OUT, first + 9))
                   : EK_VALUE(classes(count, first));
}

/* The job after STEPS steps, with the last loss. */
static ek_tensor *train(exact_job *job, bool several, int64_t first, int64_t count, int parts)
{
    double loss = 0;
    ek_optimizer *optimizer = ek_sgd(job->model, .lr = 0.3, .momentum = 0.9);
    int rc = 0;
    for (int i = 0; i < STEPS && rc >= 0; i++)
        rc = ek_train_step(&loss, .model = job->model, .criterion = job->criteria[0],
                           .optimizer = optimizer, .input = EK_VALUE(rows(count, IN, first)),
                           .target = targets(several, count, first), .micro_batches = parts,
                           .max_norm = 1);
    ek_optimizer_free(optimizer);
    return rc < 0 ? NULL : exact_outcome(job, ek_scalar(loss, EK_F64, ek_cpu()));
}

static exact_job make_job(bool several)
{
    return (exact_job){.model = ek_sequential(ek_linear(IN, 5), ek_tanh(), ek_linear(5, OUT)),
                       .criteria = {several ? ek_triplet_margin_loss(.margin = 3)
                                            : ek_cross_entropy_loss(.ignore_index = 255)}};
}

typedef struct setting {
    int64_t counts[3];
    int ranks, parts;
    bool several; /* two targets */
    ek_tensor *expected;
} setting;

static const char *trains(ek_process_group *world, void *user)
{
    const setting *s = user;
    exact_job job = make_job(s->several);
    RANKS_OK(exact_fill(job.model));
    job.model = ek_distributed_data_parallel(job.model, .process_group = world);
    job.criteria[0] = ek_distributed_criterion(job.criteria[0], .process_group = world);
    LOOP_CHECK(job.model && job.criteria[0]);
    int64_t first = 0;
    for (int r = 0; r < world->rank; r++)
        first += s->counts[r];
    ek_tensor *outcome = train(&job, s->several, first, s->counts[world->rank], s->parts);
    if (!outcome)
        return loop_failure(__FILE__, __LINE__, "%s", ek_error_message());
    double distance = exact_distance(outcome, s->expected);
    if (!(distance <= 1e-12))
        return loop_failure(__FILE__, __LINE__, "rank %d: %g apart", world->rank, distance);
    ek_distributed_stats stats;
    RANKS_OK(ek_distributed_get_stats(job.model, &stats));
    LOOP_CHECK_EQ(stats.backwards, STEPS); /* once per step, whatever the parts */
    exact_free(&job);
    return NULL;
}

static const setting settings[] = {
    {{4, 3}, 2, 1, false, NULL}, {{4, 3}, 2, 3, false, NULL},    {{7, 0}, 2, 2, false, NULL},
    {{0, 7}, 2, 4, false, NULL}, {{2, 4, 1}, 3, 2, false, NULL}, {{1, 1, 5}, 3, 3, false, NULL},
    {{4, 3}, 2, 1, true, NULL},  {{7, 0}, 2, 2, true, NULL},     {{2, 4, 1}, 3, 2, true, NULL},
};

TEST_LOOP(steps_in_micro_batches, 0, (int)(sizeof settings / sizeof settings[0]))
{
    setting s = settings[_i];
    exact_job job = make_job(s.several);
    assert_ok(exact_fill(job.model));
    s.expected = train(&job, s.several, 0, TOTAL, 1);
    assert_made(s.expected);
    ranks_check(s.ranks, (uint64_t)_i, trains, &s);
    exact_free(&job);
}
