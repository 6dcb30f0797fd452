/* report.h: what the writers of a report read beside the public functions. */
#ifndef EK_REPORT_REPORT_H
#define EK_REPORT_REPORT_H

#include <stdbool.h>

#include "core/trace.h"
#include "evenkeel/report.h"

/* One span of the last finished step. Spans of one device nest: an inner one lies within the outer
 * one before it, and has a greater depth. */
typedef struct ek_report_span {
    int device; /* index in the report */
    int thread; /* small number, unique per thread */
    int depth;  /* 0: not within another of its thread */
    ek_span_kind kind;
    double begin, end; /* seconds since the step began */
    char label[96];    /* "backward of conv2d" */
} ek_report_span;

/* Those of the last finished step by begin (outer ones first); writes how many, and the step's
 * duration in seconds. NULL if there is none, or, with a negative status as the number, if they
 * cannot be read (EK_E_NO_MEMORY). They live as long as the report is not changed. */
const ek_report_span *ek_report_spans(const ek_report *report, int *count, double *seconds);

/* Threads that had spans; the device whose worker one is, -1 if it is no worker. */
int ek_report_thread_count(const ek_report *report);
int ek_report_thread_device(const ek_report *report, int thread);

/* Spans of that step that there was no room for, or a negative status. */
int64_t ek_report_spans_dropped(const ek_report *report);

/* As ek_report_memory, of that step alone and finer; seconds since it began. */
int ek_report_step_memory(const ek_report *report, int index, ek_memory_sample *samples, int room);

/* The largest batch that the caller told, 0 for none. */
int64_t ek_report_largest_batch(const ek_report *report);

/* ---- writing ---- */

/* The reports as JSON; in_html: on one line, for a script element. */
int ek_report_put(FILE *stream, bool in_html, ek_report *const *reports, int count);

#endif
