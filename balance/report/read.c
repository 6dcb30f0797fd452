/* read.c: reading a report. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/device.h"
#include "core/thread.h"
#include "report/collect.h"

static const double nanosecond = 1e-9;

/* Returns a device for reading, locked if the report collects and the device is open. */
static ek_tracked *tracked_lock(const ek_report *report, int index)
{
    ek_tracked *device = &report->devices[index];
    if (device->open.dev)
        ek_ledger_hold(device->open.dev);
    return device;
}

static void tracked_unlock(const ek_tracked *device)
{
    if (device->open.dev)
        ek_ledger_release(device->open.dev);
}

/* Returns the nanoseconds since the start, up to the end if the report is stopped. */
static uint64_t report_ns(const ek_report *report)
{
    return report->collecting ? ek_clock_ns() - report->began : report->ended;
}

/* ---- the run; a NULL report counts as one that has collected nothing ---- */

const char *ek_report_name(const ek_report *report)
{
    return ek_report_is_usable("report_name", report) ? report->name : "";
}

int ek_report_device_count(const ek_report *report)
{
    return !ek_report_is_usable("report_device_count", report) ? 0
           : report->sent->rank_count                          ? report->sent->device_count
                                                               : report->count;
}

int64_t ek_report_step_count(const ek_report *report)
{
    return ek_report_is_usable("report_step_count", report) ? report->steps.total : 0;
}

double ek_report_seconds(const ek_report *report)
{
    return ek_report_is_usable("report_seconds", report) ? nanosecond * (double)report->steps.ns
                                                         : 0;
}

double ek_report_step_seconds(const ek_report *report)
{
    return ek_report_is_usable("report_step_seconds", report) ? ek_steps_median(&report->steps) : 0;
}

void ek_report_set_largest_batch(ek_report *report, int64_t batch)
{
    if (ek_report_is_usable("report_set_largest_batch", report))
        report->largest_batch = batch > 0 ? batch : 0;
}

int64_t ek_report_largest_batch(const ek_report *report)
{
    return report->largest_batch;
}

/* ---- what a plan expects ---- */

static int expected_check_device(const ek_report *report, const ek_expectation *expected, int index)
{
    const ek_expected_device *device = &expected->devices[index];
    char name[16];
    uint64_t sum = 0;
    int places = 0, named = 0;
    for (int d = 0; d < report->count; d++)
        places += ek_device_equal(report->devices[d].id, device->device);
    for (int i = 0; i <= index; i++)
        named += ek_device_equal(expected->devices[i].device, device->device);
    ek_device_name(device->device, name);
    if (places == 0 || named > 1)
        return EK_FAIL(EK_E_INVALID, "report_expect: %s %s", name,
                       places == 0 ? "is no device of the report" : "is named twice");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        sum += device->now[c];
    if (sum != device->peak)
        return EK_FAIL(EK_E_INVALID,
                       "report_expect: %s: the categories add up to %llu bytes, the peak is %llu",
                       name, (unsigned long long)sum, (unsigned long long)device->peak);
    return 0;
}

static int expected_check(const ek_report *report, const ek_expectation *expected)
{
    if (expected->device_count < 0 || expected->device_count > EK_MAX_DEVICES ||
        expected->means_count < 0 || expected->means_count > EK_EXPECTED_MEANS)
        return EK_FAIL(EK_E_INVALID, "report_expect: %d devices and %d means; at most %d and %d",
                       expected->device_count, expected->means_count, EK_MAX_DEVICES,
                       EK_EXPECTED_MEANS);
    if (expected->batch < 0 || !isfinite(expected->step_seconds) || expected->step_seconds < 0)
        return EK_FAIL(EK_E_INVALID, "report_expect: a step of %g s for a batch of %lld",
                       expected->step_seconds, (long long)expected->batch);
    for (int m = 0; m < expected->means_count; m++)
        if (!memchr(expected->means[m].name, '\0', sizeof expected->means[m].name) ||
            !isfinite(expected->means[m].seconds))
            return EK_FAIL(EK_E_INVALID, "report_expect: means %d has no %s", m,
                           isfinite(expected->means[m].seconds) ? "end of its name"
                                                                : "number of seconds");
    for (int i = 0; i < expected->device_count; i++)
        EK_TRY(expected_check_device(report, expected, i));
    return 0;
}

