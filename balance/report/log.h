/* log.h: the spans of one thread.
 *
 * Each thread that works while a report collects gets a log of its own: its spans take no lock that
 * another device's thread takes, except for the moment in which a step ends. */
#ifndef EK_REPORT_LOG_H
#define EK_REPORT_LOG_H

#include <pthread.h>

#include "report/report.h"
#include "report/steps.h"

/* A span as it is kept, in nanoseconds of the clock. */
typedef struct ek_log_span {
    uint64_t begin, end;
    int16_t device, depth;
    ek_span_kind kind;
    char label[96];
} ek_log_span;

/* What spans of one step are kept of one thread; the others are counted. */
enum { EK_LOG_SPANS = 1 << 15 };

typedef struct ek_log_page {
    ek_log_span *spans;
    int count, room;
    int64_t dropped;
} ek_log_page;

typedef struct ek_log {
    struct ek_log *next;
    int thread; /* its number */
    int worker; /* index of the device whose worker it is; -1 elsewhere */
    pthread_mutex_t lock;
    /* guarded by lock: */
    ek_log_page pages[2];
    int current; /* page of the step that runs; the other is the last finished one's */
    ek_busy busy[EK_MAX_DEVICES]; /* of the step that runs */
} ek_log;

ek_log *ek_log_new(int thread);
void ek_log_free(ek_log *log);

/* For the thread: a span of device `device` has ended; of its time `self` counts. */
void ek_log_add(ek_log *log, const ek_span *span, int device, uint64_t ended, uint64_t self);

/* Ends the step: its page becomes the last finished one's, and its sums are added to busy. */
void ek_log_turn(ek_log *log, int devices, ek_busy *busy);

/* "backward of conv2d"; empty for NULL. */
void ek_span_label(const ek_span *span, char label[96]);

#endif
