/* replica_copies.h: slabs of a module's tensors, on the module's device and on other devices; for
 * this folder.
 *
 * Note [Broadcast ahead]
 *
 * Between GPUs that have collectives, what a step has changed is broadcast while the next forward
 * runs. Parameters go bucket by bucket in the order of their registration, which is about that of
 * their use. The first use of a parameter on a device makes the device's compute stream wait for
 * the parameter's bucket (ek_tensor_hold), on the module's own device, too, so that a forward which
 * writes to a parameter doesn't overtake its broadcast. At the end of the forward all compute
 * streams wait for the whole broadcast. Buffers come before, and all devices wait for them, because
 * forwards write to buffers without ek_tensor_hold.
 *
 * A step on every device after an all-reduce, as in PyTorch's DDP, would need no broadcast. For P
 * bytes of parameters on N devices, the busiest link carries 2 P (N - 1) / N bytes of sums during
 * backward here (to the module's device) and there (from and to each device). Here the link also
 * carries P bytes of the broadcast, during forward: a device waits for the step and for the first
 * bucket, there for the step. Adam's state has 2 P bytes here, on one device, and 2 P on each
 * there. A program may also change gradients before the step, all of whose copies would have to
 * follow. So the step stays on one device. A sharded step (EK_SHARD_OPTIMIZER) waits for 1 / N of
 * the step and for the broadcast, and has 2 P / N bytes of state on each device; but parameters
 * then have no whole gradient, so that a program has to ask for it.
 *
 * Note [Loans]
 *
 * On the host's devices copies of whole parameters use the parameters' memory (ek_storage_lend),
 * because replicas only read them. Without loans each step would copy P (N - 1) bytes, and N
 * processors would read N copies. The copies' own memory stays allocated, so that ledgers and
 * capacities are those of devices that have memory of their own.
 *
 * A replica that writes to a parameter, or asks for its address, gets memory of its own first
 * (ek_tensor_unshare), so that no device sees another's write. If device 0 does so, the module's
 * storage leaves its memory to the copies until the next forward, which costs P bytes. So the first
 * forward has copies, and nothing is lent if it writes to a parameter, or asks for the address of
 * one. A write outside of jobs reaches the copies at once. Graphs that saved them report it, as
 * they do on the module's device.
 *
 * A slab is lent as a whole, and one address that a program asks for ends the sharing of its slab,
 * even if the program only reads. Nothing is lent if the parameters of a dtype lie in several
 * slabs. No other thread may run a backward on copies during the forward that lends. */
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
    ek_arrival *arrivals; /* Arrivals of the last broadcast ahead, until it is joined; else NULL. */
    int arrival_room;
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
 * devices concurrently. If `ahead`, devices don't wait for all of them (Note [Broadcast ahead]),
 * and ek_replica_set_join must follow. */
int ek_copies_refresh(ek_replica_set *set, const ek_rank_list *ranks, int end, bool ahead);

/* Records that handles[r * set->count + i], the handle of entry i on the device ranks->at[r], comes
 * from the module's entry, or from its shards. If possible, the handles get the nodes of an earlier
 * forward. */
int ek_replica_set_record(ek_replica_set *set, const ek_rank_list *ranks,
                          ek_tensor *const *handles);
void ek_replica_set_forget_nodes(ek_replica_set *set);

/* Marks device d's copy of entry i as equal to its source if `known`, else as stale. A parameter of
 * the host and its copies become twins (ek_tensor_make_twin). */
void ek_copies_note(ek_replica_set *set, int d, int i, bool known);

#endif
