/* collect.c: a report while it collects. */
#include "report/collect.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/device.h"
#include "core/thread.h"

/* ---- the spans of one thread ---- */

static size_t label_append(char *label, size_t used, size_t room, const char *text)
{
    while (*text && used + 1 < room)
        label[used++] = *text++;
    label[used] = '\0';
    return used;
}

/* Removes a multi-byte character (UTF-8) at the end of a full label, because the character may be
 * cut. */
static void label_drop_cut_letter(char *label, size_t used)
{
    while (used > 0 && ((unsigned char)label[used - 1] & 0xC0) == 0x80)
        used--;
    if (used > 0 && (unsigned char)label[used - 1] >= 0xC0)
        used--;
    label[used] = '\0';
}

/* Makes a label such as "backward of conv2d", or "" if the span is NULL. */
static void label_make(ek_label *label, const ek_span *span)
{
    enum { ROOM = sizeof label->text };
    size_t used = 0;
    label->path = span ? span->path : ek_path_root;
    label->text[0] = '\0';
    if (span && span->what)
        used = label_append(label->text, used, ROOM, span->what);
    if (span && span->what && span->name)
        used = label_append(label->text, used, ROOM, " ");
    if (span && span->name)
        used = label_append(label->text, used, ROOM, span->name);
    if (used == ROOM - 1)
        label_drop_cut_letter(label->text, used);
}

void ek_label_write(const ek_label *label, char text[EK_REPORT_LABEL])
{
    enum { MOST = EK_REPORT_LABEL - sizeof label->text - sizeof ": " };
    const char *path = label->path ? ek_path_end(label->path, MOST) : "";
    snprintf(text, EK_REPORT_LABEL, "%s%s%s", path, *path ? ": " : "", label->text);
}

static ek_log *log_new(int thread)
{
    ek_log *log =
        calloc(1, sizeof *log); /* not ek_calloc, whose error would appear in the user's work */
    if (!log)
        return NULL;
    log->thread = thread;
    pthread_mutex_init(&log->lock, NULL);
    return log;
}

static void log_free(ek_log *log)
{
    if (!log)
        return;
    pthread_mutex_destroy(&log->lock);
    free(log->pages[0].spans);
    free(log->pages[1].spans);
    free(log);
}

/* Returns the place of a new span; NULL if the page is full. */
static ek_log_span *log_next_span(ek_log_page *page)
{
    enum { FIRST = 256 };
    if (page->count == page->room && page->room < EK_LOG_SPANS) {
        const int room = page->room ? 2 * page->room : FIRST;
        ek_log_span *grown = realloc(page->spans, (size_t)room * sizeof *grown);
        if (grown) {
            page->spans = grown;
            page->room = room;
        }
    }
    if (page->count < page->room)
        return &page->spans[page->count++];
    page->dropped++;
    return NULL;
}

/* Returns how many of the thread's open spans for the span's device enclose it. */
static int span_depth(const ek_span *span)
{
    int depth = 0;
    for (const ek_span *outer = span->outer; outer; outer = outer->outer)
        depth += outer->dev == span->dev;
    return depth;
}

/* Adds a span that has ended. `self` is its time on the device without the time of inner spans. */
static void log_add(ek_log *log, const ek_span *span, int device, uint64_t ended, uint64_t self)
{
    ek_lock(&log->lock);
    if (span->kind == EK_SPAN_COMPUTE)
        log->busy[device].computing += self;
    else if (span->kind == EK_SPAN_COMMUNICATE)
        log->busy[device].communicating += self;
    ek_log_span *kept = log_next_span(&log->pages[log->current]);
    if (kept) {
        kept->begin = span->began;
        kept->end = ended;
        kept->device = (int16_t)device;
        kept->depth = (int16_t)span_depth(span);
        kept->kind = span->kind;
        label_make(&kept->label, span);
    }
    ek_unlock(&log->lock);
}

/* Ends the step: its page becomes the page of the finished step, and its sums are added to `busy`.
 */
