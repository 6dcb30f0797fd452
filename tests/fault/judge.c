/* judge.c: one stage, point by point. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"

/* So many points share one set of devices and threads, and one look for leaks. */
enum { BATCH = 64, PRINTED_STACKS = 3 };

/* An undisturbed attempt. */
typedef struct judge_reference {
    bool known, broken;
    fault_notes before, notes, after;
    int points[INJECT_SERIES];
} judge_reference;

/* One point on its way. */
typedef struct judge_case {
    const fault_stage *stage;
    const fault_run *run;
    int row, point;
    const judge_reference *reference;
    bool quiet;          /* it was reported already */
    inject_result fault; /* what failed, and what the attempt said */
    ek_error_record error;
    int anomalies;
    bool fired, failed;
} judge_case;

/* ---- anomalies ---- */

static const char *case_text(const judge_case *c, char text[200])
{
    const fault_stage *stage = c->stage;
    inject_series series = c->run->series;
    const char *kind = inject_series_kind(series);
    snprintf(text, 200, "%s/%s %s%s%s %s point %d", stage->name, fault_row_name(stage, c->row),
             inject_series_class(series), *kind ? "-" : "", kind,
             c->run->persist ? "persisting" : "once", c->point);
    return text;
}

/* The same complaint about the same place is told once in full. */
static bool judge_is_new(const char *what, const inject_result *fault)
{
    static unsigned long long seen[4096];
    static int count;
    unsigned long long hash = 0xcbf29ce484222325u;
    for (const char *c = what; *c && *c != ':'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    for (int i = 0; i < fault->depth && i < 8; i++)
        hash = (hash ^ (unsigned long long)(size_t)fault->stack[i]) * 0x100000001b3u;
    for (int i = 0; i < count; i++)
        if (seen[i] == hash)
            return false;
    if (count < 4096)
        seen[count++] = hash;
    return true;
}

static void complain(judge_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(judge_case *c, const char *format, ...)
{
    char text[200], what[1600];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    c->anomalies++;
    if (c->quiet)
        return;
    printf("ANOMALY %s: %s\n", case_text(c, text), what);
    if (judge_is_new(what, &c->fault)) {
        if (c->error.status)
            printf("    %s: %s\n", ek_status_name(c->error.status), c->error.message);
        printf("    %s failed at\n", c->fault.function ? c->fault.function : "nothing");
        inject_print_stack(c->fault.stack, c->fault.depth);
    }
    fflush(stdout);
}

/* ---- comparisons ---- */

static bool is_close(double a, double b, double tolerance)
{
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

/* NULL, or the part that differs. */
static const char *difference(const fault_notes *a, const fault_notes *b, double tolerance)
{
    for (int i = 0; tolerance == 0 && i < FAULT_PARTS; i++)
        if (a->digests[i] != b->digests[i])
            return a->parts[i] ? a->parts[i] : b->parts[i];
    for (int i = 0; i < a->count; i++)
        if (!is_close(a->numbers[i], b->numbers[i], tolerance))
            return "number";
    return a->count != b->count ? "count" : NULL;
}

static void compare(judge_case *c, const fault_notes *got, const fault_notes *wanted,
                    double tolerance, const char *what)
{
    const char *part = difference(got, wanted, tolerance);
    if (!part)
        return;
    int i = 0;
    while (i < FAULT_NUMBERS - 1 && is_close(got->numbers[i], wanted->numbers[i], 0))
        i++;
    complain(c, "%s: %s (the numbers: %d and %d, number %d is %.17g and was %.17g)", what, part,
             got->count, wanted->count, i, got->numbers[i], wanted->numbers[i]);
}

/* Does this status say what failed? */
static bool is_plausible(inject_series series, int status)
{
    bool memory = status == EK_E_NO_MEMORY || status == EK_E_OUT_OF_MEMORY;
    switch (series) {
    case INJECT_MEMORY:
    case INJECT_THREAD:
    case INJECT_LOCK:
        return memory;
    case INJECT_MAP:
        return memory || status == EK_E_IO;
    case INJECT_HELPER:
        return memory || status == EK_E_BACKEND;
    case INJECT_INTERRUPTED:
    case INJECT_SHORT:
        return false;
    default:
        return status == EK_E_IO || status == EK_E_FORMAT;
    }
}

/* ---- one attempt ---- */

static int note_world(judge_case *c, fault_notes *notes)
{
    fault_notes_begin();
    ek_scope scope = ek_scope_begin();
    int status = c->stage->world ? c->stage->world(c->row) : 0;
    ek_scope_end(&scope);
    *notes = fault_notes_end();
    return status;
}

static int set_up(judge_case *c, fault_notes *before)
{
    ek_error_clear();
    ek_manual_seed(1);
    ek_scope scope = ek_scope_begin();
    int status = c->stage->cold ? 0 : fault_use_one_thread();
    if (status >= 0 && c->stage->set_up)
        status = c->stage->set_up(c->row);
    ek_scope_end(&scope);
    return status < 0 ? status : note_world(c, before);
}

/* Cached blocks would serve what is to fail. */
static void trim_devices(const fault_stage *stage)
{
    if (stage->cold)
        return;
    ek_memory_trim(ek_cpu());
    for (int i = 0; i < FAULT_DEVICES; i++)
        ek_memory_trim(ek_host(i));
}

static int attempt(judge_case *c, int point, fault_notes *notes, ek_error_record *error)
{
    inject_plan plan = {c->run->series, point, c->run->persist};
    trim_devices(c->stage);
    ek_manual_seed(2);
    fault_notes_begin();
    ek_scope scope = ek_scope_begin();
    inject_arm(&plan);
    int status = c->stage->attempt(c->row);
    inject_disarm();
    ek_error_take(error);
    ek_scope_end(&scope);
    *notes = fault_notes_end();
    return status;
}

static void clear(const judge_case *c)
{
    if (c->stage->clear)
        c->stage->clear(c->row);
    ek_error_clear();
}

/* All names that undisturbed attempts leave, a space before and behind each. */
static char known_files[1 << 12] = " ";

/* Complains (c not NULL), or learns, of names that are not known. */
static void check_files(judge_case *c)
{
    char *names = fault_folder_names(), *next = names, *name, word[300];
    while ((name = strsep(&next, " ")) != NULL) {
        snprintf(word, sizeof word, " %s ", name);
        if (!*name || strstr(known_files, word))
            continue;
        if (c)
            complain(c, "a file is left: %s", name);
        else if (strlen(known_files) + strlen(word) < sizeof known_files)
            strcat(known_files, word);
    }
    free(names);
}

static void check_error(judge_case *c, int status)
{
    const ek_error_record *error = &c->error;
    if (error->status >= 0 || !error->message[0])
        complain(c, "the call gives %d, but no sentence", status);
    else if (!is_plausible(c->run->series, error->status))
        complain(c, "the status %s does not fit", ek_status_name(error->status));
    else if (strstr(error->message, "(null)"))
        complain(c, "the sentence has a hole: %s", error->message);
}

/* The point, and what it left. */
static void try_point(judge_case *c)
{
    const judge_reference *reference = c->reference;
    double tolerance = c->stage->tolerance;
    fault_notes before, notes, after;
    if (set_up(c, &before) < 0) {
        complain(c, "cannot be set up: %s", ek_error_message());
        clear(c);
        return;
    }
    int status = attempt(c, c->point, &notes, &c->error);
    c->fault = *inject_last();
    c->fired = c->fault.fired > 0;
    c->failed = status < 0;
    if (notes.broken)
        complain(c, "broken: %s", notes.broken);
    if (c->failed && !c->fired) {
        complain(c, "fails where nothing was made to fail");
    } else if (c->failed) {
        check_error(c, status);
        if (note_world(c, &after) < 0)
            complain(c, "what it left cannot be read: %s", ek_error_message());
        if (!c->stage->may_be_done || difference(&after, &reference->after, tolerance))
            compare(c, &after, &before, 0, "a failed attempt has changed something");
        ek_error_record again;
        status = attempt(c, 0, &notes, &again);
        if (status < 0 || again.status)
            complain(c, "the second attempt fails: %s", again.message);
    } else if (c->error.status) {
        complain(c, "succeeds with an error pending: %s", c->error.message);
    }
    if (status >= 0) {
        if (note_world(c, &after) < 0)
            complain(c, "the result cannot be read: %s", ek_error_message());
        compare(c, &notes, &reference->notes, tolerance,
                c->failed ? "the second attempt differs" : "a success differs");
        const bool kept = c->stage->keeps_world;
        compare(c, &after, kept ? &before : &reference->after, kept ? 0 : tolerance,
                c->failed ? "the second attempt leaves something else"
                          : "a success leaves something else");
    }
    clear(c);
    if (c->stage->cold && ek_shutdown() < 0)
        complain(c, "the ledger is not at zero: %s", ek_error_message());
    if (c->stage->files)
        check_files(c);
}

/* ---- what is left when all is freed ---- */

typedef struct judge_batch {
    int points[BATCH], rows[BATCH], count;
    long live; /* blocks allocated before */
} judge_batch;

/* NULL, or what is wrong. */
static const char *uneven(const judge_batch *batch, char text[1100])
{
    *text = '\0';
    if (ek_shutdown() < 0)
        snprintf(text, 1100, "the ledger is not at zero: %s", ek_error_message());
    else if (inject_live() > batch->live)
        snprintf(text, 1100, "%ld blocks are leaked", inject_live() - batch->live);
    else if (inject_sanitizer_leaks())
        snprintf(text, 1100, "the sanitizer finds a leak");
    ek_error_clear();
    return *text ? text : NULL;
}

/* One by one: which of them was it? */
static int find_leaks(judge_case c, judge_batch *batch)
{
    char text[1100], where[200];
    int found = 0;
    for (int i = 0; i < batch->count; i++) {
        c.point = batch->points[i];
        c.quiet = true;
        batch->live = inject_live();
        inject_remember_stacks(true);
        fault_watch(case_text(&c, where));
        try_point(&c);
        const char *what = uneven(batch, text);
        fault_watch("");
        c.quiet = false;
        if (what) {
            bool known = found++ > 0;
            complain(&c, "%s", what);
            if (!known)
                inject_print_live(PRINTED_STACKS);
        }
        inject_remember_stacks(false);
    }
    return found;
}

static int close_batch(const judge_case *c, judge_batch *batch)
{
    char text[1100];
    int found = 0;
    fault_watch("looking for what is left");
    bool clean = batch->count == 0 || !uneven(batch, text);
    fault_watch("");
    if (!clean)
        found = find_leaks(*c, batch);
    batch->count = 0;
    batch->live = inject_live();
    return found;
}

/* ---- rows ---- */

/* Runs it twice: the first run makes what the process makes only once (threads, caches); the second
 * is the reference. */
static int learn(judge_case *c, judge_reference *reference)
{
    c->reference = reference;
    c->point = 0;
    for (int i = 0; i < 2; i++) {
        ek_error_record error = {0};
        if (set_up(c, &reference->before) < 0 || attempt(c, 0, &reference->notes, &error) < 0 ||
            note_world(c, &reference->after) < 0 || error.status) {
            printf("ANOMALY %s/%s fails undisturbed: %s\n", c->stage->name,
                   fault_row_name(c->stage, c->row),
                   error.status ? error.message : ek_error_message());
            clear(c);
            reference->broken = true;
            return -1;
        }
        memcpy(reference->points, inject_last()->points, sizeof reference->points);
        clear(c);
        if (c->stage->cold)
            ek_shutdown();
    }
    if (!c->stage->files)
        for (int i = INJECT_ERROR; i < INJECT_SERIES; i++)
            reference->points[i] = 0;
    if (c->stage->files)
        check_files(NULL);
    reference->known = true;
    return 0;
}

static void judge_row(judge_case *c, int *next, fault_tally *tally)
{
    judge_batch batch = {.live = 0};
    const fault_run *run = c->run;
    const int points = c->reference->points[run->series];
    char text[200];
    ek_shutdown();
    inject_sanitizer_leaks();
    batch.live = inject_live();
    tally->points += points;
    for (; *next <= points; *next += run->every) {
        if (run->to > 0 && *next > run->to)
            break;
        judge_case one = *c;
        one.point = *next;
        fault_watch(case_text(&one, text));
        try_point(&one);
        fault_watch("");
        if (one.fired) {
            tally->tried++;
            *(one.failed ? &tally->errors : &tally->survived) += 1;
        }
        tally->anomalies += one.anomalies;
        batch.points[batch.count++] = one.point;
        if (batch.count == BATCH)
            tally->anomalies += close_batch(c, &batch);
    }
    tally->anomalies += close_batch(c, &batch);
    *next -= points;
}

fault_tally fault_judge(const fault_stage *stage, const fault_run *run)
{
    static struct {
        const fault_stage *stage;
        judge_reference rows[FAULT_MOST_ROWS];
    } references;
    fault_tally tally = {0};
    int next = run->from;
    if (references.stage != stage) {
        memset(&references, 0, sizeof references);
        references.stage = stage;
    }
    for (int row = 0; row < stage->rows; row++) {
        if (run->only >= 0 && row != run->only)
            continue;
        judge_case c = {.stage = stage, .run = run, .row = row, .reference = &references.rows[row]};
        fault_tally before = tally;
        if (references.rows[row].broken)
            continue;
        char text[200];
        fault_watch(case_text(&c, text)); /* point 0: undisturbed */
        bool learnt = references.rows[row].known || learn(&c, &references.rows[row]) >= 0;
        fault_watch("");
        if (!learnt)
            tally.anomalies++;
        else if (references.rows[row].points[run->series] > 0)
            judge_row(&c, &next, &tally);
        if (run->verbose && tally.points > before.points)
            printf("    %-28s points %6ld  tried %6ld  anomalies %ld\n", fault_row_name(stage, row),
                   tally.points - before.points, tally.tried - before.tried,
                   tally.anomalies - before.anomalies);
    }
    return tally;
}
