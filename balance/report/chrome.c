/* chrome.c: the last finished step in the Chrome trace format, which Perfetto opens.
 *
 * One process, a thread for each that worked, complete events for spans, and for each device a
 * counter of its memory by category. Times are microseconds since the step began. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/thread.h"
#include "report/report.h"

enum { PROCESS = 1 };

typedef struct timed {
    double begin; /* microseconds */
    int order;    /* among those of one moment */
    json_t *event;
} timed;

typedef struct trace {
    const ek_report *report;
    const ek_report_span *spans;
    int span_count;
    double seconds;
    timed *events;
    int count, room;
    json_t *all; /* metadata first */
    bool failed; /* for want of memory */
} trace;

/* Whole nanoseconds, so that what nests still does. */
static double microseconds(double seconds)
{
    return round(1e9 * seconds) / 1000;
}

static json_t *text_of(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_string("?");
}

static void add(trace *t, double begin, json_t *event)
{
    if (t->count == t->room) {
        const int room = t->room ? 2 * t->room : 1024;
        timed *grown = ek_realloc(t->events, (size_t)room * sizeof *grown);
        if (grown) {
            t->events = grown;
            t->room = room;
        }
    }
    if (!event || t->count == t->room) {
        json_decref(event);
        t->failed = true;
        return;
    }
    t->events[t->count] = (timed){begin, t->count, event};
    t->count++;
}

static void name_of_device(const ek_report *report, int index, char name[16])
{
    ek_device_report device = {0};
    ek_report_device(report, index, &device);
    ek_device_name(device.device, name);
}

/* ---- spans ---- */

static void add_span(trace *t, const ek_report_span *span)
{
    static const char *const kinds[EK_SPAN_KINDS] = {"computing", "communicating", "waiting"};
    const double begin = microseconds(span->begin);
    const double duration = microseconds(span->end - span->begin);
    char device[16];
    name_of_device(t->report, span->device, device);
    add(t, begin,
        json_pack("{s:o, s:s, s:s, s:f, s:f, s:i, s:i, s:{s:s}}", "name", text_of(span->label),
                  "cat", kinds[span->kind], "ph", "X", "ts", begin, "dur", duration, "pid", PROCESS,
                  "tid", span->thread + 1, "args", "device", device));
}

/* ---- memory ---- */

static void add_sample(trace *t, const char *name, const ek_memory_sample *sample)
{
    json_t *categories = json_object();
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
        json_t *number = json_integer((json_int_t)sample->now[c]);
        if (json_object_set_new(categories, ek_memory_category_name(c), number) < 0)
            t->failed = true;
    }
    const double begin = microseconds(sample->seconds);
    add(t, begin,
        json_pack("{s:s, s:s, s:f, s:i, s:o}", "name", name, "ph", "C", "ts", begin, "pid", PROCESS,
                  "args", categories));
}

static int add_memory(trace *t, int index)
{
    char device[16], name[32];
    const int room = ek_report_step_memory(t->report, index, NULL, 0);
    ek_memory_sample *samples = ek_calloc((size_t)(room > 0 ? room : 0), sizeof *samples);
    if (!samples)
        return ek_error_pending();
    name_of_device(t->report, index, device);
    snprintf(name, sizeof name, "memory of %s", device);
    const int count = ek_report_step_memory(t->report, index, samples, room);
    for (int i = 0; i < count && i < room; i++)
        add_sample(t, name, &samples[i]);
    free(samples);
    return 0;
}

/* ---- names ---- */

static void add_name(trace *t, const char *what, int thread, const char *name)
{
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:{s:o}}", "name", what, "ph", "M", "pid",
                              PROCESS, "tid", thread, "args", "name", text_of(name));
    if (!event || json_array_append_new(t->all, event) < 0)
        t->failed = true;
}

/* A thread that works for one device, which no worker does, goes by its name too. */
static int only_device(const trace *t, int thread)
{
    int device = -1;
    for (int i = 0; i < t->span_count; i++) {
        if (t->spans[i].thread != thread)
            continue;
        if (device >= 0 && t->spans[i].device != device)
            return -1;
        device = t->spans[i].device;
    }
    for (int other = 0; other < ek_report_thread_count(t->report) && device >= 0; other++)
        if (ek_report_thread_device(t->report, other) == device)
            return -1;
    return device;
}

static void add_names(trace *t)
{
    add_name(t, "process_name", 0, ek_report_name(t->report));
    for (int thread = 0; thread < ek_report_thread_count(t->report); thread++) {
        int device = ek_report_thread_device(t->report, thread);
        char name[16] = "calling thread";
        if (device < 0)
            device = only_device(t, thread);
        if (device >= 0)
            name_of_device(t->report, device, name);
        add_name(t, "thread_name", thread + 1, name);
    }
}

/* ---- */

static int compare(const void *a, const void *b)
{
    const timed *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->order - y->order;
}

static int collect(trace *t)
{
    for (int d = 0; d < ek_report_device_count(t->report); d++)
        EK_TRY(add_memory(t, d));
    for (int i = 0; i < t->span_count; i++)
        add_span(t, &t->spans[i]);
    if (t->count > 0)
        qsort(t->events, (size_t)t->count, sizeof *t->events, compare);
    add_names(t);
    for (int i = 0; i < t->count; i++) {
        if (json_array_append(t->all, t->events[i].event) < 0)
            t->failed = true;
    }
    return t->failed ? EK_FAIL(EK_E_NO_MEMORY, "report_trace: no memory for its events") : 0;
}

static int write_json(FILE *stream, void *user)
{
    if (json_dumpf(user, stream, JSON_COMPACT | JSON_REAL_PRECISION(15)) < 0 && !ferror(stream))
        return EK_FAIL(EK_E_NO_MEMORY, "report_trace: no memory for the text");
    fputc('\n', stream);
    return 0;
}

static int write_trace(const char *path, trace *t)
{
    EK_TRY(collect(t));
    json_t *root =
        json_pack("{s:s, s:{s:I, s:I}, s:O}", "displayTimeUnit", "ms", "otherData", "step",
                  (json_int_t)(ek_report_step_count(t->report) - 1), "spans_dropped",
                  (json_int_t)ek_report_spans_dropped(t->report), "traceEvents", t->all);
    if (!root)
        return EK_FAIL(EK_E_NO_MEMORY, "report_trace: no memory for its events");
    int rc = ek_file_replace_text("report_trace", path, write_json, root);
    json_decref(root);
    return rc;
}

int ek_report_trace(const char *path, const ek_report *report)
{
    if (!path || !*path || !report)
        return EK_FAIL(EK_E_INVALID, "report_trace: the %s",
                       report ? "path is missing" : "report is NULL");
    if (ek_report_step_count(report) == 0)
        return EK_FAIL(EK_E_STATE, "report_trace: no step has ended (ek_report_step)");
    trace t = {.report = report, .all = json_array()};
    t.spans = ek_report_spans(report, &t.span_count, &t.seconds);
    int rc = write_trace(path, &t);
    for (int i = 0; i < t.count; i++)
        json_decref(t.events[i].event);
    free(t.events);
    json_decref(t.all);
    return rc;
}
