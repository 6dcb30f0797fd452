/* shards.h: leaves whose gradient and optimizer state are sharded over devices.
 *
 * A flat is a list of parameters that are sharded together. Each parameter is a segment of the flat
 * and is cut into shards: ranges of its elements in the order of memory. Each shard has a device
 * that owns it. The shard's `tensor` is a leaf of its own: flat, on the owner's copy of the
 * elements, with a grad buffer. Forwards are recorded from the shards
 * (comm/collectives.h), so that gradients arrive there. The optimizer steps the shards in place;
 * then `publish` copies them to the parameters and to all devices. A leaf knows only its flat and
 * its segment's index.
 *
 * A flat may be divided between processes (ek_owners): its shards are then this process's elements
 * alone. Gradients arrive at the whole leaf, and whoever divides the flat reduces them to the
 * shards.
 *
 * If the parameters too were sharded (each device keeping only its own shards), they would have the
 * same ranges, and a flag that tells whether a device's copy is complete. They would be gathered
 * before the forward of their module, released after it, and gathered again by the first backward
 * that reads them. `publish` would then send nothing, and `refresh` would gather. */
#ifndef EK_AUTOGRAD_SHARDS_H
#define EK_AUTOGRAD_SHARDS_H

#include "core/tensor.h"

typedef struct ek_shard {
    int64_t begin, end; /* elements of the parameter, in the order of its memory */
    ek_tensor *tensor;  /* one reference; a leaf with these elements */
} ek_shard;

/* The shards of one segment, in order, without gaps. They are all of its elements, or those that
 * this process owns (ek_owners): a range, which may be empty, but has a shard all the same. */
typedef struct ek_shards {
    int count;
    ek_shard *shards;
} ek_shards;

/* The processes that own a flat's elements. Each has a range of every segment, in the order of the
 * processes. The calls are collective: all owners make them in the same order, and an error of one
 * is an error of all. */
typedef struct ek_owners {
    ek_object object;
    /* The ranges of all owners, one after another, on the device of `own`, in the scope. `own` is
     * this process's, flat; NULL: this process has failed, and the error is pending. */
    ek_tensor *(*join)(struct ek_owners *owners, ek_tensor *own);
    /* *value becomes the sum of all owners' values, or the largest (NaN if there is one). `status`
     * is this process's outcome so far; if it is negative, the error is pending, and *value is not
     * read. */
    int (*combine)(struct ek_owners *owners, int status, double *value, bool largest);
} ek_owners;

typedef struct ek_flat {
    ek_object object;
    uint64_t id;         /* unique in the process; not 0 */
    ek_shards *segments; /* owned; one per parameter */
    int count, shard_count;
    ek_shard *shards; /* owned; those of a segment follow each other */
    /* Optional: gives the calling thread the shards and all copies until `leave`. EK_E_STATE if
     * another thread has them. */
    int (*enter)(struct ek_flat *flat);
    void (*leave)(struct ek_flat *flat);
    /* Updates shards whose parameter was written since (by a checkpoint or a user). */
    int (*refresh)(struct ek_flat *flat);
    /* Copies the shards, which were written on all devices, to the parameters and to every device's
     * copy. Allocates no host memory, because the update before it can't be undone: the step must
     * not fail here for want of memory. `status` is the update's; a negative one is told to the
     * owners in other processes. */
    int (*publish)(struct ek_flat *flat, int status);

    /* For flats that are divided between processes, else NULL. */
    ek_owners *owners; /* one reference */
    bool *stepped;     /* owned; per segment: set by the step, if its parameter takes part */
    /* Comes between what can fail and the first update. `status` is the outcome so far; if it is
     * negative, the error is pending. Returns 0 if no process has failed: all of them will update,
     * and `publish` has to follow. Else an error of all processes. */
    int (*agree)(struct ek_flat *flat, int status);
} ek_flat;

/* Initialises a flat of `count` segments with room for `most` shards in all; the caller initialises
 * flat->object. Returns 0 or EK_E_NO_MEMORY. ek_flat_clear frees what the flat holds. */
