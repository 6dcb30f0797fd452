/* replica_set.h: replicas whose memory persists between forwards.
 *
 * For each device but the first the set keeps a copy of the module's parameters and buffers, in one
 * slab per dtype. It sends only tensors that were written since it sent them last. Every forward
 * gets new module structs and new tensor handles. In gradient mode a forward also gets the nodes
 * that return gradients to the module: one node per bucket, in reverse order of registration, so
 * that the first gradients are reduced while backward computes the next ones. Only one thread at a
 * time may use a set.
 *
 * The module lies on the first device. A forward may take place on any of the devices. */
#ifndef EK_PARALLEL_REPLICA_SET_H
#define EK_PARALLEL_REPLICA_SET_H

#include "core/device.h"
#include "evenkeel/parallel.h"
#include "parallel/call_guard.h"

/* The devices that take part in a call: indices into a list of devices, in ascending order. */
typedef struct ek_rank_list {
    int count;
    int at[EK_MAX_DEVICES];
} ek_rank_list;

static inline ek_rank_list ek_first_rank_list(int count)
{
    ek_rank_list ranks = {.count = count};
    for (int i = 0; i < count; i++)
        ranks.at[i] = i;
    return ranks;
}

typedef struct ek_replica_set ek_replica_set;

/* Makes a set; `module` is borrowed. With broadcast_buffers each forward begins with the module's
 * buffers on all devices; otherwise each device keeps the buffers of its last replica. NULL with an
 * error. */
ek_replica_set *ek_replica_set_new(ek_module *module, int devices, bool broadcast_buffers);
void ek_replica_set_free(ek_replica_set *set);

/* Shards the parameters that require a gradient over all of the set's devices from now on
 * (parallel/sharding.h), by a policy that isn't EK_SHARD_NONE. With `offloads` the shards lie on
 * cpu. Makes copies on all devices. If the module changes later, the next replicas shard it anew.
 * An optimizer's step enters the guard. */
int ek_replica_set_shard(ek_replica_set *set, ek_dev *const *devs, ek_shard_policy policy,
                         bool offloads, ek_call_guard *guard);

/* For a sharding over ranks (distributed/rank_units.c). ek_replica_set_release_sharding ends the
 * set's own sharding; gathered parameters can be read until they are bound to other memory.
 * ek_replica_set_gather makes the parameters, which are bound to the sharding's units, gathered on
 * all devices by this sharding, which has the set's devices and the module's parameters in order;
 * NULL: no longer. ek_replica_set_note tells that parameter i was stepped, with the status of the
 * publication, or written by a program. */
typedef struct ek_sharding ek_sharding;
void ek_replica_set_release_sharding(ek_replica_set *set);
int ek_replica_set_gather(ek_replica_set *set, ek_sharding *sharding);
void ek_replica_set_note(ek_replica_set *set, int i, bool stepped, int status);

/* Makes gathered parameters whole on the first device, for a set that is freed next. On an error
 * (no memory) nothing has changed. */
int ek_replica_set_make_whole(ek_replica_set *set);

/* Makes replicas[i] for the device ranks->at[i]. devs are all of the set's devices, equal in every
 * call; the module lies on devs[0]. The caller frees each replica with ek_module_free. On an error
 * no replica was made. ek_replica_set_join follows, also after an error. */
int ek_replica_set_make(ek_replica_set *set, ek_dev *const *devs, const ek_rank_list *ranks,
                        ek_module **replicas);

/* Called after the forward of the latest replicas, also after an error: makes all devices wait for
 * the parameters that are still sent to replicas. */
void ek_replica_set_join(ek_replica_set *set);

/* Called after the forward of the latest replicas. If devs[0] took part, does nothing, because its
 * replica has written the module's buffers. Otherwise copies the buffers that the first replica
 * wrote to the module. (In PyTorch such writes are lost with the replica.) Buffers that require a
 * gradient are left out. */
int ek_replica_set_settle_buffers(ek_replica_set *set, const ek_rank_list *ranks);

/* Called after ek_replica_set_settle_buffers, for a set that broadcasts buffers. Sets every
 * floating buffer of the module that a replica wrote to the average over the replicas, weighted by
 * their samples. Without any sample the buffer keeps its values. */
int ek_replica_set_average_buffers(const ek_replica_set *set, const ek_rank_list *ranks,
                                   const int64_t *samples);

/* Statistics of what the set has sent so far. */
ek_data_parallel_stats ek_replica_set_stats(const ek_replica_set *set);

/* Checks that the module lies on `dev`. EK_E_DEVICE names the first parameter or buffer that
 * doesn't. If dev is NULL, EK_E_INVALID if tensors lie on several accelerators, because a module
 * whose layers the user spread over accelerators can't be copied to each. */
int ek_check_home(const char *what, ek_module *module, const ek_dev *dev);

#endif
