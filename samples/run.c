/* run.c: steps with their progress, Ctrl-C, programs. */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
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

static volatile sig_atomic_t interrupt_stopped, interrupt_steps_done;

/* Once the steps are done, a signal changes nothing but what is said. */
static void interrupt_say(void)
{
    static const char text[] = "stops after the judging; again: at once\n";
    if (interrupt_steps_done && interrupt_stopped &&
        write(STDERR_FILENO, text, sizeof text - 1) < 0)
        return; /* nobody listens */
}

/* Two signals may come to two threads at a time: one of them is the second all the same. */
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

/* ---- the program ---- */

char *run_path(const char *directory, const char *name, char path[4096])
{
    if (directory)
        snprintf(path, 4096, "%s/%s", directory, name);
    return directory ? path : NULL;
}

char *run_picture_path(const char *directory, const char *name, const run_state *run,
                       char path[4096])
{
    char file[64];
    snprintf(file, sizeof file, "%s-%06" PRId64 ".png", name, run->step);
    return run_path(directory, file, path);
}

int64_t run_last(int64_t whole, int64_t stop)
{
    return stop > 0 && stop < whole ? stop : whole;
}

/* What there is to write and to say after the steps; returns the exit status. */
static int run_finish(const run_kind *kind, run_state *run, int argc, char **argv)
{
    json_writer json;
    char path[4096];
    int rc = 0;
    if (kind->finish && run->step >= run->last) {
        interrupt_steps_done = world_is_first();
        interrupt_say(); /* a signal may have come in the last step */
        rc = kind->finish(run);
        interrupt_steps_done = 0;
    }
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
    if (kind->written && kind->files->out)
        printf("%s: %s\n", kind->written, kind->files->out);
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

/* Says which files --data must hold. */
static void run_explain(const run_kind *kind)
{
    if (kind->explain)
        kind->explain();
    for (const arg_spec *arg = kind->args; arg->name && !kind->explain; arg++)
        if (arg->kind == ARG_FOLDER)
            pictures_explain(*(const char **)arg->value);
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
            run_explain(kind);
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
