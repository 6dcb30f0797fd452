/* norm.h: batch normalisation with a ReLU behind it in one pass, for sequences that contain both;
 * and of chunks of a batch, each on a device of its own, that share their statistics. */
#ifndef EK_OPS_NORM_H
#define EK_OPS_NORM_H

#include "core/keywords.h"
#include "core/tensor.h"
#include "evenkeel/ops.h"

/* batch_norm(x), or with `relu` max(batch_norm(x), 0): one pass over memory instead of two, in
 * forward and in backward, and one activation less to keep. Differentiable to any order. `batches`,
 * an i64 scalar on x's device or NULL, counts those that moved the running statistics, in the same
 * launch; with it momentum may be EK_CUMULATIVE. */
ek_tensor *ek_batch_norm_tracked(ek_batch_norm_options options, bool relu, ek_tensor *batches);

/* ---- chunks: batch_norm(x) is ek_norm_chunk_apply of the chunks of x, after ek_norm_chunks_merge
 * has made the statistics of all of them. ---- */

/* What a chunk brings to the others and gets from them. */
typedef struct ek_norm_chunk {
    ek_tensor *x;       /* not empty */
    ek_tensor *moments; /* (2, C): its mean and biased variance, in the statistics' dtype */
    /* (2, C), without history: mean and 1 / sqrt(var + eps) of all chunks, once they are merged. */
    ek_tensor *statistics;
    /* For ek_norm_chunk_apply alone, once: what leads back to x, and (C) without values. */
    ek_tensor *alias, *scale;
} ek_norm_chunk;

/* The chunk's moments; its statistics are not written yet. */
int ek_norm_chunk_begin(ek_tensor *x, ek_norm_chunk *chunk);

/* What training keeps of a channel's statistics, and how it moves. */
typedef struct ek_norm_tracking {
    ek_tensor *mean, *var; /* (C); NULL: nothing is kept */
    ek_tensor *batches;    /* i64 scalar, or NULL */
    double momentum;       /* EK_CUMULATIVE if there are batches: 1 by their number */
} ek_norm_tracking;

/* Writes `statistics` (2, C) from the moments (chunks, 2, C) of chunks of counts[i] > 0 values per
 * channel, and moves what is tracked. No history. At most EK_MAX_DEVICES chunks. */
int ek_norm_chunks_merge(ek_tensor *statistics, ek_tensor *moments, const int64_t *counts,
                         int chunks, double eps, const ek_norm_tracking *tracking);
/* A batch without values: it counts, and that is all. */
int ek_norm_count_batch(const ek_norm_tracking *tracking);

/* weight xhat + bias; weight and bias (C) may be NULL. `shared` is an alias of the chunk's
 * statistics in the graph: an output of one node for all chunks, whose inputs are their moments,
 * and which gives to each input the sum of the gradients of all outputs. `total`: the values of a
 * channel in all chunks. Differentiable to any order. */
ek_tensor *ek_norm_chunk_apply(const ek_norm_chunk *chunk, ek_tensor *shared, int64_t total,
                               ek_tensor *weight, ek_tensor *bias);

/* ---- what the operations share ---- */

/* The statistics of one forward pass: constants to the graph, whose dependence on x is in the
 * gradients' formulas. (C) of the batch, else (N, groups). */
typedef struct ek_norm_statistics {
    ek_tensor *mean, *invstd;
} ek_norm_statistics;

typedef struct ek_norm_attributes {
    bool batch;     /* statistics of the whole batch, else of each sample's groups: */
    int64_t groups; /* of channels */
    double count;   /* values that share a statistic */
    bool element;   /* weight and bias are per element */
    bool constant;  /* the statistics are not x's own */
    bool relu;
} ek_norm_attributes;

/* w xhat + b, recorded. x isn't empty; w and b may be NULL. */
ek_tensor *ek_norm_normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, ek_norm_statistics stats,
                             ek_norm_attributes attributes);

/* The dtype of statistics and parameters. */
static inline ek_dtype ek_norm_dtype(const ek_tensor *x)
{
    return x->dtype == EK_BF16 ? EK_F32 : x->dtype;
}
ek_tensor *ek_norm_new_statistic(const ek_tensor *x, ek_norm_attributes attributes);
/* Of weight and bias. */
ek_shape ek_norm_affine_shape(const ek_tensor *x, ek_norm_attributes attributes);
/* u w, u of x's shape; a w of NULL is 1. */
ek_tensor *ek_norm_mul_affine(ek_tensor *u, ek_tensor *w, ek_norm_attributes attributes);
/* The sum of two terms, of which NULL is zero. */
ek_tensor *ek_norm_added(ek_tensor *x, ek_tensor *y);
/* Sum over all but the channels, in the statistics' dtype. */
ek_tensor *ek_norm_channel_sum(ek_tensor *x);

/* The operands fit, but for the number of values. */
int ek_check_batch_norm(const ek_batch_norm_options *options);
/* EK_E_SHAPE if a channel has one value in all; x for the sentence. */
int ek_check_values_per_channel(const ek_tensor *x, int64_t count);

/* Moves what is tracked, by a kernel that runs with `update` between begin and end. */
struct ek_norm_update;
int ek_norm_tracking_begin(const ek_norm_tracking *tracking, int64_t count,
                           struct ek_norm_update *update);
void ek_norm_tracking_end(const ek_norm_tracking *tracking);

#endif
