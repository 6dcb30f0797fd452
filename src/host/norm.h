/* norm.h: a pass over memory, which a slot of normalisation (norm.c) makes. norm_pass.c has its
 * geometry and workspace, norm_loops.c its loops over rows and planes. Statistics whose parameters
 * are per element (layer norm) are computed by norm_rows.c instead.
 *
 * Sums and parameters are per column: a channel of the whole batch (batch norm), or a channel of
 * one sample (group norm).
 * Memory is rows or planes. Rows are `rows` of C contiguous channels (channels-last, and (N, C)).
 * If C is small and rows follow each other without gaps, `lanes` of them are joined to one row of
 * lanes * C elements, so that loops over a row are long enough for vectors. A joined row has the
 * parameters of its C channels `lanes` times. Planes are contiguous runs of `inner` elements, for
 * each of `outer` samples and C channels. A plan describes the whole batch (`samples` is 1), or
 * each of `samples` samples. */
#ifndef EK_HOST_NORM_H
#define EK_HOST_NORM_H

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/kernels.h"
#include "kernels/norm.h"
#include "kernels/stage.h"
#include "kernels/walk.h"

typedef struct ek_norm_plan {
    int64_t samples, sample_stride; /* Samples whose columns are separate; 1 for the batch. */
    int64_t channels;               /* A sample's columns. */
    int64_t groups, each;           /* A sample's statistics, and the columns of each. */
    int64_t blocks;                 /* Parts of a column that are summed separately. */
    bool planes;
    /* Rows. */
    int64_t rows, row_stride; /* Number of joined rows, and elements from one to the next. */
    int64_t lanes, width;     /* The width is lanes * channels; of planes, channels. */
    int64_t rest;             /* Elements after the last joined row (lanes > 1). */
    int64_t block_rows;       /* Rows of a block. */
    /* Planes. */
    int64_t outer, outer_stride, channel_stride, inner;
} ek_norm_plan;

enum {
    EK_NORM_COLUMNS = 256, /* Channels of one task. */
    EK_NORM_LANES = 64     /* Elements of a joined row. */
};

/* The tensors of a pass. Only the first is written. */
enum { EK_NORM_OUT, EK_NORM_X, EK_NORM_DY, EK_NORM_MASK, EK_NORM_TENSORS };
enum {
    EK_NORM_CENTER,
    EK_NORM_SCALE,
    EK_NORM_SHIFT,
    EK_NORM_SLOPE,
    EK_NORM_BIAS, /* The bias, if y is computed again for the ReLU's mask. */
    EK_NORM_PARAMETERS
};

/* One pass. Its tensors have one layout and one dtype: f64, f32, or bf16 if all are bf16.
 * Parameters are f64 for f64, else f32. */
typedef struct ek_norm_pass {
    ek_dev *dev;
    const ek_norm_args *args;
    bool batch;               /* Columns are channels of the batch. */
    const ek_norm_sums *sums; /* Sums by group and by parameter are stored here, or NULL. */
    ek_tensor *moments[2];    /* Mean and variance are stored here, or NULL. */
    bool is_f64, is_bf16;
    bool again; /* The ReLU's mask is computed from x, and EK_NORM_MASK is absent. */
    ek_norm_plan plan;
    ek_stage stage[EK_NORM_TENSORS];
    void *data[EK_NORM_TENSORS];          /* NULL if absent. */
    void *parameters[EK_NORM_PARAMETERS]; /* Indexed by [sample][width]. */
    double *first, *second;               /* Partial sums, indexed by [sample][block][width]. */
    void *room;                           /* The workspace of all the arrays above. */
    size_t room_bytes;
} ek_norm_pass;

/* Begins a pass whose first five members are set, over x, dy and y_relu of args and out, which may
 * be NULL. `groups` is the number of statistics of a sample. */
int ek_norm_pass_begin(ek_norm_pass *pass, int64_t groups, const ek_tensor *out);
/* Stores out if rc isn't an error, and frees the workspace. Returns rc, or an error of the
 * store. */
int ek_norm_pass_end(ek_norm_pass *pass, int rc);

