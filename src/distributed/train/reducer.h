/* reducer.h: averages the gradients of a module over ranks while backward goes on.
 *
 * The road of a gradient between ranks:
 *
 *     ek_backward          autograd/engine.c: tells the reducer, which is a grad hook
 *     reducer_begin        reducer.c: zeroes what will not come, submits the pass as one work
 *     reducer_arrived      a leaf has its gradient; the last of a bucket makes the bucket ready
 *     pass_go_on           reducer_pass.c: the communication thread averages bucket by bucket
 *     reducer_finish       says which gradients there are here, waits, takes what there is anywhere
 *     ek_rank_sharding_take
 *                          rank_sharding.c, if parameters are sharded over ranks: takes this rank's
 *                          slices
 *
 * Note [Gradients are the buckets]
 *
 * The gradients of a module lie in a slab per device and dtype, in the order in which parameters
 * were registered. A bucket is a stretch of a slab, and is averaged in place. Backward finds the
 * last parameters' gradients first, so that buckets are cut from the end. The first is small, so
 * that the averaging begins early; the last ones are small too, because what is exposed at the end
 * of backward is the last of them. Numbers don't depend on the cuts (sum.h).
 *
 * Note [Ranks of one machine share the slabs]
 *
 * If all ranks of the group can, their slabs lie in a window (window.h). A rank then averages its
 * slice of a bucket where it lies, for all ranks at once: nothing is sent, and each element is read
 * and written once per rank, as between devices of one process. A bucket begins when all ranks have
 * counted it as ready. A slice is read and written by one rank only, so that nothing else needs to
 * be waited for until the reports, which a rank sends when it has done its slices of all buckets.
 * The sums are the same to the bit as those that travel.
 *
 * Note [Unused parameters]
 *
 * The engine's walk knows which leaves take part before anything runs. The others are sent as they
 * are, or as zeros if they have no gradient. At the end each rank says which gradients it has: one
 * that there is on any rank is there on all, and one that there is on none stays absent. */
#ifndef EK_TRAIN_REDUCER_H
#define EK_TRAIN_REDUCER_H

#include <pthread.h>

#include "autograd/grad_hook.h"
#include "evenkeel/ddp.h"
#include "evenkeel/module.h"
#include "group/rail.h"
#include "train/window.h"

typedef struct ek_reducer ek_reducer;
typedef struct ek_bucket ek_bucket;

/* A way in which buckets travel (bucket.c). */
typedef struct ek_route {
    /* Before a pass: 1 if the bucket can travel so, and what it needs is made; 0: the next route is
     * asked. A collective call. */
    int (*begin)(ek_reducer *reducer, ek_bucket *bucket);
    /* Brings the gradients, which have all arrived, to where they travel from. NULL: they are. */
    int (*fetch)(ek_bucket *bucket);
    /* On the communication thread: whether the next step can be made; and the step numbered
     * reducer->phase, which may start *request. 1 once the mean is there, 0 before, or a negative
     * status of the transport. Errors of this rank alone go to reducer->lost. */
    ek_readiness (*ready)(ek_reducer *reducer, ek_bucket *bucket);
    int (*advance)(ek_reducer *reducer, ek_bucket *bucket, ek_request **request);
} ek_route;

/* A stretch of a slab of gradients. */
struct ek_bucket {
    int first, end;        /* its leaves */
    const ek_route *route; /* of this pass */
    size_t storage_at;     /* of the slab in the window, in bytes */
    ek_tensor *range;      /* flat handle on the stretch; one reference */
    ek_tensor *memory;     /* the host's memory in which it is averaged: `range`, or a copy; one
                            * reference */
    ek_rail_run run;       /* if run.rail: it travels from GPU to GPU, and `memory` is `range` */
    ek_tensor *wire;       /* as bf16 on a rail, if gradients are narrow; one reference, or NULL */
    ek_event *event;       /* follows the last copy between the two, if they differ */
    bool fetched;          /* in this pass the gradients were brought to where they travel from */
    int pending;           /* leaves that are yet to arrive; under the reducer's lock */
    bool ready;            /* they all have; under the reducer's lock */
};

/* What a rank says at the end of a pass. */
typedef struct ek_pass_report {
    int32_t status;
    bool raised; /* the error is a failure of the job, of which each rank is told */
    char sentence[500];
    unsigned char present[]; /* per leaf */
} ek_pass_report;

