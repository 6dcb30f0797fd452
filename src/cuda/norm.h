/* norm.h: passes over memory that batch and group normalisation share.
 *
 * A column is what has sums of its own: a channel of the batch (batch norm), or of one sample
 * (group norm), where columns are joined by group afterwards. Two forms of memory: rows, C
 * contiguous channels each (channels-last, and (N, C)); and planes, a contiguous run of `inner`
 * elements for each of `outer` samples and C channels. Layer normalisation is planes, too: one
 * channel for each group, with weights per element.
 *
 * Sums are made by blocks of threads, each over one part of a column's elements, and joined in f64
 * in a fixed order. How they are cut follows from the shape alone. */
#ifndef EK_CUDA_NORM_H
#define EK_CUDA_NORM_H

#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* Strides count elements. Rows: sample, row. Planes: sample, row (from one of `outer` to the next),
 * channel. */
typedef struct ek_norm_operand {
    void *data;
    int64_t sample, row, channel;
} ek_norm_operand;

/* How threads share the work. A block's threads are teams of neighbours; tasks are numbered, and
 * blocks take them in turn. Rows: a team spans a row's columns, a thread has a vector of them, and
 * teams take rows in turn; a task is `span` rows of `team` vectors. Planes: a team has a column of
 * its own and spans its elements; a task is one part of as many columns as there are teams: `span`
 * elements of `rows` planes. */
typedef struct ek_norm_cut {
    int team;
    int vector;           /* elements that are loaded at once */
    int64_t span, spans;  /* rows: rows of a part; planes: elements of a part, of a plane's inner */
    int64_t rows, strips; /* planes: planes of a part */
    int64_t blocks;       /* of columns */
    int64_t parts;        /* of a column: spans * strips */
    int64_t tasks;
} ek_norm_cut;

/* What becomes of means and variances, as kernels.h's ek_norm_update: dense, by index, or NULL. */
typedef struct ek_norm_updating {
    bool inverts; /* variances turn into 1 / sqrt(variance + eps) */
    void *running_mean, *running_var;
    double eps, momentum, unbiased; /* unbiased: count / (count - 1) */
    const int64_t *average;
    int64_t *batches;
} ek_norm_updating;

/* What follows from sums of channels, as in kernels.h's ek_norm_sums; scale NULL: nothing. */
typedef struct ek_norm_line {
    const void *weight;
    void *scale, *shift, *slope;
    double share; /* -1 / values */
} ek_norm_line;

typedef struct ek_cuda_norm {
    ek_dtype dtype; /* of x, dy, mask and y */
    bool planes;
    int64_t samples;  /* with statistics of their own; 1 for batch norm */
    int64_t channels; /* columns of a sample */
    int64_t each;     /* channels of a group */
    int64_t rows;     /* of a sample; of planes: `outer` */
    int64_t inner;    /* elements of a plane; rows: 1, or of elements, those of a group */
    ek_norm_cut cut;
    ek_norm_operand x, dy, mask, y; /* mask: the ReLU's output or NULL; y: also dx */
    /* Dense and in the type that is computed in (f64 for f64, else f32); NULL if absent.
     * Statistics and sums by sample and group. */
    const void *mean, *invstd, *weight, *bias, *sum, *sum_xhat;
    bool element; /* weight and bias: one for each element of a sample's planes; else per channel */
    bool relu;
    bool weighted; /* gradient: the sums don't contain the weight yet (batch norm) */
    double share;  /* gradient: what the sums are multiplied with: 1 / values */
    /* Partial sums by sample, part and column; or NULL: there is one part of each column and one
     * column of each group, so that sums are results. */
    double *first, *second;
    /* Results of sums, of the type that is computed in: by sample and group, and per column over
     * all samples. Either pair may be NULL. */
    void *by_group[2], *by_column[2];
    ek_norm_updating update; /* moments: for by_group */
    ek_norm_line line;       /* sums: for by_group, of single channels */
} ek_cuda_norm;

/* mean and (biased) variance into by_group, with what becomes of them; partial ones are joined */
int ek_cuda_launch_norm_moments(const ek_cuda_stream *stream, const ek_cuda_norm *norm);
/* sum of dy and of dy (x - mean) into partial sums, or with the latter times invstd into by_group.
 * With `element` dy is multiplied with weight. */
int ek_cuda_launch_norm_reduce(const ek_cuda_stream *stream, const ek_cuda_norm *norm);
/* The same for columns of elements, over samples; the cut is that of rows, which are the samples;
 * `each` elements share a mean. */
int ek_cuda_launch_norm_elements(const ek_cuda_stream *stream, const ek_cuda_norm *norm);
/* y = (x - mean) invstd weight + bias */
int ek_cuda_launch_norm_apply(const ek_cuda_stream *stream, const ek_cuda_norm *norm);
/* y = invstd weight dy - shift - (x - mean) slope; without sums x isn't read; invstd NULL is 1 */
int ek_cuda_launch_norm_gradient(const ek_cuda_stream *stream, const ek_cuda_norm *norm);

/* Partial sums into results. Sums: by_group multiplies with weight (per channel; never with
 * `element`) and the second with invstd; by_column the second with invstd, if there is one. */
int ek_cuda_launch_norm_join_groups(const ek_cuda_stream *stream, const ek_cuda_norm *norm);
int ek_cuda_launch_norm_join_columns(const ek_cuda_stream *stream, const ek_cuda_norm *norm);

/* Moments of chunks, of f64 or f32, from chunk to chunk by steps, and what they are merged into. */
typedef struct ek_norm_merging {
    int64_t channels;
    int chunks;
    double shares[EK_MAX_DEVICES];
    const void *means, *vars;
    int64_t means_step, vars_step;
    void *mean, *invstd;
    ek_norm_updating update;
} ek_norm_merging;

int ek_cuda_launch_norm_merge(const ek_cuda_stream *stream, bool wide,
                              const ek_norm_merging *merging);

EK_END_DECLARATIONS
#endif
