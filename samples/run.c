/* run.c: programs, steps with their log, Ctrl-C. */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
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

/* ---- beginning ---- */

#define CHECKPOINT_NAME "checkpoint.safetensors"

char *run_path(const run *r, const char *name, char path[4096])
{
    const char *directory = r->out;
    if (directory)
        snprintf(path, 4096, "%s/%s", directory, name);
    return directory ? path : NULL;
}

/* Checks that a directory `out` can be made: its parent must be writable. */
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

/* Checks that the files of --resume, --json and --out can be read and written. */
static int run_check_files(const run *r)
{
    const char *resume = r->resume, *out = r->out;
    struct stat status;
    if (resume && access(resume, R_OK) < 0)
        return args_complain("--resume %s: %s", resume, strerror(errno));
    if (args_check_output("json", r->json_path) < 0)
        return -1;
    if (out && stat(out, &status) < 0)
        return run_check_parent(out);
    if (out && (!S_ISDIR(status.st_mode) || access(out, W_OK) < 0))
        return args_complain("--out %s: a directory that can be written is needed", out);
    return 0;
}

/* Returns 0 if no rank has an error pending. */
static int run_settle(void)
{
    int rc = ek_dist_raise();
    return rc == 0 && world_size() > 1 ? world_most(0) : rc;
}

/* If samples/mpirun has restarted the run, and rank 0 finds a checkpoint in --out, resumes from
 * that checkpoint in place of --resume. */
static int run_find_checkpoint(run *r)
{
    const char *restart = getenv("EVENKEEL_RESTART");
    if (!r->out || !restart || atoi(restart) == 0)
        return 0;
    double found = access(run_path(r, CHECKPOINT_NAME, r->restarted_from), R_OK) == 0;
    int rc = ek_dist_broadcast_number(&found, 0, NULL);
    if (found > 0)
        r->resume = r->restarted_from;
    return rc;
}

/* Makes the directory if it is missing, after all ranks could open the run: a refused run leaves
 * nothing behind. */
static int run_make_out(const char *out)
{
    int rc = run_settle();
    if (rc == 0 && out && mkdir(out, 0777) < 0 && errno != EEXIST)
        rc = ek_error(EK_E_IO, "--out %s: it cannot be made: %s", out, strerror(errno));
    return rc;
}

/* Prints the pending error, which ends the run. Returns false. */
static bool run_fail(run *r, int status)
{
    r->failed = true;
    if (!r->args)
        return false;
    r->status = world_fail(status);
    if (r->hint[0])
        args_complain("%s", r->hint);
    return false;
}

/* Points to the value of an option that all programs have. */
static const void *run_option(const run *r, const char *name)
{
    return args_next(r->args, &name)->value;
}

bool run_begin(run *r, int argc, char **argv, int (*check)(void))
{
    r->argc = argc;
    r->argv = argv;
    r->failed = true;
    r->status = REFUSED;
    if (world_join() < 0) {
        args_fail(REFUSED);
        return false;
    }
    int rc = args_read(argc, argv, r->about, r->args);
    if (rc == ARGS_HELP) {
        r->status = 0;
        return false;
    }
    r->out = *(const char *const *)run_option(r, "out");
    r->resume = *(const char *const *)run_option(r, "resume");
    r->log_path = *(const char *const *)run_option(r, "log");
    r->json_path = *(const char *const *)run_option(r, "json");
    r->every = *(const int64_t *)run_option(r, "every");
    r->batch = *(const int64_t *)run_option(r, "batch");
    r->name = mode_names[*(const int *)run_option(r, "mode")];
    if (run_find_checkpoint(r) < 0)
        return run_fail(r, REFUSED);
    rc = world_refuses(rc < 0 || check() < 0 || run_check_files(r) < 0);
    if (rc > 0)
        return false;
    r->stopped = interrupt_catch();
    if (rc == 0 && r->resume)
        rc = run_open(r) < 0 ? -1 : run_settle();
    if (rc < 0)
        return run_fail(r, REFUSED);
    r->failed = false;
    r->status = 0;
    return true;
}

void run_hint(run *r, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (ek_error_status() < 0 && !r->hint[0])
        vsnprintf(r->hint, sizeof r->hint, format, values);
    va_end(values);
}

int64_t run_last(int64_t whole, int64_t stop)
{
    return stop > 0 && stop < whole ? stop : whole;
}

