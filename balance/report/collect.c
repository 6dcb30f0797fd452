/* collect.c: a report while it collects. */
#include "report/collect.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"

/* ---- what the tracer is told ---- */

static int index_of(const ek_report *report, const ek_dev *dev)
{
    return dev ? report->index_of[dev->id.kind][dev->id.index] : -1;
}

/* The thread's log in the report that collects. */
static _Thread_local struct {
    uint64_t serial;
    ek_log *log;
} own;

static ek_log *own_log(ek_report *report)
{
    if (own.serial == report->serial)
        return own.log;
    pthread_mutex_lock(&report->logs_lock);
    ek_log *log = ek_log_new(report->threads);
    if (log) {
        log->worker = index_of(report, ek_thread_self()->worker_of);
        log->next = report->logs;
        report->logs = log;
        report->threads++;
        own.serial = report->serial;
        own.log = log;
    }
    pthread_mutex_unlock(&report->logs_lock);
    if (!log)
        atomic_store(&report->lost, true);
    return log;
}

static void on_span(const ek_span *span, uint64_t ended, void *user)
{
    ek_report *report = user;
    const int device = index_of(report, span->dev);
    ek_log *log = device >= 0 ? own_log(report) : NULL;
    if (!log)
        return;
    /* What lies before the step counts in no step. */
    const uint64_t began = atomic_load_explicit(&report->step_began, memory_order_relaxed);
    const uint64_t most = ended > began ? ended - began : 0;
    const uint64_t self = ended - span->began - span->inner;
    ek_log_add(log, span, device, ended, self < most ? self : most);
}

/* The allocator's lock is held. */
static void note(ek_report *report, ek_tracked *device, uint64_t clock,
                 const ek_memory_stats *stats, const ek_span *span)
{
    ek_moment moment = {.ns = clock - report->began, .step = device->step, .in_use = stats->in_use};
    memcpy(moment.now, stats->now, sizeof moment.now);
    if (moment.in_use > device->peak.in_use) {
        device->peak = moment;
        ek_span_label(span, device->peak_operation);
    }
    device->capacity = stats->capacity;
    if (stats->reserved > device->reserved_peak)
        device->reserved_peak = stats->reserved;
    ek_series_note(&device->run, &moment);
    moment.ns = clock - device->step_began;
    ek_series_note(&device->running, &moment);
}

static void on_memory(const ek_dev *dev, const ek_memory_stats *stats, const ek_span *span,
                      void *user)
{
    ek_report *report = user;
    const int device = index_of(report, dev);
    /* One that was opened in another's place isn't the report's. */
    if (device >= 0 && report->devices[device].open.dev == dev)
        note(report, &report->devices[device], ek_clock_ns(), stats, span);
}

/* ---- steps ---- */

/* The device's step ends at `clock`, or with the last change if that came later. */
static void turn_device(ek_report *report, ek_tracked *device, uint64_t clock)
{
    ek_allocator *allocator = &device->open.dev->allocator;
    pthread_mutex_lock(&allocator->lock);
    const uint64_t last = report->began + ek_series_last(&device->run)->ns;
    if (clock < last)
        clock = last;
    note(report, device, clock, &allocator->stats, NULL);
    const ek_series before = device->finished;
    device->finished = device->running;
    device->finished_ns = clock - device->step_began;
    device->running = before;
    ek_series_restart(&device->running, &device->finished);
    device->step++;
    device->step_began = clock;
    note(report, device, clock, &allocator->stats, NULL);
    pthread_mutex_unlock(&allocator->lock);
}

static void turn_logs(ek_report *report, ek_busy *busy)
{
    pthread_mutex_lock(&report->logs_lock);
    for (ek_log *log = report->logs; log; log = log->next)
        ek_log_turn(log, report->count, busy);
    pthread_mutex_unlock(&report->logs_lock);
}

static int check_open(const ek_report *report)
{
    char name[16];
    for (int d = 0; d < report->count; d++)
        if (!report->devices[d].open.dev)
            return EK_FAIL(EK_E_STATE,
                           "report_step: %s has been closed since the report was started; stop it "
                           "before the devices are shut down",
                           ek_device_name(report->devices[d].id, name));
    return 0;
}

int ek_report_step(ek_report *report)
{
    ek_busy busy[EK_MAX_DEVICES] = {{0, 0}};
    if (!report || !report->collecting)
        return EK_FAIL(EK_E_STATE, "report_step: the report %s",
                       report ? "has been stopped" : "is NULL");
    EK_TRY(ek_fork_check());
    EK_TRY(check_open(report));
    const uint64_t now = ek_clock_ns();
    turn_logs(report, busy);
    for (int d = 0; d < report->count; d++)
        turn_device(report, &report->devices[d], now);
    report->finished_began = atomic_load(&report->step_began);
    report->finished_ns = now - report->finished_began;
    atomic_store(&report->step_began, now);
    ek_steps_add(&report->steps, report->finished_ns, busy);
    ek_gathered_clear(report->gathered);
    if (atomic_load(&report->lost))
        return EK_FAIL(EK_E_NO_MEMORY, "report_step: the process had no memory for a thread's "
                                       "spans: times are incomplete");
    return 0;
}