static void log_turn(ek_log *log, int devices, ek_busy *busy)
{
    ek_lock(&log->lock);
    for (int d = 0; d < devices; d++) {
        busy[d].computing += log->busy[d].computing;
        busy[d].communicating += log->busy[d].communicating;
        log->busy[d] = (ek_busy){0, 0};
    }
    log->current = !log->current;
    log->pages[log->current].count = 0;
    log->pages[log->current].dropped = 0;
    ek_unlock(&log->lock);
}

/* ---- the tracer's functions ---- */

static int report_index(const ek_report *report, const ek_dev *dev)
{
    return dev ? report->index_of[dev->id.kind][dev->id.index] : -1;
}

/* The log of this thread in the report that collects now. */
static _Thread_local struct {
    uint64_t serial;
    ek_log *log;
} own;

static ek_log *report_own_log(ek_report *report)
{
    if (own.serial == report->serial)
        return own.log;
    pthread_mutex_lock(&report->logs_lock);
    ek_log *log = log_new(report->threads);
    if (log) {
        log->worker = report_index(report, ek_thread_self()->own_device);
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

static void report_on_span(const ek_span *span, uint64_t ended, void *user)
{
    ek_report *report = user;
    const int device = report_index(report, span->dev);
    ek_log *log = device >= 0 ? report_own_log(report) : NULL;
    if (!log)
        return;
    /* The part of a span before the step began counts in no step. */
    const uint64_t began = atomic_load_explicit(&report->step_began, memory_order_relaxed);
    const uint64_t most = ended > began ? ended - began : 0;
    const uint64_t self = ended - span->began - span->inner;
    log_add(log, span, device, ended, self < most ? self : most);
}

static ek_moment tracked_moment(const ek_report *report, const ek_tracked *device, uint64_t clock,
                                const ek_memory_stats *stats)
{
    ek_moment moment = {.ns = clock - report->began, .step = device->step, .in_use = stats->in_use};
    memcpy(moment.now, stats->now, sizeof moment.now);
    return moment;
}

/* Records a level of memory. The device's ledger is held (ek_ledger_hold). */
static void tracked_note(ek_report *report, ek_tracked *device, uint64_t clock,
                         const ek_memory_stats *stats, const ek_span *span)
{
    ek_moment moment = tracked_moment(report, device, clock, stats);
    if (moment.in_use > device->peak.in_use) {
        device->peak = moment;
        device->peak_holder = stats->allocations;
        ek_holders_empty(&device->left);
        device->reserved_at_peak = stats->reserved;
        device->largest_free = ek_ledger_largest_free(device->open.dev);
        label_make(&device->peak_label, span);
    }
    device->capacity = stats->capacity;
    if (stats->reserved > device->reserved_peak)
        device->reserved_peak = stats->reserved;
    device->system = stats->system;
    device->dropped = stats->dropped - device->dropped_before;
    ek_series_note(&device->run, &moment);
    moment.ns = clock - device->step_began;
    ek_series_note(&device->running, &moment);
}

/* Returns the report's device. NULL if it has none, or the device was closed since. */
static ek_tracked *report_device(ek_report *report, const ek_dev *dev)
{
    const int device = report_index(report, dev);
    return device >= 0 && report->devices[device].open.dev == dev ? &report->devices[device] : NULL;
}

/* Holders at the peak are the blocks that are older than the peak, and the sums in `left` of blocks
 * that were freed or assigned to others since. So a new peak only empties the sums. */
static void report_on_memory(const ek_dev *dev, const ek_memory_stats *stats, const ek_span *span,
                             const ek_held *left, void *user)
{
    ek_report *report = user;
    ek_tracked *device = report_device(report, dev);
    if (device && left && left->since <= device->peak_holder)
        ek_holders_add(&device->left, (ek_memory_holder){left->path, left->category, left->nbytes});
    if (device)
        tracked_note(report, device, ek_clock_ns(), stats, span);
}

static void report_on_shortage(const ek_dev *dev, const ek_shortage *lack, const ek_span *span,
                               void *user)
{
    ek_report *report = user;
    ek_tracked *device = report_device(report, dev);
    if (!device)
        return;
    device->shortage = *lack;
    device->lack = tracked_moment(report, device, ek_clock_ns(), &lack->stats);
    label_make(&device->lack_label, span);
}

/* ---- steps ---- */

/* Begins the device's running step at `clock`. The device's ledger is held. */
static void tracked_begin_step(ek_report *report, ek_tracked *device, uint64_t clock,
                               const ek_memory_stats *stats)
{
    ek_series_restart(&device->running, &device->finished);
    device->step_began = clock;
    tracked_note(report, device, clock, stats, NULL);
}

/* Ends the device's step at `clock`, or at the last change of its memory if the change is later. */
static void tracked_turn(ek_report *report, ek_tracked *device, uint64_t clock)
{
    if (device->step == 0) /* a GPU loads its modules during the first step */
        ek_ledger_measure(device->open.dev);
    const ek_memory_stats *stats = ek_ledger_hold(device->open.dev);
    const uint64_t last = report->began + ek_series_last(&device->run)->ns;
    if (clock < last)
        clock = last;
    tracked_note(report, device, clock, stats, NULL);
    const ek_series before = device->finished;
    device->finished = device->running;
    device->finished_ns = clock - device->step_began;
    device->running = before;
    device->step++;
    tracked_begin_step(report, device, clock, stats);
    ek_ledger_release(device->open.dev);
}

static void report_turn_logs(ek_report *report, ek_busy *busy)
{
    pthread_mutex_lock(&report->logs_lock);
    for (ek_log *log = report->logs; log; log = log->next)
        log_turn(log, report->count, busy);
    pthread_mutex_unlock(&report->logs_lock);
}

void ek_report_restart_step(ek_report *report)
{
    for (int d = 0; d < report->count; d++) {
        ek_tracked *device = &report->devices[d];
        if (!device->open.dev)
            continue;
        const ek_memory_stats *stats = ek_ledger_hold(device->open.dev);
        tracked_begin_step(report, device, ek_clock_ns(), stats);
        ek_ledger_release(device->open.dev);
    }
    atomic_store(&report->step_began, ek_clock_ns());
}

static int report_check_open(const ek_report *report)
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
    EK_TRY(ek_check_alive("report_step", "the report", report));
    if (!report || !report->collecting)
        return EK_FAIL(EK_E_STATE, "report_step: the report %s",
                       report ? "has been stopped" : "is NULL");
    EK_TRY(ek_fork_check());
    EK_TRY(report_check_open(report));
    const uint64_t now = ek_clock_ns();
    report_turn_logs(report, busy);
    for (int d = 0; d < report->count; d++)
        tracked_turn(report, &report->devices[d], now);
    report->finished_began = atomic_load(&report->step_began);
    report->finished_ns = now - report->finished_began;
    atomic_store(&report->step_began, now);
    ek_steps_add(&report->steps, report->finished_ns, busy);
    ek_gathered_clear(report->gathered);
    ek_sent_clear(report->sent);
    EK_TRY(ek_report_note_waits(report));
    if (atomic_load(&report->lost))
        return EK_FAIL(EK_E_NO_MEMORY, "report_step: the process had no memory for a thread's "
                                       "spans: times are incomplete");
    return ek_live_step(report);
}

/* ---- a report's begin and end ---- */

static _Atomic uint64_t serials;

static int tracked_open(ek_report *report, int index, ek_device id)
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

/* Records the memory in use when the report begins. */
static void tracked_begin(ek_report *report, ek_tracked *device)
{
    const ek_memory_stats *stats = ek_ledger_hold(device->open.dev);
    device->step_began = report->began;
    tracked_note(report, device, ek_clock_ns(), stats, NULL);
    ek_ledger_release(device->open.dev);
}

static int report_open(ek_report *report, const ek_report_options *options)
{
    ek_device_list list = options->device_ids;
    if (list.count == 0)
        list = ek_devices(ek_default_device_kind(), 0);
    EK_TRY(ek_device_list_check("report_start", &list));
    EK_TRY(ek_error_status());
    memset(report->index_of, -1, sizeof report->index_of);
    report->name = ek_strdup(options->name ? options->name : "run");
    report->gathered = ek_calloc(1, sizeof *report->gathered);
    report->sent = ek_calloc(1, sizeof *report->sent);
    report->group = options->process_group;
    report->devices = ek_calloc((size_t)list.count, sizeof *report->devices);
    if (!report->name || !report->gathered || !report->sent || !report->devices)
        return ek_error_pending();
    report->count = list.count;
    for (int d = 0; d < list.count; d++)
        EK_TRY(tracked_open(report, d, list.devices[d]));
    EK_TRY(ek_report_begin_waits(report));
    return ek_steps_init(&report->steps, list.count);
}

/* Records levels of memory before the tracer is set, so that every series has a first moment, and
 * once more afterwards, because memory may have changed in between. */
static int report_begin(ek_report *report)
{
    const int before = ek_error_status();
    const ek_tracer tracer = {.span = report_on_span,
                              .memory = report_on_memory,
                              .shortage = report_on_shortage,
                              .user = report};
    report->serial = 1 + atomic_fetch_add(&serials, 1);
    report->began = ek_clock_ns();
    atomic_store(&report->step_began, report->began);
    for (int d = 0; d < report->count; d++) {
        report->devices[d].dropped_before = ek_ledger_hold(report->devices[d].open.dev)->dropped;
        ek_ledger_release(report->devices[d].open.dev);
    }
    for (int d = 0; d < report->count; d++)
        tracked_begin(report, &report->devices[d]);
    if (ek_trace_set(&tracer) < 0) {
        ek_error_prefix(before, "report_start");
        return ek_error_pending();
    }
    report->collecting = true;
    for (int d = 0; d < report->count; d++)
        tracked_begin(report, &report->devices[d]);
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
    if (report_open(report, &options) < 0 || report_begin(report) < 0) {
        ek_report_free(report);
        return NULL;
    }
    return report;
}

static void report_end_watches(ek_report *report)
{
    for (int d = 0; report->devices && d < report->count; d++)
        ek_memory_watch_end(&report->devices[d].open);
}

int ek_report_stop(ek_report *report)
{
    if (!report)
        return EK_FAIL(EK_E_STATE, "report_stop: the report is NULL");
    EK_TRY(ek_check_alive("report_stop", "the report", report));
    if (!report->collecting)
        return 0;
    EK_TRY(ek_trace_set(NULL));
    report->collecting = false;
    report->ended = ek_clock_ns() - report->began;
    for (int d = 0; d < report->count; d++) {
        ek_tracked *device = &report->devices[d];
        if (!device->open.dev)
            continue;
        ek_ledger_hold(device->open.dev);
        ek_ledger_add_holders(device->open.dev, device->peak_holder, &device->left);
        ek_ledger_release(device->open.dev);
    }
    report_end_watches(report);
    return ek_live_end(report);
}

void ek_report_free(ek_report *report)
{
    EK_RELEASES("ek_report_free", report);
    if (report->collecting && ek_forked()) /* threads of the parent may hold the report's locks */
        return;
    ek_report_stop(report);
    report_end_watches(report); /* a report that failed to start may have watches */
    for (int d = 0; report->devices && d < report->count; d++) {
        ek_series_free(&report->devices[d].run);
        ek_series_free(&report->devices[d].running);
        ek_series_free(&report->devices[d].finished);
        ek_holders_clear(&report->devices[d].left);
    }
    while (report->logs) {
        ek_log *next = report->logs->next;
        log_free(report->logs);
        report->logs = next;
    }
    while (report->curves) {
        ek_curve *next = report->curves->next;
        ek_curve_free(report->curves);
        report->curves = next;
    }
    ek_steps_free(&report->steps);
    if (report->gathered)
        ek_gathered_clear(report->gathered);
    free(report->gathered);
    if (report->sent)
        ek_sent_clear(report->sent);
    free(report->sent);
    ek_report_free_waits(report);
    free(report->devices);
    free(report->name);
    pthread_mutex_destroy(&report->logs_lock);
    ek_retire(report, sizeof *report, "report", report);
}
