/* collect.h: the members of a report. */
#ifndef EK_REPORT_COLLECT_H
#define EK_REPORT_COLLECT_H

#include <pthread.h>

#include "core/device.h"
#include "core/ranks.h"
#include "report/history.h"
#include "report/report.h"

/* ---- the spans of one thread ----
 *
 * Each thread that works while a report collects has a separate log. Other threads take a log's
 * lock only when a step ends. */

/* What a span does, and for which module. */
typedef struct ek_label {
    const char *path; /* The module (core/path.h) */
    char text[96];    /* "backward of conv2d" */
} ek_label;

/* A span in a log. begin and end are nanoseconds of ek_clock_ns. */
typedef struct ek_log_span {
    uint64_t begin, end;
    int16_t device, depth;
    ek_span_kind kind;
    ek_label label;
} ek_log_span;

/* How many spans of a step one thread's log keeps. Spans beyond are dropped and counted. */
enum { EK_LOG_SPANS = 1 << 15 };

typedef struct ek_log_page {
    ek_log_span *spans;
    int count, room;
    int64_t dropped;
} ek_log_page;

typedef struct ek_log {
    struct ek_log *next;
    int thread; /* the thread's number */
    int worker; /* index of the device whose worker the thread is; -1: it is no worker */
    pthread_mutex_t lock;
    ek_log_page pages[2]; /* guarded by lock */
    int current; /* guarded by lock: the running step's page; the other page is the last step's */
    ek_busy busy[EK_MAX_DEVICES]; /* guarded by lock: the running step's times */
} ek_log;

/* ---- the report ---- */

/* One device of a report. While the report collects, the lock of the device's allocator guards all
 * members but id and open. */
typedef struct ek_tracked {
    ek_device id;
    ek_memory_watch open; /* its dev is NULL once the report is stopped or the device is closed */
    uint64_t capacity, reserved_peak;
    uint64_t reserved_at_peak, largest_free, system;
    uint64_t dropped, dropped_before; /* since the report began; until then */
    int64_t step;                     /* number of the running step */
    uint64_t step_began;              /* a time of ek_clock_ns */
    ek_moment peak;
    ek_label peak_label;
    uint64_t peak_holder; /* the number of the last holder at the peak */
    ek_holders left;      /* holders at the peak that have given their memory back since */
    ek_moment lack;       /* when the last request found no memory */
    ek_label lack_label;
    ek_shortage shortage; /* its nbytes are 0: none */
    ek_series run;        /* the memory since the report began */
    ek_series running;    /* the running step's memory */
    ek_series finished;   /* the last finished step's memory */
    uint64_t finished_ns; /* the last finished step's duration */
} ek_tracked;

/* The spans of the last finished step, gathered from the logs on request. */
typedef struct ek_gathered {
    bool ready;
    ek_report_span *spans;
    int count;
    int64_t dropped;
} ek_gathered;

/* ---- several ranks (ranks.c) ---- */

/* A device of any rank, as that rank sent it. */
typedef struct ek_sent_device {
    ek_device_report numbers;
    ek_memory_sample *samples[2]; /* since the start; of the last finished step; owned */
    int counts[2];
} ek_sent_device;

/* The data of all ranks, one rank after another, that ek_report_gather has received. Arrays are
 * owned. */
typedef struct ek_sent {
    int rank_count; /* 0: nothing was taken in */
    ek_rank_report *ranks;
    ek_sent_device *devices;
    int device_count;
    ek_report_span *spans; /* those of the last finished steps, sorted */
    int span_count;
    int64_t dropped;
    int *thread_devices; /* by thread, as ek_report_thread_device */
    int thread_count;
} ek_sent;

/* Counters of the time that this rank's calls have waited for communication. */
typedef struct ek_waited {
    uint64_t exposed;
    ek_ranks_wait *of; /* by rank */
} ek_waited;

/* The page that is rewritten while the report collects (live.c). */
typedef struct ek_live {
    char *path;             /* owned; NULL: there is no live page */
    char *title, *subtitle; /* The texts of `page`; owned; NULL: none */
    ek_report_page page;
    uint64_t written; /* a time of ek_clock_ns: the end of the last writing */
} ek_live;

struct ek_report {
    char *name;
    int count; /* number of devices */
    ek_tracked *devices;
    int8_t index_of[EK_CUDA + 1][EK_MAX_DEVICES]; /* -1: not in the report */
    bool collecting;
    uint64_t serial;                      /* unique in the process */
    uint64_t began;                       /* a time of ek_clock_ns */
    uint64_t ended;                       /* nanoseconds from began until ek_report_stop */
    _Atomic uint64_t step_began;          /* a time of ek_clock_ns */
    uint64_t finished_began, finished_ns; /* begin and duration of the last finished step */
    ek_steps steps;
    ek_gathered *gathered;
    int64_t largest_batch;
    bool expects; /* `expected` was set */
    ek_expectation expected;
    ek_curve *curves; /* a list, in the order of first values */
    ek_live live;

    ek_process_group *group;       /* the ranks that write together; NULL: the world */
    int rank, rank_count;          /* when the report began */
    ek_waited at_start, at_finish; /* at_finish: at the end of the last finished step */
    ek_sent *sent;

    atomic_bool lost; /* there was no memory for a thread's log */

    pthread_mutex_t logs_lock;
    ek_log *logs; /* guarded by logs_lock */
    int threads;  /* guarded by logs_lock */
};

/* Writes "layer1.0.conv1: backward of conv2d". Leaves out the begin of a path that is too long. */
void ek_label_write(const ek_label *label, char text[EK_REPORT_LABEL]);

/* Begins the running step anew: the time since the last step belongs to no step. */
void ek_report_restart_step(ek_report *report);

/* Rewrites the live page if `every` seconds have passed since its last writing. */
int ek_live_step(ek_report *report);
/* Writes the live page for the last time, if there is one, and frees its description. */
int ek_live_end(ek_report *report);

/* Drops the gathered spans: a step has ended. */
void ek_gathered_clear(ek_gathered *gathered);

/* Frees what was received from other ranks. */
void ek_sent_clear(ek_sent *sent);
/* Begin to count how long calls wait, update the counters at the end of a step, and free them. */
int ek_report_begin_waits(ek_report *report);
int ek_report_note_waits(ek_report *report);
void ek_report_free_waits(ek_report *report);
/* What this process knows of itself. */
void ek_report_own_rank(const ek_report *report, ek_rank_report *rank);

/* Returns true if the report is neither NULL nor freed. */
static inline bool ek_report_is_usable(const char *what, const ek_report *report)
{
    return report && ek_check_alive(what, "the report", report) == 0;
}

#endif
