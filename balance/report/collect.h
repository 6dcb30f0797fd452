/* collect.h: what a report consists of. */
#ifndef EK_REPORT_COLLECT_H
#define EK_REPORT_COLLECT_H

#include "report/log.h"
#include "report/series.h"

/* One device of a report. While it collects, the allocator's lock guards all but the first two. */
typedef struct ek_tracked {
    ek_device id;
    ek_memory_watch open; /* its dev: while the report collects and the device is open */
    uint64_t capacity, reserved_peak;
    int64_t step;        /* that runs */
    uint64_t step_began; /* by the clock */
    ek_moment peak;
    char peak_operation[96];
    ek_series run;        /* since the report began */
    ek_series running;    /* since the step that runs began */
    ek_series finished;   /* of the last finished step, */
    uint64_t finished_ns; /* which took this */
} ek_tracked;

/* The last finished step's spans, brought together when somebody asks. */
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
    uint64_t ended;                       /* nanoseconds since, when it was stopped */
    _Atomic uint64_t step_began;          /* by the clock */
    uint64_t finished_began, finished_ns; /* of the last finished step */
    ek_steps steps;
    ek_gathered *gathered;
    int64_t largest_batch;

    pthread_mutex_t logs_lock;
    ek_log *logs; /* guarded by logs_lock, like: */
    int threads;
    atomic_bool lost; /* there was no memory for a thread's log */
};

/* A device for reading: locked while the report collects and the device is open. */
ek_tracked *ek_report_lock(const ek_report *report, int index);
void ek_report_unlock(const ek_tracked *device);

/* Nanoseconds since the start, or those that it took. */
uint64_t ek_report_ns(const ek_report *report);

void ek_gathered_clear(ek_gathered *gathered);

#endif
