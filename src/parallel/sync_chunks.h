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
    bool records;    /* statistics are to have a history (Note [Every rank takes part]) */
} ek_sync_chunks;

/* Puts the chunks of all ranks, in their order, in place of this rank's own, and takes neighbours
 * as one until there are at most EK_MAX_DEVICES. All ranks call it alike. `x` is the input, whose
 * channels and dtype have to agree; `enabled` is this rank's gradient mode. */
int ek_sync_chunks_join(ek_ranks *ranks, const ek_tensor *x, bool enabled, ek_sync_chunks *chunks);

#endif
