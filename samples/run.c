/* run.c: ways to train, steps, checkpoints, programs. */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- pictures ---- */

ek_dataset *pictures_checked(ek_dataset *pictures, const char *directory, ek_shape wanted)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *first = ek_value_tensor(ek_value_at(ek_dataset_get(pictures, 0), 0));
    ek_shape shape = first ? ek_tensor_shape(first) : wanted;
    char text[160], wanted_text[160];
    if (!ek_shape_equal(&shape, &wanted))
        ek_error(EK_E_SHAPE, "%s: pictures are %s; %s are wanted", directory,
                 ek_shape_text(&shape, text), ek_shape_text(&wanted, wanted_text));
    ek_scope_end(&scope);
    if (ek_error_status() == 0)
        return pictures;
    ek_dataset_free(pictures);
    return NULL;
}

void pictures_explain(const char *directory)
{
    args_complain("--data %s must hold Fashion-MNIST's four files; Debian's package "
                  "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist",
                  directory);
}

ek_sampler *shuffled_sampler(int64_t count, ek_generator *generator)
{
    int64_t *indices = malloc((size_t)count * sizeof *indices);
    for (int64_t i = 0; indices && i < count; i++)
        indices[i] = i;
    ek_sampler *sampler = indices ? ek_subset_random_sampler(indices, count, generator) : NULL;
    if (!indices)
        ek_error(EK_E_NO_MEMORY, "no memory for the order of %lld samples", (long long)count);
    free(indices);
    return sampler;
}

int loader_next(ek_loader *loader, ek_batch *batch)
{
    int rc = ek_loader_next(loader, batch);
    if (rc == 0)
        rc = ek_loader_next(loader, batch);
    if (rc == 0)
        return ek_error(EK_E_STATE, "the loader has no batches");
    return rc < 0 ? rc : 0;
}

int loader_evaluate(ek_loader *loader, ek_module *network,
                    int (*take)(ek_module *network, const ek_batch *batch, void *user), void *user)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_batch batch;
    int rc = 0;
    ek_module_train(network, false);
    while (rc >= 0 && (rc = ek_loader_next(loader, &batch)) > 0) {
        ek_scope scope = ek_scope_begin();
        rc = take(network, &batch, user);
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    ek_set_grad_enabled(had_gradients);
    return rc;
}

/* ---- ways to train ---- */

const char *const mode_names[MODES + 1] = {"single", "classic", "balanced", "balanced-auto",
                                           "sharded"};

int job_check_devices(train_mode mode, int kind, const char *device_text, const char *plan)
{
    if (plan && mode != MODE_AUTO)
        return args_complain("--plan %s: it is for --mode %s", plan, mode_names[MODE_AUTO]);
    if (plan && strchr(plan, ';'))
        return args_complain("--plan %s: one plan for the whole run is needed", plan);
    return devices_check(kind, device_text, mode == MODE_SINGLE, plan);
}

/* Whether outputs meet on device 0. */
static bool job_gathers(const train_job *job)
{
    return job->mode == MODE_SINGLE || job->mode == MODE_CLASSIC;
}

ek_module *job_criterion(const train_job *job, ek_module *criterion)
{
    if (!job_gathers(job))
        criterion = ek_data_parallel_criterion(criterion, .device_ids = job->devices);
    return world_criterion(criterion);
}

/* The ways to train differ in these lines only. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal)
{
    ek_data_parallel_options options = {.module = network, .device_ids = job->devices};
    if (job->mode == MODE_AUTO && plan) {
        options.plan = plan;
    } else if (job->mode == MODE_AUTO) {
        options.split = EK_SPLIT_AUTO;
        options.goal = (ek_plan_goal)goal;
    } else if (job->mode == MODE_SHARDED && world_size() == 1) {
        options.shard = EK_SHARD_OPTIMIZER;
    }
    job->parallel =
        job_gathers(job) ? ek_data_parallel_with(options) : ek_data_parallel_model_with(options);
    job->model = world_model(job->parallel, job->mode == MODE_SHARDED);
    job->network = job->model ? network : NULL; /* a wrapper that fails frees it */
    job->criterion = job_criterion(job, criterion);
}

