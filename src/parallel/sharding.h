/* sharding.h: leaves that are sharded over the devices of a process, or of several ranks.
 *
 * Leaves lie one after another in buckets. A bucket is cut into a range per rank, and each of these
 * into a range per device of the rank, at multiples of the bucket's unit. The parts of leaves in a
 * rank's ranges are its shards (autograd/shards.h). Neighbours among the shards of a device are
 * neighbours in memory, and so are their gradients, with the same distances: an optimizer steps
 * them at once.
 *
 * Without ranks a bucket is all leaves of one dtype, in order of registration and each padded to 64
 * bytes as in a slab. Each device has a copy of all leaves, its shards lie there, and their grad
 * buffers in a slab. With `host` all shards and grad buffers lie on that device, in slabs for each
 * device's range: a range of the gradient is summed on the range's device and copied to the host,
 * and a step sends shards from there. With ranks a bucket is one of the reducer's
 * (distributed/rank_sharding.h), and there are no copies on other devices. A shard on the leaf's
 * own device is the leaf's memory, and its gradient the memory of the leaf's grad buffer. Other
 * shards have memory of their own.
 *
 * The road of a step (optim/step.c calls these as members of ek_shards):
 *
 *     sharding_enter      gives the thread the guard
 *     sharding_refresh    brings what was written to the leaves since to copies and shards
 *     shards->agree       with ranks: rank_sharding_step.c
 *     ek_sharding_send    copies what was stepped to all targets
 *     shards->publish     ek_sharding_publish, or with ranks rank_sharding_step.c
 *
 * Note [Sharded parameters]
 *
 * With EK_SHARD_PARAMETERS a bucket is a unit (parallel/gathering.h), over ranks, too. Shards and
 * their gradients lie in slices (sharding_cut.c), and there are no copies to send: leaves, and
 * their copies on other devices, get memory when they are used. Publishing tells the gathering that
 * shards have changed. */
#ifndef EK_PARALLEL_SHARDING_H
#define EK_PARALLEL_SHARDING_H

#include "autograd/shards.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "evenkeel/module.h"
#include "parallel/call_guard.h"
#include "parallel/gathering.h"

/* Elements that are cut together. */
typedef struct ek_sharding_bucket {
    int64_t count; /* elements, padding included */
    int64_t unit;  /* ranges begin at multiples of this many elements */
    int first;     /* the first leaf */
    ek_dtype dtype;
} ek_sharding_bucket;

/* Memory of a device for its range of a bucket, if leaves are gathered (sharding_cut.c). */
typedef struct ek_shard_slice {
    int64_t begin, end;   /* elements of the bucket */
    ek_tensor *elements;  /* flat; one reference */
    ek_tensor *gradients; /* flat; one reference; NULL: no leaf of the bucket has a gradient */
} ek_shard_slice;

/* Who uses the leaves, and where shards lie. */
typedef struct ek_sharding_owner {
    void *user;
    ek_call_guard *guard; /* guard of everything that uses leaves and copies */
    ek_dev *host;         /* the device of all shards; NULL: each lies on its range's device */
    /* Sends leaves that were written since the last sending to all copies; NULL: there are none. */
    int (*refresh)(void *user);
    /* Tells that leaf i has new elements, in the module and in all copies. If status is negative,
     * some copies may lack them. NULL: publishing is left to the user. */
    void (*published)(void *user, int i, int status);
    /* With a gathering: tells that somebody wrote to leaf i. Any thread. */
    void (*written)(void *user, int i);
    /* With a gathering and ranks: copies the other ranks' ranges of a bucket to their places in
     * memory of the whole bucket. Any thread. */
    int (*pull)(void *user, int bucket, ek_storage *storage);
} ek_sharding_owner;

/* What is known of a shard besides its elements. */
typedef struct ek_sharding_part {
    int leaf, device;
    ek_tensor *home;  /* its elements in the leaf, if the shard has memory of its own; else NULL */
    uint64_t seen;    /* version of the leaf when leaf and shard were last equal */
    uint64_t version; /* without ranks: the shard's version when all devices last had it */
    uint64_t unsent;  /* version of the leaf when sending the shard failed; 0: sent */
    bool changed;     /* true, while publishing, if others lack its elements */
} ek_sharding_part;

