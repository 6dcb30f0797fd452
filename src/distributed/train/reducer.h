/* reducer.h: averages the gradients of a module over ranks while backward goes on.
 *
 * The road of a gradient between ranks:
 *
 *     ek_backward          autograd/engine.c: calls the reducer, which is a grad hook
 *     reducer_begin        reducer.c: zeroes gradients that will not come, submits the pass
 *     reducer_arrived      a leaf has its gradient; the last leaf of a bucket makes it ready
 *     pass_go_on           reducer_pass.c: the communication thread averages bucket by bucket
 *     reducer_finish       reports this rank's gradients, waits, and takes those of any rank
 *     ek_rank_sharding_take
 *                          rank_sharding.c, if parameters are sharded over ranks: takes this rank's
 *                          slices
 *
 * Note [Gradients are the buckets]
 *
 * The gradients of a module lie in a slab per device and dtype, in the order in which parameters
 * were registered. A bucket is a range of a slab, and is averaged in place. Backward finds the last
 * parameters' gradients first, so that buckets are cut from the end. The first bucket is small, so
 * that the averaging begins early. The last buckets are small too, because backward waits for the
 * last bucket at its end. Numbers don't depend on the cuts (sum.h).
 *
 * Note [Lanes]
 *
 * Two buckets are under way at a time, so that one is sent while the other one is added up. Bucket
 * b takes lane b modulo 2, which has separate scratch and a separate tag for its messages. Buckets
 * begin in one order on all ranks, and may end in any order. A bucket whose route needs calls of
 * the whole group is under way alone.
 *
 * Note [Ranks of one machine share the slabs]
 *
 * If the ranks of each machine are a block (group/sum_schedule.h, Note [Machines]) and can share
 * memory, they keep their slabs in a window (window.h). Each rank adds up its slice of a bucket of
 * all ranks of the block. If all ranks are on one machine, the rank writes the mean to all parts of
 * the window: nothing is sent, and each element is read and written once per rank, as between
 * devices of one process. One rank alone reads and writes a slice, so that no rank waits for
 * another one until the reports. With several machines, the rank writes the block's sum to its own
 * part, the slice travels through the levels above the block, and the ranks of the block then copy
 * the mean from each other. The counters of the window say how many buckets are ready, and which
 * bucket was last added up in the block and last completed. The sums are the same to the bit as
 * those of messages.
 *
 * Note [Gradients of gathered parameters]
 *
 * With EK_SHARD_PARAMETERS (rank_units.c) gradients have no slabs: a bucket is a unit's parameters
 * that require a gradient. Once the last of its gradients has arrived, they are copied to memory of
 * the host, from which they travel, and dropped. Ranks that share the window of shards read each
 * other's gradients there, piece by piece. The bucket's slice of the mean is added to the
 * gradients of this rank's shards as soon as it is there. So a device never has the gradients of
 * more than a few units.
 *
 * The copies of units that await other ranks take memory, too. If a rank is ahead, its backward
 * waits before it makes a copy, while the copies that it has are larger than two of the largest
 * units, and the unit under way has all gradients of this rank. So the other ranks can always go
 * on. In a backward with nodes that meet other ranks nobody waits, because another rank may await
 * this backward before it delivers the unit. A wait is short (reducer_pass.c), because programs
 * may await each other in hooks.
 *
 * Note [Unused parameters]
 *
 * The engine's walk through the graph finds the leaves that take part before any backward runs. The
 * gradients of the other leaves are sent unchanged, or as zeros if there are none. At the end each
 * rank reports which gradients it has. A gradient that any rank has is there on all ranks
 * afterwards. A gradient that no rank has stays absent. */
#ifndef EK_TRAIN_REDUCER_H
#define EK_TRAIN_REDUCER_H

#include <pthread.h>

#include "autograd/grad_hook.h"
#include "evenkeel/ddp.h"
#include "evenkeel/module.h"
#include "group/rail.h"
#include "group/sum.h"
#include "train/window.h"

