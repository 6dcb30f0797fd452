/* main.c: fault_stages, the command line.
 *
 *     fault_stages --list
 *     fault_stages [--stage NAME[/ROW]]... [--class memory|thread|map|lock|helper|io]
 *                  [--kind error|full|interrupted|short|zero] [--every N] [--from K] [--to K]
 *                  [--once | --persist] [--verbose]
 *
 * Without a stage, class or kind: all of them. Points are numbered from 1, over all rows of a
 * stage; tried are K, K + N, K + 2N, ... (1 and 1 if not given; with --every N, K is (N + 1) / 2).
 * Each fails once and, in a second round, with all that follow, unless --once or --persist chooses
 * one. One line is printed per stage, class and round; the exit status is 1 if there is an anomaly,
 * or if whole stages were chosen and nothing was made to fail. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"

static fault_stage *stages;

void fault_register(fault_stage *stage)
{
    fault_stage **at = &stages;
    while (*at && strcmp((*at)->name, stage->name) < 0)
        at = &(*at)->next;
    stage->next = *at;
    *at = stage;
}

const char *fault_row_name(const fault_stage *stage, int row)
{
    return *(const char *const *)((const char *)stage->names + (size_t)row * stage->stride);
}

fault_stage *fault_stages(void)
{
    return stages;
}

typedef struct command {
    const char *stages[64];
    int stage_count;
    const char *class_name, *kind;
    bool once, persist, list;
    fault_run run;
} command;

static int usage(void)
{
    fprintf(stderr, "usage: fault_stages [--list] [--stage NAME[/ROW]]... [--class NAME] [--kind "
                    "NAME] [--every N] [--from K] [--to K] [--once | --persist] [--verbose]\n");
    return 2;
}

static bool parse_value(command *c, const char *option, const char *value)
{
    if (strcmp(option, "--stage") == 0 && c->stage_count < 64)
        c->stages[c->stage_count++] = value;
    else if (strcmp(option, "--class") == 0)
        c->class_name = value;
    else if (strcmp(option, "--kind") == 0)
        c->kind = value;
    else if (strcmp(option, "--every") == 0)
        c->run.every = atoi(value);
    else if (strcmp(option, "--from") == 0)
        c->run.from = atoi(value);
    else if (strcmp(option, "--to") == 0)
        c->run.to = atoi(value);
    else
        return false;
    return true;
}

static bool parse(command *c, int count, char **arguments)
{
    *c = (command){.once = true, .persist = true, .run = {.every = 1, .only = -1}};
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--list") == 0)
            c->list = true;
        else if (strcmp(arguments[i], "--once") == 0)
            c->persist = false;
        else if (strcmp(arguments[i], "--persist") == 0)
            c->once = false;
        else if (strcmp(arguments[i], "--verbose") == 0)
            c->run.verbose = true;
        else if (i + 1 >= count || !parse_value(c, arguments[i], arguments[i + 1]))
            return false;
        else
            i++;
    }
    if (c->run.from == 0)
        c->run.from = (c->run.every + 1) / 2;
    return c->run.every > 0 && c->run.from > 0 && (c->once || c->persist);
}

/* The stage is wanted, and *row is the only row of it, or -1. */
static bool is_wanted(const command *c, const fault_stage *stage, int *row)
{
    size_t length = strlen(stage->name);
    *row = -1;
    for (int i = 0; i < c->stage_count; i++) {
        const char *name = c->stages[i];
        if (strcmp(name, stage->name) == 0)
            return true;
        for (int r = 0; r < stage->rows; r++)
            if (strncmp(name, stage->name, length) == 0 && name[length] == '/' &&
                strcmp(name + length + 1, fault_row_name(stage, r)) == 0) {
                *row = r;
                return true;
            }
    }
    return c->stage_count == 0;
}

static bool is_series_wanted(const command *c, const fault_stage *stage, inject_series series)
{
    if (series >= INJECT_ERROR && !stage->files)
        return false;
    return (!c->class_name || strcmp(c->class_name, inject_series_class(series)) == 0) &&
           (!c->kind || strcmp(c->kind, inject_series_kind(series)) == 0);
}

static void list_stages(void)
{
    for (const fault_stage *stage = stages; stage; stage = stage->next)
        for (int row = 0; row < stage->rows; row++)
            printf("%s/%s%s\n", stage->name, fault_row_name(stage, row),
                   stage->files ? " (files)" : "");
}

static fault_tally run_stage(const fault_stage *stage, const fault_run *run)
{
    fault_tally tally = fault_judge(stage, run);
    const char *kind = inject_series_kind(run->series);
    char name[40];
    snprintf(name, sizeof name, "%s%s%s", inject_series_class(run->series), *kind ? "-" : "", kind);
    if (tally.points > 0 || tally.anomalies > 0)
        printf("%-16s %-14s %-10s points %6ld  tried %6ld  errors %6ld  survived %6ld  anomalies "
               "%ld\n",
               stage->name, name, run->persist ? "persisting" : "once", tally.points, tally.tried,
               tally.errors, tally.survived, tally.anomalies);
    if (run->series == INJECT_MEMORY && run->only < 0 && tally.points == 0 &&
        tally.anomalies == 0) {
        printf("ANOMALY %s: no call that can fail is seen; are they wrapped?\n", stage->name);
        tally.anomalies++;
    }
    fflush(stdout);
    return tally;
}

/* libgomp and the library read these when they begin. */
static void restart_with_environment(char **arguments)
{
    const char *devices = getenv("EVENKEEL_HOST_DEVICES"), *threads = getenv("OMP_NUM_THREADS");
    if (devices && strcmp(devices, "3") == 0 && threads && strcmp(threads, "1") == 0)
        return;
    setenv("EVENKEEL_HOST_DEVICES", "3", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", arguments);
}

int main(int count, char **arguments)
{
    command c;
    static char line[1 << 12];
    long anomalies = 0, tried = 0;
    bool found = false, whole = false; /* a single row may have no point */
    if (!parse(&c, count, arguments))
        return usage();
    if (c.list) {
        list_stages();
        return 0;
    }
    restart_with_environment(arguments);
    if (fault_folder_make() < 0) {
        perror("fault_stages: no folder for files");
        return 1;
    }
    setvbuf(stdout, line, _IOLBF, sizeof line); /* what was said stays said, however this ends */
    fault_watch_start();
    for (const fault_stage *stage = stages; stage; stage = stage->next) {
        fault_run run = c.run;
        if (!is_wanted(&c, stage, &run.only))
            continue;
        found = true;
        whole = whole || run.only < 0;
        for (int series = 0; series < INJECT_SERIES; series++)
            for (int persist = 0; persist < 2; persist++) {
                run.series = (inject_series)series;
                run.persist = persist;
                if (!(persist ? c.persist : c.once) || !is_series_wanted(&c, stage, run.series))
                    continue;
                fault_tally tally = run_stage(stage, &run);
                anomalies += tally.anomalies;
                tried += tally.tried;
            }
    }
    fault_folder_remove();
    if (!found)
        fprintf(stderr, "fault_stages: no such stage; --list names them\n");
    else if (tried == 0 && whole)
        printf("ANOMALY fault_stages: nothing was made to fail\n");
    return anomalies > 0 || !found || (tried == 0 && whole);
}