int ek_report_expect(ek_report *report, const ek_expectation *expectation)
{
    EK_TRY(ek_check_handle("report_expect", "the report", report));
    EK_TRY(ek_check_pointer("report_expect", "the expectation", expectation));
    EK_TRY(expected_check(report, expectation));
    report->expected = *expectation;
    report->expects = true;
    return 0;
}

const ek_expectation *ek_report_expected(const ek_report *report)
{
    return report->expects ? &report->expected : NULL;
}

/* Returns a device's expected peak; all zero if none was given. */
static ek_memory_sample expected_peak(const ek_report *report, ek_device id)
{
    ek_memory_sample sample = {0};
    for (int i = 0; i < report->expected.device_count; i++)
        if (ek_device_equal(report->expected.devices[i].device, id)) {
            sample.in_use = report->expected.devices[i].peak;
            memcpy(sample.now, report->expected.devices[i].now, sizeof sample.now);
        }
    return sample;
}

/* ---- devices ---- */

static int report_check_index(const ek_report *report, int index)
{
    if (!report)
        return EK_FAIL(EK_E_INVALID, "report: it is NULL");
    EK_TRY(ek_check_alive("report", "the report", report));
    if (report->collecting)
        EK_TRY(ek_fork_check());
    const int count = ek_report_device_count(report);
    return index >= 0 && index < count
               ? 0
               : EK_FAIL(EK_E_INVALID, "report: there is no device %d; it has %d", index, count);
}

/* Copies the largest holders at the peak of the device, which is locked. Returns their number, or
 * EK_E_NO_MEMORY. */
static int tracked_holders(const ek_tracked *device, ek_memory_holder *holders)
{
    ek_holders all = {0};
    if (!device->open.dev)
        return ek_holders_largest(&device->left, holders, EK_MEMORY_HOLDERS);
    for (int i = 0; i < device->left.room; i++)
        if (device->left.entries[i].path)
            ek_holders_add(&all, device->left.entries[i]);
    ek_ledger_add_holders(device->open.dev, device->peak_holder, &all);
    int count = ek_holders_largest(&all, holders, EK_MEMORY_HOLDERS);
    if (all.lost)
        count = EK_FAIL(EK_E_NO_MEMORY, "report: the process has no memory for holders");
    ek_holders_clear(&all);
    return count;
}

static void tracked_shortage(const ek_tracked *device, ek_out_of_memory *lack)
{
    const ek_shortage *shortage = &device->shortage;
    if (!shortage->nbytes)
        return;
    *lack = (ek_out_of_memory){.requested = shortage->nbytes,
                               .category = shortage->category,
                               .at = ek_moment_sample(&device->lack),
                               .holder_count = shortage->count};
    ek_label_write(&device->lack_label, lack->operation);
    memcpy(lack->holders, shortage->holders, sizeof lack->holders);
}

int ek_report_get_device(const ek_report *report, int index, ek_device_report *device)
{
    EK_TRY(report_check_index(report, index));
    EK_TRY(ek_check_pointer("report_device", "where to put the numbers", device));
    if (report->sent->rank_count) {
        *device = report->sent->devices[index].numbers;
        return 0;
    }
    const ek_tracked *tracked = tracked_lock(report, index);
    *device = (ek_device_report){.device = tracked->id,
                                 .capacity = tracked->capacity,
                                 .peak = ek_moment_sample(&tracked->peak),
                                 .reserved_peak = tracked->reserved_peak,
                                 .reserved_at_peak = tracked->reserved_at_peak,
                                 .largest_free = tracked->largest_free,
                                 .system = tracked->system,
                                 .dropped = tracked->dropped,
                                 .expected = expected_peak(report, tracked->id)};
    ek_label_write(&tracked->peak_label, device->peak_operation);
    const int holders = device->holder_count = tracked_holders(tracked, device->holders);
    tracked_shortage(tracked, &device->out_of_memory);
    tracked_unlock(tracked);
    EK_TRY(holders);
    const ek_busy *busy = &report->steps.sums[index];
    device->computing = nanosecond * (double)busy->computing;
    device->communicating = nanosecond * (double)busy->communicating;
    device->waiting =
        nanosecond * (double)(report->steps.ns - busy->computing - busy->communicating);
    return 0;
}