ek_value job_rows(ek_value batch)
{
    enum { MOST_INPUTS = 8 };
    ek_value rows[MOST_INPUTS];
    const int count = ek_value_length(batch);
    if (world_size() == 1)
        return batch;
    if (batch.kind != EK_VALUE_LIST)
        return EK_VALUE(world_rows(ek_value_tensor(batch)));
    if (count > MOST_INPUTS) {
        ek_error(EK_E_INVALID, "a batch has %d inputs; at most %d are taken", count, MOST_INPUTS);
        return ek_value_error();
    }
    for (int i = 0; i < count; i++)
        rows[i] = job_rows(ek_value_at(batch, i));
    return ek_value_list(rows, count);
}

int loss_check(double loss)
{
    return isfinite(loss) ? 0
                          : ek_error(EK_E_INVALID, "the loss is %g; a smaller --lr may help", loss);
}

int job_step(train_job *job, ek_value input, ek_value target, double *loss)
{
    ek_scope scope = ek_scope_begin();
    const ek_autocast autocast = ek_autocast_begin(job->bf16 ? EK_BF16 : EK_F32);
    int rc = ek_train_step(loss, .model = job->model, .criterion = job->criterion,
                           .optimizer = job->optimizer, .input = job_rows(input),
                           .target = job_rows(target), .max_norm = job->max_norm);
    ek_autocast_end(&autocast);
    if (rc == 0 && job->schedule)
        rc = ek_schedule_step(job->schedule);
    if (rc == 0 && loss)
        rc = loss_check(*loss);
    ek_scope_end(&scope);
    return rc;
}

int job_measure_plan(train_job *trial, int64_t batch, ek_batch_function *step, void *user,
                     char plan[1024])
{
    int64_t sizes[EK_MAX_DEVICES];
    int64_t rc = ek_find_batch(.function = step, .user = user, .device_ids = trial->devices,
                               .model = trial->model, .optimizer = trial->optimizer, .first = batch,
                               .most = batch);
    if (rc == 0)
        rc = ek_error(EK_E_OUT_OF_MEMORY,
                      "a batch of %lld does not fit on these devices, however it is cut",
                      (long long)batch);
    if (rc > 0)
        rc = ek_data_parallel_sizes(trial->parallel, world_share(batch), sizes);
    const ek_device_list devices = trial->devices;
    job_free(trial);
    size_t length = 0;
    for (int d = 0; d < devices.count; d++) {
        ek_memory_reset_peak(devices.devices[d]);
        if (rc == 0 && length < 1024)
            length += (size_t)snprintf(plan + length, 1024 - length, "%s%" PRId64, d ? "," : "",
                                       sizes[d]);
    }
    return (int)rc;
}

int job_find_plan(train_job *trial, const char *given, const ek_archive *from, int64_t batch,
                  int (*make)(void *user), ek_batch_function *step, void *user, char plan[1024])
{
    plan[0] = '\0';
    if (trial->mode != MODE_AUTO)
        return 0;
    if (!given)
        given = checkpoint_plan(from, "plan", trial->devices.count);
    if (given) {
        snprintf(plan, 1024, "%s", given);
        return 0;
    }
    int rc = make(user);
    if (rc == 0)
        return job_measure_plan(trial, batch, step, user, plan);
    job_free(trial);
    return rc;
}

void job_free(train_job *job)
{
    ek_schedule_free(job->schedule);
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
    *job = (train_job){0};
}

/* ---- steps ---- */

#define CHECKPOINT_NAME "checkpoint.safetensors"

typedef struct progress_bar {
    const run_kind *kind;
    const run_state *run;
    int64_t first; /* steps that an earlier run has done */
    bool terminal;
    double start, redrawn; /* when, in seconds */
} progress_bar;

/* Removes the line from a terminal, so that something else can follow. */
static void progress_clear(const progress_bar *bar)
{
    if (bar->terminal)
        printf("\r\033[K");
    fflush(stdout);
}

static void progress_show(progress_bar *bar)
{
    enum { PLAIN_LINES = 5 };
    const int64_t total = bar->run->last, done = bar->run->step;
    const int64_t every = total > PLAIN_LINES ? total / PLAIN_LINES : 1;
    double now = seconds_now(), elapsed = now - bar->start;
    double rate = elapsed > 0 ? (double)(done - bar->first) / elapsed : 0;
    int left = rate > 0 ? (int)((double)(total - done) / rate + 0.5) : 0;
    bool due = bar->terminal ? now - bar->redrawn >= 0.1 : done % every == 0;
    char note[128];
    bool stays = bar->kind->note(bar->run, note);
    if (!stays && !due && done < total)
        return;
    progress_clear(bar);
    if (stays) {
        puts(note);
    } else {
        printf("%-9s step %" PRId64 " of %" PRId64 ", %.0f samples/s, %d:%02d left, %s%s",
               bar->run->name, done, total, rate * (double)bar->run->batch, left / 60, left % 60,
               note, bar->terminal ? "" : "\n");
        bar->redrawn = now;
    }
    fflush(stdout);
}

