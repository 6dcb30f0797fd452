/* fuzz_programs.c: random training programs, each compared with the same program on one device.
 *
 *     fuzz_programs [--seed S] [--count N | --seconds T] [--findings N] [--no-faults]
 *                   [--shrink off] [--verbose] [--plant]
 *     fuzz_programs --program 'TEXT'
 *     fuzz_programs --test-shrinking
 *
 * A program is a function of its seed (draw.c): a net, a criterion, an optimizer, ways to divide
 * the work over devices, steps and what happens between them. Its losses, gradients, parameters
 * and buffers are those of the reference (judge.c); what fails on the way (faults.c) gives an error
 * with a sentence and leaves all as it was, so that the step can be done again; at the end nothing
 * is left. A finding is made smaller (shrink.c), printed as C and as text, and ends the run with
 * status 1. Sanitizers' reports, deaths and hangs are findings as well (supervise.c).
 *
 * --plant puts a layer into each program that is wrong on the second device; --test-shrinking sees
 * such a one found and made small. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "print.h"
#include "shrink.h"

enum { SHRINK_ATTEMPTS = 1500, SHRINK_SECONDS = 240 };

typedef struct command {
    supervision s;
    long findings; /* after so many the run ends */
    bool shrinks, tests_shrinking;
    const char *text;
} command;

static const char usage[] =
    "usage: fuzz_programs [--seed S] [--count N | --seconds T] [--findings N] [--no-faults]\n"
    "                     [--shrink off] [--verbose] [--plant]\n"
    "       fuzz_programs --program 'TEXT'\n"
    "       fuzz_programs --test-shrinking\n";

/* An option with a value; returns that, or NULL. */
static const char *value_of(const char *name, char **argv, int *i)
{
    if (strcmp(argv[*i], name) != 0 || !argv[*i + 1])
        return NULL;
    return argv[++*i];
}

static bool read_command(command *c, char **argv)
{
    const char *value;
    uint64_t count = 100;
    for (int i = 1; argv[i]; i++) {
        if ((value = value_of("--seed", argv, &i)) != NULL)
            c->s.seed = strtoull(value, NULL, 10);
        else if ((value = value_of("--count", argv, &i)) != NULL)
            count = strtoull(value, NULL, 10);
        else if ((value = value_of("--seconds", argv, &i)) != NULL)
            c->s.seconds = strtod(value, NULL);
        else if ((value = value_of("--findings", argv, &i)) != NULL)
            c->findings = strtol(value, NULL, 10);
        else if ((value = value_of("--program", argv, &i)) != NULL)
            c->text = value;
        else if ((value = value_of("--shrink", argv, &i)) != NULL)
            c->shrinks = strcmp(value, "off") != 0;
        else if (strcmp(argv[i], "--no-faults") == 0)
            c->s.draw.faults = false;
        else if (strcmp(argv[i], "--verbose") == 0)
            c->s.verbose = true;
        else if (strcmp(argv[i], "--plant") == 0)
            c->s.draw.planted = true;
        else if (strcmp(argv[i], "--test-shrinking") == 0)
            c->tests_shrinking = true;
        else
            return false;
    }
    c->s.end = c->s.seconds > 0 ? UINT64_MAX : c->s.seed + count;
    return true;
}

static void print_finding(const verdict *v, int attempts)
{
    char text[PROGRAM_TEXT];
    printf("\nFOUND: %s\n", v->found.sentence);
    if (attempts > 0)
        printf("the smallest of %d programs that shows it:\n\n", attempts);
    program_print(&v->program, stdout);
    printf("\n    fuzz_programs --program '%s'\n\n", program_write(&v->program, text));
    if (v->found.kind >= FOUND_LEAK && v->output[0])
        printf("%s\n", v->output);
    fflush(stdout);
}

