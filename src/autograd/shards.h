/* shards.h: leaves whose gradient and optimizer state are divided over devices.
 *
 * A divided leaf is a parameter that stands for pieces of its memory. Each piece is a leaf of its
 * own: flat, on the device that owns it, on that device's copy of the parameter's elements, with a
 * slot for its gradient. Forwards are recorded from the pieces (comm/collectives.h), so that
 * gradients arrive there; the optimizer steps the pieces where they are, and the group then shows
 * the result in the parameter and in all copies. */
#ifndef EK_AUTOGRAD_SHARDS_H
#define EK_AUTOGRAD_SHARDS_H

#include "core/tensor.h"

/* Parameters that were divided together. */
typedef struct ek_shard_group {
    ek_object object;
    /* Optional, both: the calling thread uses the pieces and all copies until it leaves. EK_E_STATE
     * while another thread does. */
    int (*enter)(struct ek_shard_group *group);
    void (*leave)(struct ek_shard_group *group);
    /* Brings the pieces to their parameters' values, where a parameter was written (by a
     * checkpoint, a user) since they were equal. */
    int (*refresh)(struct ek_shard_group *group);
    /* The pieces have been written, those of all devices: sends them to the parameters and to every
     * device's copy. Comes after the update, which can't be undone: needs no memory of the process,
     * so that a step isn't told as failed for want of some. */
    int (*publish)(struct ek_shard_group *group);
} ek_shard_group;

typedef struct ek_shard {
    int64_t begin, end; /* elements of the parameter, in the order of its memory */
    ek_tensor *piece;   /* a reference; as many elements */
} ek_shard;

/* How one leaf is divided: ascending, without gaps, over all of its elements. Immutable. */
typedef struct ek_shards {
    ek_object object;
    uint64_t serial;       /* no other division of the process has it; not 0 */
    ek_shard_group *group; /* a reference */
    int count;
    ek_shard shards[];
} ek_shards;

/* `count` shards to fill in; retains the group. One reference; NULL with an error. */
ek_shards *ek_shards_new(ek_shard_group *group, int count);

/* Divides a dense leaf (NULL: it is whole again); retains `shards`. EK_E_INVALID unless the pieces
 * are flat leaves of its dtype that cover it. The gradient that the leaf has already goes to the
 * pieces, or with NULL comes back from them (those given up have none any more), and its slot is
 * taken away. On an error all is as before. */
int ek_leaf_set_shards(ek_tensor *leaf, ek_shards *shards);

/* NULL for leaves that are whole. */
static inline const ek_shards *ek_leaf_shards(const ek_tensor *leaf)
{
    return (const ek_shards *)leaf->shards;
}

/* A whole leaf is one shard, which is the leaf, of serial 0. */
static inline uint64_t ek_leaf_serial(const ek_tensor *leaf)
{
    return leaf->shards ? ek_leaf_shards(leaf)->serial : 0;
}

static inline int ek_leaf_shard_count(const ek_tensor *leaf)
{
    return leaf->shards ? ek_leaf_shards(leaf)->count : 1;
}

static inline ek_shard ek_leaf_shard(const ek_tensor *leaf, int index)
{
    return leaf->shards ? ek_leaf_shards(leaf)->shards[index]
                        : (ek_shard){0, ek_count(leaf), (ek_tensor *)leaf};
}

/* A whole gradient that the leaf got beside its pieces (its module was used without its replicas)
 * is added to theirs and dropped. Does nothing for other leaves. On an error all is as before. */
int ek_leaf_settle_gradient(ek_tensor *leaf);

/* Does the leaf, or one of its pieces, have a gradient? */
bool ek_leaf_has_gradient(const ek_tensor *leaf);

/* Removes the pieces' gradients; does nothing for leaves that are whole. */
void ek_leaf_drop_piece_gradients(ek_tensor *leaf);

#endif
