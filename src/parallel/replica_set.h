/* replica_set.h: replicas whose memory persists between forwards.
 *
 * For each device but the first the set keeps a copy of the module's parameters and buffers, one
 * slab per dtype, and sends only what was written since it was sent last. Every forward gets new
 * module structs and new tensor handles, and in gradient mode the nodes that bring gradients back:
 * one per bucket, in reverse order of registration, so that the first gradients that are ready are
 * reduced while the others are computed. Not to be used by two threads at the same time.
 *
 * Any of the devices can take part in a forward, the first, where the module lies, or not. */
#ifndef EK_PARALLEL_REPLICA_SET_H
#define EK_PARALLEL_REPLICA_SET_H

#include "core/device.h"
#include "evenkeel/parallel.h"
#include "parallel/call_guard.h"

/* The devices that take part in one call: indices into a list of devices, ascending. */
typedef struct ek_places {
    int count;
    int at[EK_MAX_DEVICES];
} ek_places;

static inline ek_places ek_first_places(int count)
{
    ek_places places = {.count = count};
    for (int i = 0; i < count; i++)
        places.at[i] = i;
    return places;
}

typedef struct ek_replica_set ek_replica_set;

/* `module` is borrowed. With broadcast_buffers the module's buffers are everyone's at each forward,
 * else each replica goes on with its own. NULL with an error. */
ek_replica_set *ek_replica_set_new(ek_module *module, int devices, bool broadcast_buffers);
void ek_replica_set_free(ek_replica_set *set);

/* From now on the parameters' gradients are divided over all of the set's devices
 * (parallel/sharding.h): makes copies on all of them, and divides the parameters that require a
 * gradient now. If the module has changed since, the next replicas divide it anew. An
 * optimizer's step enters the guard. */
int ek_replica_set_divide(ek_replica_set *set, ek_dev *const *devs, ek_call_guard *guard);

/* Makes replicas[i] for the device places->at[i]. devs are all of the set's devices, the same in
 * every call; devs[0] is where the module lies. Each is to be freed with ek_module_free. If it
 * fails there are none. */
int ek_replica_set_make(ek_replica_set *set, ek_dev *const *devs, const ek_places *places,
                        ek_module **replicas);

/* After the forward of the replicas made last: what the first of them wrote to its buffers becomes
 * the module's, as what is done on devs[0] is the module's at once. (PyTorch's replicas of devices
 * other than the first take it with them when they go.) Buffers that require a gradient are left
 * out. Does nothing if devs[0] took part. */
int ek_replica_set_settle_buffers(ek_replica_set *set, const ek_places *places);

/* The same for a set that broadcasts buffers, once they are settled: every floating buffer that a
 * replica wrote becomes, in the module itself, the average over the replicas, weighted by their
 * samples; without any sample it stays. */
int ek_replica_set_average_buffers(const ek_replica_set *set, const ek_places *places,
                                   const int64_t *samples);

/* What was sent so far. */
ek_data_parallel_stats ek_replica_set_stats(const ek_replica_set *set);

/* 0, or EK_E_DEVICE with the first parameter or buffer that isn't on `dev`. Without a device,
 * EK_E_INVALID with the first that is on another accelerator than those before it: a module whose
 * layers were put on several on purpose is none to be copied to each. */
int ek_check_home(const char *what, ek_module *module, const ek_dev *dev);

#endif
