/* rank_sharding.h: parameters that are sharded over the devices of all ranks.
 *
 * Note [Shards of ranks]
 *
 * Parameters are whole on every rank and device, and so are the gradients of each rank's own
 * backward. What is sharded is the mean of gradients, and the state of optimizers. The reducer's
 * buckets (reducer.h) are those of the sharding (parallel/sharding.h). A rank's range of a bucket
 * is its slice of the bucket's sum (sum.h).
 *
 *     backward    each rank gets its slice of the mean, and with it the gradients of its shards
 *     ek_step     all ranks agree; each steps its shards; then all get all parameters
 *
 * A slice is added in the order of ranks and stepped element by element, as the whole would be, so
 * that numbers are the same to the bit.
 *
 * A backward that finds gradients in the memory of the leaves' grad buffers either brings the mean
 * back to all ranks first, and adds to it, or, if it is not reduced itself, moves them out of the
 * way.
 *
 * The step and the publication are one call of all ranks (rank_sharding_step.c). By
 * communication.h's Note [Agreement] no rank steps unless all of them do, and all of them are in
 * the publication then, so that a failure leaves all ranks with equal parameters. */
#ifndef EK_DISTRIBUTED_RANK_SHARDING_H
#define EK_DISTRIBUTED_RANK_SHARDING_H

#include "parallel/sharding.h"
#include "train/reducer.h"

/* Leaves of one bucket that follow each other and are sent together. */
typedef struct ek_shared_range {
    int bucket;
    int64_t begin, end; /* elements of the bucket's range */
} ek_shared_range;

typedef struct ek_rank_sharding {
    ek_sharding sharding; /* its leaves and buckets are the reducer's */
    ek_reducer *reducer;
    ek_call_guard guard;
    ek_tensor **means; /* per shard: where its gradient's mean is after a pass; one reference */
    /* Per bucket: the host's memory through which its parameters are sent: the parameters' own, or
     * a copy. One reference. */
    ek_tensor **memory;
    bool *in_place;     /* per bucket: it is their own */
    ek_tensor **copies; /* per leaf: its elements in `memory`; one reference */

    /* The step under way. */
    ek_dist_work *work;
    ek_shared_range *ranges; /* room for one per leaf */
    int range_count;
    int range;      /* the communication thread's */
    bool committed; /* under the communication's lock: all ranks are in the call */
    bool closed;    /* under the reducer's lock: this rank's part can be sent */
} ek_rank_sharding;

/* Shards the reducer's parameters over the ranks, which are those of its group, and this rank's
 * devices, the same number on each rank; devices == 0: each parameter's own. Writes
 * reducer->sharding. EK_E_STATE if a parameter is sharded already. NULL with an error. */
ek_rank_sharding *ek_rank_sharding_new(ek_reducer *reducer, ek_ranks *ranks, ek_dev *const *devs,
                                       int devices);
/* Makes the parameters whole again, without the gradients that were sharded. NULL is ignored. */
void ek_rank_sharding_end(ek_rank_sharding *self);

/* ---- for the reducer ---- */

/* Before a pass: makes whole gradients of those that are sharded, with the other ranks; or, if the
 * pass is not reduced, makes room for it. */
int ek_rank_sharding_begin(ek_rank_sharding *self, bool reduced);
/* After a pass: what came to this rank's slice becomes the gradient of the leaf's shards. */
int ek_rank_sharding_take(ek_rank_sharding *self, int leaf);

/* ---- rank_sharding_step.c: members of the ek_shards ---- */

int ek_rank_sharding_agree(ek_shards *shards, int status);
int ek_rank_sharding_publish(ek_shards *shards, int status);

#endif