typedef struct ek_reducer ek_reducer;
typedef struct ek_bucket ek_bucket;
typedef struct ek_reducer_lane ek_reducer_lane;

/* A way in which buckets travel (bucket.c). */
typedef struct ek_route {
    /* Prepares the bucket before a pass. Returns 1 if the bucket can travel on this route, 0 if the
     * next route must be tried, or a negative status. A collective call. */
    int (*begin)(ek_reducer *reducer, ek_bucket *bucket);
    /* Brings the bucket's gradients, which are complete, to the memory from which they travel.
     * NULL: they are in that memory. */
    int (*fetch)(ek_reducer *reducer, ek_bucket *bucket);
    /* On the communication thread. `ready` tells whether the next step can be made. `advance` makes
     * step number lane->phase, and may start *request. `advance` returns 1 once the mean is
     * complete, 0 before, or a negative status of the transport. Errors of this rank alone go to
     * reducer->lost. */
    ek_readiness (*ready)(ek_reducer *reducer, ek_reducer_lane *lane);
    int (*advance)(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request);
    bool alone; /* no other bucket is under way meanwhile */
} ek_route;

/* A range of a slab of gradients, or a unit's gradients. */
struct ek_bucket {
    int first, end;    /* the bucket's leaves */
    int piece, pieces; /* The bucket has this piece of its leaf. 0 and 1: all of its leaves. */
    ek_dtype dtype;
    int64_t count;         /* elements, padding included */
    int unit;              /* the bucket of the sharding whose gradients these are; -1: none */
    const ek_route *route; /* of this pass */
    size_t storage_at;     /* offset of the slab in the window, in bytes */
    ek_tensor *range;      /* flat handle on the elements; one reference; NULL for a unit */
    ek_tensor *memory;     /* memory that the host averages: `range` or a copy; one reference. A
                              unit has it from the last gradient's arrival to the mean's */
    ek_tensor
        *mean; /* This rank's slice, if the unit has shards on a GPU; else NULL. One reference. */
    ek_rail_run run; /* if run.rail: the run of the GPUs' rail, which averages `range` */
    ek_tensor *wire; /* elements in bf16, for a rail if reducer->narrow; one reference, or NULL */
    ek_event *event; /* follows the last copy between `range` and other memory */
    bool fetched;    /* the fetch of this pass has been started */
    int pending;     /* leaves whose gradients have not arrived yet; under the reducer's lock */
    bool ready;      /* all gradients have arrived; under the reducer's lock */
};

/* Where a bucket is under way. */
struct ek_reducer_lane {
    int number;
    ek_bucket *bucket; /* NULL: none */
    int phase;         /* the bucket's next step */
    bool ended;        /* on the route of the window: this rank's slice of the mean is complete */
    ek_sum sum;
    char *scratch, *wire;  /* terms of sums; elements in bf16 */
    char *blank;           /* Zeros as large as the largest unit, from which a unit without a
                              gradient travels. NULL: there are no units. */
    ek_request **requests; /* room for 2 per rank */
};
enum { EK_LANES = 2 };

/* Counters of the window. */
enum {
    EK_BUCKETS_READY, /* how many buckets have all gradients of the rank, of all passes */
    EK_BUCKETS_ADDED, /* the ticket of the last bucket that the rank has added up in its block */
    EK_BUCKETS_ENDED  /* per lane: the ticket of the last bucket of which the rank has its mean */
};

/* The report of a rank at the end of a pass, or the reports of several ranks combined. */
typedef struct ek_pass_report {
    int32_t rank;       /* the first rank that has failed; the group's size: none has */
    int32_t status;     /* of that rank */
    bool raised;        /* its error is a failure of the job, which each rank learns of */
    uint64_t present[]; /* a bit per leaf: a rank has a gradient */
} ek_pass_report;

