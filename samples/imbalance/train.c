#include "imbalance/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static int train_steps(train_job *job, const run_settings *settings, const scene_set *scenes,
                       mode_result *result)
{
    int steps = settings_steps(settings), rc;
    double *seconds = malloc((size_t)steps * sizeof(*seconds));
    sample_order order;
    progress_bar bar = progress_begin(result->name, steps, (int)settings->batch);

    rc = order_open(&order, scenes->count, settings->seed);
    result->losses = malloc((size_t)steps * sizeof(*result->losses));
    if (rc == 0 && (!seconds || !result->losses))
        rc = ek_error(EK_E_NO_MEMORY, "no memory for %d steps", steps);
    for (int i = 0; rc == 0 && i < steps; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *images, *labels;
        int64_t taken;
        char note[32];
        const int64_t *which = order_take(&order, settings->batch, &taken);
        rc = which ? scenes_batch(scenes, which, taken, &images, &labels) : ek_error_status();
        double begin = seconds_now();
        if (rc == 0)
            rc = job_step(job, images, labels, &result->losses[i]);
        seconds[i] = seconds_now() - begin;
        ek_scope_end(&scope);
        if (rc == 0) {
            result->loss_count = i + 1;
            snprintf(note, sizeof(note), "loss %.4f", result->losses[i]);
            progress_show(&bar, i + 1, note);
        }
    }
    progress_end(&bar);
    if (rc == 0) {
        result->step_seconds = median(seconds, steps);
        result->samples_per_second = (double)settings->batch / result->step_seconds;
    }
    order_close(&order);
    free(seconds);
    return rc;
}

static int read_memory(const train_job *job, mode_result *result)
{
    double sum = 0, largest = 0;

    result->device_count = job->devices.count;
    for (int i = 0; i < job->devices.count; i++) {
        device_result *device = &result->devices[i];
        ek_memory_stats stats;
        int rc = ek_memory_get(job->devices.devices[i], &stats);
        if (rc < 0)
            return rc;
        ek_device_name(job->devices.devices[i], device->name);
        device->peak = stats.peak;
        memcpy(device->categories, stats.at_peak, sizeof(device->categories));
        sum += (double)stats.peak;
        largest = fmax(largest, (double)stats.peak);
    }
    result->imbalance = sum > 0 ? largest * job->devices.count / sum : 1;
    return 0;
}

int train_run(const run_settings *settings, const scene_set *train, const scene_set *test,
              train_mode mode, mode_result *result)
{
    train_job job;

    *result = (mode_result){.name = mode_names[mode]};
    int rc = job_open(&job, settings, mode);
    if (rc == 0)
        rc = train_steps(&job, settings, train, result);
    if (rc == 0)
        rc = read_memory(&job, result);
    if (rc == 0)
        rc = evaluate(job.network, job.devices.devices[0], test, &result->pixel_accuracy,
                      &result->mean_iou);
    if (rc == 0)
        rc = ek_module_sha256(job.network, result->sha256);
    if (rc == 0)
        result->parameters = ek_module_parameter_count(job.network);
    int closed = job_close(&job);
    rc = rc < 0 ? rc : closed;
    if (rc < 0) {
        free(result->losses);
        result->losses = NULL;
    }
    return rc;
}

/* ---- the largest batch ---- */

/* Two steps (the second has the optimizer's state beside it) of `batch` scenes: 1 they fit, 0 they
 * don't, negative: another error. *peak is the fullest device's. */
static int try_batch(const run_settings *settings, const scene_set *scenes, train_mode mode,
                     int64_t batch, uint64_t *peak)
{
    train_job job;
    ek_error_record error;
    ek_scope scope = ek_scope_begin();
    ek_tensor *images = NULL, *labels = NULL;
    double loss;
    int64_t *order = malloc((size_t)batch * sizeof(*order));

    for (int64_t i = 0; order && i < batch; i++)
        order[i] = i;
    int rc = order ? job_open(&job, settings, mode)
                   : ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)batch);
    if (rc == 0)
        rc = scenes_batch(scenes, order, batch, &images, &labels);
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = job_step(&job, images, labels, &loss);
    *peak = 0;
    for (int i = 0; rc == 0 && i < job.devices.count; i++) {
        ek_memory_stats stats;
        rc = ek_memory_get(job.devices.devices[i], &stats);
        *peak = stats.peak > *peak ? stats.peak : *peak;
    }
    ek_error_take(&error);
    ek_scope_end(&scope);
    if (order && job_close(&job) < 0 && error.status == 0)
        ek_error_take(&error);
    free(order);
    if (error.status == EK_E_OUT_OF_MEMORY) {
        ek_error_clear();
        return 0;
    }
    return error.status < 0 ? ek_error_raise(&error) : 1;
}

/* Memory is nearly linear in the batch: from what fitted last, a guess for what just fits. */
static int64_t guess(const run_settings *settings, int64_t batch, uint64_t peak, int64_t smaller,
                     uint64_t smaller_peak, int64_t failing)
{
    enum { GROWTH = 4 };
    int64_t next = GROWTH * batch;

    if (smaller > 0 && peak > smaller_peak) {
        double per_scene = (double)(peak - smaller_peak) / (double)(batch - smaller);
        double room = (double)settings->capacity - (double)peak;
        double more = room > 0 ? room / per_scene : 0;
        next = more < (double)((GROWTH - 1) * batch) ? batch + (int64_t)more : next;
    }
    next = next > batch ? next : batch + 1;
    if (failing > 0 && next >= failing)
        next = batch + (failing - batch) / 2;
    return next;
}

int64_t train_largest_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                            int64_t failing)
{
    enum { MOST = 1 << 16 };
    int64_t fits = 0, smaller = 0, next = 1;
    uint64_t peak = 0, smaller_peak = 0;

    while (failing == 0 || fits + 1 < failing) {
        uint64_t this_peak;
        int rc = try_batch(settings, train, mode, next, &this_peak);
        if (rc < 0)
            return rc;
        if (rc == 0) {
            failing = next;
        } else {
            smaller = fits;
            smaller_peak = peak;
            fits = next;
            peak = this_peak;
        }
        if (fits >= MOST)
            break;
        next = guess(settings, fits, peak, smaller, smaller_peak, failing);
    }
    return fits;
}
