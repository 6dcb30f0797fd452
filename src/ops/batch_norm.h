/* batch_norm.h: batch normalisation with a ReLU behind it in one pass, for sequences that contain
 * both; and in pieces, for statistics of more values than x has. */
#ifndef EK_OPS_BATCH_NORM_H
#define EK_OPS_BATCH_NORM_H

#include "core/keywords.h"
#include "core/tensor.h"
#include "evenkeel/ops.h"

/* batch_norm(x), or with `relu` max(batch_norm(x), 0): one pass over memory instead of two, in
 * forward and in backward, and one activation less to keep. Differentiable to any order. `batches`,
 * an i64 scalar on x's device or NULL, counts those that moved the running statistics, in the same
 * launch; with it momentum may be EK_CUMULATIVE. */
ek_tensor *ek_batch_norm_tracked(ek_batch_norm_options options, bool relu, ek_tensor *batches);

/* ---- in pieces: batch_norm(x) is ek_normalise_chunk(ek_channel_moments of x, mean, invstd, w, b),
 * where mean and invstd are ek_merge_moments of those of one chunk. All are differentiable to any
 * order. ---- */

/* A chunk of a batch. `alias` is for ek_normalise_chunk alone, once, which leaves its gradient to
 * the chunk's own backward as a product that isn't formed. */
typedef struct ek_channel_chunk {
    ek_tensor *x, *alias;
    ek_tensor *scale;   /* (C): no values; for the other factor of that product */
    ek_tensor *moments; /* (1, 2, C): mean and biased variance, in the statistics' dtype */
} ek_channel_chunk;
/* x isn't empty. */
int ek_channel_moments(ek_tensor *x, ek_channel_chunk *chunk);

/* Moments of several chunks merged by their values per channel (Chan et al. 1983). */
typedef struct ek_merged_moments {
    ek_tensor *mean, *var; /* (C); var is biased */
    ek_tensor *invstd;     /* 1 / sqrt(var + eps) */
} ek_merged_moments;
/* moments (chunks, 2, C), contiguous; counts[i] values per channel in chunk i, more than 0; at most
 * EK_MAX_DEVICES chunks. */
int ek_merge_moments(ek_tensor *moments, const int64_t *counts, int chunks, double eps,
                     ek_merged_moments *merged);

/* weight (x - mean) invstd + bias; weight and bias (C) may be NULL. */
ek_tensor *ek_normalise_chunk(const ek_channel_chunk *chunk, ek_tensor *mean, ek_tensor *invstd,
                              ek_tensor *weight, ek_tensor *bias);

/* ---- what the pieces and the whole share ---- */

/* The operands fit, but for the number of values. */
int ek_check_batch_norm(const ek_batch_norm_options *options);
/* EK_E_SHAPE where a channel has one value in all; x for the sentence. */
int ek_check_values_per_channel(const ek_tensor *x, int64_t count);

/* What training keeps of a channel's statistics, and how it moves. */
typedef struct ek_norm_tracking {
    ek_tensor *mean, *var; /* (C); NULL: nothing is kept */
    ek_tensor *batches;    /* i64 scalar, or NULL */
    double momentum;       /* EK_CUMULATIVE where there are batches: 1 by their number */
} ek_norm_tracking;

/* Statistics of a batch of `count` values per channel move what is tracked; where there are none,
 * the batch counts, and that is all. */
int ek_move_tracked(const ek_norm_tracking *tracking, const ek_tensor *mean, const ek_tensor *var,
                    int64_t count);

/* The dtype of statistics and parameters; an uninitialised (C) of it. */
ek_dtype ek_channel_dtype(const ek_tensor *x);
ek_tensor *ek_new_channels(const ek_tensor *x);
/* (C) as (1, C, 1, ...) in x's dtype, to broadcast with x. */
ek_tensor *ek_per_channel(ek_tensor *values, const ek_tensor *x);
/* Sum over all but the channels, in the statistics' dtype. NULL for NULL. */
ek_tensor *ek_channel_sum(ek_tensor *x);

#endif
