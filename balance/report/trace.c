/* trace.c: the last finished step in the Chrome trace format, which Perfetto opens.
 *
 * It has a process per rank, each thread that worked, complete events for spans, and for each
 * device a counter of its memory by category. Times are microseconds since the rank's step began.
 */
#include <math.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/json.h"
#include "core/thread.h"
#include "report/report.h"

enum { DIGITS = 15 };

/* A span or a sample of a device's memory. */
typedef struct event {
    double begin; /* microseconds */
    int order;    /* rank among events of one moment */
    const ek_report_span *span;
    const ek_memory_sample *sample; /* used if span is NULL */
    int device;                     /* index in the report */
} event;

typedef struct trace {
    const ek_report *report;
    const ek_report_span *spans;
    int span_count;
    double seconds;
    int device_count;
    char (*names)[16];          /* the devices' names; owned */
    ek_memory_sample **samples; /* each device's samples; owned, as are the lists */
    event *events;              /* owned */
    int count, room;
} trace;

/* Returns microseconds rounded to whole nanoseconds, so that nested spans stay nested. */
static double trace_microseconds(double seconds)
{
    return round(1e9 * seconds) / 1000;
}

/* ---- events in the order of their beginnings ---- */

static int trace_add(trace *t, event e)
{
    EK_TRY(ek_grow(&t->events, &t->room, t->count + 1));
    e.order = t->count;
    t->events[t->count++] = e;
    return 0;
}

static int trace_add_device(trace *t, int index)
{
    ek_device_report device;
    EK_TRY(ek_report_get_device(t->report, index, &device));
    ek_device_name(device.device, t->names[index]);
    const int room = ek_report_step_memory(t->report, index, NULL, 0);
    ek_memory_sample *samples = ek_calloc((size_t)(room > 0 ? room : 0), sizeof *samples);
    if (!samples)
        return EK_E_NO_MEMORY;
    t->samples[index] = samples;
    const int count = ek_report_step_memory(t->report, index, samples, room);
    for (int i = 0; i < count && i < room; i++)
        EK_TRY(trace_add(t, (event){.begin = trace_microseconds(samples[i].seconds),
                                    .sample = &samples[i],
                                    .device = index}));
    return 0;
}

static int event_compare(const void *a, const void *b)
{
    const event *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->order - y->order;
}

static int trace_collect(trace *t)
{
    const size_t devices = (size_t)ek_report_device_count(t->report);
    t->names = ek_calloc(devices, sizeof *t->names);
    t->samples = ek_calloc(devices, sizeof *t->samples);
    if (!t->names || !t->samples)
        return ek_error_pending();
    t->device_count = (int)devices;
    for (int d = 0; d < t->device_count; d++)
        EK_TRY(trace_add_device(t, d));
    for (int i = 0; i < t->span_count; i++)
        EK_TRY(trace_add(t, (event){.begin = trace_microseconds(t->spans[i].begin),
                                    .span = &t->spans[i],
                                    .device = t->spans[i].device}));
    if (t->count > 0)
        qsort(t->events, (size_t)t->count, sizeof *t->events, event_compare);
    return 0;
}

/* ---- writing ---- */

/* Returns the number of a device's process; for device -1, the number for threads whose spans have
 * no device. */
static int trace_process(const trace *t, int device)
{
    return 1 + (device < 0 ? 0 : ek_report_device_rank(t->report, device));
}

static void trace_put_span(ek_json_writer *json, const trace *t, const event *e)
{
    static const char *const kinds[EK_SPAN_KINDS] = {"computing", "communicating", "waiting"};
    const ek_report_span *span = e->span;
    ek_json_put_text(json, "name", span->label);
    ek_json_put_text(json, "cat", kinds[span->kind]);
    ek_json_put_text(json, "ph", "X");
    ek_json_put_real(json, "ts", e->begin, DIGITS);
    ek_json_put_real(json, "dur", trace_microseconds(span->end - span->begin), DIGITS);
    ek_json_put_integer(json, "pid", trace_process(t, e->device));
    ek_json_put_integer(json, "tid", span->thread + 1);
    ek_json_begin(json, "args", '{');
    ek_json_put_text(json, "device", t->names[e->device]);
    ek_json_close(json, '}');
}

