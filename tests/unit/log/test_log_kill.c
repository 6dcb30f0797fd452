/* test_log_kill.c: processes that are killed while they write a log leave files that can be read,
 * with all entries whose calls have returned, and that a resumed run continues. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "log_reader.h"

static char runs[64];

static void make_runs(void)
{
    make_directory();
    snprintf(runs, sizeof runs, "%s/run", directory);
}

static void remove_runs(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}

FIXTURE(make_runs, remove_runs)
OWN_PROCESSES /* children of a process with threads could not use the library */

    enum {
        LONG = 9000
    }; /* characters of a text: a record of several pages */

/* Writes entries until it is killed, and after each step the step to the pipe. */
static void write_for_ever(int64_t from, int ready)
{
    static char text[LONG + 1];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(text, 'x', LONG);
    ek_run_log *log = ek_log_open(runs, .resume_step = from);
    for (int64_t step = from + 1;; step++)
        if (ek_log_scalar(log, "loss", step, 1 / (double)step) < 0 ||
            ek_log_text(log, "text", step, text) < 0 ||
            write(ready, &step, sizeof step) != sizeof step)
            _exit(1);
}

/* Lets a process write from a step on for a while and kills it. Returns the last step that it had
 * written. */
static int64_t write_and_kill(int64_t from, long nanoseconds)
{
    int ends[2], status;
    int64_t step = from;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        write_for_ever(from, ends[1]);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &step, sizeof step), sizeof step); /* it has begun */
    nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
    kill(child, SIGKILL);
    while (read(ends[0], &step, sizeof step) == sizeof step)
        ;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status), "writing failed");
    return step;
}

/* Returns the last step whose lines are whole. Each step has `times` lines, in order. */
static int64_t last_of_lines(const char *name, const char *prefix, int times)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", runs, name);
    const char *at = (const char *)log_read(path).bytes, *newline;
    int64_t lines = 0;
    for (; (newline = strchr(at, '\n')); at = newline + 1) {
        if (*at == 's') /* the columns' names */
            continue;
        ck_assert_int_eq(strncmp(at, prefix, strlen(prefix)), 0);
        ck_assert_int_eq(strtoll(at + strlen(prefix), NULL, 10), lines / times + 1);
        lines++;
    }
    return lines / times;
}

/* Returns the last step of a file of events. It begins after `from`, the step that its writer was
 * resumed at. */
static int64_t last_of_events(int which, int64_t from)
{
    log_bytes file = log_read(log_events_path(runs, which)), event;
    size_t at = 0;
    ck_assert(log_record(&file, &at, &event) && log_record(&file, &at, &event));
    ck_assert_int_eq((int64_t)LOG_AT(event, 2).number, from + 1);
    ck_assert_uint_eq(LOG_AT(event, 7, 1).number, 1);
    int64_t entries = 0;
    for (; log_record(&file, &at, &event); entries++)
        ck_assert_int_eq((int64_t)LOG_AT(event, 2).number, from + 1 + entries / 2);
    return from + entries / 2;
}

TEST(killed_writers_leave_logs_that_can_be_read)
{
    const int kills = test_is_short() ? 10 : 50;
    unsigned random = 12345;
    int64_t from = 0;
    for (int i = 0; i < kills; i++) {
        random = random * 1664525u + 1013904223u;
        const int64_t last = write_and_kill(from, random % 4000000);
        const int64_t csv = last_of_lines("scalars.csv", "", 1);
        ck_assert_int_ge(last_of_lines("log.jsonl", "{\"step\":", 2), last);
        ck_assert_int_ge(last_of_events(i, from), last);
        ck_assert_int_ge(csv, last);
        ck_assert_int_le(csv, last + 1);
        from = last - last % 3; /* the last checkpoint */
        log_free_files();
    }
}