struct ek_reducer {
    ek_grad_hook hook;
    ek_process_group *group; /* a separate group, so that buckets don't wait for other calls */
    ek_tensor **leaves;      /* parameters that require a gradient; one reference each */
    int count;
    ek_bucket *buckets; /* in the order in which they are averaged */
    int bucket_count;
    int *bucket_of;    /* per leaf: the index of its first bucket */
    bool narrow;       /* f32 travels as bf16 */
    bool armed;        /* the next backwards average their gradients */
    ek_window *window; /* has the slabs; NULL: buckets travel on rails or as messages */
    /* The sharding of the parameters over ranks (rank_sharding.h), or NULL. Borrowed. */
    struct ek_rank_sharding *sharding;
    ek_distributed_stats stats; /* the reducer keeps the counts */

    /* The pass under way: a backward through the module. LOCAL: gradients are not averaged. GRAPH:
     * they are averaged with a history. REDUCED: they are averaged in buckets. */
    enum { EK_PASS_NONE, EK_PASS_LOCAL, EK_PASS_GRAPH, EK_PASS_REDUCED } pass;
    ek_dist_work *work;
    uint32_t failures; /* how many failures of the job there were before the pass */
    bool *taking_part; /* per leaf: in the pass under way */
    bool meets;        /* the pass under way has nodes that meet other ranks */
    pthread_mutex_t lock;
    bool closed; /* under the lock: this rank's report is complete */

    /* The pass on the communication thread. */
    ek_reducer_lane lanes[EK_LANES];
    ek_reducer_lane *next; /* the lane that makes the next step; NULL: the reports do */
    int begun;             /* buckets */
    int bucket;            /* the first bucket that has not ended; changes under the lock */
    int phase;             /* of the reports */
    int announced;         /* buckets of this pass that the window's counter includes */
    uint64_t passes;       /* how many passes have ended */
    ek_error_record lost;  /* the error of a bucket; status 0: none */
    uint32_t failure;      /* the number of the job's failure whose error is `lost`; 0: none */
    /* Room for ek_rounds_reduce. The first report is this rank's, and afterwards all ranks'. */
    ek_pass_report *reports;
    char sentence[500]; /* of the error in the first report */
    ek_sum_schedule *schedules[EK_SUM_WAYS];
    size_t largest;       /* bytes of the largest bucket */
    size_t copied;        /* bytes of copies of units that await their means; under the lock */
    size_t report_nbytes; /* of one report */
};

/* Makes a reducer for the module's parameters that require a gradient, and sets their hooks. All
 * ranks of the group call this function with modules of one layout. *made gets one reference. On an
 * error *made is NULL or a reducer that the caller frees after the call (world.h, Note [One
 * boundary]). With EK_SHARD_OPTIMIZER buckets have whole leaves. With EK_SHARD_PARAMETERS no slabs
 * and no buckets are made: ek_rank_units_new (rank_sharding.h), which must follow, makes them. */
int ek_reducer_new(ek_module *module, ek_process_group *group, double bucket_cap_mb, bool narrow,
                   ek_shard_policy shard, ek_reducer **made);
/* Makes what needs the buckets: room for sums, and the leaves' hooks. */
int ek_reducer_complete(ek_reducer *reducer);
/* Takes the hooks away, gives up the group and drops the reference. Waits for no other rank. NULL
 * is ignored. */
void ek_reducer_free(ek_reducer *reducer);

/* ---- slabs.c ---- */

/* Gives the leaves grad buffers in slabs, cuts the slabs into buckets (ek_reducer_cut), and moves
 * the slabs into a window if the ranks can share memory. A collective call. */
int ek_reducer_make_buckets(ek_reducer *reducer, size_t cap, bool whole);

/* Cuts the leaves [begin, end), which are neighbours in a slab, into buckets, from the end. nbytes
 * has the leaves' sizes. The first bucket is small, the next buckets have at most `cap` bytes, and
 * the last ones get smaller and smaller. If `whole`, a larger leaf is a bucket. If not, a larger
 * leaf has a bucket for each EK_LEAF_PIECE bytes. Writes the buckets' leaves and pieces, and
 * returns the number of buckets. */
int ek_reducer_cut(const size_t *nbytes, int begin, int end, size_t cap, bool whole,
                   ek_bucket *buckets);
