#include "imbalance/train.h"

#include <stdlib.h>

#include "common/order.h"
#include "common/progress.h"
#include "imbalance/evaluate.h"
#include "imbalance/job.h"

/* ---- one mode ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(values[0]), ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Scenes 0 .. batch-1; their indices wrap around at the number of scenes. */
static int first_scenes(const scene_set *scenes, int64_t batch, ek_tensor **images,
                        ek_tensor **labels)
{
    int64_t *order = malloc((size_t)batch * sizeof(*order));

    if (!order)
        return ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)batch);
    for (int64_t i = 0; i < batch; i++)
        order[i] = i;
    int rc = scenes_batch(scenes, order, batch, images, labels);
    free(order);
    return rc;
}

/* The next scenes of the order, fewer at its end; a largest batch is whole, as it was found. */
static int next_scenes(const run_settings *settings, const scene_set *scenes, sample_order *order,
                       int64_t batch, ek_tensor **images, ek_tensor **labels)
{
    int64_t taken;

    if (settings->find_batch)
        return first_scenes(scenes, batch, images, labels);
    const int64_t *which = order_take(order, batch, &taken);
    return which ? scenes_batch(scenes, which, taken, images, labels) : ek_error_status();
}

/* Measured plans settle in the first steps: of longer runs the report begins behind them. */
static int64_t first_reported(int64_t steps)
{
    enum { SETTLING = 6 };

    return steps >= 3 * SETTLING ? SETTLING : 0;
}

/* Not after the last step: what is left is short, and its results are worth it. */
static int check_stopped(const run_settings *settings, const char *name, int64_t step,
                         int64_t steps)
{
    if (!*settings->stopped || step == steps)
        return 0;
    return ek_error(EK_E_USER, "%s was at step %lld of %lld; nothing of it is kept", name,
                    (long long)step, (long long)steps);
}

static int train_steps(train_job *job, const run_settings *settings, const scene_set *scenes,
                       int64_t steps, mode_result *result)
{
    double *seconds = malloc((size_t)steps * sizeof(*seconds));
    sample_order order;
    progress_bar bar = progress_begin(result->name, (int)steps, (int)result->batch);

    int rc = order_open(&order, scenes->count, settings->seed);
    result->losses = malloc((size_t)steps * sizeof(*result->losses));
    if (rc == 0 && (!seconds || !result->losses))
        rc = ek_error(EK_E_NO_MEMORY, "no memory for %d steps", (int)steps);
    for (int i = 0; rc == 0 && i < steps; i++) {
        if (i == first_reported(steps)) {
            result->report = ek_report_start(.name = result->name, .device_ids = job->devices);
            rc = result->report ? 0 : ek_error_status();
        }
        ek_scope scope = ek_scope_begin();
        ek_tensor *images, *labels;
        char note[32];
        if (rc == 0)
            rc = next_scenes(settings, scenes, &order, result->batch, &images, &labels);
        double begin = seconds_now();
        if (rc == 0)
            rc = job_step(job, images, labels, &result->losses[i]);
        seconds[i] = seconds_now() - begin;
        ek_scope_end(&scope);
        if (rc == 0 && result->report)
            rc = ek_report_step(result->report);
        if (rc == 0) {
            result->loss_count = i + 1;
            snprintf(note, sizeof(note), "loss %.4f", result->losses[i]);
            progress_show(&bar, i + 1, note);
            rc = check_stopped(settings, result->name, i + 1, steps);
        }
    }
    progress_end(&bar);
    if (rc == 0) {
        result->step_seconds = median(seconds, (int)steps);
        result->samples_per_second = (double)result->batch / result->step_seconds;
    }
    order_close(&order);
    free(seconds);
    return rc;
}

/* `steps` steps and their report, and the plan that they ended with. */
static int train_reported(train_job *job, const run_settings *settings, const scene_set *scenes,
                          int64_t steps, mode_result *result)
{
    int rc = train_steps(job, settings, scenes, steps, result);
    int stopped = result->report ? ek_report_stop(result->report) : 0;
    rc = rc < 0 ? rc : stopped;
    if (rc == 0)
        rc = ek_data_parallel_sizes(job->model, result->batch, result->share);
    if (rc == 0 && job->mode == MODE_AUTO &&
        ek_data_parallel_plan(job->model, result->plan, sizeof(result->plan)) < 0)
        rc = ek_error_status();
    result->parameters = ek_module_parameter_count(job->network);
    return rc;
}

