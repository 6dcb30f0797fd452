/* imbalance_modes.c: one mode after the other on fresh devices: its training, and its largest
 * batch. */
#include <stdlib.h>

#include "imbalance.h"

/* ---- one mode's model, criterion and optimizer on fresh devices ---- */

static ek_optimizer *mode_optimizer(ek_module *model, void *settings)
{
    const run_settings *s = settings;
    return s->adam ? ek_adam(model, .lr = s->lr)
                   : ek_sgd(model, .lr = s->lr, .momentum = s->momentum);
}

/* Makes the job's devices, fresh and with their capacities, and sets the seed. */
static int mode_open_devices(train_job *job, const run_settings *s, train_mode mode)
{
    bool single = mode == MODE_SINGLE, counted = devices_text_count(s->devices) > 0;
    const char *devices = single && counted ? "1" : s->devices;
    *job = (train_job){.mode = mode, .devices = devices_chosen(s->device, devices, false)};
    if (single && job->devices.count > 1)
        job->devices.count = 1;
    for (int i = 0; i < job->devices.count && s->cap; i++)
        ek_memory_set_capacity(job->devices.devices[i], s->cap);
    if (ek_error_status() < 0)
        return ek_error_status();
    ek_manual_seed((uint64_t)s->seed);
    return 0;
}

int mode_open(train_job *job, const run_settings *s, train_mode mode)
{
    int rc = mode_open_devices(job, s, mode);
    if (rc < 0)
        return rc;
    job_wrap(job, segmentation_network((int)s->width), segmentation_criterion(), s->plan, s->goal);
    job->optimizer = mode_optimizer(job->model, (void *)(uintptr_t)s);
    return ek_error_status();
}

/* Does with devices what ek_shutdown does, which would also end the world of ranks. */
static int mode_clear_devices(const ek_device_list *devices)
{
    int rc = 0;
    for (int d = 0; d < devices->count && rc == 0; d++) {
        ek_device device = devices->devices[d];
        ek_memory_stats stats;
        char name[16];
        rc = ek_memory_get_stats(device, &stats);
        if (rc == 0 && stats.in_use > 0)
            rc = ek_error(EK_E_STATE, "%s still holds %llu bytes", ek_device_name(device, name),
                          (unsigned long long)stats.in_use);
        if (rc == 0)
            rc = ek_memory_trim(device);
    }
    return rc;
}

int mode_close(train_job *job, int rc)
{
    const ek_device_list devices = job->devices;
    job_free(job);
    if (rc < 0 && world_size() > 1)
        return rc;
    int closed = world_size() == 1 ? ek_shutdown() : mode_clear_devices(&devices);
    return rc < 0 ? rc : closed;
}

/* ---- training in one mode ---- */

typedef struct mode_run {
    const run_settings *settings;
    ek_dataset *scenes; /* for training */
    train_job job;
    ek_loader *loader;
    mode_result *result; /* NULL if only the largest batch is searched */
} mode_run;

/* Returns the next scenes, fewer at the end of a pass. With --find-batch, returns a whole batch. */
static ek_value mode_next_scenes(mode_run *self)
{
    ek_batch batch;
    if (self->settings->find_batch)
        return dataset_first(self->scenes, self->result->batch);
    return loader_next(self->loader, &batch) < 0 ? ek_value_error() : batch.data;
}

/* Begins the report, which --html shows while the mode trains. */
static int mode_begin_report(mode_run *self)
{
    mode_result *result = self->result;
    const char *html = self->settings->html;
    result->report = ek_report_start(.name = result->name, .device_ids = self->job.devices);
    for (int64_t i = 0; i < result->losses.count; i++)
        ek_report_scalar(result->report, "Loss", i + 1, result->losses.values[i]);
    return html ? ek_report_live(result->report, html, NULL) : ek_error_status();
}

static void mode_step(mode_run *self)
{
    mode_result *result = self->result;
    double loss;
    ek_value scenes = mode_next_scenes(self);
    double begin = seconds_now();
    int rc = job_step(&self->job, ek_value_at(scenes, 0), ek_value_at(scenes, 1), &loss);
    double seconds = seconds_now() - begin;
    if (rc == 0)
        rc = series_add(&result->losses, loss);
    if (rc == 0 && result->report)
        rc = ek_report_scalar(result->report, "Loss", result->losses.count, loss);
    if (rc == 0 && result->report)
        rc = ek_report_step(result->report);
    if (rc == 0)
        series_add(&result->seconds, seconds);
}

