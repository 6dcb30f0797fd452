/* rank_sharding.h: parameters that are sharded over the devices of all ranks.
 *
 * Note [Shards of ranks]
 *
 * Parameters are whole on every rank and device. The gradients of each rank's own backward are
 * whole too. The mean of the gradients and the state of optimizers are sharded. The reducer's
 * buckets (reducer.h) are the buckets of the sharding (parallel/sharding.h). A rank's range of a
 * bucket is the rank's slice of the bucket's sum (sum.h).
 *
 *     backward    each rank gets its slice of the mean, and with it the gradients of its shards
 *     ek_step     all ranks agree; each steps its shards; then all get all parameters
 *
 * A slice is added up by the tree over ranks and stepped element by element, as a whole bucket is,
 * so that results are equal to the bit with and without sharding.
 *
 * A backward may find sharded gradients in the memory of the leaves' grad buffers. If the backward
 * is reduced, it first brings the whole mean back to all ranks and adds to the mean. Else it moves
 * the sharded gradients to other memory.
 *
 * The step and the publication, which sends the stepped shards to all ranks, are one call of all
 * ranks (rank_sharding_step.c). By communication.h's Note [Agreement] no rank steps unless all
 * ranks do. If all ranks step, all take part in the publication, so that a failure leaves all ranks
 * with equal parameters.
 *
 * Note [Units of ranks]
 *
 * With EK_SHARD_PARAMETERS no device has whole parameters: each gathers a unit when it uses the
 * unit, as between the devices of a process (parallel/gathering.h). Other ranks' shards are read
 * without their programs: from a window on one machine, otherwise by their communication threads
 * (ek_group_read). Nothing has to be agreed, because shards change in a step alone, in which all
 * ranks are. If a rank's program writes to a parameter, all ranks' do; the next forward or step
 * writes each rank's shards, and a forward then waits for all ranks. */
#ifndef EK_DISTRIBUTED_RANK_SHARDING_H
#define EK_DISTRIBUTED_RANK_SHARDING_H

#include "parallel/replica_set.h"
#include "parallel/sharding.h"
#include "train/reducer.h"

/* Neighbouring leaves of one bucket, which are sent together. */
typedef struct ek_shared_range {
    int bucket;
    int64_t begin, end; /* elements of the bucket's range */
} ek_shared_range;

typedef struct ek_rank_sharding {
    ek_sharding sharding; /* has the reducer's leaves and buckets */
    ek_reducer *reducer;
    ek_call_guard guard;
    /* With units. */
    ek_replica_set *replicas; /* The replicas of the wrapper inside; NULL: there are none. */
    ek_window *window;        /* has all ranks' shards; one reference; NULL: they are sent */
    size_t exchange, piece; /* in the window: where two pieces of gradients lie; a piece's bytes */
    ek_tensor *part;        /* without a window: memory of this rank's shards; one reference */
    struct ek_unit_reads *reads; /* without a window: reads other ranks' (unit_reads.h); owned */
    char *served;                /* this rank's shards in the window or in `part` */

    /* Without units. */
    /* Per shard: a view of the bucket's memory (ek_bucket), which has the mean of the shard's
     * gradient after a pass. One reference each. */
    ek_tensor **means;
    /* Per bucket: memory of the host through which parameters are sent. The memory is that of the
     * parameters, or has copies of them. One reference each. */
    ek_tensor **memory;
    bool *in_place; /* per bucket: `memory` is that of the parameters */
    /* Per leaf: a view of the leaf's elements in the `memory` of its bucket. One reference each. */
    ek_tensor **copies;

    /* The step under way. */
    ek_dist_work *work;
    ek_shared_range *ranges; /* room for one per leaf */
    int range_count;
    int range;    /* the next range to send; the communication thread's */
    bool sending; /* a range is on its way, in lane 0 of the reducer; the communication thread's */
    bool committed; /* under the communication's lock: all ranks are in the call */
    bool closed;    /* under the reducer's lock: this rank's parameters can be sent */
} ek_rank_sharding;