int ek_flat_init(ek_flat *flat, int count, int most);
void ek_flat_clear(ek_flat *flat);

/* Adds a shard to a segment. It begins where the segment's last shard ends, and ends at `end`. All
 * shards of a segment are added before those of the next. Retains the shard, which may be NULL and
 * be set later. */
void ek_flat_add(ek_flat *flat, int segment, int64_t end, ek_tensor *tensor);
/* The same for a shard that begins at `begin`. */
void ek_flat_add_range(ek_flat *flat, int segment, int64_t begin, int64_t end, ek_tensor *tensor);

/* Makes a dense leaf a segment of the flat and retains the flat, whose shards don't change from now
 * on. NULL makes the leaf whole again. EK_E_INVALID unless the shards are flat leaves of the leaf's
 * dtype that cover it. The leaf's gradient moves to the new shards, or with NULL back to the leaf;
 * shards that are given up lose theirs. If they were divided between processes, theirs is dropped.
 * The leaf's grad buffer is taken away. On an error nothing has changed. */
int ek_leaf_set_shards(ek_tensor *leaf, ek_flat *flat, int segment);

/* The leaf's flat; NULL if the leaf is whole. */
static inline ek_flat *ek_leaf_flat(const ek_tensor *leaf)
{
    return (ek_flat *)leaf->flat;
}

static inline const ek_shards *ek_leaf_shards(const ek_tensor *leaf)
{
    return leaf->flat ? &ek_leaf_flat(leaf)->segments[leaf->segment] : NULL;
}

/* The processes between which the leaf is divided; NULL: it is this process's. */
static inline ek_owners *ek_leaf_owners(const ek_tensor *leaf)
{
    return leaf->flat ? ek_leaf_flat(leaf)->owners : NULL;
}

/* The id of the leaf's flat; 0 if the leaf is whole. A whole leaf counts as one shard. */
static inline uint64_t ek_leaf_flat_id(const ek_tensor *leaf)
{
    return leaf->flat ? ek_leaf_flat(leaf)->id : 0;
}

static inline int ek_leaf_shard_count(const ek_tensor *leaf)
{
    return leaf->flat ? ek_leaf_shards(leaf)->count : 1;
}

static inline ek_shard ek_leaf_shard(const ek_tensor *leaf, int index)
{
    return leaf->flat ? ek_leaf_shards(leaf)->shards[index]
                      : (ek_shard){0, ek_count(leaf), (ek_tensor *)leaf};
}

/* ek_shard_read copies the shard's elements from `from` (NULL: zeros) to their range of `whole`;
 * ek_shard_write copies from that range to `to`. All are dense, and `whole` is in the parameter's
 * order of memory. */
int ek_shard_read(const ek_shard *shard, const ek_tensor *from, ek_tensor *whole);
int ek_shard_write(const ek_shard *shard, ek_tensor *to, const ek_tensor *whole);

/* Copies the elements of a segment's shards to their ranges of `whole`. A NULL tensor stands for
 * zeros. With `owners`: those of all processes, of which these are this process's. */
int ek_shards_gather(const ek_shard *shards, int count, ek_owners *owners, ek_tensor *whole);

/* Completes the gradient of a sharded leaf: if the leaf or a shard has one, all shards have one
 * afterwards. A gradient of the leaf itself (its module was used without replicas) is added to the
 * shards' and dropped. Shards that got none get zeros. Does nothing for whole leaves. On an error
 * the gradient is unchanged. */
int ek_leaf_settle_gradient(ek_tensor *leaf);

/* `gradient` in the order of memory of `like`: itself, or a copy on its device, in the scope. */
ek_tensor *ek_gradient_in_order(ek_tensor *gradient, const ek_tensor *like);

/* True if the leaf or one of its shards has a gradient. */
bool ek_leaf_has_gradient(const ek_tensor *leaf);

/* Removes the shards' gradients; does nothing for leaves that are whole. */
void ek_leaf_drop_shard_gradients(ek_tensor *leaf);

#endif
