/** @file
 * report.h: reports of memory and time per device.
 *
 *     ek_report *report = ek_report_start(.name = "balanced");
 *     ek_report_live(report, "live.html", NULL);
 *     for (int64_t step = 1; step <= steps; step++) {
 *         ... one training step ...
 *         ek_report_scalar(report, "loss", step, loss);
 *         ek_report_step(report);
 *     }
 *     ek_report_stop(report);
 *     ek_report_table(report, stdout);
 *     ek_report_json("run.json", &report, 1);
 *     ek_report_html("run.html", &report, 1);
 *     ek_report_trace("run.trace.json", report);
 *     ek_report_free(report);
 *
 * Collecting costs less than a hundredth of a step. Its memory doesn't grow with the run: older
 * samples are merged, with exact maxima. Times are those of the host's clock. For host devices they
 * are the time of computing; work that was issued to a GPU may end later. One report collects at a
 * time. All functions but ek_report_start are for the thread that started the report.
 *
 * Several processes (dist.h). Each rank starts a report of its own, and a report is written with
 * the devices of all ranks: ek_report_table, _json, _html, _html_page and _trace are calls that all
 * ranks of the report's group make in the same order. Each begins with ek_report_gather; then rank
 * 0 writes to its path or stream, and an error of any rank is an error of all. If a rank doesn't
 * make the call, the others get EK_E_TIMEOUT, as in all calls of dist.h. */
#ifndef EVENKEEL_REPORT_H
#define EVENKEEL_REPORT_H
#pragma GCC system_header /* see base.h */

#include <stdio.h>

#include "evenkeel/device.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_report ek_report;

typedef struct ek_report_options {
    int begin;                     /**< no option, see base.h */
    const char *name EK_IS("run"); /**< name of the run, for titles; copied */
    ek_device_list device_ids;     /**< empty: all accelerators of the default kind */
    /** The ranks that write together; NULL: the world. It must exist as long as reports of it are
     * written, so these are written before ek_shutdown (else EK_E_STATE). A rank outside the group
     * reports itself alone, and needs a path of its own. */
    ek_process_group *process_group;
} ek_report_options;
#define EK_DEFAULTS_ek_report_options EK_DEFAULT(name, "run")

EK_API ek_report *ek_report_start_with(ek_report_options options);
/** Starts to collect. The report has peaks of its own; those of ek_memory_get_stats are not reset.
 * NULL with EK_E_STATE if another report collects. Stop or free a report before ek_shutdown. */
#define ek_report_start(...) EK_CALL_1(ek_report_start_with, ek_report_options, name, __VA_ARGS__)

/** Ends a step and begins the next. Rewrites the live page (ek_report_live) if the page is due. */
EK_API int ek_report_step(ek_report *report);
/** Adds a value to the curve `name`, such as "loss". The page has a chart per name, with a curve of
 * each report. A value that is not finite is a gap. A curve keeps at most 1024 points: when a curve
 * is full, pairs of points are merged, with their mean, minimum and maximum. With several ranks the
 * curves are those of rank 0. A stopped report takes values, too. EK_E_INVALID for a name that is
 * empty or not UTF-8, and for a step before the curve's last step. */
EK_API int ek_report_scalar(ek_report *report, const char *name, int64_t step, double value);
/** Ends collecting; collected data is kept. Time after the last step belongs to no step. Writes the
 * live page for the last time. */
EK_API int ek_report_stop(ek_report *report);
/** Frees the report, and stops it first if it still collects. NULL is ignored. */
EK_API void ek_report_free(ek_report *report);
#define ek_report_free(report) ek_report_free(EK_PLACED(report))

/* ---- reading ---- */

/** Merges what the reports of all ranks of the group have collected so far; all ranks call this.
 * From then until the next step the report's devices are those of all ranks, in the order of ranks,
 * on every rank. Does nothing if there are no other ranks. */
EK_API int ek_report_gather(ek_report *report);

