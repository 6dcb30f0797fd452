/* sharding.h: a module's parameters sharded over the devices of its replicas.
 *
 * All parameters of one dtype, in order of registration and each padded to 64 bytes as in a slab,
 * are one stretch of memory. The stretch is cut into a range per device, at multiples of 64 bytes.
 * The shards in range d are owned by device d: flat leaves on its copy of the parameters
 * (on the first device: on the parameters themselves), with their grad buffers in one slab.
 * Neighbours in the slab of gradients are neighbours in the slab of parameters, with the same
 * distances, so that an optimizer steps a range at once. */
#ifndef EK_PARALLEL_SHARDING_H
#define EK_PARALLEL_SHARDING_H

#include "autograd/shards.h"
#include "evenkeel/module.h"
#include "parallel/call_guard.h"

typedef struct ek_sharding ek_sharding;

/* What a sharding asks of the owner of the copies. */
typedef struct ek_sharding_owner {
    void *user;
    ek_call_guard *guard; /* guard of everything that uses the copies */
    /* Sends parameters that were written since the last sending to all copies. */
    int (*refresh)(void *user);
    /* Tells that parameter i has new elements, in the module and in all copies. If status is
     * negative, some copies may lack them. */
    void (*published)(void *user, int i, int status);
} ek_sharding_owner;

/* Shards those of the module's parameters that require a gradient. copies[d][i] is parameter i on
 * devs[d] for d > 0, laid out like the parameter. Existing gradients move to the shards.
 * EK_E_STATE if a parameter is sharded already. Returns one reference; NULL with an error, and then
 * nothing has changed. */
ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices,
                             ek_tensor *const *parameters, int count,
                             ek_tensor *const *const *copies, ek_sharding_owner owner);

/* Makes parameters and gradients whole again, and releases the sharding. NULL does nothing. */
void ek_sharding_end(ek_sharding *sharding);

/* True while every parameter of the sharding is sharded by it. */
bool ek_sharding_is_current(const ek_sharding *sharding);
bool ek_sharding_has(const ek_sharding *sharding, int parameter);

/* Sends shards that were written since the last time to all devices. Allocates no host memory. */
int ek_sharding_publish(ek_sharding *sharding);

#endif
