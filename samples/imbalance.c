/* imbalance.c: trains the same network on a single device and in several data-parallel ways, and
 * compares memory, time and result. */
#include "imbalance.h"

#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

#define ALL_MODES "single,classic,balanced,balanced-auto,sharded"

static const char about[] =
    "Trains a segmentation network on scenes made of Fashion-MNIST pictures, from the same seed, "
    "and\ncompares memory, time and result of: a single device; several with outputs and loss on "
    "device\n0 (classic); with the loss on every device (balanced); with shares of the batch that "
    "follow from\nmeasurements (balanced-auto); with gradients and optimizer state sharded "
    "(sharded).\n\n";

/* "classic,balanced" into runs[]. */
static int settings_parse_modes(run_settings *s)
{
    const char *text = s->modes;
    do {
        size_t length = strcspn(text, ",");
        int mode = 0;
        while (mode < MODES &&
               (strlen(mode_names[mode]) != length || strncmp(mode_names[mode], text, length) != 0))
            mode++;
        if (mode == MODES)
            return args_complain("--modes %s: some of " ALL_MODES " are needed", s->modes);
        s->runs[mode] = true;
        text += length;
    } while (*text++ == ',');
    return 0;
}

static int settings_parse(run_settings *s, int argc, char **argv)
{
    enum { MOST = 1 << 20 };
    static const volatile sig_atomic_t never;
    static const char *const goals[] = {"memory", "time", NULL};
    *s = (run_settings){.lr = -1, .stopped = &never};
    const arg_spec args[] = {
        arg_text("devices", &s->device_text, "4", "N",
                 "how many devices, or a list: 512M@1,256M@0.5"),
        arg_device(&s->kind),
        arg_int("batch", &s->batch, "64", 1, MOST, "scenes per step"),
        arg_int("steps", &s->steps, NULL, 1, MOST, "steps per mode; 128 unless --epochs"),
        arg_int("epochs", &s->epochs, NULL, 1, MOST, "passes over the training scenes"),
        arg_text("modes", &s->modes, ALL_MODES, "LIST", "which to run"),
        arg_int("seed", &s->seed, NULL, 0, ARG_MOST_SEED, "of scenes, weights and order"),
        arg_real("lr", &s->lr, NULL, 0, 1e6, "learning rate; 0.05, with adam 0.001"),
        arg_text("optimizer", &s->optimizer, "sgd", "NAME", "sgd or adam"),
        arg_real("momentum", &s->momentum, "0.9", 0, 1, "of sgd"),
        arg_int("width", &s->width, "32", 1, 512, "channels of the first convolution"),
        arg_int("size", &s->size, "64", PICTURE, 1024, "height and width of a scene"),
        arg_int("scenes", &s->scenes, "2048", 1, MOST, "training scenes"),
        arg_int("test-scenes", &s->test_scenes, "512", 1, MOST, "test scenes"),
        arg_pictures(&s->data),
        arg_bytes("cap", &s->capacity, "memory per device: 64M, 1.5G"),
        arg_switch("find-batch", &s->find_batch,
                   "only find each mode's largest batch (by default under 3 times single's state)"),
        arg_word("goal", &s->goal, "memory", goals, "GOAL", "what balanced-auto levels"),
        arg_text("plan", &s->plan, NULL, "PLAN",
                 "what balanced-auto follows instead: 16,16,16,16; 3: 20,15,15,14"),
        arg_text("json", &s->json, NULL, "FILE", "write the results there"),
        arg_text("html", &s->html, NULL, "FILE", "write a page with charts there"),
        arg_text("trace", &s->trace, NULL, "FILE",
                 "write the last mode's last step there, for Perfetto"),
        arg_end,
    };
    int rc = args_read(argc, argv, about, args);
    if (rc != 0)
        return rc;
    s->adam = strcmp(s->optimizer, "adam") == 0;
    if (!s->adam && strcmp(s->optimizer, "sgd") != 0)
        return args_complain("--optimizer %s: sgd or adam is needed", s->optimizer);
    if (s->lr < 0)
        s->lr = s->adam ? 0.001 : 0.05;
    if (settings_parse_modes(s) < 0 || args_check_output("json", s->json) < 0 ||
        args_check_output("html", s->html) < 0 || args_check_output("trace", s->trace) < 0)
        return -1;
    s->devices = devices_check(s->kind, s->device_text, false, s->plan);
    return s->devices < 0 ? -1 : 0;
}

