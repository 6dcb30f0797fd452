/* batch_norm.h: batch normalisation with a ReLU behind it in one pass, for sequences that contain
 * both; and in pieces, for statistics of more values than x has. */
#ifndef EK_OPS_BATCH_NORM_H
#define EK_OPS_BATCH_NORM_H

#include "core/tensor.h"
#include "evenkeel/ops.h"

/* max(batch_norm(x), 0): one pass over memory instead of two, in forward and in backward, and one
 * activation less to keep. Differentiable to any order. */
ek_tensor *ek_batch_norm_relu(ek_batch_norm_options options);

/* ---- in pieces: batch_norm(x) is ek_normalise_channels(x', mean, invstd, w, b), where x' and
 * moments are ek_channel_moments of x, and mean and invstd ek_merge_moments of those of one chunk.
 * All are differentiable to any order. ---- */

/* moments (1, 2, C): mean and biased variance of x's channels, in the statistics' dtype; alias: x
 * itself, to be normalised, so that both gradients of x meet in one pass. x isn't empty. */
int ek_channel_moments(ek_tensor *x, ek_tensor **alias, ek_tensor **moments);

/* Moments of several chunks merged by their values per channel (Chan et al. 1983). */
typedef struct ek_merged_moments {
    ek_tensor *mean, *var; /* (C); var is biased */
    ek_tensor *invstd;     /* 1 / sqrt(var + eps) */
} ek_merged_moments;
/* moments (chunks, 2, C); counts[i] values per channel in chunk i, more than 0. */
int ek_merge_moments(ek_tensor *moments, const int64_t *counts, int chunks, double eps,
                     ek_merged_moments *merged);

/* weight (x - mean) invstd + bias; weight and bias (C) may be NULL. x isn't empty. */
ek_tensor *ek_normalise_channels(ek_tensor *x, ek_tensor *mean, ek_tensor *invstd,
                                 ek_tensor *weight, ek_tensor *bias);

/* ---- what the pieces and the whole share ---- */

/* The operands fit, but for the number of values. */
int ek_check_batch_norm(const ek_batch_norm_options *options);
/* EK_E_SHAPE where a channel has one value in all; x for the sentence. */
int ek_check_values_per_channel(const ek_tensor *x, int64_t count);

/* running = (1 - momentum) running + momentum scale value */
int ek_move_running(ek_tensor *running, const ek_tensor *value, double momentum, double scale);

/* 1 / sqrt(var + eps), in place of var where `into` is var; not recorded. */
int ek_run_invstd(ek_tensor *into, const ek_tensor *var, double eps);
/* An option whose default isn't 0: EK_ZERO means 0. */
static inline double ek_norm_option(double value, double otherwise)
{
    return value == 0 ? otherwise : value == EK_ZERO ? 0 : value;
}

/* The dtype of statistics and parameters; an uninitialised (C) of it. */
ek_dtype ek_channel_dtype(const ek_tensor *x);
ek_tensor *ek_new_channels(const ek_tensor *x);
/* (C) as (1, C, 1, ...) in x's dtype, to broadcast with x. */
ek_tensor *ek_per_channel(ek_tensor *values, const ek_tensor *x);
/* Sum over all but the channels, in the statistics' dtype. NULL for NULL. */
ek_tensor *ek_channel_sum(ek_tensor *x);

#endif