void run_picture(run *r, const char *name, ek_grid_options grid)
{
    char file[64], path[4096];
    snprintf(file, sizeof file, "%s-%06" PRId64 ".png", name, r->step);
    ek_save_image_with(run_path(r, file, path), grid);
    if (r->log)
        ek_log_image(r->log, name, r->step, ek_make_grid_with(grid));
}

/* ---- pages ---- */

FILE *run_page(run *r)
{
    if (ek_error_status() < 0)
        return NULL;
    r->page = open_memstream(&r->html, &r->html_size);
    if (!r->page)
        ek_error(EK_E_NO_MEMORY, "no memory for a page");
    return r->page;
}

static void run_write_html(FILE *stream, void *user)
{
    const run *r = user;
    fwrite(r->html, 1, r->html_size, stream);
}

void run_page_end(run *r, const train_job *job, const char *name, const char *title,
                  const char *format, ...)
{
    char path[4096], settings[256], subtitle[512];
    va_list values;
    va_start(values, format);
    vsnprintf(settings, sizeof settings, format, values);
    va_end(values);
    snprintf(subtitle, sizeof subtitle,
             "%s, %s on %d devices, batch %" PRId64 ", seed %" PRId64 ", step %" PRId64, settings,
             r->name, job->devices.count, *(const int64_t *)run_option(r, "batch"),
             *(const int64_t *)run_option(r, "seed"), r->step);
    if (fclose(r->page) != 0)
        ek_error(EK_E_NO_MEMORY, "no memory for a page");
    else
        ek_report_html_page(run_path(r, name, path), NULL, 0,
                            &(const ek_report_page){.title = title,
                                                    .subtitle = subtitle,
                                                    .more = run_write_html,
                                                    .user = r});
    free(r->html);
}

/* ---- steps ---- */

void run_series(run *r, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        r->series[i].name = names[i];
    r->series_count = count;
}

void run_add(run *r, int which, double value)
{
    if (ek_error_status() == 0)
        series_add(&r->series[which], value);
}

/* Logs what has been added to the series since the last call, as a mean. */
static void run_log_series(run *r)
{
    for (int i = 0; i < r->series_count; i++) {
        const series *of = &r->series[i];
        if (of->count > r->logged[i])
            ek_log_scalar(r->log, of->name, r->step, series_mean(of, r->logged[i]));
        r->logged[i] = of->count;
    }
}

/* Opens --log, and logs the options. */
static void run_open_log(run *r)
{
    char name[64], number[64];
    r->log = ek_log_open(r->log_path, .resume_step = r->resume ? r->step : EK_UNSET);
    for (const arg_spec *arg = r->args; *arg->name; arg++) {
        snprintf(name, sizeof name, "settings/%s", arg->name);
        if (arg->kind != ARG_TEXT && arg->kind != ARG_FOLDER)
            ek_log_text(r->log, name, r->step, arg_value_text(arg, number));
        else if (*(const char *const *)arg->value)
            ek_log_text(r->log, name, r->step, *(const char *const *)arg->value);
    }
}

/* Puts "after step 12: " before the pending error's sentence. */
static void run_say_step(const run *r)
{
    ek_error_record error;
    char message[sizeof error.message];
    ek_error_take(&error);
    snprintf(message, sizeof message, "after step %lld: %.*s", (long long)r->step,
             (int)sizeof message - 40, error.message);
    memcpy(error.message, message, sizeof message);
    ek_error_raise(&error);
}

/* Loads the checkpoint of --resume, makes --out and --log, and begins the line of progress. */
static int run_start(run *r)
{
    r->begun = true;
    if (ek_error_status() == 0 && r->from)
        run_load(r);
    ek_archive_free(r->from);
    r->from = NULL;
    r->first = r->step;
    run_log_series(r); /* a checkpoint's series were logged before */
    if (r->log_path && run_settle() == 0)
        run_open_log(r);
    if (r->args)
        run_make_out(r->out);
    if (ek_error_status() == 0)
        r->progress =
            ek_progress_begin(r->last, .name = r->name, .unit = "samples",
                              .per_step = (double)r->batch, .done = r->step, .stream = stdout);
    return ek_error_status();
}

/* Tells whether the present step ends with a checkpoint. A run that has just been resumed writes
 * one only at its end, or if a signal ends it. The ranks agree on a caught signal. */
