/* sync_chunks.h: moments of the chunks of a batch, over which batch normalisation is synchronised.
 */
#ifndef EK_PARALLEL_SYNC_CHUNKS_H
#define EK_PARALLEL_SYNC_CHUNKS_H

#include "core/ranks.h"
#include "evenkeel/tensor.h"

/* The chunks that have values: this process's, then those of all ranks. */
typedef struct ek_sync_chunks {
    ek_tensor *moments; /* (count, 2, C) on the first replica's device, without history */
    int count;
    int64_t *counts; /* values per channel; owned */
    bool records;    /* the statistics get a history (Note [Every rank takes part]) */
} ek_sync_chunks;

/* Collective. Replaces this rank's chunks by those of all ranks, in the order of ranks, and merges
 * neighbours until there are at most EK_MAX_DEVICES chunks. `x` is the input, whose channels and
 * dtype must be equal on all ranks; `enabled` is this rank's gradient mode. */
int ek_sync_chunks_join(ek_ranks *ranks, const ek_tensor *x, bool enabled, ek_sync_chunks *chunks);

#endif
