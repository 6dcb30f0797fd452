/* replica_copies.h: a replica set's copies on other devices, for this folder. */
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
    ek_tensor **sources; /* references */
    uint64_t *begun;     /* their versions when the last forward began */
    int count, parameters;
    ek_copies copies[EK_MAX_DEVICES]; /* [0] stays empty */
    bool divides;
    ek_call_guard *guard;  /* the wrapper's; if it divides */
    ek_sharding *sharding; /* where it divides; NULL until that has worked */
    ek_data_parallel_stats stats;
};

/* Makes the copies on device d, if they aren't there. */
int ek_copies_allocate(ek_replica_set *set, int d);
void ek_copies_forget(ek_replica_set *set);

/* Sends what of the first `end` entries is stale to the devices at these places, side by side. */
int ek_copies_refresh(ek_replica_set *set, const ek_places *places, int end);

#endif