int settings_steps(const run_settings *s)
{
    enum { DEFAULT_STEPS = 128 };
    int64_t per_epoch = (s->scenes + s->batch - 1) / s->batch, steps = s->steps;
    if (s->epochs && (steps == 0 || s->epochs * per_epoch < steps))
        steps = s->epochs * per_epoch;
    return (int)(steps ? steps : DEFAULT_STEPS);
}

/* ---- one mode's model, criterion and optimizer on fresh devices ---- */

/* Replaces the devices by fresh ones, so that no mode sees another's memory, and makes the model on
 * them from the seed. Everything must be closed before. 0 or a negative status; close it anyway.
 *
 * A number of devices gives mode single one that computes with all cores, as one GPU of several
 * would not; of a list it takes the first. */
static int job_open(train_job *job, const run_settings *s, train_mode mode)
{
    bool single = mode == MODE_SINGLE, counted = devices_text_count(s->device_text) > 0;
    const char *devices = single && counted ? "1" : s->device_text;
    *job = (train_job){.mode = mode, .devices = devices_chosen(s->kind, devices, false)};
    if (single && job->devices.count > 1)
        job->devices.count = 1;
    for (int i = 0; i < job->devices.count && s->capacity; i++)
        ek_memory_set_capacity(job->devices.devices[i], s->capacity);
    if (ek_error_status() < 0)
        return ek_error_status();
    ek_manual_seed((uint64_t)s->seed);
    job_wrap(job, segmentation_network((int)s->width), segmentation_criterion(), s->plan, s->goal);
    if (s->adam)
        job->optimizer = ek_adam(job->model, .lr = s->lr);
    else
        job->optimizer = ek_sgd(job->model, .lr = s->lr, .momentum = s->momentum);
    return ek_error_status();
}

/* Does with devices what ek_shutdown does, which would also end the world of ranks. */
static int job_clear_devices(const ek_device_list *devices)
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

/* `rc` if that is an error; else 0, or EK_E_STATE with a sentence if a device's memory has not come
 * back to zero. */
static int job_close(train_job *job, int rc)
{
    const ek_device_list devices = job->devices;
    job_free(job);
    if (rc < 0 && world_size() > 1)
        return rc;
    int closed = world_size() == 1 ? ek_shutdown() : job_clear_devices(&devices);
    return rc < 0 ? rc : closed;
}

/* ---- training in one mode ---- */

typedef struct mode_run {
    run_state state;
    const run_settings *settings;
    ek_dataset *scenes; /* for training */
    train_job job;
    ek_loader *loader;
    int64_t first_reported;
    mode_result *result; /* NULL if only the largest batch is looked for */
} mode_run;

/* The next scenes, fewer at the end of a pass; a largest batch is whole, as it was found. */
static ek_value train_next_scenes(mode_run *run)
{
    ek_batch batch;
    if (run->settings->find_batch)
        return scenes_first(run->scenes, run->result->batch);
    return loader_next(run->loader, &batch) < 0 ? ek_value_error() : batch.data;
}

static int train_step(run_state *state)
{
    mode_run *run = (mode_run *)state;
    mode_result *result = run->result;
    double loss;
    if (state->step == run->first_reported) {
        result->report = ek_report_start(.name = result->name, .device_ids = run->job.devices);
        if (!result->report)
            return ek_error_status();
    }
    ek_scope scope = ek_scope_begin();
    ek_value scenes = train_next_scenes(run);
    double begin = seconds_now();
    int rc = job_step(&run->job, ek_value_at(scenes, 0), ek_value_at(scenes, 1), &loss);
    double seconds = seconds_now() - begin;
    ek_scope_end(&scope);
    if (rc == 0 && result->report)
        rc = ek_report_step(result->report);
    if (rc == 0)
        rc = series_add(&result->losses, loss);
    if (rc == 0)
        rc = series_add(&result->seconds, seconds);
    state->step += rc == 0;
    return rc;
}

static bool train_note(const run_state *state, char note[128])
{
    const mode_run *run = (const mode_run *)state;
    snprintf(note, 128, "loss %.4f", run->result->losses.values[state->step - 1]);
    return false;
}