static void report(const command *c, verdict *v)
{
    printf("seed %llu: %s\n", (unsigned long long)v->seed, v->found.sentence);
    fflush(stdout);
    print_finding(v, c->shrinks ? shrink(v, SHRINK_ATTEMPTS, SHRINK_SECONDS) : 0);
}

static int run_text(const command *c, verdict *v)
{
    if (!program_read(&v->program, c->text))
        return 2;
    program p = v->program;
    supervise_program(&p, v);
    if (!is_finding(&v->found)) {
        printf("nothing found%s%s\n", v->found.kind ? ": " : "", v->found.sentence);
        return 0;
    }
    print_finding(v, 0);
    return 1;
}

static int run_seeds(command *c, verdict *v)
{
    fuzz_counts n = {0};
    long findings = 0;
    double seconds = c->s.seconds;
    const double begin = supervise_now();
    for (;;) {
        supervise_seeds(&c->s, &n, v);
        if (!is_finding(&v->found))
            break;
        report(c, v);
        if (++findings >= c->findings)
            break;
        c->s.seed = v->seed + 1;
        c->s.seconds = seconds > 0 ? seconds - (supervise_now() - begin) : 0;
        if (c->s.seed >= c->s.end || (seconds > 0 && c->s.seconds <= 0))
            break;
    }
    printf("%ld programs (%ld that one device can't run, %ld ill-conditioned: not judged), "
           "%ld steps, %ld faults injected, %ld hit, %ld findings, %.0f s\n",
           n.programs, n.none, n.ill, n.runs.steps, n.runs.faults, n.runs.faults_hit, findings,
           supervise_now() - begin);
    return findings > 0;
}

/* ---- a test of the shrinker ---- */

static int test_shrinking(command *c, verdict *v)
{
    fuzz_counts n = {0};
    char text[PROGRAM_TEXT];
    c->s.draw.planted = true;
    c->s.draw.faults = false;
    c->s.end = c->s.seed + 50;
    supervise_seeds(&c->s, &n, v);
    fuzz_require(v->found.kind == FOUND_NUMBERS, "the planted layer is found");
    int attempts = shrink(v, SHRINK_ATTEMPTS, SHRINK_SECONDS);
    print_finding(v, attempts);
    fuzz_require(v->program.layer_count <= 3, "at most 3 layers are left");
    fuzz_require(v->program.devices <= 2 && v->program.ways[0].count == 2, "2 devices are left");
    fuzz_require(v->program.step_count == 1, "1 step is left");
    program again;
    fuzz_require(program_read(&again, program_write(&v->program, text)), "the text can be read");
    finding before = v->found;
    supervise_program(&again, v);
    fuzz_require(strcmp(v->found.sentence, before.sentence) == 0,
                 "the text shows the same numbers");
    again.layer_count = 0;
    supervise_program(&again, v);
    fuzz_require(v->found.kind == FOUND_NOTHING, "without the layer there is nothing to be found");
    return 0;
}

int main(int argc, char **argv)
{
    static verdict v;
    static char folder[200], file[240];
    const char *where = getenv("TMPDIR");
    command c = {.s = {.seed = 1, .draw = {.faults = true}}, .findings = 1, .shrinks = true};
    if (!read_command(&c, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    snprintf(folder, sizeof folder, "%s/fuzz_programs-XXXXXX",
             where && strlen(where) < 170 ? where : "/tmp");
    fuzz_require(mkdtemp(folder) != NULL, "a folder for checkpoints can be made");
    snprintf(file, sizeof file, "%s/checkpoint.safetensors", folder);
    run_set_file(file);
    int status = c.tests_shrinking ? test_shrinking(&c, &v)
                 : c.text          ? run_text(&c, &v)
                                   : run_seeds(&c, &v);
    char removal[sizeof folder + 20]; /* a child that died may have left a half-written file */
    snprintf(removal, sizeof removal, "rm -rf '%s'", folder);
    if (system(removal) != 0)
        fprintf(stderr, "fuzz_programs: %s stays\n", folder);
    return status;
}
