/* norm.h: batch normalisation and a ReLU in one pass, a sum and layer norm in one pass, and batch
 * normalisation of chunks of a batch, each on its own device, that share their statistics. */
#ifndef EK_OPS_NORM_H
#define EK_OPS_NORM_H

#include "core/tensor.h"
#include "evenkeel/ops.h"

/* Returns batch_norm(x), or with `relu` max(batch_norm(x), 0) in one pass over memory instead of
 * two, forward and backward, with one activation less to keep. Differentiable to any order.
 * `batches`, an i64 scalar on x's device or NULL, counts the batches that updated the running
 * statistics; only with `batches` may momentum be EK_CUMULATIVE. */
ek_tensor *ek_batch_norm_tracked(ek_batch_norm_options options, bool relu, ek_tensor *batches);

/* Returns instance_norm(x) in training, or without running statistics; else batch_norm(x) by the
 * running statistics. In training the running statistics move towards the averages over samples of
 * each channel's mean and unbiased variance. */
ek_tensor *ek_instance_norm_tracked(ek_batch_norm_options options);

/* Sets *total to x + residual, and returns ek_f_layer_norm of it. Differentiable to any order. On
 * GPUs that is one launch, even if autocast adds a 16-bit residual to an f32 x. */
ek_tensor *ek_layer_norm_added(ek_tensor **total, ek_tensor *x, ek_tensor *residual,
                               int normalized_ndim, ek_tensor *weight, ek_tensor *bias, double eps);

/* ---- chunks: batch_norm(x) is ek_norm_chunk_apply of the chunks of x, after ek_norm_chunks_merge
 * has made the statistics of all of them. ---- */

/* One chunk of a batch. */
typedef struct ek_norm_chunk {
    ek_tensor *x;
    /* (2, C): the chunk's mean and biased variance, in the statistics' dtype; NaN if x is empty. */
    ek_tensor *moments;
    /* (2, C), without history: mean and 1 / sqrt(var + eps) of all chunks, once they are merged. */
    ek_tensor *statistics;
    /* For one ek_norm_chunk_apply: an alias of x that is recorded as a function of x, and an edge
     * (C) of the graph, whose gradient is the factor of the gradient of the alias. */
    ek_tensor *alias, *scale;
} ek_norm_chunk;

/* Fills the chunk with the moments of x. ek_norm_chunks_merge writes the statistics later. */
int ek_norm_chunk_begin(ek_tensor *x, ek_norm_chunk *chunk);

/* The running statistics that training updates. */
typedef struct ek_norm_tracking {
    ek_tensor *mean, *var; /* (C); NULL if nothing is tracked */
    ek_tensor *batches;    /* i64 scalar, or NULL */
    double momentum;       /* may be EK_CUMULATIVE with batches: 1 / their number */
} ek_norm_tracking;

/* Writes `statistics` (2, C) from all chunks' moments (chunks, 2, C), and updates the tracked
 * statistics. Chunk i has counts[i] > 0 values per channel. No history. At most EK_MAX_DEVICES
 * chunks. */
int ek_norm_chunks_merge(ek_tensor *statistics, ek_tensor *moments, const int64_t *counts,
                         int chunks, double eps, const ek_norm_tracking *tracking);
/* Counts a batch that has no values, and updates nothing else. */
int ek_norm_count_batch(const ek_norm_tracking *tracking);

/* Returns weight * xhat + bias with xhat = (x - mean) / sqrt(var + eps); weight and bias (C) may be
 * NULL. In the graph, `shared` takes the place of the chunk's statistics: it is an output of one
 * node for all chunks. This node has the chunks' moments as inputs, and gives each input the sum of
 * the gradients of all outputs. `total` is the number of values of a channel in all chunks.
 * Differentiable to any order. */
ek_tensor *ek_norm_chunk_apply(const ek_norm_chunk *chunk, ek_tensor *shared, int64_t total,
                               ek_tensor *weight, ek_tensor *bias);

/* ---- what the operations share ---- */

/* The statistics of one forward pass: (C) for the batch, else (N, groups). They are constants to
 * the graph; the gradients' formulas contain their dependence on x. */
typedef struct ek_norm_statistics {
    ek_tensor *mean, *invstd;
} ek_norm_statistics;

typedef struct ek_norm_attributes {
    bool batch;     /* statistics are of the batch, else of samples */
    int64_t groups; /* groups of channels; 0 with `batch` */
    double count;   /* values that share a statistic */
    bool element;   /* weight and bias are per element */
    bool constant;  /* the statistics are not x's own */
    bool relu;
    double eps;        /* The statistics' epsilon. */
    ek_dtype residual; /* The residual's dtype in a sum and layer norm. */
} ek_norm_attributes;

/* Returns w * xhat + b with xhat = (x - mean) * invstd, and records it. x isn't empty; w and b may
 * be NULL. */
ek_tensor *ek_norm_normalize(ek_tensor *x, ek_tensor *w, ek_tensor *b, ek_norm_statistics stats,
                             ek_norm_attributes attributes);
/* Returns the result of ek_norm_normalize for statistics of x's samples. */
ek_tensor *ek_norm_normalize_samples(ek_tensor *x, ek_tensor *w, ek_tensor *b,
                                     ek_norm_attributes attributes);
/* Returns ek_norm_normalize_samples of *total = x + residual. Records both as one operation. */
ek_tensor *ek_norm_normalize_added(ek_tensor **total, ek_tensor *x, ek_tensor *residual,
                                   ek_tensor *w, ek_tensor *b, ek_norm_attributes attributes);

/* The dtype of statistics and parameters. */
static inline ek_dtype ek_norm_dtype(const ek_tensor *x)
{
    return ek_dtype_wide(x->dtype);
}
ek_tensor *ek_norm_new_statistic(const ek_tensor *x, ek_norm_attributes attributes);
/* The shape of weight and bias. */
ek_shape ek_norm_affine_shape(const ek_tensor *x, ek_norm_attributes attributes);
/* Returns u * w, for u of x's shape. If w is NULL, returns u. */
ek_tensor *ek_norm_mul_affine(ek_tensor *u, ek_tensor *w, ek_norm_attributes attributes);

/* Checks the operands, except for the number of values. */
int ek_check_batch_norm(const ek_batch_norm_options *options);
/* EK_E_SHAPE if a channel has one value in all. The error names x's shape. */
int ek_check_values_per_channel(const ek_tensor *x, int64_t count);

/* Fills `update` for a kernel that updates the tracked statistics. Call ek_norm_tracking_end after
 * the kernel. */
struct ek_norm_update;
int ek_norm_tracking_begin(const ek_norm_tracking *tracking, int64_t count,
                           struct ek_norm_update *update);
void ek_norm_tracking_end(const ek_norm_tracking *tracking);

#endif