/* Shards the reducer's parameters over the ranks of the reducer's group and over this rank's
 * devices. `devices`, the number of devs, must be equal on all ranks. If it is 0, shards lie on the
 * devices of their parameters. If `host` isn't NULL, all shards lie there. Writes
 * reducer->sharding. Returns NULL with an error, which is EK_E_STATE if a parameter is sharded
 * already. */
ek_rank_sharding *ek_rank_sharding_new(ek_reducer *reducer, ek_ranks *ranks, ek_dev *const *devs,
                                       int devices, ek_dev *host);
/* Frees what a sharding of either kind has, as its object's end. */
void ek_rank_sharding_destroy(ek_object *object);
/* Makes the parameters whole again (units: if `whole` is true and there is memory), and drops the
 * sharded gradients. NULL is ignored. */
void ek_rank_sharding_end(ek_rank_sharding *self, bool whole);

/* Returns true if the sharding has the leaf. */
static inline bool ek_rank_sharding_has(const ek_rank_sharding *self, const ek_tensor *leaf)
{
    return leaf->shards == &self->sharding.shards.object;
}
/* Returns a handle, shaped like leaf i of the sharding, on the leaf's place in memory that has the
 * layout of the leaf's bucket. In the scope. */
ek_tensor *ek_rank_sharding_in(const ek_rank_sharding *self, int i, const ek_tensor *memory);

/* ---- rank_units.c ---- */

/* Shards the parameters of the reducer's module, which are gathered unit by unit from now on, and
 * writes reducer->sharding. `replicas` is the set of the wrapper that the module is, with the given
 * devices; NULL: the module is on devs[0], or comes there. `host` is as above. Collective; a
 * barrier of the reducer's group must follow before the first use. NULL with an error. */
ek_rank_sharding *ek_rank_units_new(ek_reducer *reducer, ek_ranks *ranks, ek_module *module,
                                    ek_replica_set *replicas, ek_dev *const *devs, int devices,
                                    ek_dev *host);
/* Return the bytes of a rank's range of a unit, and where it begins in the rank's memory. */
size_t ek_rank_units_nbytes(const ek_rank_sharding *self, int unit, int rank);
size_t ek_rank_units_at(const ek_rank_sharding *self, int unit, int rank);
/* Drops what was read ahead (unit_reads.h). */
int ek_rank_units_drop_reads(const ek_rank_sharding *self);
/* Brings what the program wrote to parameters to all ranks. Collective if this rank's program has
 * written to parameters since the last call. */
int ek_rank_units_settle(ek_rank_sharding *self);
/* Called in the publication of a step: before it, copies shards of GPUs to the memory that other
 * ranks read; after it, forgets what was gathered. */
int ek_rank_units_serve(const ek_rank_sharding *self);
int ek_rank_units_published(ek_rank_sharding *self, int status);
/* Adds this rank's slice of the mean of a bucket's gradients, in memory that has the bucket's
 * layout, to the gradients of the shards. For the communication thread. */
void ek_rank_units_deliver(const ek_rank_sharding *self, const ek_bucket *bucket,
                           const char *memory);
/* Do for units what ek_rank_sharding_begin and ek_rank_sharding_take do. */
int ek_rank_units_begin(const ek_rank_sharding *self);
int ek_rank_units_take(const ek_rank_sharding *self, int leaf);

/* ---- for the reducer ---- */

/* Prepares gradients for a pass. If the pass is reduced, makes sharded gradients whole, together
 * with the other ranks. Else moves sharded gradients out of the leaves' grad buffers. */
int ek_rank_sharding_begin(ek_rank_sharding *self, bool reduced);
/* Gives the leaf's shards on this rank their elements of the mean as gradients, after a pass. */
int ek_rank_sharding_take(ek_rank_sharding *self, int leaf);

/* ---- rank_sharding_step.c: members of the ek_shards ---- */

int ek_rank_sharding_agree(ek_shards *shards, int status);
int ek_rank_sharding_publish(ek_shards *shards, int status);

#endif
