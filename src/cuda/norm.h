/* norm.h: the passes over memory that the slots of normalisation (norm.c) make. norm_plan.c chooses
 * how threads share a pass, norm.cuh has the kernel, norm_sums.cu and norm_line.cu what it
 * computes, norm_join.cu the joins. norm_row.cu normalises rows that registers hold.
 *
 * A column is a set of elements with separate sums: a channel of the batch (batch norm), or a
 * channel of one sample (group norm), whose sums are joined by group afterwards. Memory has one of
 * two forms. Rows are C contiguous channels each (channels-last, and (N, C)). Planes are contiguous
 * runs of `inner` elements, for each of `outer` samples and C channels. Layer norm uses planes,
 * too: each group is one channel, with weights per element.
 *
 * Blocks of threads compute sums over parts of a column's elements. The parts' sums are joined in
 * f64 in a fixed order. How columns are cut follows from the shape alone. */
#ifndef EK_CUDA_NORM_H
#define EK_CUDA_NORM_H

#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

/* An operand. Strides count elements. Rows use `sample` and `row`. Planes use `sample`, `row` (from
 * one of `outer` to the next) and `channel`. */
typedef struct ek_norm_operand {
    void *data; /* NULL if absent */
    int64_t sample, row, channel;
} ek_norm_operand;

/* How threads share the work. The threads of a block are teams of neighbours. Blocks take tasks in
 * turn. In rows, a task is `span` rows of `team` vectors of columns; a thread has one of these
 * vectors, and teams take rows in turn. In planes, a task is one part of as many columns as a block
 * has teams; a part is `span` elements of `rows` planes, and the threads of a team take the part's
 * vectors in turn. */
typedef struct ek_norm_cut {
    int team;
    int vector;          /* elements that are loaded at once */
    int64_t span, spans; /* rows, or elements of a plane, in a part; the number of spans */
    int64_t rows;        /* planes of a part */
    int64_t blocks;      /* blocks of columns */
    int64_t parts;       /* parts of a column */
    int64_t tasks;
    int values; /* rows in registers: elements of a thread; `parts` is the number of blocks */
} ek_norm_cut;

/* The values of a row that a thread keeps: EK_NORM_SHORT if a block's threads then have the row,
 * else EK_NORM_LONG, or half of that for f64 and for vectors of one element. */
enum { EK_NORM_SHORT = 8, EK_NORM_LONG = 32 };

/* What moments compute from means and variances: ek_norm_update of kernels.h, with dense arrays. */
typedef struct ek_norm_updating {
    bool inverts; /* variances are replaced by 1 / sqrt(variance + eps) */
    void *running_mean, *running_var;
    double eps, momentum, unbiased; /* `unbiased` is count / (count - 1) */
    const int64_t *average;
    int64_t *batches;
} ek_norm_updating;

/* What is computed from sums of channels: the line of ek_norm_sums in kernels.h. If scale is NULL,
 * there is no line. */
typedef struct ek_norm_line {
    const void *weight;
    void *scale, *shift, *slope;
    double share; /* -1 / values */
} ek_norm_line;

typedef struct ek_cuda_norm {
    ek_dtype dtype; /* dtype of x, dy, mask and y */
    bool planes;
    int64_t samples;  /* samples with separate statistics; 1 for batch norm */
    int64_t channels; /* columns of a sample */
    int64_t each;     /* channels of a group */
    int64_t rows;     /* rows of a sample; for planes `outer` */
    int64_t inner; /* elements of a plane; 1 for rows; elements of a group for sums per element */
    ek_norm_cut cut;
    /* mask is the ReLU's output or NULL; y is also dx. Rows in registers: forward has the residual
     * as dy and the sum of x and the residual as mask; backward has the residual as mask. */
    ek_norm_operand x, dy, mask, y;
    ek_dtype residual; /* rows in registers, forward: the residual's dtype */
    /* Dense arrays of the computing type (f64 for f64, else f32), or NULL. Statistics and sums are
     * indexed by sample and group. */
    const void *mean, *invstd, *weight, *bias, *sum, *sum_xhat;
    /* weight and bias have one value per element of a sample; if false, per channel */
    bool element;
    bool relu;
    bool weighted; /* gradient: the sums don't contain the weight yet (batch norm) */
    double share;  /* gradient: the factor of the sums, 1 / values */
    /* Partial sums by sample, part and column. They are NULL if each column has one part and each
     * group one column, so that sums are results. */
    double *first, *second;
    /* Results of sums, of the computing type: by sample and group, and per column over all samples.
     * Either pair may be NULL. */
    void *by_group[2], *by_column[2];
    ek_norm_updating update; /* moments: computed from by_group */
    ek_norm_line line;       /* sums: computed from by_group, whose groups are single channels */
} ek_cuda_norm;

