/* supervise.c: see supervise.h. */
#include "supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"
#include "inject.h"
#include "judge.h"

enum { LEAK_STRETCH = 50, HANG_SECONDS = 90 };

/* What child and parent share. */
typedef struct board {
    atomic_ulong serial; /* of the program that runs */
    atomic_bool finished;
    uint64_t seed;
    uint64_t stretch; /* the first seed since the latest look for leaks */
    program program;
    finding found;
    fuzz_counts counts;
} board;

static board *the_board(void)
{
    static board *b;
    if (!b) {
        b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        fuzz_require(b != MAP_FAILED, "there is memory that processes share");
    }
    return b;
}

double supervise_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the child ---- */

static void run_one(board *b, const program *p)
{
    finding f = {.kind = FOUND_NOTHING};
    b->program = *p;
    atomic_fetch_add(&b->serial, 1);
    program_judge(p, &f, &b->counts.runs);
    b->counts.programs++;
    b->counts.none += f.kind == FOUND_NO_PROGRAM;
    b->counts.ill += f.kind == FOUND_ILL_CONDITION;
    if (is_finding(&f))
        b->found = f;
}

static void look_for_leaks(board *b)
{
    bool leaks = inject_sanitizer_leaks();
    if (leaks && b->seed)
        found(&b->found, FOUND_LEAK, "memory of seeds %llu to %llu leaks",
              (unsigned long long)b->stretch, (unsigned long long)b->seed);
    else if (leaks)
        found(&b->found, FOUND_LEAK, "memory leaks");
    b->stretch = b->seed + 1;
}

static void run_seeds(board *b, const supervision *s, double end)
{
    program p;
    for (; b->seed < s->end && supervise_now() < end; b->seed++) {
        program_draw(&p, b->seed, &s->draw);
        run_one(b, &p);
        if (s->verbose)
            fprintf(stderr, "seed %llu: %s\n", (unsigned long long)b->seed,
                    program_write(&p, (char[PROGRAM_TEXT]){""}));
        if (!is_finding(&b->found) && (b->seed - b->stretch + 1 >= LEAK_STRETCH))
            look_for_leaks(b);
        if (is_finding(&b->found))
            return;
    }
    b->seed--;
    look_for_leaks(b);
    b->seed++;
}

static void end_child(board *b)
{
    atomic_store(&b->finished, true);
    _exit(0); /* nothing of the parent's is flushed or looked at again */
}

/* ---- the parent ---- */

static int output_file(void)
{
    static int file = -1;
    if (file < 0)
        file = memfd_create("fuzz_programs", MFD_CLOEXEC);
    fuzz_require(file >= 0 && ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0,
                 "a file in memory can be made");
    return file;
}

static void begin_child(int output)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (output >= 0)
        dup2(output, 2);
}

/* The end of what the child wrote. */
static void read_output(int file, char output[MOST_OUTPUT])
{
    off_t length = lseek(file, 0, SEEK_END), from = 0;
    if (length >= MOST_OUTPUT)
        from = length - (MOST_OUTPUT - 1);
    ssize_t got = pread(file, output, MOST_OUTPUT - 1, from);
    output[got < 0 ? 0 : got] = '\0';
}

/* A sanitizer's summary, or how the child ended. */
static void describe_death(finding *f, const char *output, int status)
{
    const char *summary = strstr(output, "SUMMARY: ");
    const char *runtime = strstr(output, "runtime error: ");
    const char *line = summary ? summary : runtime;
    if (line)
        found(f, FOUND_DEATH, "%.*s", (int)strcspn(line, "\n"), line);
    else if (WIFSIGNALED(status))
        found(f, FOUND_DEATH, "%s", strsignal(WTERMSIG(status)));
    else
        found(f, FOUND_DEATH, "the process ended with status %d", WEXITSTATUS(status));
}

/* Waits for the child; one that stays too long with one program is killed. Returns its status. */
static int wait_for_child(board *b, pid_t child, bool *hangs)
{
    unsigned long serial = atomic_load(&b->serial);
    double since = supervise_now();
    int status;
    *hangs = false;
    while (waitpid(child, &status, WNOHANG) == 0) {
        unsigned long latest = atomic_load(&b->serial);
        if (latest != serial) {
            serial = latest;
            since = supervise_now();
        }
        if (supervise_now() - since > HANG_SECONDS && !*hangs) {
            *hangs = true;
            kill(child, SIGKILL);
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return status;
}

static void end_supervision(board *b, pid_t child, int file, verdict *v)
{
    bool hangs;
    int status = wait_for_child(b, child, &hangs);
    read_output(file, v->output);
    v->found = b->found;
    v->seed = b->seed;
    v->program = b->program;
    if (hangs)
        found(&v->found, FOUND_HANG, "nothing has happened for %d seconds", HANG_SECONDS);
    else if (!atomic_load(&b->finished))
        describe_death(&v->found, v->output, status);
}

static board *clean_board(void)
{
    board *b = the_board();
    memset(b, 0, sizeof *b);
    fflush(NULL);
    return b;
}

static void add_counts(fuzz_counts *sum, const fuzz_counts *more)
{
    sum->programs += more->programs;
    sum->none += more->none;
    sum->ill += more->ill;
    sum->runs.steps += more->runs.steps;
    sum->runs.faults += more->runs.faults;
    sum->runs.faults_hit += more->runs.faults_hit;
}

/* Memory that the library, or the user's code, has in the program of one seed alone. */
static void find_leaking_seed(const supervision *s, uint64_t first, uint64_t last, verdict *v)
{
    verdict *alone = malloc(sizeof *alone);
    fuzz_require(alone != NULL, "there is memory for a verdict");
    for (uint64_t seed = first; seed <= last; seed++) {
        program p;
        program_draw(&p, seed, &s->draw);
        supervise_program(&p, alone);
        if (!is_finding(&alone->found))
            continue;
        *v = *alone;
        v->seed = seed;
        break;
    }
    free(alone);
}

void supervise_seeds(const supervision *s, fuzz_counts *counts, verdict *v)
{
    board *b = clean_board();
    int file = output_file();
    b->seed = b->stretch = s->seed;
    pid_t child = fork();
    fuzz_require(child >= 0, "a process can be made");
    if (child == 0) {
        begin_child(s->verbose ? -1 : file);
        run_seeds(b, s, s->seconds > 0 ? supervise_now() + s->seconds : 1e300);
        end_child(b);
    }
    end_supervision(b, child, file, v);
    uint64_t stretch = b->stretch, last = b->seed;
    if (v->found.kind == FOUND_LEAK)
        stretch = stretch > LEAK_STRETCH ? stretch - LEAK_STRETCH : 0;
    add_counts(counts, &b->counts);
    if (v->found.kind == FOUND_LEAK)
        find_leaking_seed(s, stretch < s->seed ? s->seed : stretch, last, v);
}

void supervise_program(const program *p, verdict *v)
{
    board *b = clean_board();
    int file = output_file();
    pid_t child = fork();
    fuzz_require(child >= 0, "a process can be made");
    if (child == 0) {
        begin_child(file);
        run_one(b, p);
        if (!is_finding(&b->found))
            look_for_leaks(b);
        end_child(b);
    }
    end_supervision(b, child, file, v);
}