/* Sets the parameters of a column: center, scale, shift, slope, bias. */
void ek_norm_pass_set(ek_norm_pass *pass, int64_t sample, int64_t c,
                      const double of[EK_NORM_PARAMETERS]);

/* Sums dy and dy * (x - center) by column. With a mask, only elements count whose mask is positive
 * or NaN. Without dy, the sums are moments of x. */
void ek_norm_pass_sum(ek_norm_pass *pass);
typedef struct ek_moments {
    double count, mean, deviation; /* The deviation is the sum of (x - mean)^2. */
} ek_moments;
/* Returns the moments of the values of a and b together (Chan et al. 1983). */
static inline ek_moments ek_moments_join(ek_moments a, ek_moments b)
{
    if (b.count == 0)
        return a;
    const double count = a.count + b.count, delta = b.mean - a.mean, part = b.count / count;
    return (ek_moments){count, a.mean + delta * part,
                        a.deviation + b.deviation + delta * delta * a.count * part};
}
/* Returns where the moments or sums of a sample's first column lie in `first` and `second`. */
static inline int64_t ek_norm_columns_at(const ek_norm_pass *pass, int64_t sample)
{
    return sample * pass->plan.blocks * pass->plan.width;
}

/* Writes scale * dy - shift - (x - center) * slope, or scale * dy if args->sum_xhat is NULL.
 * Without dy writes (x - center) * scale + shift, and with `relu` 0 for negative values. */
void ek_norm_pass_line(ek_norm_pass *pass);

/* ---- for the loops ---- */

/* Returns true if the line of y is cut by a ReLU at x. It rounds as the line's loop does. */
#define EK_NORM_CUT(x, center, scale, bias) (((x) - (center)) * (scale) + (bias) <= 0)

/* Return the number of rows of a block, and of their columns. The elements after the last joined
 * row are a block of one row. */
static inline int64_t ek_norm_block_rows(const ek_norm_plan *plan, int64_t block)
{
    int64_t first = block * plan->block_rows;
    return first < plan->rows ? ek_smaller(plan->rows - first, plan->block_rows) : 1;
}

static inline int64_t ek_norm_block_width(const ek_norm_plan *plan, int64_t block)
{
    return block * plan->block_rows < plan->rows ? plan->width : plan->rest;
}

/* Returns the number of rows that are summed in the tensor's own type before their sum is added in
 * f64. */
static inline int64_t ek_norm_short_rows(int64_t columns)
{
    int64_t rows = 3072 / (columns > 0 ? columns : 1);
    return rows > 32 ? 32 : rows < 8 ? 8 : rows;
}

/* Returns the number of rows from the row that a loop reads to the row that it prefetches: 512
 * elements, which arrive in time and don't displace each other in the level 1 cache. */
static inline int64_t ek_norm_rows_ahead(int64_t columns)
{
    return (511 + columns) / (columns > 0 ? columns : 1);
}

/* The loops, each over a part of a pass's tasks. The sum loops fill `first` and `second`, the line
 * loops write y or dx. */
ek_parallel_body ek_norm_sum_rows_f32, ek_norm_sum_rows_f64, ek_norm_sum_rows_bf16;
ek_parallel_body ek_norm_sum_planes_f32, ek_norm_sum_planes_f64, ek_norm_sum_planes_bf16;
ek_parallel_body ek_norm_line_rows_f32, ek_norm_line_rows_f64, ek_norm_line_rows_bf16;
ek_parallel_body ek_norm_line_planes_f32, ek_norm_line_planes_f64, ek_norm_line_planes_bf16;

/* ---- runs: groups whose elements have a parameter each (ek_norm_has_runs), as the kernels of the
 * table norm them. They return 0 or an error. ---- */

/* Writes the statistics of x to mean and invstd; with a negative eps, the variance instead of
 * invstd. An invstd of NULL means that those of args are read. Writes y if it isn't NULL. */
int ek_norm_runs(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                 const ek_norm_args *args, double eps);
/* Writes dx, which may be NULL, and `sums`. With `adds`, computes the sums of weight dy and weight
 * dy xhat, else reads those of args. */
int ek_norm_runs_gradient(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                          const ek_norm_args *args, bool adds);

#endif