static const run_kind train_kind = {.take = train_step, .note = train_note};

static int train_steps(mode_run *run, int64_t steps)
{
    enum {
        SETTLING = 6
    }; /* steps until measured plans settle: reports of longer runs begin then */
    mode_result *result = run->result;
    ek_generator *shuffle = ek_generator_new((uint64_t)run->settings->seed);
    run->state = (run_state){.name = result->name, .last = steps, .batch = result->batch};
    run->first_reported = steps >= 3 * SETTLING ? SETTLING : 0;
    run->loader =
        ek_data_loader(ek_dataset_keep(run->scenes), .batch_size = result->batch,
                       .sampler = shuffled_sampler(ek_dataset_length(run->scenes), shuffle));
    int rc = ek_error_status();
    if (rc == 0)
        rc = run_steps(&train_kind, &run->state, run->settings->stopped);
    if (rc == 0 && run->state.step < steps) /* stopped before its last step */
        rc = ek_error(EK_E_USER, "%s was at step %d of %d; nothing of it is kept", result->name,
                      (int)run->state.step, (int)steps);
    if (rc == 0) {
        result->step_seconds = series_median(&result->seconds);
        result->samples_per_second = (double)result->batch / result->step_seconds;
    }
    ek_loader_free(run->loader);
    ek_generator_free(shuffle);
    return rc;
}

