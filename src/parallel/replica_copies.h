/* replica_copies.h: a module's tensors in slabs, on its device and on others, for this folder. */
#ifndef EK_PARALLEL_REPLICA_COPIES_H
#define EK_PARALLEL_REPLICA_COPIES_H

#include "core/tensor.h"
#include "parallel/replica_set.h"
#include "parallel/sharding.h"

/* What was sent of one tensor to one device. */
typedef struct ek_sent {
    ek_version *version;      /* of the source, a reference; NULL: nothing */
    uint64_t source, replica; /* versions of both after it */
    uint64_t begun;           /* the replica's when its last forward began */
} ek_sent;

/* A device's copies, by entry; all references. NULL until the device is used. */
typedef struct ek_copies {
    ek_tensor **tensors;
    ek_sent *sent;
} ek_copies;

struct ek_replica_set {
    ek_module *module;
    ek_dev *devs[EK_MAX_DEVICES]; /* of the forward that is being made */
    int devices;
    bool broadcast_buffers;
    /* The module's tensors, each once: parameters, then buffers, in order of registration. */
    ek_tensor **sources; /* those of copies[0], which are no copies */
    int count, parameters;
    ek_copies copies[EK_MAX_DEVICES];
    bool divides;
    ek_call_guard *guard;  /* the wrapper's; if it divides */
    ek_sharding *sharding; /* if it divides; NULL until that has worked */
    ek_data_parallel_stats stats;
};

/* Moves the parameters of `module` into one slab per dtype, in the order of their registration, and
 * with `gradients` reserves a slab for the gradients of those that require one and aren't divided.
 * Handles stay valid, and so do optimizers and graphs made before. Parameters that are in a slab
 * already stay there: modules that share parameters share their slab. All must lie on one device.
 * If it fails nothing has changed. */
int ek_flatten_parameters(ek_module *module, bool gradients);

/* Makes the copies on device d, if they aren't there. */
int ek_copies_allocate(ek_replica_set *set, int d);
void ek_copies_forget(ek_replica_set *set);

/* Sends what of the first `end` entries is stale to the devices at these places, side by side. */
int ek_copies_refresh(ek_replica_set *set, const ek_places *places, int end);

/* Notes that device d has what entry i's source has now; or, `known` false, may have. */
void ek_copies_note(ek_replica_set *set, int d, int i, bool known);

#endif