static int run_write(const run_kind *kind, run_state *run)
{
    char path[4096];
    int rc = kind->draw && world_is_first() ? kind->draw(run) : 0;
    ek_dist_raise(); /* the other ranks are to meet this one in run_save */
    return rc < 0 ? rc : run_save(kind, run, run_path(kind->files->out, CHECKPOINT_NAME, path));
}

int run_steps(const run_kind *kind, run_state *run, const volatile sig_atomic_t *stopped)
{
    progress_bar bar = {kind, run, run->step, isatty(STDOUT_FILENO), seconds_now(), 0};
    const bool writes = kind->files && kind->files->out;
    int64_t written = -1; /* the last step with files: none of this run yet */
    int rc = 0;
    while (rc == 0 && run->step < run->last) {
        rc = interrupt_agree(stopped);
        if (rc != 0)
            break;
        rc = kind->take(run);
        if (rc < 0)
            break;
        progress_show(&bar);
        bool due = false;
        for (int i = 0; i < 2; i++)
            due = due || (run->every[i] > 0 && run->step % run->every[i] == 0);
        if (writes && due) {
            rc = run_write(kind, run);
            written = run->step;
        }
    }
    progress_clear(&bar);
    rc = rc > 0 ? 0 : rc;
    return rc == 0 && writes && written < run->step ? run_write(kind, run) : rc;
}

/* ---- Ctrl-C and kill ---- */

static volatile sig_atomic_t interrupt_stopped;

/* Two signals may come to two threads at a time: one of them is the second all the same. */
static void interrupt_note(int signal_number)
{
    static atomic_int caught;
    if (!interrupt_stopped)
        interrupt_stopped = signal_number;
    if (atomic_exchange(&caught, 1) == 0)
        return;
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* takes effect when this function has returned */
}

const volatile sig_atomic_t *interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = interrupt_note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask); /* while one is handled, the other waits */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &interrupt_stopped;
}

int interrupt_agree(const volatile sig_atomic_t *stopped)
{
    int agreed = world_most((int)*stopped);
    if (agreed > 0 && world_size() > 1)
        interrupt_stopped = agreed;
    return agreed;
}

int interrupt_status(void)
{
    return 128 + (interrupt_stopped ? (int)interrupt_stopped : SIGINT);
}

/* Quotes the word if a shell would read it otherwise. */
static void interrupt_print_word(const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";
    putchar(' ');
    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, stdout);
    putchar('\'');
}

/* Prints the same command with --resume FILE, for a shell; with NULL, that nothing was kept.
 * Returns interrupt_status(). */
static int interrupt_explain(int64_t step, const char *file, int argc, char **argv)
{
    if (!file) {
        printf("Stopped after step %" PRId64 ". Nothing was kept: --out DIR writes checkpoints\n",
               step);
        return interrupt_status();
    }
    printf("Stopped after step %" PRId64 ". To go on:\n   ", step);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--resume") == 0)
            i++; /* and its value */
        else if (strncmp(argv[i], "--resume=", 9) != 0)
            interrupt_print_word(argv[i]);
    }
    fputs(" --resume", stdout);
    interrupt_print_word(file);
    putchar('\n');
    return interrupt_status();
}

/* ---- checkpoints ---- */

void checkpoint_loader(const checkpoint *file, const char *name, ek_loader *loader)
{
    if (file->path)
        ek_loader_load_state(loader, ek_archive_get(file->archive, name));
    else
        ek_archive_put(file->archive, name, ek_loader_state(loader));
}

/* f64 on cpu. */
static ek_tensor *checkpoint_read(const checkpoint *file, const char *name)
{
    return ek_to_dtype(ek_value_tensor(ek_archive_get(file->archive, name)), EK_F64);
}

void checkpoint_numbers(const checkpoint *file, const char *name, double *values, ek_shape shape)
{
    if (file->path)
        ek_to_data(checkpoint_read(file, name), values,
                   (size_t)ek_shape_count(&shape) * sizeof *values);
    else
        ek_archive_put(file->archive, name, EK_VALUE(ek_from_data(values, shape, EK_F64)));
}

