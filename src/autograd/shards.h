/* shards.h: leaves whose gradient and optimizer state are sharded.
 *
 * A shard is a range of a leaf's elements in the order of memory. One device of one process owns
 * the shard. The shard's `tensor` is a flat leaf on the owner's copy of the elements, with a grad
 * buffer. The optimizer steps the shards in place, and `publish` then copies their elements to the
 * leaves and to all devices. An ek_shards has the shards of many leaves; each leaf refers to its
 * ek_shards and has an index there. parallel/sharding.h makes them.
 *
 * Without `ranks` the shards of a leaf together are all of its elements. Forwards are recorded from
 * the shards (comm/collectives.h), so that gradients arrive at the shards. With `ranks` the shards
 * are the elements that this process owns, and gradients arrive at the leaf. The average over the
 * ranks gives each rank the gradients of its shards. */
#ifndef EK_AUTOGRAD_SHARDS_H
#define EK_AUTOGRAD_SHARDS_H

#include "core/ranks.h"
#include "core/tensor.h"

typedef struct ek_shard {
    int64_t begin, end; /* elements of the leaf */
    ek_tensor *tensor;  /* one reference; a leaf with these elements */
} ek_shard;

typedef struct ek_shards {
    ek_object object;
    uint64_t id;         /* unique in the process; not 0 */
    int leaf_count;      /* leaves, sharded or not */
    ek_shard *all;       /* owned; leaf by leaf, the shards of a leaf in order and without gaps */
    int count;           /* how many shards all leaves have */
    int *first, *counts; /* owned; per leaf: its first shard in `all`, and how many there are */
    ek_ranks *ranks;     /* one reference; the processes that own the leaves; NULL: this one */
    bool *stepped;       /* owned; per leaf: it takes part in the step; set when the step begins */
    /* Optional: reserves the shards and all copies for the calling thread until `leave`. EK_E_STATE
     * if another thread has reserved them. */
    int (*enter)(struct ek_shards *shards);
    void (*leave)(struct ek_shards *shards);
    /* Updates shards whose leaf was written since (by a checkpoint or a user). */
    int (*refresh)(struct ek_shards *shards);
    /* With `ranks`, else NULL: called before the first update, after everything that can fail.
     * `status` is this rank's outcome so far; if it is negative, its error is pending. If no rank
     * has failed, returns 0; all ranks then update, and `publish` must follow. Otherwise fails on
     * all ranks. */
    int (*agree)(struct ek_shards *shards, int status);
    /* Copies the shards to the leaves and to every copy. `status` is the update's; a negative
     * status is sent to the other ranks. Allocates no host memory, so that it never fails for lack
     * of memory: the update can't be undone. */
    int (*publish)(struct ek_shards *shards, int status);
} ek_shards;

/* Initialises shards of leaf_count leaves with room for `most` shards in total; the caller
 * initialises shards->object. Returns 0 or EK_E_NO_MEMORY. ek_shards_clear frees what they hold. */
int ek_shards_init(ek_shards *shards, int leaf_count, int most);
void ek_shards_clear(ek_shards *shards);

/* Adds elements [begin, end) of a leaf as its next shard. All shards of a leaf are added before
 * those of another. Retains the tensor, which may be NULL and be set later. */
void ek_shards_add(ek_shards *shards, int leaf, int64_t begin, int64_t end, ek_tensor *tensor);

/* Shards a dense leaf, which retains `shards`; `shards` must not change from now on. NULL makes the
 * leaf whole again. EK_E_INVALID if the leaf's shards aren't flat leaves of its dtype that cover
 * it. The leaf's gradient moves to the new shards, or with NULL back to the leaf; the old shards
 * lose their gradients. With `ranks` the shards' gradients are dropped, because other ranks have
 * the rest of the gradient. The leaf's grad buffer is removed. On an error nothing has changed. */
int ek_leaf_set_shards(ek_tensor *leaf, ek_shards *shards, int index);

/* NULL if the leaf is whole. */
static inline ek_shards *ek_leaf_shards(const ek_tensor *leaf)
{
    return (ek_shards *)leaf->shards;
}

/* Returns the ranks over which the leaf is sharded; NULL if this process has all of the leaf. */
static inline ek_ranks *ek_leaf_ranks(const ek_tensor *leaf)
{
    return leaf->shards ? ek_leaf_shards(leaf)->ranks : NULL;
}

/* 0 if the leaf is whole. */
static inline uint64_t ek_leaf_shards_id(const ek_tensor *leaf)
{
    return leaf->shards ? ek_leaf_shards(leaf)->id : 0;
}

/* A whole leaf counts as one shard. */
static inline int ek_leaf_shard_count(const ek_tensor *leaf)
{
    return leaf->shards ? ek_leaf_shards(leaf)->counts[leaf->shards_index] : 1;
}

static inline ek_shard ek_leaf_shard(const ek_tensor *leaf, int index)
{
    const ek_shards *shards = ek_leaf_shards(leaf);
    return shards ? shards->all[shards->first[leaf->shards_index] + index]
                  : (ek_shard){0, ek_count(leaf), (ek_tensor *)leaf};
}

/* ek_shard_read copies the shard's elements from `from` (NULL: zeros) to their range of `whole`;
 * ek_shard_write copies from that range to `to`. All are dense, and `whole` is in the leaf's order
 * of memory. */
int ek_shard_read(const ek_shard *shard, const ek_tensor *from, ek_tensor *whole);
int ek_shard_write(const ek_shard *shard, ek_tensor *to, const ek_tensor *whole);

/* Copies the elements of a leaf's shards to their ranges of `whole`. A NULL tensor counts as zeros.
 * With `ranks` the call is collective, and copies the shards of all ranks. If `status` is negative,
 * this process has failed, and its error is pending. */
int ek_shards_gather(const ek_shard *shards, int count, ek_ranks *ranks, int status,
                     ek_tensor *whole);

/* Completes the gradient of a sharded leaf: if the leaf or a shard has a gradient, all shards have
 * one afterwards. A gradient of the leaf, from a use of its module without replicas, is added to
 * the shards' gradients and dropped. Shards without a gradient get zeros. Does nothing for a whole
 * leaf. On an error the gradient is unchanged. */
int ek_leaf_settle_gradient(ek_tensor *leaf);

/* Returns `gradient` if it has the order of memory of `like`; else a copy in that order, on its
 * device, in the scope. */
ek_tensor *ek_gradient_in_order(ek_tensor *gradient, const ek_tensor *like);

/* True if the leaf or one of its shards has a gradient. */
bool ek_leaf_has_gradient(const ek_tensor *leaf);

/* Sets the leaf's own gradient (NULL: none), which the caller has checked; the leaf's shards keep
 * theirs. */
void ek_leaf_set_own_gradient(ek_tensor *leaf, ek_tensor *gradient);

/* Removes the shards' gradients; does nothing for leaves that are whole. */
void ek_leaf_drop_shard_gradients(ek_tensor *leaf);

#endif