static uint64_t device_peak(const ek_report *report, int index)
{
    if (report->sent->rank_count)
        return report->sent->devices[index].numbers.peak.in_use;
    const ek_tracked *tracked = tracked_lock(report, index);
    const uint64_t peak = tracked->peak.in_use;
    tracked_unlock(tracked);
    return peak;
}

int ek_report_device_rank(const ek_report *report, int index)
{
    return report->sent->rank_count ? report->sent->devices[index].numbers.rank : 0;
}

char *ek_report_device_text(const ek_report *report, const ek_device_report *device, char text[40])
{
    char name[16];
    ek_device_name(device->device, name);
    if (report->sent->rank_count)
        snprintf(text, 40, "rank %d %s", device->rank, name);
    else
        snprintf(text, 40, "%s", name);
    return text;
}

double ek_report_imbalance(const ek_report *report)
{
    double sum = 0, most = 0;
    const int count = ek_report_device_count(report);
    for (int d = 0; d < count; d++) {
        const double peak = (double)device_peak(report, d);
        sum += peak;
        most = peak > most ? peak : most;
    }
    return sum > 0 ? most * count / sum : 1;
}

static int sent_read(const ek_sent_device *device, int which, ek_memory_sample *samples, int room)
{
    const int count = device->counts[which];
    for (int i = 0; i < count && i < room; i++)
        samples[i] = device->samples[which][i];
    return count;
}

int ek_report_memory(const ek_report *report, int index, ek_memory_sample *samples, int room)
{
    if (room > 0)
        EK_TRY(ek_check_pointer("report_memory", "the array for the samples", samples));
    EK_TRY(report_check_index(report, index));
    if (report->sent->rank_count)
        return sent_read(&report->sent->devices[index], 0, samples, room);
    const ek_tracked *tracked = tracked_lock(report, index);
    const int count = ek_series_read(&tracked->run, report_ns(report), samples, room);
    tracked_unlock(tracked);
    return count;
}

int ek_report_step_memory(const ek_report *report, int index, ek_memory_sample *samples, int room)
{
    EK_TRY(report_check_index(report, index));
    if (report->sent->rank_count)
        return sent_read(&report->sent->devices[index], 1, samples, room);
    const ek_tracked *tracked = tracked_lock(report, index);
    const int count = report->steps.total
                          ? ek_series_read(&tracked->finished, tracked->finished_ns, samples, room)
                          : 0;
    tracked_unlock(tracked);
    return count;
}

/* ---- ranks ---- */

int ek_report_rank_count(const ek_report *report)
{
    return !ek_report_is_usable("report_rank_count", report) ? 0
           : report->sent->rank_count                        ? report->sent->rank_count
                                                             : 1;
}

int ek_report_get_rank(const ek_report *report, int index, ek_rank_report *rank)
{
    EK_TRY(ek_check_handle("report_get_rank", "the report", report));
    EK_TRY(ek_check_pointer("report_get_rank", "where to put the numbers", rank));
    const int count = ek_report_rank_count(report);
    if (index < 0 || index >= count)
        return EK_FAIL(EK_E_INVALID, "report: there is no rank %d; it has %d", index, count);
    if (report->sent->rank_count)
        *rank = report->sent->ranks[index];
    else
        ek_report_own_rank(report, rank);
    return 0;
}

/* ---- the last finished step's spans ---- */

/* Returns the lock without const, because functions that only read a report lock it, too. */
static pthread_mutex_t *logs_lock(const ek_report *report)
{
    return &((ek_report *)report)->logs_lock;
}

void ek_gathered_clear(ek_gathered *gathered)
{
    free(gathered->spans);
    *gathered = (ek_gathered){0};
}

