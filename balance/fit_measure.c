/* fit_measure.c: trials of trainings. */
#include <stdlib.h>
#include <string.h>

#include "balance/balance.h"
#include "balance/fit.h"
#include "comm/tree.h"
#include "core/clock.h"
#include "core/thread.h"
#include "core/value.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "evenkeel/precision.h"

/* ---- the first samples of the batch ---- */

typedef struct measure_cut {
    int dim;
    int64_t samples;
} measure_cut;

static bool measure_cut_tensor(ek_value *value, void *user)
{
    const measure_cut *cut = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    const int dim = ek_value_batch_dim(*value, cut->dim);
    ek_tensor *first = ek_narrow(value->as.tensor, dim, 0, cut->samples);
    *value = ek_value_batched(ek_value_with_tensor(*value, first), dim);
    return true;
}

ek_value ek_fit_first(const ek_fit_search *search, ek_value value, int64_t samples)
{
    if (samples == search->batch)
        return value;
    return ek_value_map(value, measure_cut_tensor, &(measure_cut){search->options->dim, samples});
}

/* ---- a training ---- */

enum { STEPS = 3, MOST_STEPS = 12 };
static const double ENOUGH_SECONDS = 0.15; /* measured for so long, a training has its last step */

typedef struct measure_job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_value input, target;
} measure_job;

static int measure_open(const ek_fit_search *search, const ek_fit_training *training,
                        measure_job *job)
{
    const ek_fit_options *options = search->options;
    ek_fit_result result;
    int64_t samples = 0;
    for (int d = 0; d < search->devices.count; d++)
        samples += training->sizes[d];
    samples *= training->parts;
    samples = samples < search->batch ? samples : search->batch;
    job->input = ek_fit_first(search, options->input, samples);
    job->target = ek_fit_first(search, options->target, samples);
    if (job->input.kind == EK_VALUE_ERROR || job->target.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    ek_fit_apply(search, training, &result);
    ek_module *module = ek_module_copy(options->module);
    job->model = module ? ek_fit_model(&result, module) : NULL;
    ek_module *criterion = job->model ? ek_module_copy(options->criterion) : NULL;
    job->criterion = criterion ? ek_fit_criterion(&result, criterion) : NULL;
    if (!job->criterion)
        return ek_error_pending();
    job->optimizer = options->optimizer(job->model, options->user);
    return ek_error_outcome(job->optimizer ? 0 : EK_E_STATE);
}

static int measure_synchronize(const ek_fit_search *search)
{
    int rc = 0;
    for (int d = 0; d < search->devices.count; d++) {
        int done = ek_dev_synchronize(search->devs[d]);
        rc = rc < 0 ? rc : done;
    }
    return rc;
}

static int measure_step(const ek_fit_search *search, const measure_job *job, int parts)
{
    double loss;
    ek_scope scope = ek_scope_begin();
    int rc = ek_train_step(&loss, .model = job->model, .criterion = job->criterion,
                           .optimizer = job->optimizer, .input = job->input, .target = job->target,
                           .dim = search->options->dim, .micro_batches = parts,
                           .max_norm = search->options->max_norm);
    ek_scope_end(&scope);
    int done = measure_synchronize(search);
    return rc < 0 ? rc : done;
}

static void measure_least(double *least, double seconds, bool first)
{
    if (first || seconds < *least)
        *least = seconds;
}

static double measure_seconds(uint64_t begin, uint64_t end)
{
    return (double)(end - begin) * 1e-9;
}

/* Takes a step and times it. */
static int measure_timed_step(const ek_fit_search *search, const measure_job *job,
                              ek_fit_trial *trial, bool first, double *sum)
{
    uint64_t busy[EK_MAX_DEVICES], begin;
    for (int d = 0; d < search->devices.count; d++)
        busy[d] = ek_dev_busy_ns(search->devs[d]);
    begin = ek_clock_ns();
    EK_TRY(measure_step(search, job, trial->training.parts));
    double seconds = measure_seconds(begin, ek_clock_ns());
    measure_least(&trial->need.seconds, seconds, first);
    for (int d = 0; d < search->devices.count; d++)
        measure_least(&trial->busy_seconds[d],
                      measure_seconds(busy[d], ek_dev_busy_ns(search->devs[d])), first);
    *sum += seconds;
    return 0;
}

/* Takes steps. The first step is not timed, but its memory counts. Of the others the least times
 * count, which other work of the machine has disturbed least. */
static int measure_steps(ek_fit_search *search, const measure_job *job, ek_fit_trial *trial)
{
    const int most = search->ranks ? STEPS : MOST_STEPS; /* all ranks take as many steps */
    double sum = 0;
    for (int d = 0; d < search->devices.count; d++)
        EK_TRY(ek_memory_reset_peak(search->devices.devices[d]));
    EK_TRY(measure_step(search, job, trial->training.parts));
    for (int i = 0; i < STEPS || (i < most && sum < ENOUGH_SECONDS); i++)
        EK_TRY(measure_timed_step(search, job, trial, i == 0, &sum));
    for (int d = 0; d < search->devices.count; d++) {
        ek_memory_stats stats;
        EK_TRY(ek_memory_get_stats(search->devices.devices[d], &stats));
        trial->need.peaks[d] = stats.peak;
        memcpy(trial->now[d], stats.at_peak, sizeof trial->now[d]);
    }
    for (int i = 0; i < STEPS; i++) { /* the gradients of the last step are still there */
        uint64_t begin = ek_clock_ns();
        EK_TRY(ek_step(job->optimizer));
        EK_TRY(measure_synchronize(search));
        measure_least(&trial->update_seconds, measure_seconds(begin, ek_clock_ns()), i == 0);
    }
    return 0;
}

/* Returns how often the device has found no memory so far. */
static uint64_t measure_failures(const ek_fit_search *search, int d)
{
    ek_memory_stats stats;
    ek_ledger_read(search->devs[d], &stats);
    return stats.failures;
}

static int measure_run(ek_fit_search *search, ek_fit_trial *trial)
{
    measure_job job = {0};
    ek_thread *self = ek_thread_self();
    const ek_thread_modes modes = self->modes;
    ek_scope scope = ek_scope_begin();
    ek_set_grad_enabled(true);
    ek_autocast autocast =
        ek_autocast_begin(trial->training.levels[EK_FIT_AUTOCAST] ? EK_BF16 : EK_F32);
    int rc = measure_open(search, &trial->training, &job);
    if (rc >= 0)
        rc = measure_steps(search, &job, trial);
    ek_autocast_end(&autocast);
    ek_optimizer_free(job.optimizer);
    ek_module_free(job.model);
    ek_module_free(job.criterion);
    ek_scope_end(&scope);
    self->modes = modes;
    return rc;
}

/* Replaces what the ranks have measured by the largest of it. */
static int measure_combine(const ek_fit_search *search, ek_fit_trial *trial)
{
    EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->need.seconds, true));
    EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->update_seconds, true));
    for (int d = 0; d < search->devices.count; d++) {
        double peak = (double)trial->need.peaks[d], short_of = trial->short_of[d];
        EK_TRY(ek_ranks_combine(search->ranks, 0, &peak, true));
        EK_TRY(ek_ranks_combine(search->ranks, 0, &short_of, true));
        EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->busy_seconds[d], true));
        trial->need.peaks[d] = (uint64_t)peak;
        trial->short_of[d] = short_of > 0;
    }
    return 0;
}