static int mode_steps(mode_run *self, int64_t steps)
{
    enum {
        SETTLING = 6
    }; /* steps until measured plans settle: reports of longer runs begin then */
    mode_result *result = self->result;
    ek_generator *shuffle = ek_generator_new((uint64_t)self->settings->seed);
    const int64_t first_reported = steps >= 3 * SETTLING ? SETTLING : 0;
    self->loader =
        ek_data_loader(ek_dataset_keep(self->scenes), .batch_size = result->batch,
                       .sampler = shuffled_sampler(ek_dataset_length(self->scenes), shuffle));
    run r = {.name = result->name,
             .last = steps,
             .batch = result->batch,
             .stopped = self->settings->stopped};
    while (run_next(&r)) {
        if (r.step == first_reported + 1)
            mode_begin_report(self);
        if (ek_error_status() == 0)
            mode_step(self);
        ek_progress_step(r.progress, 1, "loss %.4f", series_last(&result->losses));
    }
    if (ek_error_status() == 0 && r.step < steps) /* stopped before its last step */
        ek_error(EK_E_USER, "%s was at step %d of %d; nothing of it is kept", result->name,
                 (int)r.step, (int)steps);
    if (ek_error_status() == 0) {
        result->step_seconds = series_median(&result->seconds);
        result->samples_per_second = (double)result->batch / result->step_seconds;
    }
    ek_loader_free(self->loader);
    ek_generator_free(shuffle);
    return ek_error_status();
}

/* Gathers the reports of all ranks' devices, and how many samples of the batch each device has. */
static int mode_shares(const mode_run *self, mode_result *result)
{
    int64_t own[EK_MAX_DEVICES], count = self->job.devices.count;
    int rc = ek_report_gather(result->report);
    if (rc == 0)
        rc = ek_data_parallel_sizes(self->job.parallel, world_share(result->batch), own);
    if (rc < 0)
        return rc;
    ek_scope scope = ek_scope_begin();
    ek_tensor *all = world_all(ek_from_data(own, EK_SHAPE(count), EK_I64));
    const size_t nbytes = all ? (size_t)ek_tensor_count(all) * sizeof own[0] : 0;
    result->share = all ? malloc(nbytes) : NULL;
    if (result->share)
        ek_to_data(all, result->share, nbytes);
    else if (all)
        ek_error(EK_E_NO_MEMORY, "no memory for the devices' shares");
    ek_scope_end(&scope);
    return ek_error_status();
}

/* Takes `steps` steps with a report, and writes the last plan. */
static int mode_reported(mode_run *self, int64_t steps)
{
    mode_result *result = self->result;
    int rc = mode_steps(self, steps);
    int stopped = result->report ? ek_report_stop(result->report) : 0;
    rc = rc < 0 ? rc : stopped;
    if (rc == 0)
        rc = mode_shares(self, result);
    if (rc == 0 && self->job.mode == MODE_AUTO &&
        ek_data_parallel_plan(self->job.parallel, result->plan, sizeof result->plan) < 0)
        rc = ek_error_status();
    result->parameters = ek_module_numel(self->job.network);
    return rc;
}

void mode_result_free(mode_result *result)
{
    ek_report_free(result->report);
    series_free(&result->losses, 1);
    series_free(&result->seconds, 1);
    free(result->share);
    *result = (mode_result){0};
}

int mode_train(const run_settings *s, ek_dataset *train, ek_dataset *test, train_mode mode,
               mode_result *result)
{
    mode_run self = {.settings = s, .scenes = train, .result = result};
    confusion_matrix confusion = {0};
    *result = (mode_result){.name = mode_names[mode], .batch = s->batch, .largest = -1};
    int rc = mode_open(&self.job, s, mode);
    if (rc == 0)
        rc = mode_reported(&self, settings_steps(s));
    if (rc == 0)
        rc = confusion_of(self.job.network, self.job.devices.devices[0], EK_F32, test, &confusion);
    if (rc == 0)
        rc = ek_module_sha256(self.job.network, result->sha256);
    result->pixel_accuracy = confusion_accuracy(&confusion);
    result->mean_iou = confusion_mean_iou(&confusion);
    return mode_close(&self.job, rc);
}

/* ---- the largest batch of a mode ---- */

static int mode_try_batch(int64_t batch, void *user)
{
    mode_run *self = user;
    int stopped = interrupt_agree(self->settings->stopped);
    if (stopped < 0)
        return stopped;
    if (stopped > 0)
        return ek_error(EK_E_USER, "%s was at trying a batch of %lld; nothing of it is kept",
                        mode_names[self->job.mode], (long long)batch);
    ek_scope scope = ek_scope_begin();
    ek_value scenes = dataset_first(self->scenes, batch);
    int rc = job_step(&self->job, ek_value_at(scenes, 0), ek_value_at(scenes, 1), NULL);
    ek_scope_end(&scope);
    return rc;
}

