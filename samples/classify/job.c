#include "classify/job.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "classify/network.h"

/* ---- opening and closing ---- */

static bool is_balanced(train_mode mode)
{
    return mode != MODE_SINGLE && mode != MODE_CLASSIC;
}

/* The ways to train differ in these lines only. Without a plan balanced-auto measures. */
static void make_model(train_job *job, const char *plan)
{
    const run_settings *settings = &job->settings;
    ek_data_parallel_options options = {.module = job->network, .device_ids = job->devices};

    job->criterion = ek_cross_entropy_loss(.label_smoothing = settings->smoothing);
    if (!is_balanced(settings->mode)) {
        job->model = ek_data_parallel_with(options);
        return;
    }
    if (settings->mode == MODE_AUTO) {
        options.plan = plan;
        options.split = plan ? EK_SPLIT_CHUNK : EK_SPLIT_AUTO;
        options.goal = plan ? EK_GOAL_MEMORY : settings->goal;
    }
    if (settings->mode == MODE_SHARDED)
        options.shard = EK_SHARD_OPTIMIZER;
    job->model = ek_data_parallel_model_with(options);
    job->criterion = ek_data_parallel_criterion(job->criterion, .device_ids = job->devices);
}

static ek_optimizer *make_optimizer(const run_settings *settings, ek_module *model)
{
    double lr = settings->lr, decay = settings->weight_decay;

    if (settings->optimizer == SGD)
        return ek_sgd(model, .lr = lr, .weight_decay = decay, .momentum = settings->momentum);
    return settings->optimizer == ADAM ? ek_adam(model, .lr = lr, .weight_decay = decay)
                                       : ek_adamw(model, .lr = lr, .weight_decay = decay);
}

/* Stepped after each step, not after each epoch. */
static ek_schedule *make_schedule(const run_settings *settings, ek_optimizer *optimizer,
                                  int64_t epoch_steps)
{
    return settings->schedule == SCHEDULE_COSINE
               ? ek_cosine_schedule(optimizer, settings->epochs * epoch_steps, 0)
               : ek_step_schedule(optimizer, settings->step_epochs * epoch_steps, settings->gamma);
}

static int make(train_job *job, const char *plan, int64_t epoch_steps)
{
    const run_settings *settings = &job->settings;
    const picture_kind *kind = data_kind(settings->set);

    ek_manual_seed((uint64_t)settings->seed);
    job->network =
        resnet(.channels = kind->channels, .classes = kind->classes, .width = (int)settings->width,
               .blocks = (int)settings->blocks, .apart = settings->norm == NORM_BATCH);
    make_model(job, plan);
    job->optimizer = make_optimizer(settings, job->model);
    if (settings->schedule != SCHEDULE_NONE)
        job->schedule = make_schedule(settings, job->optimizer, epoch_steps);
    return ek_error_status();
}

void job_close(train_job *job)
{
    ek_schedule_free(job->schedule);
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
    *job = (train_job){0};
}

/* ---- plans ---- */

/* A step on a batch of darkness: memory and time depend on sizes alone. Whole, since nothing is
 * measured of batches that are cut already. */
static int try_batch(int64_t batch, void *user)
{
    train_job *job = user;
    const picture_kind *kind = data_kind(job->settings.set);
    ek_tensor *pictures = ek_zeros(EK_SHAPE(batch, kind->channels, kind->side, kind->side));
    ek_tensor *labels = ek_zeros(EK_SHAPE(batch), EK_I64);

    return ek_train_step(NULL, .model = job->model, .criterion = job->criterion,
                         .optimizer = job->optimizer, .input = EK_VALUE(pictures),
                         .target = EK_VALUE(labels));
}

/* "40,30,30" */
static void write_plan(train_job *job, const int64_t *sizes)
{
    size_t length = 0;

    for (int d = 0; d < job->devices.count && length < sizeof(job->plan); d++)
        length += (size_t)snprintf(job->plan + length, sizeof(job->plan) - length, "%s%" PRId64,
                                   d ? "," : "", sizes[d]);
}

/* Measures on a job of its own, before the run: from its first step to its last all batches are cut
 * alike, so that a run that is stopped anywhere and gone on with is the same to the bit. */
static int measure_plan(train_job *job, int64_t epoch_steps)
{
    int64_t sizes[EK_MAX_DEVICES], batch = job->settings.batch;
    train_job trial = {.settings = job->settings, .devices = job->devices};
    int64_t rc = make(&trial, NULL, epoch_steps);

    if (rc == 0)
        rc = ek_find_batch(.function = try_batch, .user = &trial, .device_ids = trial.devices,
                           .model = trial.model, .optimizer = trial.optimizer, .first = batch,
                           .most = batch);
    if (rc == 0)
        rc = ek_error(EK_E_OUT_OF_MEMORY,
                      "a batch of %lld does not fit on these devices, however it is cut",
                      (long long)batch);
    if (rc > 0)
        rc = ek_data_parallel_sizes(trial.model, batch, sizes);
    if (rc == 0)
        write_plan(job, sizes);
    job_close(&trial);
    for (int d = 0; d < job->devices.count; d++)
        ek_memory_reset_peak(job->devices.devices[d]);
    return (int)rc;
}

int job_open(train_job *job, const run_settings *settings, const ek_device_list *devices,
             const char *plan, int64_t epoch_steps)
{
    int rc = 0;

    *job = (train_job){.settings = *settings, .devices = *devices};
    if (settings->mode == MODE_AUTO && plan)
        snprintf(job->plan, sizeof(job->plan), "%s", plan);
    else if (settings->mode == MODE_AUTO)
        rc = measure_plan(job, epoch_steps);
    return rc == 0 ? make(job, job->plan[0] ? job->plan : NULL, epoch_steps) : rc;
}

static int sizes_of(int64_t batch, int64_t *sizes, void *user)
{
    return ek_data_parallel_sizes(((train_job *)user)->model, batch, sizes);
}

data_parts job_parts(train_job *job)
{
    return (data_parts){job->devices, job->devices.count > 1 ? sizes_of : NULL, job};
}

/* ---- a step ---- */

/* The balanced criterion takes labels where they are; elsewhere they meet the outputs on device 0.
 */
static ek_value labels_of(const train_job *job, ek_value labels)
{
    return is_balanced(job->settings.mode) || !labels.per_device
               ? labels
               : ek_value_to_device(labels, job->devices.devices[0], 0);
}

int job_step(train_job *job, const ek_batch *batch, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_value output = ek_forward(job->model, batch->input);
    ek_tensor *l = ek_loss(job->criterion, output, labels_of(job, batch->target));

    ek_zero_grad(job->optimizer);
    int rc = ek_backward(l);
    if (rc == 0)
        rc = ek_item(l, loss);
    if (rc == 0 && !isfinite(*loss))
        rc = ek_error(EK_E_INVALID, "the loss is %g; a smaller --lr may help", *loss);
    if (rc == 0)
        rc = ek_step(job->optimizer);
    if (rc == 0 && job->schedule)
        rc = ek_schedule_step(job->schedule);
    ek_scope_end(&scope);
    return rc;
}
