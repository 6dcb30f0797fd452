/* shards.h: leaves whose gradient and optimizer state are divided over devices.
 *
 * A flat is a list of parameters that are divided together. Each parameter is a segment of it, cut
 * into shards: elements in the order of memory, each shard on the device that owns it. The shard's
 * piece is a leaf of its own: flat, on the owner's copy of the elements, with a slot for its
 * gradient. Forwards are recorded from the pieces (comm/collectives.h), so that gradients arrive
 * there. The optimizer steps the pieces where they are, and the flat then shows the result in the
 * parameters and in all copies. A leaf knows its flat and which segment it is, nothing else.
 *
 * Parameters that are divided themselves (each device keeps its shards alone) would be the same
 * ranges with one more state, whether a device's copy of a segment holds all elements: they would
 * be gathered before the forward of the module that has them, released after it, and gathered again
 * by the first backward that reads them. `publish` would then send nothing, and `refresh` would be
 * the gathering. */
#ifndef EK_AUTOGRAD_SHARDS_H
#define EK_AUTOGRAD_SHARDS_H

#include "core/tensor.h"

typedef struct ek_shard {
    int64_t begin, end; /* elements of the parameter, in the order of its memory */
    ek_tensor *piece;   /* a reference; as many elements */
} ek_shard;

/* A segment's: ascending, without gaps, over all of its elements. */
typedef struct ek_shards {
    int count;
    ek_shard *shards;
} ek_shards;

typedef struct ek_flat {
    ek_object object;
    uint64_t id;         /* no other flat of the process has it; not 0 */
    ek_shards *segments; /* by parameter */
    int count, shard_count;
    ek_shard *shards; /* those of a segment follow each other */
    /* Optional, both: the calling thread uses the pieces and all copies until it leaves. EK_E_STATE
     * while another thread does. */
    int (*enter)(struct ek_flat *flat);
    void (*leave)(struct ek_flat *flat);
    /* Brings the pieces to their parameters' values, if a parameter was written (by a checkpoint, a
     * user) since they were equal. */
    int (*refresh)(struct ek_flat *flat);
    /* The pieces have been written, those of all devices: sends them to the parameters and to every
     * device's copy. Comes after the update, which can't be undone: needs no memory of the process,
     * so that a step isn't told as failed for want of some. */
    int (*publish)(struct ek_flat *flat);
} ek_flat;

/* A flat of `count` segments with room for `most` shards in all; the object is the caller's to
 * initialise. EK_E_NO_MEMORY. What it holds is given back by ek_flat_clear. */
int ek_flat_init(ek_flat *flat, int count, int most);
void ek_flat_clear(ek_flat *flat);

/* Adds a shard to a segment, from where the one before ended. Those of a segment are added one
 * after another. Retains the piece; NULL: it comes later. */
void ek_flat_add(ek_flat *flat, int segment, int64_t end, ek_tensor *piece);

/* Makes a dense leaf a segment of the flat (NULL: it is whole again); retains the flat, whose
 * shards don't change from now on. EK_E_INVALID unless the pieces are flat leaves of its dtype that
 * cover it. The gradient that the leaf has already goes to the pieces, or with NULL comes back from
 * them (those given up have none any more), and its slot is taken away. On an error all is as
 * before. */
int ek_leaf_set_shards(ek_tensor *leaf, ek_flat *flat, int segment);

/* NULL for leaves that are whole. */
static inline ek_flat *ek_leaf_flat(const ek_tensor *leaf)
{
    return (ek_flat *)leaf->flat;
}

static inline const ek_shards *ek_leaf_shards(const ek_tensor *leaf)
{
    return leaf->flat ? &ek_leaf_flat(leaf)->segments[leaf->segment] : NULL;
}

/* A whole leaf is one shard, which is the leaf, of id 0. */
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

/* Copies the shard's elements from `from`, dense, to `whole`, dense and in the parameter's order of
 * memory (NULL: zeros), or from there to `to`. */
int ek_shard_read(const ek_shard *shard, const ek_tensor *from, ek_tensor *whole);
int ek_shard_write(const ek_shard *shard, ek_tensor *to, const ek_tensor *whole);

/* If a divided leaf has a gradient, all of its pieces have one afterwards: a whole gradient that it
 * got beside them (its module was used without its replicas) is added to theirs and dropped, and
 * pieces that got none have zeros. Does nothing for other leaves. On an error the gradient is as
 * before. */
int ek_leaf_settle_gradient(ek_tensor *leaf);

/* `gradient` in the order of memory of `like`: itself, or a copy where it lies, in the scope. */
ek_tensor *ek_gradient_in_order(ek_tensor *gradient, const ek_tensor *like);

/* Does the leaf, or one of its pieces, have a gradient? */
bool ek_leaf_has_gradient(const ek_tensor *leaf);

/* Removes the pieces' gradients; does nothing for leaves that are whole. */
void ek_leaf_drop_piece_gradients(ek_tensor *leaf);

#endif
