/* replica_copies.h: slabs of a module's tensors, on the module's device and on other devices; for
 * this folder. */
#ifndef EK_PARALLEL_REPLICA_COPIES_H
#define EK_PARALLEL_REPLICA_COPIES_H

#include "autograd/graph.h"
#include "core/tensor.h"
#include "parallel/replica_set.h"
#include "parallel/sharding.h"

/* The versions of one tensor's copy on one device, which tell whether the copy is stale. */
typedef struct ek_sent {
    ek_write_count *version;  /* the source's version object when sent; one reference or NULL */
    uint64_t source, replica; /* versions of source and copy after the last sending */
    uint64_t begun;           /* version of the copy when its last forward began */
} ek_sent;

/* A device's copies, by entry; one reference each. NULL until the device is used. */
typedef struct ek_copies {
    ek_tensor **tensors;
    ek_sent *sent;
} ek_copies;

struct ek_replica_set {
    ek_module *module;
    ek_dev *devs[EK_MAX_DEVICES]; /* the devices, looked up for the forward that is being made */
    int devices;
    bool broadcast_buffers;
    /* The module's tensors, each once: parameters, then buffers, in order of registration. */
    ek_tensor **sources; /* borrowed from copies[0], which holds the originals */
    int count, parameters;
    ek_copies copies[EK_MAX_DEVICES];
    ek_shard_policy shards;
    ek_dev *host;          /* cpu if the shards lie there; else NULL */
    ek_call_guard *guard;  /* the wrapper's guard; NULL unless the set shards */
    ek_sharding *sharding; /* NULL while parameters are not sharded */
    /* The sharding whose units the parameters are: `sharding`, or one over ranks, borrowed; NULL:
     * parameters are not gathered. */
    ek_sharding *gatherer;
    /* Histories of the handles of the last forward that recorded nodes, for the devices at these
     * ranks; one reference to each node. NULL: none. */
    ek_edge *recorded;
    ek_rank_list recorded_ranks;
    ek_data_parallel_stats stats;
};

/* Moves the parameters of `module` into one slab per dtype, in the order of their registration.
 * With `gradients` also reserves a slab for the gradients of whole parameters that require one.
 * Existing handles, optimizers and graphs stay valid. Parameters in a slab stay there, so that
 * modules which share parameters share their slab. All must lie on one device. On an error nothing
 * has changed. */
int ek_flatten_parameters(ek_module *module, bool gradients);

/* Makes one slab per dtype on dev for the tensors that aren't NULL; `reader` is as in
 * ek_slab_new_for. members[i] becomes the member for tensors[i], with one reference. */
int ek_copies_slabs_make(ek_dev *dev, ek_dev *reader, ek_tensor *const *tensors, int count,
                         ek_memory_category category, ek_tensor **members);

/* Returns true if parameter i is gathered on all devices when it is used (parallel/gathering.h). */
bool ek_copies_gathers(const ek_replica_set *set, int i);

/* Makes the copies on device d if there are none. Copies of gathered parameters have no memory. */
int ek_copies_allocate(ek_replica_set *set, int d);
void ek_copies_forget(ek_replica_set *set);

/* Sends the stale tensors among the first `end` entries to the devices at these ranks, to several
 * devices concurrently. */
int ek_copies_refresh(ek_replica_set *set, const ek_rank_list *ranks, int end);

/* Records that handles[r * set->count + i], the handle of entry i on the device ranks->at[r], comes
 * from the module's entry, or from its shards. If possible, the handles get the nodes of an earlier
 * forward. */
int ek_replica_set_record(ek_replica_set *set, const ek_rank_list *ranks,
                          ek_tensor *const *handles);
void ek_replica_set_forget_nodes(ek_replica_set *set);

/* Marks device d's copy of entry i as equal to its source if `known`, else as stale. */
void ek_copies_note(ek_replica_set *set, int d, int i, bool known);

#endif