void checkpoint_series(const checkpoint *file, const char *name, series *numbers)
{
    double none = 0;
    if (file->path) {
        ek_tensor *stored = checkpoint_read(file, name);
        int64_t count = stored ? ek_tensor_count(stored) : 0;
        numbers->count = 0;
        while (numbers->count < count && series_add(numbers, 0) == 0)
            ;
        if (numbers->count < count)
            return;
    }
    checkpoint_numbers(file, name, numbers->count ? numbers->values : &none,
                       EK_SHAPE(numbers->count));
}

void checkpoint_records(const checkpoint *file, series *list, int count)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "records.%s", list[i].name);
        checkpoint_series(file, name, &list[i]);
    }
}

/* FNV-1a, 64 bits: other data have another sum but for chance. */
void checkpoint_digest(const checkpoint *file, const char *name, const void *data, size_t nbytes,
                       const char *what, const char *path)
{
    const uint8_t *bytes = data;
    uint64_t sum = 0xcbf29ce484222325u;
    char text[64];
    for (size_t i = 0; i < nbytes; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    snprintf(text, sizeof text, "%016" PRIx64 " of %zu bytes", sum, nbytes);
    if (!file->path) {
        ek_archive_put_text(file->archive, name, text);
        return;
    }
    const char *found = ek_archive_get_text(file->archive, name);
    if (!found || strcmp(found, text) != 0)
        ek_error(EK_E_INVALID,
                 "%s was made with another %s than that of --data %s; it goes on "
                 "with that only",
                 file->path, what, path);
}

const char *checkpoint_plan(const ek_archive *archive, const char *name, int devices)
{
    const char *plan = archive ? ek_archive_get_text(archive, name) : NULL;
    if (!plan || !*plan)
        return NULL;
    if (ek_plan_check(plan, devices) == 0)
        return plan;
    ek_error_clear();
    return NULL;
}

/* ---- runs ---- */

/* Lists what all programs have in common, and the program's own. */
static void run_list(const run_kind *kind, run_state *run, const checkpoint *file)
{
    int rc = 0;
    if (!file->path)
        ek_archive_put(file->archive, "step", ek_value_of_int(run->step));
    else
        rc = ek_archive_get_int(file->archive, "step", &run->step);
    if (rc == 0 && (run->step < 0 || run->step > run->last))
        rc = ek_error(EK_E_INVALID,
                      "%s is at step %lld; a run that ends at step %lld asks for fewer", file->path,
                      (long long)run->step, (long long)run->last);
    if (rc == 0)
        kind->list(run, file);
}

int run_save(const run_kind *kind, run_state *run, const char *path)
{
    ek_scope scope = ek_scope_begin();
    checkpoint file = {ek_archive_new(), NULL};
    const char *names = kind->deciding;
    ek_archive_put_text(file.archive, "format", kind->format);
    for (const arg_spec *arg; (arg = args_next(kind->args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "settings.%s", arg->name);
        ek_archive_put_text(file.archive, key, arg_value_text(arg, text));
    }
    run_list(kind, run, &file);
    int rc = ek_error_status();
    if (rc == 0)
        rc = world_size() == 1 ? ek_archive_save(file.archive, path)
                               : ek_dist_archive_save(file.archive, path, 0, NULL);
    ek_archive_free(file.archive);
    ek_scope_end(&scope);
    return rc;
}

/* EK_E_FORMAT for a file of another program; EK_E_INVALID for one of a run with other settings. */
static int run_check_file(const run_kind *kind, const ek_archive *archive)
{
    const char *path = kind->files->resume, *names = kind->deciding;
    const char *found = ek_archive_get_text(archive, "format");
    if (!found || strcmp(found, kind->format) != 0)
        return ek_error(EK_E_FORMAT,
                        "%s: its format is \"%s\"; a checkpoint of this program (%s) is needed",
                        path, found ? found : "", kind->format);
    for (const arg_spec *arg; (arg = args_next(kind->args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "settings.%s", arg->name);
        found = ek_archive_get_text(archive, key);
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is needed", path,
                            key);
        if (strcmp(found, arg_value_text(arg, text)) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that only", path,
                            arg->name, found, text);
    }
    return 0;
}

int run_open(const run_kind *kind, run_state *run)
{
    memset(run, 0, kind->size);
    const char *path = kind->files->resume;
    ek_scope scope = ek_scope_begin();
    ek_archive *from = path ? ek_archive_open(path) : NULL;
    if (from)
        run_check_file(kind, from);
    int rc = ek_error_status();
    if (rc == 0)
        rc = kind->open(run, from);
    if (rc == 0 && from)
        run_list(kind, run, &(checkpoint){from, path});
    ek_archive_free(from);
    ek_scope_end(&scope);
    return rc < 0 ? rc : ek_error_status();
}

char *run_path(const char *directory, const char *name, char path[4096])
{
    if (directory)
        snprintf(path, 4096, "%s/%s", directory, name);
    return directory ? path : NULL;
}

/* What there is to write and to say after the steps; returns the exit status. */
static int run_finish(const run_kind *kind, run_state *run, int argc, char **argv)
{
    json_writer json;
    char path[4096];
    int rc = kind->finish && run->step >= run->last ? kind->finish(run) : 0;
    if (rc == 0 && kind->files->json) { /* it holds numbers of all ranks */
        const char *file = world_is_first() ? kind->files->json : "/dev/null";
        rc = json_open(&json, file);
        ek_dist_raise(); /* the other ranks are to meet this one there */
        if (rc == 0)
            rc = json_close(&json, file, kind->results(run, &json));
    }
    if (world_most(rc < 0) != 0)
        return world_fail(FAILED);
    if (run->step < run->last)
        return interrupt_explain(run->step, run_path(kind->files->out, CHECKPOINT_NAME, path), argc,
                                 argv);
    kind->print(run);
    return 0;
}

/* Whether the directory can be made: the one that it is to be in can be written. */
static int run_check_parent(const char *out)
{
    char parent[4096];
    size_t length = strlen(out);
    while (length > 0 && out[length - 1] == '/')
        length--;
    while (length > 0 && out[length - 1] != '/')
        length--;
    snprintf(parent, sizeof parent, "%.*s", length > 0 ? (int)length : 1, length > 0 ? out : ".");
    if (access(parent, W_OK | X_OK) < 0)
        return args_complain("--out %s: it cannot be made: %s", out, strerror(errno));
    return 0;
}

/* The files must be ones that can be read and written. */
static int run_check_files(const run_files *files)
{
    const char *resume = files->resume, *out = files->out;
    struct stat status;
    if (resume && access(resume, R_OK) < 0)
        return args_complain("--resume %s: %s", resume, strerror(errno));
    if (args_check_output("json", files->json) < 0)
        return -1;
    if (out && stat(out, &status) < 0)
        return run_check_parent(out);
    if (out && (!S_ISDIR(status.st_mode) || access(out, W_OK) < 0))
        return args_complain("--out %s: a directory that can be written is needed", out);
    return 0;
}

/* Makes the directory if it is missing, on all ranks once all could open the run: one that is
 * refused leaves nothing behind. */
static int run_make_out(const char *out)
{
    int rc = ek_dist_raise();
    if (rc == 0 && world_size() > 1)
        rc = world_most(0); /* an error of another rank comes here */
    if (rc == 0 && out && mkdir(out, 0777) < 0 && errno != EEXIST)
        rc = ek_error(EK_E_IO, "--out %s: it cannot be made: %s", out, strerror(errno));
    return rc;
}

/* "after step 12: " before the pending error's sentence. */
static void run_say_step(const run_state *run)
{
    ek_error_record error;
    char message[sizeof error.message];
    ek_error_take(&error);
    snprintf(message, sizeof message, "after step %lld: %.*s", (long long)run->step,
             (int)sizeof message - 40, error.message);
    memcpy(error.message, message, sizeof message);
    ek_error_raise(&error);
}

/* What the ranks do once they have met. */
static int run_program(const run_kind *kind, run_state *run, int argc, char **argv)
{
    int rc = args_read(argc, argv, kind->about, kind->args);
    if (rc == ARGS_HELP)
        return 0;
    rc = world_refuses(rc < 0 || kind->check() < 0 || run_check_files(kind->files) < 0);
    if (rc != 0)
        return rc > 0 ? REFUSED : world_fail(REFUSED);
    const volatile sig_atomic_t *stopped = interrupt_catch();
    int status;
    if (run_open(kind, run) < 0 || run_make_out(kind->files->out) < 0) {
        status = world_fail(REFUSED);
        if (run->unread)
            kind->explain();
    } else if (run_steps(kind, run, stopped) < 0) {
        run_say_step(run);
        status = world_fail(FAILED);
    } else {
        status = run_finish(kind, run, argc, argv);
    }
    kind->close(run);
    return status;
}

int run_main(const run_kind *kind, run_state *run, int argc, char **argv)
{
    int status = world_join() < 0 ? args_fail(REFUSED) : run_program(kind, run, argc, argv);
    return ek_shutdown() < 0 && status == 0 ? args_fail(FAILED) : status;
}
