/* report.h: where every byte and every millisecond went.
 *
 *     ek_report *report = ek_report_start(.name = "balanced");
 *     for (...) { ... one training step ...; ek_report_step(report); }
 *     ek_report_stop(report);
 *     ek_report_table(report, stdout);
 *     ek_report_json("run.json", &report, 1);
 *     ek_report_html("run.html", &report, 1);
 *     ek_report_trace("run.trace.json", report);
 *     ek_report_free(report);
 *
 * Collecting costs less than a hundredth of a step, and memory that doesn't grow with the run: what
 * is old is kept coarser (maxima stay exact). Times are those of the host's clock: a device of the
 * host computes in them; work that was issued to a GPU may still run. One report collects at a
 * time; all functions but ek_report_start are for the thread that started it. */
#ifndef EVENKEEL_REPORT_H
#define EVENKEEL_REPORT_H

#include <stdio.h>

#include "evenkeel/device.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_report ek_report;

typedef struct ek_report_options {
    const char *keywords;
    const char *name;          /* of the run, for titles; copied; default "run" */
    ek_device_list device_ids; /* empty: all accelerators of the default kind */
} ek_report_options;

/* Begins to collect; peaks count from here (devices' own, ek_memory_get_stats, go on untouched).
 * NULL with EK_E_STATE while another collects. Stop or free it before the devices are shut down. */
EK_API ek_report *ek_report_start_with(ek_report_options options);
#define ek_report_start(...) \
    ek_report_start_with(EK_OPTIONS_1(ek_report_options, name, __VA_ARGS__))

/* Ends a step; the next begins. */
EK_API int ek_report_step(ek_report *report);
/* Ends collecting; what was collected stays. What came after the last step counts as no step. */
EK_API int ek_report_stop(ek_report *report);
/* Stops it first if it still collects; NULL is ignored. */
EK_API void ek_report_free(ek_report *report);

/* ---- reading ---- */

/* Bytes on one device at one moment; `now` adds up to in_use. */
typedef struct ek_memory_sample {
    double seconds; /* since the start */
    int64_t step;   /* counted from 0 */
    uint64_t in_use;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_memory_sample;

typedef struct ek_device_report {
    ek_device device;
    uint64_t capacity;       /* 0: none */
    ek_memory_sample peak;   /* the moment of the largest in_use */
    char peak_operation[96]; /* what asked for memory then: "backward of conv2d" */
    uint64_t reserved_peak;
    /* Sums over all finished steps, in seconds: computing, moving data between devices, and
     * waiting, which is the rest of the steps' time. */
    double computing, communicating, waiting;
} ek_device_report;

EK_API const char *ek_report_name(const ek_report *report);
EK_API int ek_report_device_count(const ek_report *report);
EK_API int64_t ek_report_step_count(const ek_report *report);
/* Finished steps in seconds: all of them, and the median of what is kept. */
EK_API double ek_report_seconds(const ek_report *report);
EK_API double ek_report_step_seconds(const ek_report *report);
/* 0, or EK_E_INVALID for no such device. */
EK_API int ek_report_get_device(const ek_report *report, int index, ek_device_report *device);
/* The peak of the fullest device over the mean of all devices' peaks; 1 if nothing was used. */
EK_API double ek_report_imbalance(const ek_report *report);
/* Memory over time of a device, ascending: each sample is the fullest moment of its stretch of
 * time, or the level that lasts through stretches without changes. Copies at most `room` and
 * returns how many there are: while the report collects, more from call to call. */
EK_API int ek_report_memory(const ek_report *report, int index, ek_memory_sample *samples,
                            int room);

/* The largest batch that this way of training can run (evenkeel/train.h), if the caller knows
 * it: shown beside the rest. */
EK_API void ek_report_set_largest_batch(ek_report *report, int64_t batch);

/* ---- writing ---- */

/* A table for a terminal. Returns 0 or EK_E_IO. */
EK_API int ek_report_table(const ek_report *report, FILE *stream);

/* Files are written whole or not at all; EK_E_IO with the system's reason. Several reports (ways of
 * training the same) stand side by side. HTML: one page that needs no other files and no network;
 * a script in it draws the JSON, which it holds too, and zooms into memory and time. JSON, in bytes
 * and seconds, with the names of ek_device_report and ek_memory_sample:
 *
 *     {"format": "evenkeel-report-1",
 *      "reports": [{"name", "steps", "seconds", "step_seconds", "imbalance", "largest_batch",
 *        "devices": [{"device": "host:0", "capacity", "peak": SAMPLE, "peak_operation",
 *          "reserved_peak", "computing", "communicating", "waiting",
 *          "memory": [SAMPLE, ...],         since the start, each until the next
 *          "step_memory": [SAMPLE, ...]}],  of the last finished step, since it began
 *        "last_step": {"seconds", "dropped",
 *          "spans": [{"device", "thread", "depth", "kind", "begin", "end", "label"}]}}]}
 *
 * SAMPLE: {"seconds", "step", "in_use", "categories": {"parameter": 4096, ...}}. A span's device is
 * an index of `devices`, its kind "compute", "communicate" or "wait"; spans are sorted by begin,
 * outer ones first; `dropped` ones had no room. 0 as capacity or largest_batch: none is known. */
EK_API int ek_report_json(const char *path, ek_report *const *reports, int count);
EK_API int ek_report_html(const char *path, ek_report *const *reports, int count);

typedef struct ek_report_page {
    const char *title;    /* NULL: "Memory and time of training" */
    const char *subtitle; /* a paragraph below it; NULL: none */
    /* Writes more of the page's body behind the report's own sections; NULL: nothing. The page's
     * script draws a chart where there is an element
     * <script type="application/json" class="chart">JSON</script>, without '<' in its JSON:
     * {"title", "unit": "step", "series": [{"name", "values": [1.5, null, ...]}]} for lines,
     * {"title", "note", "bars": [{"name", "text", "value"}]} for bars. */
    void (*more)(FILE *page, void *user);
    void *user;
} ek_report_page;
EK_API int ek_report_html_page(const char *path, ek_report *const *reports, int count,
                               const ek_report_page *page);

/* The last finished step, operation by operation, in the Chrome trace format: open it in Perfetto
 * or chrome://tracing. */
EK_API int ek_report_trace(const char *path, const ek_report *report);

EK_END_DECLARATIONS
#endif