static bool run_writes(run *r)
{
    const bool finished = r->step >= r->last;
    const bool due =
        (r->epoch > 0 && r->step % r->epoch == 0) || (r->every > 0 && r->step % r->every == 0);
    if (ek_error_status() < 0)
        return false;
    if (!finished)
        r->signal = r->stopped ? interrupt_agree(r->stopped) : 0;
    return r->args && r->out && (finished || r->signal > 0 || (due && r->step > r->first));
}

/* Ends the present step, if there is one. Draws and writes the checkpoint if that is due. */
static int run_end_step(run *r)
{
    char path[4096];
    const bool stepped = r->step > r->first, writes = run_writes(r);
    if (writes && r->draw && world_is_first())
        r->draw(r->of, r);
    if (stepped)
        ek_scope_end(&r->scope);
    if (ek_error_status() == 0)
        run_log_series(r);
    if (ek_error_status() < 0) {
        r->step -= stepped;
        return ek_error_status();
    }
    return writes ? run_save(r, run_path(r, CHECKPOINT_NAME, path)) : 0;
}

bool run_next(run *r)
{
    if (!r->begun && run_start(r) < 0)
        return run_fail(r, REFUSED);
    const int rc = run_end_step(r);
    if (rc < 0 || r->step >= r->last || r->signal > 0) {
        ek_progress_end(r->progress);
        r->progress = NULL;
    }
    if (rc < 0 && r->args)
        run_say_step(r);
    if (rc < 0)
        return run_fail(r, FAILED);
    if (r->step >= r->last || r->signal > 0)
        return false;
    r->step++;
    r->scope = ek_scope_begin();
    r->began = seconds_now();
    return true;
}

double run_seconds(const run *r)
{
    return seconds_now() - r->began;
}

/* ---- Ctrl-C and kill ---- */

static volatile sig_atomic_t interrupt_stopped, interrupt_steps_done;

/* Tells that a signal after the last step does not end the run at once. */
static void interrupt_say(void)
{
    static const char text[] = "stops after the judging; again: at once\n";
    if (interrupt_steps_done && interrupt_stopped &&
        write(STDERR_FILENO, text, sizeof text - 1) < 0)
        return; /* standard error is closed */
}

/* Two threads may get signals at a time: the exchange makes one of them the second. */
static void interrupt_note(int signal_number)
{
    static atomic_int caught;
    if (!interrupt_stopped)
        interrupt_stopped = signal_number;
    if (atomic_exchange(&caught, 1) == 0) {
        interrupt_say();
        return;
    }
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

/* Prints the program's command with --resume FILE, for a shell. If `file` is NULL, prints that
 * nothing was kept. Returns interrupt_status(). */
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

/* ---- ending ---- */

bool run_judges(run *r)
{
    if (r->failed || r->step < r->last)
        return false;
    interrupt_steps_done = world_is_first();
    interrupt_say(); /* a signal may have come in the last step */
    return true;
}

json_writer *run_json(run *r, const train_job *job)
{
    interrupt_steps_done = 0;
    if (r->failed || ek_error_status() < 0 || !r->json_path)
        return NULL;
    json_open(&r->json, world_is_first() ? r->json_path : "/dev/null");
    ek_dist_raise(); /* an error of this rank reaches the others, which wait in json_devices */
    if (ek_error_status() < 0)
        return NULL;
    json_settings(&r->json, r->args, job->devices.count, job->plan);
    json_write(&r->json, "finished_steps %jd", r->step);
    json_devices(&r->json, &job->devices);
    return &r->json;
}

bool run_prints(run *r)
{
    char path[4096];
    interrupt_steps_done = 0;
    if (r->failed)
        return false;
    if (r->json.stream)
        json_close(&r->json, r->json_path, ek_error_status());
    if (world_most(ek_error_status() < 0) != 0)
        return run_fail(r, FAILED);
    r->finished = r->step >= r->last;
    if (!r->finished)
        r->status =
            interrupt_explain(r->step, run_path(r, CHECKPOINT_NAME, path), r->argc, r->argv);
    return r->finished;
}

int run_end(run *r)
{
    if (r->finished && r->written && r->out)
        printf("%s: %s\n", r->written, r->out);
    ek_archive_free(r->from);
    if (!r->failed)
        run_log_series(r);
    if (ek_log_close(r->log) < 0 && r->status == 0)
        r->status = args_fail(FAILED);
    series_free(r->series, r->series_count);
    return ek_shutdown() < 0 && r->status == 0 ? args_fail(FAILED) : r->status;
}
