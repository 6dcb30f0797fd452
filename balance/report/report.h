/* report.h: functions that tables, pages and traces use to read a report, in addition to the public
 * ones. */
#ifndef EK_REPORT_REPORT_H
#define EK_REPORT_REPORT_H

#include <stdbool.h>

#include "core/trace.h"
#include "evenkeel/report.h"

enum { EK_REPORT_LABEL = sizeof((ek_device_report *)NULL)->peak_operation };

/* One span of the last finished step. Spans of one device nest: an inner span lies within the outer
 * span before it, and has a greater depth. */
typedef struct ek_report_span {
    int device; /* index in the report */
    int thread; /* the thread's number, from 0 */
    int depth;  /* how many spans of the same thread and device enclose this span */
    ek_span_kind kind;
    double begin, end;           /* seconds since the step began */
    char label[EK_REPORT_LABEL]; /* "layer1.0.conv1: backward of conv2d" */
} ek_report_span;

/* Returns the spans of the last finished step, sorted by begin, outer spans first; valid until the
 * report changes. *count becomes their number, *seconds the step's duration. NULL if there are
 * none; on EK_E_NO_MEMORY NULL, with the status in *count. */
const ek_report_span *ek_report_spans(const ek_report *report, int *count, double *seconds);

/* The rank of a device. */
int ek_report_device_rank(const ek_report *report, int index);

/* Return how many threads had spans, and the device whose worker a thread is (-1: it is no worker).
 */
int ek_report_thread_count(const ek_report *report);
int ek_report_thread_device(const ek_report *report, int thread);

/* Returns how many spans of the last finished step were dropped for lack of room, or a negative
 * status. */
int64_t ek_report_spans_dropped(const ek_report *report);

/* The order of spans, for qsort. */
int ek_report_span_compare(const void *a, const void *b);

/* Reads memory as ek_report_memory does, but finer, and only for the last finished step. Seconds
 * count from the step's begin. */
int ek_report_step_memory(const ek_report *report, int index, ek_memory_sample *samples, int room);

/* Returns the number given to ek_report_set_largest_batch, or 0 if that was not called. */
int64_t ek_report_largest_batch(const ek_report *report);

/* Returns what was given to ek_report_expect; NULL: nothing. */
const ek_expectation *ek_report_expected(const ek_report *report);

/* ---- writing ---- */

/* Begins a call that writes reports: exchanges the data of all ranks. Collective; `rc` is the
 * outcome of this rank's checks. Returns 1 if this rank writes, 0 if another rank does, or a
 * negative status. Without reports the call isn't collective. */
int ek_report_begin_writing(ek_report *const *reports, int count, int rc);
/* Ends the call with the outcome of writing. */
int ek_report_end_writing(ek_report *const *reports, int count, int rc);

/* Writes "host:0", or "rank 1 host:0" if there are several ranks. Returns `text`. */
char *ek_report_device_text(const ek_report *report, const ek_device_report *device, char text[40]);

/* Writes the page of one report with the devices of this rank, or of all ranks if the report was
 * gathered since its last step. Not collective. With `live` the page tells when it was written;
 * with page->every > 0 the page also reloads itself. */
int ek_report_write_page(const char *what, const char *path, ek_report *report,
                         const ek_report_page *page, bool live);

/* Returns the report's first curve. */
const struct ek_curve *ek_report_curves(const ek_report *report);

/* Writes the reports as JSON. With in_html, on one line, for a script element. */
int ek_report_put(FILE *stream, bool in_html, ek_report *const *reports, int count);

#endif