struct ek_sharding {
    ek_shards shards;
    ek_sharding_owner owner;
    ek_tensor **leaves; /* one reference each; NULL if not sharded */
    ek_sharding_bucket *buckets;
    int *bucket_of; /* per leaf */
    int64_t *at;    /* per leaf: where it begins in its bucket */
    int devices;
    ek_dev *devs[EK_MAX_DEVICES]; /* NULL: each leaf's own */
    ek_sharding_part *parts;      /* per shard */
    /* Where elements are sent: there[t * shards.count + k] is shard k in target t, one reference.
     * The tensor is the shard itself if the shard lies in the target. */
    int targets;
    int bucket_count;
    ek_gathering *gathering; /* owned; NULL: all devices have whole leaves */
    ek_shard_slice
        *slices; /* with a gathering: slices[b * devices + d] is device d's of bucket b */
    ek_tensor **there;
    ek_move *moves; /* room to send all shards to all targets, because a step must not fail for lack
                       of memory */
};

/* Shards the module's parameters that require a gradient over the devices of this process.
 * copies[d][i] is parameter i on devs[d], laid out like the parameter; copies[0] are the
 * parameters. With `units` it shards all floating parameters: parameter i is gathered with its unit
 * units[i] < unit_count, only copies[0] is read, and ek_gathering_bind must follow for each leaf.
 * Existing gradients move to the shards. EK_E_STATE if a parameter is sharded already. Returns one
 * reference; NULL with an error, after which nothing has changed. */
ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices, int count,
                             ek_tensor *const *const *copies, const int *units, int unit_count,
                             ek_sharding_owner owner);

/* Makes the leaves whole again, and their gradients, if these aren't sharded over ranks; releases
 * the sharding. Leaves of units become whole if `whole` is true and the first device has memory for
 * them; otherwise they are gathered whenever they are used. NULL does nothing. */
void ek_sharding_end(ek_sharding *sharding, bool whole);

/* Returns true if every leaf of the sharding is still sharded by it. */
bool ek_sharding_is_current(const ek_sharding *sharding);
bool ek_sharding_has(const ek_sharding *sharding, int leaf);

/* Sends shards that were written since the last call to all devices. For shardings without ranks.
 * Allocates no host memory. */
int ek_sharding_publish(ek_sharding *sharding);

/* ---- for shardings over ranks ---- */

/* Initialises a sharding of `count` leaves; the caller initialises shards.object, and then sets
 * shards.ranks, the owner, leaves, buckets and their places. ek_sharding_clear frees what there
 * is. */
int ek_sharding_init(ek_sharding *sharding, int count, int buckets, ek_dev *const *devs,
                     int devices);
void ek_sharding_clear(ek_sharding *sharding);

/* Returns true if the parameter can be sharded; without a gathering it must also require a
 * gradient. */
bool ek_sharding_can_have(const ek_tensor *parameter);
/* Appends parameter i to a bucket, that of its group's parameters of its dtype, whose ranges begin
 * at multiples of `unit` elements. */
void ek_sharding_list(ek_sharding *sharding, int i, int group, int64_t unit, ek_tensor *parameter);

/* Cuts the leaves, makes the shards, and shards the leaves. targets[t][i] is leaf i in target t. In
 * a scope. After an error ek_sharding_end must follow. */
int ek_sharding_make(ek_sharding *sharding, ek_tensor *const *const *targets, int count);

/* Returns where a device's range of this rank's range begins in a bucket. */
int64_t ek_sharding_device_begin(const ek_sharding *sharding, int bucket, int device);
/* Returns a rank's range of a bucket (core/slab.h, Note [Owners of slices]). */
ek_interval ek_sharding_range(const ek_sharding *sharding, int bucket, int rank);

/* Cuts every leaf. */
void ek_sharding_cut(ek_sharding *sharding);
/* Returns the device on which shards of range d lie; NULL: on the device of their leaf. */
ek_dev *ek_sharding_dev(const ek_sharding *sharding, int d);
/* Makes the slices, with memory, after the leaves were cut. own[k] gets shard k's elements in its
 * slice, and buffers[k] its gradient there, or NULL; one reference each. */
int ek_slices_make(ek_sharding *sharding, ek_tensor **own, ek_tensor **buffers);
/* Frees the gradients and their memory. */
void ek_slices_drop_gradients(ek_sharding *sharding);
void ek_slices_clear(ek_sharding *sharding);

/* Copies the shards that the last step updated to all targets. */
int ek_sharding_send(const ek_sharding *sharding);

#endif