/* ---- plans: norm_plan.c ---- */

/* The form of a tensor in memory. Runs are forms of planes. */
typedef enum ek_norm_form {
    EK_NORM_ROWS,    /* channels are innermost, the other dimensions one run of equal strides */
    EK_NORM_PLANES,  /* dimensions from 2 on are row-major without gaps */
    EK_NORM_RUN,     /* dimensions from 1 on are row-major without gaps */
    EK_NORM_RUN_LAST /* EK_NORM_RUN with dimension 1 innermost */
} ek_norm_form;

struct ek_norm_geometry; /* kernels/norm.h */

/* Chooses the form for x, dy, the ReLU's output and y (NULL if absent), and sets the geometry of
 * `norm`. If `runs`, each group is one run. */
ek_norm_form ek_cuda_norm_choose(ek_cuda_norm *norm, const ek_tensor *const tensors[4],
                                 const struct ek_norm_geometry *g, bool runs);
/* Returns true if the tensor has the form. If `batch`, the rows of all samples must be one run. */
bool ek_cuda_norm_fits(const ek_tensor *t, ek_norm_form form, bool batch);
/* Returns the operand for a tensor that has the form. `inner` is norm->inner. */
ek_norm_operand ek_cuda_norm_operand(const ek_tensor *t, ek_norm_form form, bool batch,
                                     int64_t inner);
void ek_cuda_norm_cut_sums(ek_cuda_norm *norm);
void ek_cuda_norm_cut_line(ek_cuda_norm *norm, int multiprocessors);
/* Returns the elements of the longest row that registers hold. */
int64_t ek_cuda_norm_longest_row(ek_dtype dtype);
/* Cuts samples that are rows over teams of threads. Returns false if registers don't hold a row. */
bool ek_cuda_norm_cut_row(ek_cuda_norm *norm);

/* ---- launches ---- */

typedef int ek_cuda_norm_launch(const ek_cuda_stream *stream, const ek_cuda_norm *norm);

/* Compute partial sums of columns, or, if `first` is NULL, results in by_group: mean and (biased)
 * variance, from which `update` is computed; or the sums of dy and of dy * (x - mean) invstd, from
 * which `line` is computed. If `element`, dy is multiplied by weight. */
ek_cuda_norm_launch ek_cuda_launch_norm_moments, ek_cuda_launch_norm_sums;
/* Computes sums over samples, with elements as columns and the cut of rows. `each` elements share a
 * mean. Results are written to by_column. */
ek_cuda_norm_launch ek_cuda_launch_norm_elements;
/* Join partial results into by_group, or those of all samples into by_column. The second sum is
 * multiplied by invstd, if there is one. Sums by group are multiplied by weight per channel. */
ek_cuda_norm_launch ek_cuda_launch_norm_join_moments, ek_cuda_launch_norm_join_groups,
    ek_cuda_launch_norm_join_columns;
/* Writes y = (x - mean) * invstd * weight + bias. With dy it writes
 *
 *     dx = invstd * weight * dy - shift - (x - mean) * slope
 *
 * to y. Shift and slope follow from the sums. Without sum_xhat they are 0, and x isn't read. */
ek_cuda_norm_launch ek_cuda_launch_norm_line;
/* Normalise samples that are rows of `inner` elements. norm_row writes the statistics to by_group,
 * too; without a mean it computes RMS norm. norm_row_gradient writes a partial sum of each block
 * per element if `first` isn't NULL, and dx if y isn't NULL. */
ek_cuda_norm_launch ek_cuda_launch_norm_row, ek_cuda_launch_norm_row_gradient;

/* Moments of chunks (f64 or f32), the steps from chunk to chunk, and what they are merged into. */
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