int ek_report_span_compare(const void *a, const void *b)
{
    const ek_report_span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    if (x->thread != y->thread)
        return x->thread - y->thread;
    return x->depth - y->depth;
}

/* Returns the seconds since the finished step began, clamped to its duration. */
static double report_within_step(const ek_report *report, uint64_t clock)
{
    const uint64_t began = report->finished_began;
    const uint64_t ns = clock > began ? clock - began : 0;
    return nanosecond * (double)(ns < report->finished_ns ? ns : report->finished_ns);
}

static void log_copy_page(const ek_report *report, const ek_log *log, ek_report_span *to)
{
    const ek_log_page *page = &log->pages[!log->current];
    for (int i = 0; i < page->count; i++) {
        const ek_log_span *from = &page->spans[i];
        to[i] = (ek_report_span){.device = from->device,
                                 .thread = log->thread,
                                 .depth = from->depth,
                                 .kind = from->kind,
                                 .begin = report_within_step(report, from->begin),
                                 .end = report_within_step(report, from->end)};
        ek_label_write(&from->label, to[i].label);
    }
}

/* Gathers the spans of the last finished step. logs_lock is held, which guards the list of logs.
 * Pages of finished steps need no lock, because only ek_report_step changes them, which the
 * caller's thread calls. */
static int gathered_read(const ek_report *report, ek_gathered *gathered)
{
    int count = 0;
    for (ek_log *log = report->logs; log; log = log->next)
        count += log->pages[!log->current].count;
    gathered->spans = ek_calloc((size_t)count, sizeof *gathered->spans);
    if (!gathered->spans)
        return ek_error_pending();
    for (ek_log *log = report->logs; log; log = log->next) {
        const ek_log_page *page = &log->pages[!log->current];
        log_copy_page(report, log, gathered->spans + gathered->count);
        gathered->count += page->count;
        gathered->dropped += page->dropped;
    }
    qsort(gathered->spans, (size_t)count, sizeof *gathered->spans, ek_report_span_compare);
    gathered->ready = true;
    return 0;
}

/* Writes NULL if there is no finished step. */
static int gathered_get(const ek_report *report, const ek_gathered **result)
{
    ek_gathered *gathered = report->gathered;
    *result = NULL;
    if (report->steps.total == 0)
        return 0;
    if (report->collecting)
        EK_TRY(ek_fork_check());
    if (!gathered->ready) {
        ek_lock(logs_lock(report));
        int rc = gathered_read(report, gathered);
        ek_unlock(logs_lock(report));
        EK_TRY(rc);
    }
    *result = gathered;
    return 0;
}

const ek_report_span *ek_report_spans(const ek_report *report, int *count, double *seconds)
{
    const ek_gathered *gathered;
    int rc = gathered_get(report, &gathered);
    if (rc == 0 && report->sent->rank_count) {
        *count = report->sent->span_count;
        *seconds = nanosecond * (double)report->finished_ns;
        return *count ? report->sent->spans : NULL;
    }
    *count = gathered ? gathered->count : rc;
    *seconds = gathered ? nanosecond * (double)report->finished_ns : 0;
    return gathered && gathered->count ? gathered->spans : NULL;
}

int ek_report_thread_count(const ek_report *report)
{
    if (report->sent->rank_count)
        return report->sent->thread_count;
    ek_lock(logs_lock(report));
    const int count = report->threads;
    ek_unlock(logs_lock(report));
    return count;
}

int ek_report_thread_device(const ek_report *report, int thread)
{
    int device = -1;
    if (report->sent->rank_count)
        return thread < report->sent->thread_count ? report->sent->thread_devices[thread] : -1;
    ek_lock(logs_lock(report));
    for (const ek_log *log = report->logs; log; log = log->next)
        if (log->thread == thread)
            device = log->worker;
    ek_unlock(logs_lock(report));
    return device;
}

int64_t ek_report_spans_dropped(const ek_report *report)
{
    const ek_gathered *gathered;
    if (report->sent->rank_count)
        return report->sent->dropped;
    int rc = gathered_get(report, &gathered);
    return gathered ? gathered->dropped : rc;
}
