/* collect.h: what a report consists of. */
#ifndef EK_REPORT_COLLECT_H
#define EK_REPORT_COLLECT_H

#include <pthread.h>

#include "core/device.h"
#include "report/history.h"
#include "report/report.h"

/* ---- the spans of one thread ----
 *
 * Each thread that works while a report collects has a log of its own: no other device's thread
 * takes its lock, except for the moment in which a step ends. */

/* A span as it is kept, in nanoseconds of the clock. */
typedef struct ek_log_span {
    uint64_t begin, end;
    int16_t device, depth;
    ek_span_kind kind;
    char label[96];
} ek_log_span;

/* Spans of one step that are kept of one thread; the others are counted. */
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
    ek_busy busy[EK_MAX_DEVICES]; /* kept for the step that runs */
} ek_log;

/* ---- the report ---- */

/* One device of a report. While the report collects, the lock of the device's allocator guards all
 * members but id and open. */
typedef struct ek_tracked {
    ek_device id;
    ek_memory_watch open; /* its dev is NULL once the report is stopped or the device is closed */
    uint64_t capacity, reserved_peak;
    int64_t step;        /* that runs */
    uint64_t step_began; /* by the clock */
    ek_moment peak;
    char peak_operation[96];
    ek_series run;        /* since the report began */
    ek_series running;    /* since the step that runs began */
    ek_series finished;   /* of the last finished step */
    uint64_t finished_ns; /* how long that step took */
} ek_tracked;

/* The last finished step's spans, gathered when somebody asks for them. */
typedef struct ek_gathered {
    bool ready;
    ek_report_span *spans;
    int count;
    int64_t dropped;
} ek_gathered;

struct ek_report {
    char *name;
    int count; /* devices */
    ek_tracked *devices;
    int8_t index_of[EK_CUDA + 1][EK_MAX_DEVICES]; /* -1: not in the report */
    bool collecting;
    uint64_t serial;                      /* never used twice in a process */
    uint64_t began;                       /* by the clock */
    uint64_t ended;                       /* nanoseconds from began until it was stopped */
    _Atomic uint64_t step_began;          /* by the clock */
    uint64_t finished_began, finished_ns; /* of the last finished step */
    ek_steps steps;
    ek_gathered *gathered;
    int64_t largest_batch;

    atomic_bool lost; /* there was no memory for a thread's log */

    pthread_mutex_t logs_lock;
    ek_log *logs; /* guarded by logs_lock */
    int threads;  /* guarded by logs_lock */
};

/* Forgets the spans, which the next step's will replace. */
void ek_gathered_clear(ek_gathered *gathered);

#endif