int ek_fit_try(ek_fit_search *search, const ek_fit_training *training)
{
    uint64_t failures[EK_MAX_DEVICES];
    ek_fit_trial trial = {.training = *training};
    for (int d = 0; d < search->devices.count; d++) {
        ek_dev_trim(search->devs[d]);
        failures[d] = measure_failures(search, d);
    }
    bool short_of_any = false;
    int rc = measure_run(search, &trial);
    if (search->ranks)
        rc = ek_agree_on_memory("fit", search->ranks, rc);
    for (int d = 0; d < search->devices.count; d++) {
        trial.short_of[d] = rc == EK_E_OUT_OF_MEMORY && measure_failures(search, d) > failures[d];
        ek_dev_trim(search->devs[d]);
    }
    if (rc == EK_E_OUT_OF_MEMORY) {
        ek_error_record error;
        ek_error_take(&error);
        if (search->ranks)
            EK_TRY(measure_combine(search, &trial));
        for (int d = 0; d < search->devices.count; d++)
            short_of_any = short_of_any || trial.short_of[d];
        if (!short_of_any)
            return ek_error_raise(&error);
    } else {
        EK_TRY(rc);
        if (search->ranks)
            EK_TRY(measure_combine(search, &trial));
    }
    trial.ran = rc >= 0;
    EK_TRY(ek_fit_add_trial(&search->estimator, &trial));
    return trial.ran;
}