void mode_result_free(mode_result *result)
{
    ek_report_free(result->report);
    free(result->losses);
    *result = (mode_result){0};
}

int train_run(const run_settings *settings, const scene_set *train, const scene_set *test,
              train_mode mode, mode_result *result)
{
    train_job job;

    *result = (mode_result){.name = mode_names[mode], .batch = settings->batch, .largest = -1};
    int rc = job_open(&job, settings, mode);
    if (rc == 0)
        rc = train_reported(&job, settings, train, settings_steps(settings), result);
    if (rc == 0)
        rc = evaluate(job.network, job.devices.devices[0], test, &result->pixel_accuracy,
                      &result->mean_iou);
    if (rc == 0)
        rc = ek_module_sha256(job.network, result->sha256);
    int closed = job_close(&job);
    rc = rc < 0 ? rc : closed;
    if (rc < 0)
        mode_result_free(result);
    return rc;
}

/* ---- the largest batch ---- */

typedef struct trial {
    train_job *job;
    const scene_set *scenes;
    const run_settings *settings;
} trial;

static int try_batch(int64_t batch, void *user)
{
    const trial *t = user;
    ek_scope scope = ek_scope_begin();
    ek_tensor *images = NULL, *labels = NULL;
    double loss;

    int rc = *t->settings->stopped
                 ? ek_error(EK_E_USER, "%s was at trying a batch of %lld; nothing of it is kept",
                            mode_names[t->job->mode], (long long)batch)
                 : first_scenes(t->scenes, batch, &images, &labels);
    if (rc == 0)
        rc = job_step(t->job, images, labels, &loss);
    ek_scope_end(&scope);
    return rc;
}

/* No search goes beyond this many samples. */
enum { LARGEST_TRIED = 65536 };

static int64_t find_batch(train_job *job, const run_settings *settings, const scene_set *train,
                          int64_t most)
{
    trial t = {job, train, settings};

    return ek_find_batch(.function = try_batch, .user = &t, .device_ids = job->devices,
                         .model = job->model, .optimizer = job->optimizer, .most = most);
}

/* An error that is about memory means that nothing fits: not even the model. */
static int64_t none_fits(int64_t fits)
{
    if (fits >= 0 || ek_error_status() != EK_E_OUT_OF_MEMORY)
        return fits;
    ek_error_clear();
    return 0;
}

int64_t train_largest_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                            int64_t failing)
{
    train_job job;
    int64_t fits = job_open(&job, settings, mode);

    if (fits == 0 && failing > 1)
        fits = find_batch(&job, settings, train, failing - 1);
    fits = none_fits(fits);
    int closed = job_close(&job);
    return fits < 0 ? fits : closed < 0 ? closed : fits;
}

int train_find_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                     mode_result *result)
{
    enum { STEPS = 4 };
    train_job job;

    *result = (mode_result){.name = mode_names[mode]};
    result->largest = job_open(&job, settings, mode);
    if (result->largest == 0)
        result->largest = find_batch(&job, settings, train, LARGEST_TRIED);
    result->largest = none_fits(result->largest);
    int rc = result->largest < 0 ? (int)result->largest : 0;
    if (result->largest > 0) {
        result->batch = result->largest;
        rc = train_reported(&job, settings, train, STEPS, result);
        ek_report_set_largest_batch(result->report, result->largest);
    }
    int closed = job_close(&job);
    rc = rc < 0 ? rc : closed;
    if (rc < 0)
        mode_result_free(result);
    return rc;
}

int train_state_nbytes(const run_settings *settings, const scene_set *train, uint64_t *nbytes)
{
    run_settings unlimited = *settings;
    train_job job;
    ek_memory_stats stats;

    unlimited.capacity = 0;
    int rc = job_open(&job, &unlimited, MODE_SINGLE);
    if (rc == 0)
        rc = try_batch(1, &(trial){&job, train, settings});
    if (rc == 0)
        rc = ek_memory_get(job.devices.devices[0], &stats);
    *nbytes = rc == 0 ? stats.in_use : 0;
    int closed = job_close(&job);
    return rc < 0 ? rc : closed;
}