enum { EK_LEAF_PIECE = 8 << 20 };

/* ---- bucket.c: for one bucket ---- */

int ek_bucket_open(ek_bucket *bucket, ek_tensor *range);
void ek_bucket_close(ek_bucket *bucket);
/* Makes the host's memory through which the gradients of a GPU travel, if there is none. Called in
 * a scope. Gradients that are sharded over ranks always travel through this memory. */
int ek_bucket_stage(ek_bucket *bucket);
/* ek_bucket_begin takes the first route that the bucket can travel on, before a pass; a collective
 * call. ek_bucket_end releases what the route has made, and makes later work of the device wait for
 * the pass. */
int ek_bucket_begin(ek_reducer *reducer, ek_bucket *bucket);
int ek_bucket_end(const ek_reducer *reducer, ek_bucket *bucket);
/* Brings the bucket's gradients, which are complete, to the memory from which they travel. */
int ek_bucket_fetch(ek_reducer *reducer, ek_bucket *bucket);

/* ---- gradients.c ---- */

/* Replaces the leaves' gradients by means with a history, bucket by bucket, after a backward with
 * create_graph. */
int ek_reducer_average_in_graph(const ek_reducer *reducer);

/* ---- reducer_pass.c ---- */

/* Begins the averaging of a pass. */
int ek_reducer_pass_begin(ek_reducer *reducer);
/* Waits for the end of the averaging. `status` is this rank's outcome, whose error is pending if it
 * is negative. Returns the outcome of ek_reducer_judge. */
int ek_reducer_pass_end(ek_reducer *reducer, int status);
/* Counts the bytes of a copy of a unit that is about to be made, and waits before if this rank has
 * too many (Note [Gradients of gathered parameters]). ek_reducer_drop_copy takes the bytes back. */
void ek_reducer_make_copy(ek_reducer *reducer, size_t nbytes);
void ek_reducer_drop_copy(ek_reducer *reducer, size_t nbytes);
/* Marks the bucket ready, or with NULL this rank's report complete. Any thread. */
void ek_reducer_ready(ek_reducer *reducer, ek_bucket *bucket);

/* Puts into this rank's report that the rank has a gradient of the leaf. Any thread. */
void ek_reducer_report_gradient(ek_reducer *reducer, int leaf);
/* Writes this rank's report for a call of the reducer's group. `status` is the rank's outcome.
 * *pending takes the thread's pending error. */
void ek_reducer_write_report(ek_reducer *reducer, int status, ek_error_record *pending);
/* Makes the next step of the exchange of reports. The first step is step 0. Returns 1 if another
 * step must follow, 0 if the exchange has ended, or the transport's status. */
int ek_reducer_send_reports(ek_reducer *reducer, int step, ek_request **request);
/* Returns the outcome of a call that has ended with rc: `status`, which is this rank's outcome, if
 * it is negative; else rc, if it is negative; else the error of the first rank that has failed, or
 * 0. The error in *pending is pending again afterwards. */
int ek_reducer_judge(const ek_reducer *reducer, int status, ek_error_record *pending, int rc);

static inline size_t ek_bucket_nbytes(const ek_bucket *bucket)
{
    return (size_t)bucket->count * ek_dtype_size(bucket->dtype);
}

/* Returns the number of a bucket among those of all passes, from 1 on. */
static inline uint64_t ek_bucket_ticket(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return reducer->passes * (uint64_t)reducer->bucket_count +
           (uint64_t)(bucket - reducer->buckets) + 1;
}

/* Returns true if the parameters are gathered unit by unit. */
static inline bool ek_reducer_has_units(const ek_reducer *reducer)
{
    return reducer->lanes[0].blank != NULL;
}

/* Tells whether any rank has reported a gradient of the leaf in the pass that has ended. */
static inline bool ek_reducer_is_present(const ek_reducer *reducer, int leaf)
{
    return reducer->reports->present[leaf / 64] >> leaf % 64 & 1;
}

#endif