static void trace_put_sample(ek_json_writer *json, const trace *t, const event *e)
{
    char name[32];
    snprintf(name, sizeof name, "memory of %s", t->names[e->device]);
    ek_json_put_text(json, "name", name);
    ek_json_put_text(json, "ph", "C");
    ek_json_put_real(json, "ts", e->begin, DIGITS);
    ek_json_put_integer(json, "pid", trace_process(t, e->device));
    ek_json_begin(json, "args", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        ek_json_put_integer(json, ek_memory_category_name(c), (int64_t)e->sample->now[c]);
    ek_json_close(json, '}');
}

static void trace_put_event(ek_json_writer *json, const trace *t, const event *e)
{
    ek_json_begin(json, NULL, '{');
    if (e->span)
        trace_put_span(json, t, e);
    else
        trace_put_sample(json, t, e);
    ek_json_close(json, '}');
}

static void trace_put_name(ek_json_writer *json, const char *what, int process, int thread,
                           const char *name)
{
    ek_json_begin(json, NULL, '{');
    ek_json_put_text(json, "name", what);
    ek_json_put_text(json, "ph", "M");
    ek_json_put_integer(json, "pid", process);
    ek_json_put_integer(json, "tid", thread);
    ek_json_begin(json, "args", '{');
    ek_json_put_text(json, "name", name);
    ek_json_close(json, '}');
    ek_json_close(json, '}');
}

/* Returns the device whose name a thread gets in the trace, or -1. A thread gets a device's name if
 * all its spans are of this device, and the device's worker had no spans. */
static int trace_only_device(const trace *t, int thread)
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

/* Returns the process of a thread: that of its spans' devices, which belong to one rank. */
static int trace_thread_process(const trace *t, int thread)
{
    int device = ek_report_thread_device(t->report, thread);
    for (int i = 0; i < t->span_count && device < 0; i++)
        if (t->spans[i].thread == thread)
            device = t->spans[i].device;
    return trace_process(t, device);
}

/* Writes the processes' names: "balanced", or "balanced, rank 1 on node7" if there are several
 * ranks. */
static int trace_put_processes(ek_json_writer *json, const trace *t)
{
    const int count = ek_report_rank_count(t->report);
    for (int r = 0; r < count; r++) {
        ek_rank_report rank;
        char name[256];
        EK_TRY(ek_report_get_rank(t->report, r, &rank));
        snprintf(name, sizeof name, "%.120s, rank %d on %s", ek_report_name(t->report), rank.rank,
                 rank.host);
        trace_put_name(json, "process_name", 1 + r, 0,
                       count > 1 ? name : ek_report_name(t->report));
    }
    return 0;
}

static void trace_put_threads(ek_json_writer *json, const trace *t)
{
    for (int thread = 0; thread < ek_report_thread_count(t->report); thread++) {
        int device = ek_report_thread_device(t->report, thread);
        if (device < 0)
            device = trace_only_device(t, thread);
        trace_put_name(json, "thread_name", trace_thread_process(t, thread), thread + 1,
                       device < 0 ? "calling thread" : t->names[device]);
    }
}

static int trace_write(FILE *stream, void *user)
{
    const trace *t = user;
    ek_json_writer json = {.stream = stream};
    ek_json_begin(&json, NULL, '{');
    ek_json_put_text(&json, "displayTimeUnit", "ms");
    ek_json_begin(&json, "otherData", '{');
    ek_json_put_integer(&json, "step", ek_report_step_count(t->report) - 1);
    ek_json_put_integer(&json, "spans_dropped", ek_report_spans_dropped(t->report));
    ek_json_close(&json, '}');
    ek_json_begin(&json, "traceEvents", '[');
    EK_TRY(trace_put_processes(&json, t));
    trace_put_threads(&json, t);
    for (int i = 0; i < t->count; i++)
        trace_put_event(&json, t, &t->events[i]);
    ek_json_close(&json, ']');
    ek_json_close(&json, '}');
    fputc('\n', stream);
    return 0;
}

static int trace_check(const char *path, const ek_report *report)
{
    if (!path || !*path || !report)
        return EK_FAIL(EK_E_INVALID, "report_trace: the %s",
                       report ? "path is missing" : "report is NULL");
    EK_TRY(ek_check_alive("report_trace", "the report", report));
    if (ek_report_step_count(report) == 0)
        return EK_FAIL(EK_E_STATE, "report_trace: no step has ended (ek_report_step)");
    return 0;
}

static int trace_make(const char *path, const ek_report *report)
{
    trace t = {.report = report};
    t.spans = ek_report_spans(report, &t.span_count, &t.seconds);
    int rc = t.span_count < 0 ? t.span_count : trace_collect(&t);
    if (rc == 0)
        rc = ek_file_replace_text("report_trace", path, trace_write, &t);
    for (int d = 0; d < t.device_count; d++)
        free(t.samples[d]);
    free(t.samples);
    free(t.names);
    free(t.events);
    return rc;
}

int ek_report_trace(const char *path, const ek_report *report)
{
    /* Data received from other ranks is freed through a pointer without const. */
    ek_report *written = (ek_report *)report;
    int writes = ek_report_begin_writing(&written, 1, trace_check(path, report));
    if (writes < 0)
        return writes;
    return ek_report_end_writing(&written, 1, writes ? trace_make(path, report) : 0);
}