/* ---- begin and end ---- */

static _Atomic uint64_t serials;

static int open_device(ek_report *report, int index, ek_device id)
{
    ek_tracked *device = &report->devices[index];
    device->id = id;
    ek_dev *dev = ek_dev_get(id);
    if (!dev)
        return ek_error_pending();
    int8_t *place = &report->index_of[id.kind][id.index];
    if (*place >= 0)
        return EK_FAIL(EK_E_INVALID, "report_start: %s is named twice", dev->name);
    *place = (int8_t)index;
    ek_memory_watch_begin(dev, &device->open);
    EK_TRY(ek_series_init(&device->run));
    EK_TRY(ek_series_init(&device->running));
    return ek_series_init(&device->finished);
}

/* What there is already; peaks count from here. */
static void begin_device(ek_report *report, ek_tracked *device)
{
    ek_allocator *allocator = &device->open.dev->allocator;
    pthread_mutex_lock(&allocator->lock);
    device->step_began = report->began;
    note(report, device, ek_clock_ns(), &allocator->stats, NULL);
    pthread_mutex_unlock(&allocator->lock);
}

static int open_report(ek_report *report, const ek_report_options *options)
{
    ek_device_list list = options->device_ids;
    if (list.count == 0)
        list = ek_devices(ek_default_device_kind(), 0);
    EK_TRY(ek_device_list_check("report_start", &list));
    EK_TRY(ek_error_status());
    memset(report->index_of, -1, sizeof report->index_of);
    report->name = ek_strdup(options->name ? options->name : "run");
    report->gathered = ek_calloc(1, sizeof *report->gathered);
    report->devices = ek_calloc((size_t)list.count, sizeof *report->devices);
    if (!report->name || !report->gathered || !report->devices)
        return ek_error_pending();
    report->count = list.count;
    for (int d = 0; d < list.count; d++)
        EK_TRY(open_device(report, d, list.devices[d]));
    return ek_steps_init(&report->steps, list.count);
}

/* Levels are noted before anything is told, and again when everything is. */
static int begin(ek_report *report)
{
    const int before = ek_error_status();
    const ek_tracer tracer = {.span = on_span, .memory = on_memory, .user = report};
    report->serial = 1 + atomic_fetch_add(&serials, 1);
    report->began = ek_clock_ns();
    atomic_store(&report->step_began, report->began);
    for (int d = 0; d < report->count; d++)
        begin_device(report, &report->devices[d]);
    if (ek_trace_set(&tracer) < 0) {
        ek_error_prefix(before, "report_start");
        return ek_error_pending();
    }
    report->collecting = true;
    for (int d = 0; d < report->count; d++)
        begin_device(report, &report->devices[d]);
    return 0;
}

ek_report *ek_report_start_with(ek_report_options options)
{
    if (ek_error_status() < 0)
        return NULL;
    ek_report *report = ek_calloc(1, sizeof *report);
    if (!report)
        return NULL;
    pthread_mutex_init(&report->logs_lock, NULL);
    if (open_report(report, &options) < 0 || begin(report) < 0) {
        ek_report_free(report);
        return NULL;
    }
    return report;
}

static void end_watches(ek_report *report)
{
    for (int d = 0; report->devices && d < report->count; d++)
        ek_memory_watch_end(&report->devices[d].open);
}

int ek_report_stop(ek_report *report)
{
    if (!report)
        return EK_FAIL(EK_E_STATE, "report_stop: the report is NULL");
    if (!report->collecting)
        return 0;
    EK_TRY(ek_trace_set(NULL));
    report->collecting = false;
    report->ended = ek_clock_ns() - report->began;
    end_watches(report);
    return 0;
}

void ek_report_free(ek_report *report)
{
    if (!report || (report->collecting && ek_forked())) /* other threads may have been in it */
        return;
    ek_report_stop(report);
    end_watches(report); /* of one that never collected */
    for (int d = 0; report->devices && d < report->count; d++) {
        ek_series_free(&report->devices[d].run);
        ek_series_free(&report->devices[d].running);
        ek_series_free(&report->devices[d].finished);
    }
    while (report->logs) {
        ek_log *next = report->logs->next;
        ek_log_free(report->logs);
        report->logs = next;
    }
    ek_steps_free(&report->steps);
    if (report->gathered)
        ek_gathered_clear(report->gathered);
    free(report->gathered);
    free(report->devices);
    free(report->name);
    pthread_mutex_destroy(&report->logs_lock);
    free(report);
}
