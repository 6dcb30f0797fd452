/* json.c: reports for programs. */
#include <jansson.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/thread.h"
#include "report/report.h"

static const char *const kinds[EK_SPAN_KINDS] = {"compute", "communicate", "wait"};

/* Names may be anybody's: what is no UTF-8 is left out. */
static json_t *text_of(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_string("?");
}

/* Takes the reference; NULL, for want of memory, makes the array NULL. */
static json_t *append(json_t *array, json_t *item)
{
    if (array && json_array_append_new(array, item) == 0)
        return array;
    json_decref(array);
    return NULL;
}

static json_t *describe_sample(const ek_memory_sample *sample)
{
    json_t *categories = json_object();
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
        json_t *number = json_integer((json_int_t)sample->now[c]);
        if (json_object_set_new(categories, ek_memory_category_name(c), number) < 0) {
            json_decref(categories);
            return NULL;
        }
    }
    return json_pack("{s:f, s:I, s:I, s:o}", "seconds", sample->seconds, "step",
                     (json_int_t)sample->step, "in_use", (json_int_t)sample->in_use, "categories",
                     categories);
}

typedef int reader(const ek_report *report, int index, ek_memory_sample *samples, int room);

/* All samples of a device, which may become more while they are counted. */
static json_t *describe_memory(const ek_report *report, int index, reader *read)
{
    const int count = read(report, index, NULL, 0), room = count + 64;
    ek_memory_sample *samples = count < 0 ? NULL : ek_calloc((size_t)room, sizeof *samples);
    json_t *array = samples ? json_array() : NULL;
    const int there = samples ? read(report, index, samples, room) : 0;
    for (int i = 0; i < there && i < room; i++)
        array = append(array, describe_sample(&samples[i]));
    free(samples);
    return array;
}

static json_t *describe_device(const ek_report *report, int index)
{
    ek_device_report device;
    char name[16];
    if (ek_report_device(report, index, &device) < 0)
        return NULL;
    return json_pack("{s:s, s:I, s:o, s:o, s:I, s:f, s:f, s:f, s:o, s:o}", "device",
                     ek_device_name(device.device, name), "capacity", (json_int_t)device.capacity,
                     "peak", describe_sample(&device.peak), "peak_operation",
                     text_of(device.peak_operation), "reserved_peak",
                     (json_int_t)device.reserved_peak, "computing", device.computing,
                     "communicating", device.communicating, "waiting", device.waiting, "memory",
                     describe_memory(report, index, ek_report_memory), "step_memory",
                     describe_memory(report, index, ek_report_step_memory));
}

static json_t *describe_devices(const ek_report *report)
{
    json_t *array = json_array();
    for (int d = 0; d < ek_report_device_count(report); d++)
        array = append(array, describe_device(report, d));
    return array;
}

static json_t *describe_spans(const ek_report *report)
{
    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        array = append(array,
                       json_pack("{s:i, s:i, s:i, s:s, s:f, s:f, s:o}", "device", spans[i].device,
                                 "thread", spans[i].thread, "depth", spans[i].depth, "kind",
                                 kinds[spans[i].kind], "begin", spans[i].begin, "end", spans[i].end,
                                 "label", text_of(spans[i].label)));
    return json_pack("{s:f, s:I, s:o}", "seconds", seconds, "dropped",
                     (json_int_t)ek_report_spans_dropped(report), "spans", array);
}

static json_t *describe_report(const ek_report *report)
{
    return json_pack("{s:o, s:I, s:f, s:f, s:f, s:I, s:o, s:o}", "name",
                     text_of(ek_report_name(report)), "steps",
                     (json_int_t)ek_report_step_count(report), "seconds", ek_report_seconds(report),
                     "step_seconds", ek_report_step_seconds(report), "imbalance",
                     ek_report_imbalance(report), "largest_batch",
                     (json_int_t)ek_report_largest_batch(report), "devices",
                     describe_devices(report), "last_step", describe_spans(report));
}

static int write_json(FILE *stream, void *user)
{
    if (json_dumpf(user, stream, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) < 0 && !ferror(stream))
        return EK_FAIL(EK_E_NO_MEMORY, "report_json: no memory for the text");
    fputc('\n', stream);
    return 0;
}

int ek_report_json(const char *path, ek_report *const *reports, int count)
{
    if (!path || !*path || count < 1 || !reports)
        return EK_FAIL(EK_E_INVALID, "report_json: %s",
                       path && *path ? "there is no report" : "there is no path");
    json_t *array = json_array();
    for (int i = 0; i < count; i++) {
        if (!reports[i]) {
            json_decref(array);
            return EK_FAIL(EK_E_INVALID, "report_json: report %d is NULL", i);
        }
        array = append(array, describe_report(reports[i]));
    }
    json_t *all = json_pack("{s:s, s:o}", "format", "evenkeel-report-1", "reports", array);
    if (!all)
        return EK_FAIL(EK_E_NO_MEMORY, "report_json: no memory for the numbers of %d reports",
                       count);
    int rc = ek_file_replace_text("report_json", path, write_json, all);
    json_decref(all);
    return rc;
}
