/* sharding.h: a module's parameters divided over the devices of its replicas.
 *
 * The parameters of one dtype, in order of registration and each padded to 64 bytes as in a slab,
 * are one stretch of memory that is cut into a range per device, at multiples of 64 bytes. What
 * lies in range d are pieces on device d: flat leaves on its copy of the parameters (on the first
 * device: on the parameters), with slots for their gradients in one slab. Neighbours there are
 * neighbours in the parameters' slab, with the same distances, so that an optimizer steps a range
 * at once. */
#ifndef EK_PARALLEL_SHARDING_H
#define EK_PARALLEL_SHARDING_H

#include "autograd/shards.h"
#include "evenkeel/module.h"
#include "parallel/call_guard.h"

typedef struct ek_sharding ek_sharding;

/* What the division asks of whoever owns the copies. */
typedef struct ek_sharding_owner {
    void *user;
    ek_call_guard *guard; /* of all that uses the copies */
    /* Sends parameters that were written since to all copies. */
    int (*refresh)(void *user);
    /* Parameter i has new elements here and in all copies; or, status negative, may have. */
    void (*published)(void *user, int i, int status);
} ek_sharding_owner;

/* Divides those of the module's parameters that require a gradient; copies[d][i] is parameter i on
 * devs[d] for d > 0, laid out as it is. Gradients that are there already go to the pieces.
 * EK_E_STATE if a parameter is divided already. One reference; NULL with an error, and nothing
 * has changed. */
ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices,
                             ek_tensor *const *parameters, int count,
                             ek_tensor *const *const *copies, ek_sharding_owner owner);

/* Makes the parameters whole again, their gradients too, and releases the division. NULL does
 * nothing. */
void ek_sharding_end(ek_sharding *sharding);

/* True while every divided parameter is divided by this. */
bool ek_sharding_is_current(const ek_sharding *sharding);
bool ek_sharding_has(const ek_sharding *sharding, int parameter);

/* Sends pieces that were written since to the parameters and all copies. Takes no memory of the
 * process. */
int ek_sharding_publish(ek_sharding *sharding);

/* One forward: handles[r * stride + i] is parameter i on devs[r], in any order. */
typedef struct ek_sharding_forward {
    const ek_dev *home; /* where the module lies */
    ek_tensor *const *parameters;
    int parameter_count;
    ek_dev *const *devs;
    int devices;
    ek_tensor *const *handles;
    int stride;
} ek_sharding_forward;

/* Records the nodes that bring the forward's gradients to the pieces. Buckets go from the last
 * parameter to the first, and each has one owner, on whose thread it is reduced; but a parameter of
 * several owners is alone. Sums are in the order in which undivided gradients are added: home
 * first, then the others ascending. */
int ek_sharding_record(const ek_sharding *sharding, const ek_sharding_forward *forward);

/* Buckets of gradients: the first is small, so that reduction starts early. */
enum { EK_FIRST_BUCKET_BYTES = 1 << 20, EK_BUCKET_BYTES = 4 << 20 };
#endif
