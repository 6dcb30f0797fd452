/* json.c: reports for programs. */
#include <math.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/json.h"
#include "core/thread.h"
#include "report/history.h"
#include "report/report.h"

static const char *const json_kinds[EK_SPAN_KINDS] = {"compute", "communicate", "wait"};

enum { DIGITS = 12 };

static void json_put_sample(ek_json_writer *json, const char *key, const ek_memory_sample *sample)
{
    ek_json_begin(json, key, '{');
    ek_json_put_real(json, "seconds", sample->seconds, DIGITS);
    ek_json_put_integer(json, "step", sample->step);
    ek_json_put_integer(json, "in_use", (int64_t)sample->in_use);
    ek_json_begin(json, "categories", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        ek_json_put_integer(json, ek_memory_category_name(c), (int64_t)sample->now[c]);
    ek_json_close(json, '}');
    ek_json_close(json, '}');
}

typedef int json_reader(const ek_report *report, int index, ek_memory_sample *samples, int room);

/* Writes all samples of a device. Their number may grow during the call. */
static int json_put_memory(ek_json_writer *json, const char *key, const ek_report *report,
                           int index, json_reader *read)
{
    const int count = read(report, index, NULL, 0), room = count + 64;
    EK_TRY(count);
    ek_memory_sample *samples = ek_calloc((size_t)room, sizeof *samples);
    if (!samples)
        return EK_E_NO_MEMORY;
    const int there = read(report, index, samples, room);
    ek_json_begin(json, key, '[');
    for (int i = 0; i < there && i < room; i++)
        json_put_sample(json, NULL, &samples[i]);
    ek_json_close(json, ']');
    free(samples);
    return there < 0 ? there : 0;
}

static void json_put_holders(ek_json_writer *json, const ek_memory_holder *holders, int count)
{
    ek_json_begin(json, "holders", '[');
    for (int i = 0; i < count; i++) {
        ek_json_begin(json, NULL, '{');
        ek_json_put_text(json, "path", holders[i].path);
        ek_json_put_text(json, "category", ek_memory_category_name(holders[i].category));
        ek_json_put_integer(json, "nbytes", (int64_t)holders[i].nbytes);
        ek_json_close(json, '}');
    }
    ek_json_close(json, ']');
}

static void json_put_shortage(ek_json_writer *json, const ek_out_of_memory *lack)
{
    ek_json_begin(json, "out_of_memory", '{');
    ek_json_put_integer(json, "requested", (int64_t)lack->requested);
    ek_json_put_text(json, "category", ek_memory_category_name(lack->category));
    ek_json_put_text(json, "operation", lack->operation);
    json_put_sample(json, "at", &lack->at);
    json_put_holders(json, lack->holders, lack->holder_count);
    ek_json_close(json, '}');
}

static int json_put_device(ek_json_writer *json, const ek_report *report, int index)
{
    ek_device_report device;
    char name[16];
    EK_TRY(ek_report_get_device(report, index, &device));
    ek_json_begin(json, NULL, '{');
    ek_json_put_text(json, "device", ek_device_name(device.device, name));
    if (ek_report_rank_count(report) > 1)
        ek_json_put_integer(json, "rank", device.rank);
    ek_json_put_integer(json, "capacity", (int64_t)device.capacity);
    json_put_sample(json, "peak", &device.peak);
    ek_json_put_text(json, "peak_operation", device.peak_operation);
    json_put_holders(json, device.holders, device.holder_count);
    if (device.out_of_memory.requested > 0)
        json_put_shortage(json, &device.out_of_memory);
    if (device.expected.in_use > 0)
        json_put_sample(json, "expected", &device.expected);
    ek_json_put_integer(json, "reserved_peak", (int64_t)device.reserved_peak);
    ek_json_put_integer(json, "reserved_at_peak", (int64_t)device.reserved_at_peak);
    ek_json_put_integer(json, "largest_free", (int64_t)device.largest_free);
    ek_json_put_integer(json, "system", (int64_t)device.system);
    ek_json_put_integer(json, "dropped", (int64_t)device.dropped);
    ek_json_put_real(json, "computing", device.computing, DIGITS);
    ek_json_put_real(json, "communicating", device.communicating, DIGITS);
    ek_json_put_real(json, "waiting", device.waiting, DIGITS);
    EK_TRY(json_put_memory(json, "memory", report, index, ek_report_memory));
    EK_TRY(json_put_memory(json, "step_memory", report, index, ek_report_step_memory));
    ek_json_close(json, '}');
    return 0;
}

static int json_put_spans(ek_json_writer *json, const ek_report *report)
{
    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    if (count < 0)
        return count;
    ek_json_begin(json, "last_step", '{');
    ek_json_put_real(json, "seconds", seconds, DIGITS);
    ek_json_put_integer(json, "dropped", ek_report_spans_dropped(report));
    ek_json_begin(json, "threads", '[');
    for (int thread = 0; thread < ek_report_thread_count(report); thread++)
        ek_json_put_text(json, NULL,
                         ek_report_thread_device(report, thread) < 0 ? "caller" : "worker");
    ek_json_close(json, ']');
    ek_json_begin(json, "spans", '[');
    for (int i = 0; i < count; i++) {
        ek_json_begin(json, NULL, '{');
        ek_json_put_integer(json, "device", spans[i].device);
        ek_json_put_integer(json, "thread", spans[i].thread);
        ek_json_put_integer(json, "depth", spans[i].depth);
        ek_json_put_text(json, "kind", json_kinds[spans[i].kind]);
        ek_json_put_real(json, "begin", spans[i].begin, DIGITS);
        ek_json_put_real(json, "end", spans[i].end, DIGITS);
        ek_json_put_text(json, "label", spans[i].label);
        ek_json_close(json, '}');
    }
    ek_json_close(json, ']');
    ek_json_close(json, '}');
    return 0;
}

static int json_put_ranks(ek_json_writer *json, const ek_report *report)
{
    const int count = ek_report_rank_count(report);
    if (count == 1)
        return 0;
    ek_json_begin(json, "ranks", '[');
    for (int r = 0; r < count; r++) {
        ek_rank_report rank;
        EK_TRY(ek_report_get_rank(report, r, &rank));
        ek_json_begin(json, NULL, '{');
        ek_json_put_integer(json, "rank", rank.rank);
        ek_json_put_text(json, "host", rank.host);
        ek_json_put_integer(json, "steps", rank.steps);
        ek_json_put_real(json, "seconds", rank.seconds, DIGITS);
        ek_json_put_real(json, "exposed", rank.exposed, DIGITS);
        ek_json_put_real(json, "waited", rank.waited, DIGITS);
        ek_json_put_integer(json, "waited_for", rank.waited_for);
        ek_json_put_integer(json, "last", rank.last);
        ek_json_put_integer(json, "calls", rank.calls);
        ek_json_close(json, '}');
    }
    ek_json_close(json, ']');
    return 0;
}

static void json_put_expected(ek_json_writer *json, const ek_expectation *expected)
{
    ek_json_begin(json, "expected", '{');
    ek_json_put_integer(json, "batch", expected->batch);
    ek_json_put_real(json, "step_seconds", expected->step_seconds, DIGITS);
    ek_json_begin(json, "means", '[');
    for (int m = 0; m < expected->means_count; m++) {
        ek_json_begin(json, NULL, '{');
        ek_json_put_text(json, "name", expected->means[m].name);
        ek_json_put_integer(json, "saved", expected->means[m].saved);
        ek_json_put_real(json, "seconds", expected->means[m].seconds, DIGITS);
        ek_json_close(json, '}');
    }
    ek_json_close(json, ']');
    ek_json_close(json, '}');
}

static void json_put_curves(ek_json_writer *json, const ek_curve *curve)
{
    if (!curve)
        return;
    ek_json_begin(json, "scalars", '[');
    for (; curve; curve = curve->next) {
        ek_json_begin(json, NULL, '{');
        ek_json_put_text(json, "name", curve->name);
        ek_json_begin(json, "points", '[');
        for (int i = 0; i < curve->count; i++) {
            const ek_curve_point *point = &curve->points[i];
            ek_json_begin(json, NULL, '[');
            ek_json_put_integer(json, NULL, point->step);
            ek_json_put_real(json, NULL, point->sum / (double)point->finite, DIGITS);
            ek_json_put_real(json, NULL, point->finite ? point->least : NAN, DIGITS);
            ek_json_put_real(json, NULL, point->finite ? point->most : NAN, DIGITS);
            ek_json_close(json, ']');
        }
        ek_json_close(json, ']');
        ek_json_close(json, '}');
    }
    ek_json_close(json, ']');
}

static int json_put_report(ek_json_writer *json, const ek_report *report)
{
    ek_json_begin(json, NULL, '{');
    ek_json_put_text(json, "name", ek_report_name(report));
    ek_json_put_integer(json, "steps", ek_report_step_count(report));
    ek_json_put_real(json, "seconds", ek_report_seconds(report), DIGITS);
    ek_json_put_real(json, "step_seconds", ek_report_step_seconds(report), DIGITS);
    ek_json_put_real(json, "imbalance", ek_report_imbalance(report), DIGITS);
    ek_json_put_integer(json, "largest_batch", ek_report_largest_batch(report));
    if (ek_report_expected(report))
        json_put_expected(json, ek_report_expected(report));
    json_put_curves(json, ek_report_curves(report));
    EK_TRY(json_put_ranks(json, report));
    ek_json_begin(json, "devices", '[');
    for (int d = 0; d < ek_report_device_count(report); d++)
        EK_TRY(json_put_device(json, report, d));
    ek_json_close(json, ']');
    EK_TRY(json_put_spans(json, report));
    ek_json_close(json, '}');
    return 0;
}

int ek_report_put(FILE *stream, bool in_html, ek_report *const *reports, int count)
{
    ek_json_writer json = {.stream = stream, .indented = !in_html, .in_html = in_html};
    ek_json_begin(&json, NULL, '{');
    ek_json_put_text(&json, "format", "evenkeel-report-1");
    ek_json_begin(&json, "reports", '[');
    for (int i = 0; i < count; i++)
        EK_TRY(json_put_report(&json, reports[i]));
    ek_json_close(&json, ']');
    ek_json_close(&json, '}');
    return 0;
}

typedef struct json_job {
    ek_report *const *reports;
    int count;
} json_job;

static int json_write(FILE *stream, void *user)
{
    const json_job *job = user;
    EK_TRY(ek_report_put(stream, false, job->reports, job->count));
    fputc('\n', stream);
    return 0;
}

static int json_check(const char *path, ek_report *const *reports, int count)
{
    if (!path || !*path || count < 1 || !reports)
        return EK_FAIL(EK_E_INVALID, "report_json: %s",
                       path && *path ? "there is no report" : "there is no path");
    for (int i = 0; i < count; i++)
        if (!reports[i])
            return EK_FAIL(EK_E_INVALID, "report_json: report %d is NULL", i);
        else
            EK_TRY(ek_check_alive("report_json", "a report", reports[i]));
    return 0;
}

int ek_report_json(const char *path, ek_report *const *reports, int count)
{
    json_job job = {reports, count};
    int writes = ek_report_begin_writing(reports, count, json_check(path, reports, count));
    if (writes < 0)
        return writes;
    return ek_report_end_writing(
        reports, count, writes ? ek_file_replace_text("report_json", path, json_write, &job) : 0);
}