struct ek_reducer {
    ek_grad_hook hook;
    ek_process_group *group; /* of its own: buckets don't wait for other calls */
    ek_tensor **leaves;      /* parameters that require a gradient; one reference each */
    int count;
    ek_bucket *buckets; /* in the order in which they are averaged */
    int bucket_count;
    int *bucket_of;    /* per leaf */
    bool narrow;       /* f32 travels as bf16 */
    bool armed;        /* the next backwards are reduced */
    ek_window *window; /* in which the slabs lie; NULL: buckets travel as messages */
    /* Who shards the parameters over the ranks (rank_sharding.h), or NULL. Borrowed. */
    struct ek_rank_sharding *sharding;
    ek_distributed_stats stats; /* its counts */

    /* The pass under way. */
    enum { EK_PASS_NONE, EK_PASS_LOCAL, EK_PASS_GRAPH, EK_PASS_REDUCED } pass;
    ek_dist_work *work;
    uint32_t failures; /* of the job before it */
    bool *taking_part; /* per leaf */
    pthread_mutex_t lock;
    bool closed; /* under the lock: this rank's report is complete */

    /* The pass, on the communication thread. */
    int bucket, phase;
    int announced;                  /* buckets of this pass that the window's counter tells of */
    uint64_t passes;                /* that have ended */
    ek_error_record lost;           /* of a bucket, if its status is negative */
    uint32_t failure;               /* the failure of the job that this was; 0: none */
    char *scratch, *wire, *reports; /* terms; bf16; of all ranks */
    size_t report_nbytes;
    ek_bytes *out, *in;
};

/* Makes a reducer for the module's parameters that require a gradient, and sets their hooks. All
 * ranks of the group call it with modules of one layout. One reference. On an error *made is NULL
 * or a reducer that the caller frees behind the boundary (world.h). */
int ek_reducer_new(ek_module *module, ek_process_group *group, double bucket_cap_mb, bool narrow,
                   ek_reducer **made);
/* Takes the hooks away, gives up the group and drops the reference; waits for nobody. NULL is
 * ignored. */
void ek_reducer_free(ek_reducer *reducer);

/* Cuts the leaves [begin, end), which follow each other and have so many bytes, into buckets, from
 * the end: a small one, then ones of at most `cap` bytes, then smaller and smaller ones. A leaf is
 * never cut. Writes first and end of each and returns how many there are. */
int ek_reducer_cut(const size_t *nbytes, int begin, int end, size_t cap, ek_bucket *buckets);

/* ---- bucket.c: for one bucket ---- */

int ek_bucket_open(ek_bucket *bucket, ek_tensor *range);
void ek_bucket_close(ek_bucket *bucket);
/* Makes the host's memory through which the gradients of a GPU travel, unless there is one. In a
 * scope. Gradients that are sharded over ranks always travel so. */
int ek_bucket_stage(ek_bucket *bucket);
/* Before a pass: takes the first route that serves; a collective call. After it: gives that back,
 * and orders what came before later work of the device. */
int ek_bucket_begin(ek_reducer *reducer, ek_bucket *bucket);
int ek_bucket_end(const ek_reducer *reducer, ek_bucket *bucket);
/* The bucket's gradients have all arrived. */
int ek_bucket_fetch(ek_bucket *bucket);

/* ---- gradients.c ---- */

/* After a backward with create_graph: replaces the leaves' gradients by means that have a history,
 * bucket by bucket. */
int ek_reducer_average_in_graph(const ek_reducer *reducer);

/* ---- reducer_pass.c ---- */

/* Begins and waits for the averaging of a pass. Both return a status. */
int ek_reducer_pass_begin(ek_reducer *reducer);
/* `status`: this rank's outcome; if negative, the error is pending. */
int ek_reducer_pass_end(ek_reducer *reducer, int status);
/* Marks the bucket ready, or the report complete. Any thread. */
void ek_reducer_ready(ek_reducer *reducer, ek_bucket *bucket);

/* Reports, for calls of the reducer's group. Writes this rank's: `status` is its outcome. What was
 * pending on the thread goes to *pending. */
void ek_reducer_write_report(ek_reducer *reducer, int status, ek_error_record *pending);
/* Starts the transfer of all ranks' reports. Returns the transport's status. */
int ek_reducer_send_reports(ek_reducer *reducer, ek_request **request);
/* What has become of the call, which has ended with rc: this rank's own error, if `status` was
 * negative, or else the first rank's that has failed. What was pending is so again. */
int ek_reducer_judge(const ek_reducer *reducer, int status, ek_error_record *pending, int rc);

static inline ek_pass_report *ek_reducer_report(const ek_reducer *reducer, int rank)
{
    return (ek_pass_report *)(void *)(reducer->reports + (size_t)rank * reducer->report_nbytes);
}

#endif