/* Takes in the devices of all ranks, and how many samples of the batch each has. */
static int train_shares(const mode_run *run, mode_result *result)
{
    int64_t own[EK_MAX_DEVICES], count = run->job.devices.count;
    int rc = ek_report_gather(result->report);
    if (rc == 0)
        rc = ek_data_parallel_sizes(run->job.parallel, world_share(result->batch), own);
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

/* `steps` steps and their report, and the plan that they ended with. */
static int train_reported(mode_run *run, int64_t steps)
{
    mode_result *result = run->result;
    int rc = train_steps(run, steps);
    int stopped = result->report ? ek_report_stop(result->report) : 0;
    rc = rc < 0 ? rc : stopped;
    if (rc == 0)
        rc = train_shares(run, result);
    if (rc == 0 && run->job.mode == MODE_AUTO &&
        ek_data_parallel_plan(run->job.parallel, result->plan, sizeof result->plan) < 0)
        rc = ek_error_status();
    result->parameters = ek_module_numel(run->job.network);
    return rc;
}

static void mode_result_free(mode_result *result)
{
    ek_report_free(result->report);
    series_free(&result->losses, 1);
    series_free(&result->seconds, 1);
    free(result->share);
    *result = (mode_result){0};
}

/* Trains and evaluates. The result is to be freed in any case; the devices' memory is given back.
 */
static int train_run(const run_settings *s, ek_dataset *train, ek_dataset *test, train_mode mode,
                     mode_result *result)
{
    mode_run run = {.settings = s, .scenes = train, .result = result};
    confusion_matrix confusion = {0};
    *result = (mode_result){.name = mode_names[mode], .batch = s->batch, .largest = -1};
    int rc = job_open(&run.job, s, mode);
    if (rc == 0)
        rc = train_reported(&run, settings_steps(s));
    if (rc == 0)
        rc = confusion_of(run.job.network, run.job.devices.devices[0], EK_F32, test, &confusion);
    if (rc == 0)
        rc = ek_module_sha256(run.job.network, result->sha256);
    result->pixel_accuracy = confusion_accuracy(&confusion);
    result->mean_iou = confusion_mean_iou(&confusion);
    return job_close(&run.job, rc);
}

/* ---- the largest batch of a mode ---- */

static int batch_try(int64_t batch, void *user)
{
    mode_run *run = user;
    int stopped = interrupt_agree(run->settings->stopped);
    if (stopped < 0)
        return stopped;
    if (stopped > 0)
        return ek_error(EK_E_USER, "%s was at trying a batch of %lld; nothing of it is kept",
                        mode_names[run->job.mode], (long long)batch);
    ek_scope scope = ek_scope_begin();
    ek_value scenes = scenes_first(run->scenes, batch);
    int rc = job_step(&run->job, ek_value_at(scenes, 0), ek_value_at(scenes, 1), NULL);
    ek_scope_end(&scope);
    return rc;
}

/* At most `most`; 0 if not even one scene fits, or not even the model. */
static int64_t batch_find(mode_run *run, train_mode mode, int64_t most)
{
    train_job *job = &run->job;
    int64_t fits = job_open(job, run->settings, mode);
    if (fits == 0 && most > 0)
        fits = ek_find_batch(.function = batch_try, .user = run, .device_ids = job->devices,
                             .model = job->model, .optimizer = job->optimizer, .most = most);
    if (fits < 0 && ek_error_status() == EK_E_OUT_OF_MEMORY) {
        ek_error_clear();
        fits = 0;
    }
    return fits;
}

/* The largest batch that a mode could run, below one that is known not to fit; 0 if not even one
 * scene fits; negative on an error that is not about memory. */
static int64_t train_largest_batch(const run_settings *s, ek_dataset *train, train_mode mode,
                                   int64_t failing)
{
    mode_run run = {.settings = s, .scenes = train};
    int64_t fits = batch_find(&run, mode, failing - 1);
    int closed = job_close(&run.job, 0);
    return fits < 0 ? fits : closed < 0 ? closed : fits;
}

/* Finds the largest batch, and trains a few steps with it, so that the result shows what it takes.
 * result->largest is 0 if not even one scene fits. */
static int train_find_batch(const run_settings *s, ek_dataset *train, train_mode mode,
                            mode_result *result)
{
    enum { STEPS = 4, MOST_TRIED = 65536 };
    mode_run run = {.settings = s, .scenes = train, .result = result};
    *result = (mode_result){.name = mode_names[mode]};
    result->largest = batch_find(&run, mode, MOST_TRIED);
    int rc = result->largest < 0 ? (int)result->largest : 0;
    if (result->largest > 0) {
        result->batch = result->largest;
        rc = train_reported(&run, STEPS);
        ek_report_set_largest_batch(result->report, result->largest);
    }
    return job_close(&run.job, rc);
}

/* Without a capacity by option or list it becomes three times what a single device holds when no
 * scene is there, once it has trained: parameters, gradients and the optimizer's state. */
static int batch_choose_capacity(run_settings *s, ek_dataset *train)
{
    ek_memory_stats stats;
    mode_run run = {.settings = s, .scenes = train};
    ek_device_list devices = devices_chosen(s->kind, s->device_text, false);
    int rc =
        devices.count > 0 ? ek_memory_get_stats(devices.devices[0], &stats) : ek_error_status();
    if (rc < 0 || s->capacity || stats.capacity)
        return rc;
    rc = job_open(&run.job, s, MODE_SINGLE);
    if (rc == 0)
        rc = batch_try(1, &run);
    if (rc == 0)
        rc = ek_memory_get_stats(run.job.devices.devices[0], &stats);
    rc = job_close(&run.job, rc);
    if (rc < 0)
        return rc;
    s->capacity = 3 * stats.in_use;
    printf("Capacity: %.2f MiB per device, three times what single holds without a scene\n",
           (double)s->capacity / (1 << 20));
    return 0;
}

/* ---- the program ---- */

static void print_results(const run_settings *s, const mode_result *results, int count)
{
    if (s->find_batch)
        report_batches(results, count);
    else
        report_table(results, count);
}

/* Ctrl-C: what is lost by it. Modes that were finished before are worth their rows. */
static int explain_stop(const run_settings *s, const mode_result *results, int count)
{
    ek_error_record error;
    ek_error_take(&error);
    if (count > 0)
        print_results(s, results, count);
    printf("Stopped: %s\n", error.message);
    if (s->json || s->html || s->trace)
        puts("No file was written");
    return interrupt_status();
}

/* After an error of a mode: its sentence and, if memory was short, what would have fitted. */
static int explain(const run_settings *s, ek_dataset *train, train_mode mode)
{
    ek_error_record error;
    const bool says = world_says_error();
    ek_error_take(&error);
    if (says)
        fprintf(stderr, "%s: %s\n", mode_names[mode], error.message);
    if (world_most(error.status == EK_E_OUT_OF_MEMORY) <= 0)
        return FAILED;
    if (says)
        fprintf(stderr, "%s: looking for the largest batch that fits ...\n", mode_names[mode]);
    int64_t fits = train_largest_batch(s, train, mode, s->batch);
    if (fits < 0 && *s->stopped)
        return explain_stop(s, NULL, 0);
    if (fits < 0)
        return world_fail(FAILED);
    if (!says)
        return FAILED;
    if (fits == 0)
        fprintf(stderr,
                "%s: not even a batch of 1 fits; give more with --cap, or a smaller --width\n",
                mode_names[mode]);
    else
        fprintf(stderr, "%s: the largest batch that would fit is %lld (--batch %lld)\n",
                mode_names[mode], (long long)fits, (long long)fits);
    return FAILED;
}

/* Trains in every mode, or finds its largest batch; *count modes were finished. Returns the exit
 * status. */
static int run_all(run_settings *s, ek_dataset *train, ek_dataset *test, mode_result *results,
                   int *count)
{
    int mode = 0, rc = s->find_batch ? batch_choose_capacity(s, train) : 0;
    for (; mode < MODES && rc == 0; mode++) {
        if (!s->runs[mode])
            continue;
        mode_result *result = &results[*count];
        rc = s->find_batch ? train_find_batch(s, train, (train_mode)mode, result)
                           : train_run(s, train, test, (train_mode)mode, result);
        *count += rc == 0;
    }
    if (rc < 0 && *s->stopped)
        return explain_stop(s, results, *count);
    if (rc < 0 && !s->find_batch)
        return explain(s, train, (train_mode)(mode - 1));
    return rc < 0 ? world_fail(FAILED) : 0;
}

static int report(const run_settings *s, const mode_result *results, int count)
{
    print_results(s, results, count);
    int rc = s->json && world_is_first() ? report_json(s->json, s, results, count) : 0;
    if (world_most(rc < 0) != 0 || (s->html && report_html(s->html, s, results, count) < 0))
        return world_fail(FAILED);
    if (s->html)
        printf("Charts: %s\n", s->html);
    while (count > 0 && !results[count - 1].report)
        count--;
    if (!s->trace || count == 0)
        return 0;
    if (ek_report_trace(s->trace, results[count - 1].report) < 0)
        return world_fail(FAILED);
    printf("Trace of %s: %s\n", results[count - 1].name, s->trace);
    return 0;
}

/* Plans and warnings. */
static void show_log(ek_log_level level, const char *line, void *user)
{
    (void)user;
    if (level >= EK_LOG_INFO && world_is_first())
        fprintf(stderr, "%s\n", line);
}

static int run_program(int argc, char **argv)
{
    run_settings settings;
    mode_result results[MODES] = {{0}};
    int count = 0, rc = settings_parse(&settings, argc, argv);
    if (rc == ARGS_HELP)
        return 0;
    rc = world_refuses(rc < 0);
    if (rc != 0)
        return rc > 0 ? REFUSED : world_fail(REFUSED);
    const run_settings *s = &settings;
    settings.stopped = interrupt_catch();
    ek_dataset *train =
        scenes_make(s->data, true, SCENE_DARK, s->scenes, s->size, (uint64_t)s->seed);
    ek_dataset *test = NULL; /* other pictures, and another seed */
    if (train)
        test =
            scenes_make(s->data, false, SCENE_DARK, s->test_scenes, s->size, (uint64_t)s->seed + 1);
    if (world_most(!test) != 0) {
        world_fail(REFUSED);
        pictures_explain(s->data);
        ek_dataset_free(train);
        ek_dataset_free(test);
        return REFUSED;
    }
    printf("Scenes: %lld for training, %lld for testing, %lld x %lld pixels\n",
           (long long)s->scenes, (long long)s->test_scenes, (long long)s->size, (long long)s->size);
    fflush(stdout);
    ek_set_log(show_log, NULL);
    rc = run_all(&settings, train, test, results, &count);
    if (rc == 0)
        rc = report(s, results, count);
    for (int m = 0; m < MODES; m++)
        mode_result_free(&results[m]);
    ek_dataset_free(train);
    ek_dataset_free(test);
    return rc;
}

int main(int argc, char **argv)
{
    int status = world_join() < 0 ? args_fail(REFUSED) : run_program(argc, argv);
    return ek_shutdown() < 0 && status == 0 ? args_fail(FAILED) : status;
}