/** Bytes on one device at one moment. `now` is in_use by category. */
typedef struct ek_memory_sample {
    double seconds; /**< time since the start */
    int64_t step;   /**< counted from 0 */
    uint64_t in_use;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_memory_sample;

/** A request that found no memory. Its caller may have gone on with less, or when memory was free
 * again. */
typedef struct ek_out_of_memory {
    uint64_t requested; /**< bytes; 0: no request has failed */
    ek_memory_category category;
    char operation[192]; /**< the operation that requested them: as peak_operation */
    ek_memory_sample at; /**< the memory in use then, of which the others are the largest holders */
    int holder_count;
    ek_memory_holder holders[EK_MEMORY_HOLDERS];
} ek_out_of_memory;

typedef struct ek_device_report {
    ek_device device;
    int rank;              /**< the rank in the group that has it; 0 without other ranks */
    uint64_t capacity;     /**< 0: none */
    ek_memory_sample peak; /**< the moment when in_use was largest */
    /** The operation that allocated then: "layer1.0.conv1: backward of conv2d". */
    char peak_operation[192];
    /** The largest holders of memory then, the largest first. They add up to the peak at most. */
    int holder_count;
    ek_memory_holder holders[EK_MEMORY_HOLDERS];
    uint64_t reserved_peak;
    /** At the moment when in_use was largest: the reserved bytes (in_use, cached memory and gaps
     * between blocks), and the largest free block. */
    uint64_t reserved_at_peak, largest_free;
    uint64_t system; /**< bytes that the ledger can't see (ek_memory_stats) */
    /** Segments given back so that a request found room, since the report began. */
    uint64_t dropped;
    /** The last request that found no memory. */
    ek_out_of_memory out_of_memory;
    /** The peak that a plan expects (ek_report_expect); in_use 0: none. Seconds and step are 0. */
    ek_memory_sample expected;
    /** Seconds, summed over all finished steps: computing, moving data between devices, and
     * waiting, which is the rest of the steps' time. */
    double computing, communicating, waiting;
} ek_device_report;

/** The run's name; how many devices it has, and finished steps. */
EK_API const char *ek_report_name(const ek_report *report);
EK_API int ek_report_device_count(const ek_report *report);
EK_API int64_t ek_report_step_count(const ek_report *report);
/** Seconds of all finished steps together, and the median step among those still kept. */
EK_API double ek_report_seconds(const ek_report *report);
EK_API double ek_report_step_seconds(const ek_report *report);
/** Returns 0, or EK_E_INVALID if there is no such device. */
EK_API int ek_report_get_device(const ek_report *report, int index, ek_device_report *device);
/** A rank of the report's group; seconds are those of all its finished steps together. */
typedef struct ek_rank_report {
    int rank;
    char host[64]; /**< its machine's name; "" without other ranks */
    int64_t steps;
    double seconds;
    double exposed; /**< seconds that calls waited for communication not hidden by computing */
    /** Seconds that this rank waited in calls of all ranks (reductions of gradients included) for
     * ranks that came later. */
    double waited;
    int waited_for; /**< the rank for which this rank waited longest; -1: none */
    int64_t last;   /**< calls of all ranks to which this rank came last */
    int64_t calls;  /**< calls that all ranks of a group have made */
} ek_rank_report;

/** How many ranks the report has taken in: 1 until ek_report_gather. */
EK_API int ek_report_rank_count(const ek_report *report);
/** Returns 0, or EK_E_INVALID if there is no such rank. */
EK_API int ek_report_get_rank(const ek_report *report, int index, ek_rank_report *rank);
/** The largest peak of a device divided by the mean of all devices' peaks; 1 if nothing was used.
 */
EK_API double ek_report_imbalance(const ek_report *report);
/** A device's memory in order of time. A sample is the moment of a stretch of time when most memory
 * was in use, or the amount during several stretches without changes. Copies at most `room` samples
 * and returns how many there are; that number grows while the report collects. */
EK_API int ek_report_memory(const ek_report *report, int index, ek_memory_sample *samples,
                            int room);

/** What a plan of a training expects of a device at its peak, in bytes. `now` adds up to `peak`. */
typedef struct ek_expected_device {
    ek_device device;
    uint64_t peak;
    uint64_t now[EK_MEMORY_CATEGORIES];
} ek_expected_device;

/** A means by which a training was made to fit, such as "sharded parameters". Both figures compare
 * the plan with the plan without this means. */
typedef struct ek_expected_means {
    char name[64];
    int64_t saved;  /**< bytes that the fullest device saves */
    double seconds; /**< how much longer a step takes */
} ek_expected_means;

enum { EK_EXPECTED_MEANS = 8 };
/** What a plan expects of a training step: of this process's devices, and why. */
typedef struct ek_expectation {
    int64_t batch;       /**< samples of a step; 0: not known */
    double step_seconds; /**< 0: not known */
    int device_count;
    ek_expected_device devices[EK_MAX_DEVICES];
    int means_count;
    ek_expected_means means[EK_EXPECTED_MEANS];
} ek_expectation;

/** Sets what a plan expects, to be shown beside what is measured. Copies the expectation, which
 * replaces an earlier one. With several ranks each rank sets its own devices' peaks, and the
 * report shows the batch, step and means of rank 0. EK_E_INVALID for devices that the report
 * doesn't have, for negative counts and times, for numbers that aren't finite, and for categories
 * that don't add up to their peak. */
EK_API int ek_report_expect(ek_report *report, const ek_expectation *expectation);

/** Sets the largest batch that this training can run (train.h), to be shown in the report. */
EK_API void ek_report_set_largest_batch(ek_report *report, int64_t batch);

/* ---- writing ---- */

/** Writes a table for a terminal. Returns 0 or EK_E_IO. */
EK_API int ek_report_table(const ek_report *report, FILE *stream);

/** Write a file whole or not at all; EK_E_IO with the system's reason. Several reports (ways to
 * train one model) are shown side by side. The HTML page needs no other file and no network: it
 * holds the JSON, which its script draws and zooms. The JSON is in bytes and seconds, with the
 * names of ek_device_report and ek_memory_sample:
 *
 *     {"format": "evenkeel-report-1",
 *      "reports": [{"name", "steps", "seconds", "step_seconds", "imbalance", "largest_batch",
 *        "devices": [{"device": "host:0", "capacity", "peak": SAMPLE, "peak_operation",
 *          "holders": [{"path", "category", "nbytes"}],    the largest at the peak
 *          "reserved_peak", "reserved_at_peak", "largest_free", "system", "dropped",
 *          "computing", "communicating", "waiting",
 *          "memory": [SAMPLE, ...],         since the start; each holds until the next
 *          "step_memory": [SAMPLE, ...]}],  the last finished step's, since it began
 *        "last_step": {"seconds", "dropped",
 *          "threads": ["caller", "worker", ...],    by number: a device's worker, or another
 *          "spans": [{"device", "thread", "depth", "kind", "begin", "end", "label"}]}}]}
 *
 * With several ranks each device has a "rank", seconds count from the start, or the last step's
 * begin, of that rank, and a report has
 *
 *     "ranks": [{"rank", "host", "steps", "seconds", "exposed", "waited", "waited_for", "last",
 *       "calls"}]
 *
 * After ek_report_scalar a report has its curves. A point has the mean, minimum and maximum of
 * successive values, and the step of the last one. They are null if no value is finite.
 *
 *     "scalars": [{"name": "loss", "points": [[step, mean, minimum, maximum], ...]}]
 *
 * After a request that found no memory its device also has
 *
 *     "out_of_memory": {"requested", "category", "operation", "at": SAMPLE,
 *       "holders": [{"path", "category", "nbytes"}]}
 *
 * After ek_report_expect a device also has "expected": SAMPLE, and a report has
 *
 *     "expected": {"batch", "step_seconds", "means": [{"name", "saved", "seconds"}]}
 *
 * SAMPLE is {"seconds", "step", "in_use", "categories": {"parameter": 4096, ...}}. A span's device
 * is an index into `devices`, its kind "compute", "communicate" or "wait", and its label begins
 * with the path of the module for which the thread worked: "layer1.0.conv1: backward of conv2d".
 * Spans are sorted by begin, outer ones first; `dropped` counts those for which there was no room.
 * A capacity or largest_batch of 0 is unknown. */
EK_API int ek_report_json(const char *path, ek_report *const *reports, int count);
EK_API int ek_report_html(const char *path, ek_report *const *reports, int count);

typedef struct ek_report_page {
    const char *title;    /**< NULL: "Memory and time of training" */
    const char *subtitle; /**< a paragraph below it; NULL: none */
    /** Optional: writes more of the page's body, after the report's own sections. The page's script
     * draws a chart for each element <script type="application/json" class="chart">JSON</script>,
     * whose JSON must not contain '<'. For lines it is {"title", "unit": "step", "series":
     * [{"name", "values": [1.5, null, ...]}]}; for bars {"title", "note", "bars": [{"name", "text",
     * "value"}]}. */
    void (*more)(FILE *page, void *user);
    void *user;
    double every; /**< > 0: the page says when it was written, and reloads after so many seconds */
} ek_report_page;
/** ek_report_html with a title, and with more below the report's sections. */
EK_API int ek_report_html_page(const char *path, ek_report *const *reports, int count,
                               const ek_report_page *page);

/** Writes the report's page now, again in each ek_report_step that is `every` seconds after the
 * last writing (0: 30), and for the last time in ek_report_stop. Until then the page reloads
 * itself, keeping its zoom and place. A reader sees a whole page at any time. Writing belongs to no
 * step. Copies the path and the texts of `page`; NULL: all by default. A second call replaces the
 * first.
 *
 * Not collective: rank 0 of the group writes its own devices, and calls of other ranks do nothing.
 * An error of writing is an error of the call that writes; later calls try again. */
EK_API int ek_report_live(ek_report *report, const char *path, const ek_report_page *page);

/** Writes the last finished step, operation by operation, in the Chrome trace format, for Perfetto
 * or chrome://tracing. Each rank is a process there; its times count from the begin of its step. */
EK_API int ek_report_trace(const char *path, const ek_report *report);

EK_END_DECLARATIONS
#endif
