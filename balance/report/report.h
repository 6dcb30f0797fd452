/* report.h: what the tables, pages and traces of a report read, beside the public functions. */
#ifndef EK_REPORT_REPORT_H
#define EK_REPORT_REPORT_H

#include <stdbool.h>

#include "core/trace.h"
#include "evenkeel/report.h"

/* One span of the last finished step. Spans of one device nest: an inner one lies within the outer
 * one before it, and has a greater depth. */
typedef struct ek_report_span {
    int device; /* index in the report */
    int thread; /* the thread's number, from 0 */
    int depth;  /* how many spans of the same thread and device are around it */
    ek_span_kind kind;
    double begin, end; /* seconds since the step began */
    char label[96];    /* "backward of conv2d" */
} ek_report_span;

/* The spans of the last finished step, sorted by begin, outer ones first. Writes how many, and the
 * step's seconds. NULL if there are none; NULL and a negative status as *count on EK_E_NO_MEMORY.
 * Valid until the report changes. */
const ek_report_span *ek_report_spans(const ek_report *report, int *count, double *seconds);

/* The rank of a device. */
int ek_report_device_rank(const ek_report *report, int index);

/* How many threads had spans, and the device whose worker such a thread is (-1: it is no worker).
 */
int ek_report_thread_count(const ek_report *report);
int ek_report_thread_device(const ek_report *report, int thread);

/* How many spans of the last finished step there was no room for, or a negative status. */
int64_t ek_report_spans_dropped(const ek_report *report);

/* The order of spans, for qsort. */
int ek_report_span_compare(const void *a, const void *b);

/* As ek_report_memory, finer and of the last finished step alone. Seconds count from its begin. */
int ek_report_step_memory(const ek_report *report, int index, ek_memory_sample *samples, int room);

/* What ek_report_set_largest_batch was given; 0: it was not called. */
int64_t ek_report_largest_batch(const ek_report *report);

/* ---- writing ---- */

/* A call that writes reports begins with this on all ranks, with the outcome of its checks, and
 * takes in what all ranks have. Returns 1 if this rank writes, 0 if another one does, or a negative
 * status. A call without reports is this process's alone. */
int ek_report_begin_writing(ek_report *const *reports, int count, int rc);
/* Ends it with the outcome of writing. */
int ek_report_end_writing(ek_report *const *reports, int count, int rc);

/* "host:0"; "rank 1 host:0" if there are several ranks. Returns `text`. */
char *ek_report_device_text(const ek_report *report, const ek_device_report *device, char text[40]);

/* The reports as JSON; in_html: on one line, for a script element. */
int ek_report_put(FILE *stream, bool in_html, ek_report *const *reports, int count);

#endif