/* Returns the largest batch up to `most`; 0 if not even one scene fits, or not even the model. */
static int64_t mode_search(mode_run *self, train_mode mode, int64_t most)
{
    train_job *job = &self->job;
    int64_t fits = mode_open(job, self->settings, mode);
    if (fits == 0 && most > 0)
        fits = ek_find_batch(.function = mode_try_batch, .user = self, .device_ids = job->devices,
                             .model = job->model, .optimizer = job->optimizer, .most = most);
    if (fits < 0 && ek_error_status() == EK_E_OUT_OF_MEMORY) {
        ek_error_clear();
        fits = 0;
    }
    return fits;
}

int64_t mode_largest_batch(const run_settings *s, ek_dataset *train, train_mode mode,
                           int64_t failing)
{
    mode_run self = {.settings = s, .scenes = train};
    int64_t fits = mode_search(&self, mode, failing - 1);
    int closed = mode_close(&self.job, 0);
    return fits < 0 ? fits : closed < 0 ? closed : fits;
}

int mode_find_batch(const run_settings *s, ek_dataset *train, train_mode mode, mode_result *result)
{
    enum { STEPS = 4, MOST_TRIED = 65536 };
    mode_run self = {.settings = s, .scenes = train, .result = result};
    *result = (mode_result){.name = mode_names[mode]};
    result->largest = mode_search(&self, mode, MOST_TRIED);
    int rc = result->largest < 0 ? (int)result->largest : 0;
    if (result->largest > 0) {
        result->batch = result->largest;
        rc = mode_reported(&self, STEPS);
        ek_report_set_largest_batch(result->report, result->largest);
    }
    return mode_close(&self.job, rc);
}

int mode_choose_capacity(run_settings *s, ek_dataset *train)
{
    ek_memory_stats stats;
    mode_run self = {.settings = s, .scenes = train};
    ek_device_list devices = devices_chosen(s->device, s->devices, false);
    int rc =
        devices.count > 0 ? ek_memory_get_stats(devices.devices[0], &stats) : ek_error_status();
    if (rc < 0 || s->cap || stats.capacity)
        return rc;
    rc = mode_open(&self.job, s, MODE_SINGLE);
    if (rc == 0)
        rc = mode_try_batch(1, &self);
    if (rc == 0)
        rc = ek_memory_get_stats(self.job.devices.devices[0], &stats);
    rc = mode_close(&self.job, rc);
    if (rc < 0)
        return rc;
    s->cap = 3 * stats.in_use;
    printf("Capacity: %.2f MiB per device, three times what single holds without a scene\n",
           (double)s->cap / (1 << 20));
    return 0;
}

/* ---- how a batch trains ---- */

/* Takes steps with a report, which it prints. */
static int mode_fit_steps(train_job *job, ek_value scenes)
{
    enum { STEPS = 4 };
    ek_report *report = ek_report_start(.name = "as chosen", .device_ids = job->devices);
    int rc = ek_error_status();
    for (int i = 0; i < STEPS && rc == 0; i++) {
        double loss;
        rc = job_step(job, ek_value_at(scenes, 0), ek_value_at(scenes, 1), &loss);
        rc = rc < 0 ? rc : ek_report_step(report);
    }
    if (rc == 0)
        rc = ek_report_stop(report);
    if (rc == 0)
        rc = ek_report_table(report, stdout);
    ek_report_free(report);
    return rc;
}

int mode_fit_batch(const run_settings *s, ek_dataset *train)
{
    train_job job;
    ek_scope scope = ek_scope_begin();
    int rc = mode_open_devices(&job, s, MODE_BALANCED);
    ek_value scenes = dataset_first(train, s->fit_batch);
    if (rc == 0)
        job_wrap_fitting(&job, segmentation_network((int)s->width), segmentation_criterion(),
                         EK_OPTIONS(ek_fit_options, .optimizer = mode_optimizer,
                                    .user = (void *)(uintptr_t)s, .input = ek_value_at(scenes, 0),
                                    .target = ek_value_at(scenes, 1)));
    if (ek_error_status() == 0)
        job.optimizer = mode_optimizer(job.model, (void *)(uintptr_t)s);
    rc = ek_error_status() < 0 ? ek_error_status() : mode_fit_steps(&job, scenes);
    ek_scope_end(&scope);
    return mode_close(&job, rc);
}
