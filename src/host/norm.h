/* norm.h: the passes over memory that the slots of normalisation share (norm_pass.c, norm_loops.c),
 * and the slots over rows with parameters per element (norm_rows.c).
 *
 * Sums and parameters are per column: a channel of the whole batch (batch norm) or of one sample
 * (group norm). Memory is rows or planes. Rows are `rows` of C contiguous channels (channels-last,
 * and (N, C)). If C is small and rows follow each other without gaps, `lanes` of them are joined to
 * one row of lanes * C elements, so that loops over a row are long enough for vectors; a joined
 * row's parameters are those of the C channels, repeated `lanes` times. Planes are contiguous runs
 * of `inner` elements, for each of `outer` samples and C channels. A plan describes the whole
 * batch, or one of `samples` samples (`outer` is 1 then). */
#ifndef EK_HOST_NORM_H
#define EK_HOST_NORM_H

#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/formulas.h"
#include "kernels/kernels.h"
#include "kernels/norm.h"
#include "kernels/stage.h"

typedef struct ek_norm_plan {
    int64_t samples, sample_stride; /* samples with columns of their own; 1 for the batch */
    int64_t channels;
    bool planes;
    /* rows */
    int64_t rows, row_stride;   /* number of joined rows; elements from one to the next */
    int64_t lanes, width;       /* width = lanes * channels */
    int64_t rest;               /* elements after the last joined row (lanes > 1) */
    int64_t block_rows, blocks; /* blocks of a sample's rows */
    /* planes */
    int64_t outer, outer_stride, channel_stride, inner;
} ek_norm_plan;

enum {
    EK_NORM_COLUMNS = 256, /* channels of one task */
    EK_NORM_LANES = 64     /* elements of a joined row */
};

/* The number of rows that are summed in the tensor's own type before they join the sums in f64. */
static inline int64_t ek_norm_short_rows(int64_t columns)
{
    int64_t rows = 3072 / (columns > 0 ? columns : 1);
    return rows > 32 ? 32 : rows < 8 ? 8 : rows;
}

/* The number of rows between the one that a loop reads and the one that it fetches: 512 elements,
 * which arrive in time and don't push each other out of the first cache. */
static inline int64_t ek_norm_rows_ahead(int64_t columns)
{
    return (511 + columns) / (columns > 0 ? columns : 1);
}

/* The operands of a pass. */
typedef struct ek_norm_job {
    ek_norm_plan plan;
    const void *x, *dy, *mask;                  /* mask: y_relu or NULL */
    void *y;                                    /* y or dx */
    const void *center, *scale, *shift, *slope; /* parameters, [sample][width], or NULL */
    double *first, *second;                     /* partial sums, [sample][block][width] */
    bool relu;
} ek_norm_job;

/* The tensors of a pass. Only the first is written. */
enum { EK_NORM_OUT, EK_NORM_X, EK_NORM_DY, EK_NORM_MASK, EK_NORM_TENSORS };
enum { EK_NORM_CENTER, EK_NORM_SCALE, EK_NORM_SHIFT, EK_NORM_SLOPE, EK_NORM_PARAMETERS };

/* The unit that has sums of its own. */
typedef enum ek_norm_parts {
    EK_NORM_BATCH,   /* a channel of the batch */
    EK_NORM_SAMPLES, /* a channel of a sample */
    EK_NORM_ROWS /* a sample, which is one run; a long run is cut into equal pieces, which count as
                    channels */
} ek_norm_parts;

/* One pass: its tensors in one layout that has a plan, in f32, f64 or (if all are) bf16. */
typedef struct ek_norm_pass {
    ek_dev *dev;
    bool is_f64, is_bf16;
    ek_stage stage[EK_NORM_TENSORS];
    ek_norm_job job;
    void *room, *parameters; /* workspace: partial sums, then repeated parameters */
    size_t room_bytes;
} ek_norm_pass;

/* Begins a pass. out, dy and mask may be NULL. Only out is stored back. */
int ek_norm_pass_begin(ek_norm_pass *pass, ek_dev *dev, const ek_tensor *out, const ek_tensor *x,
                       const ek_tensor *dy, const ek_tensor *mask, ek_norm_parts parts);
/* Stores out and frees the workspace. Returns rc if that is an error. */
int ek_norm_pass_end(ek_norm_pass *pass, int rc);
/* For EK_NORM_ROWS: cuts a sample into another number of pieces, which divides its length. */
void ek_norm_pass_cut(ek_norm_pass *pass, int64_t pieces);

/* Allocates the workspace for partial sums and for parameters. Ends the pass on error. */
int ek_norm_pass_take_room(ek_norm_pass *pass, bool sums, bool parameters);
/* Sets one parameter of a column. */
void ek_norm_pass_set(ek_norm_pass *pass, int parameter, int64_t sample, int64_t c, double value);

/* Sums dy and dy * (x - center) by column. With a mask, only elements count whose mask is positive
 * or NaN. Without dy, the sums are moments of x. */
void ek_norm_pass_sum(ek_norm_pass *pass);
typedef struct ek_moments {
    double count, mean, deviation; /* deviation: the sum of (x - mean)^2 */
} ek_moments;
ek_moments ek_norm_moments(const ek_norm_pass *pass, int64_t sample, int64_t c);
void ek_norm_sums_of(const ek_norm_pass *pass, int64_t sample, int64_t c, double *first,
                     double *second);

/* Writes scale * dy - shift - (x - center) * slope, or scale * dy if shift and slope are NULL.
 * Without dy it writes (x - center) * scale + shift, and with `relu` 0 for negative values. */
void ek_norm_pass_apply(ek_norm_pass *pass);

/* The loops of norm_loops.c, each over a part of an ek_norm_job. The sum loops fill `first` and
 * `second`, the line loops write y or dx. */
ek_parallel_body ek_norm_sum_rows_f32, ek_norm_sum_rows_f64, ek_norm_sum_rows_bf16;
ek_parallel_body ek_norm_sum_planes_f32, ek_norm_sum_planes_f64, ek_norm_sum_planes_bf16;
ek_parallel_body ek_norm_line_rows_f32, ek_norm_line_rows_f64, ek_norm_line_rows_bf16;
ek_parallel_body ek_norm_line_planes_f32, ek_norm_line_planes_f64, ek_norm_line_planes_bf16;

/* ---- values of a channel, sample or group ---- */

/* The offset of element i in row-major order. Tensors of two dimensions are contiguous. */
static inline int64_t ek_norm_offset(const ek_tensor *tensor, int64_t i)
{
    return tensor->ndim == 1 ? i * tensor->stride[0] : i;
}

/* Element i; `otherwise` if the tensor is NULL. Parameters may be bf16 or f16. */
static inline double ek_norm_value(const ek_tensor *tensor, int64_t i, double otherwise)
{
    if (!tensor)
        return otherwise;
    const void *data = ek_tensor_address(tensor);
    int64_t at = ek_norm_offset(tensor, i);
    return tensor->dtype == EK_F32 ? (double)((const float *)data)[at]
           : tensor->dtype == EK_F64
               ? ((const double *)data)[at]
               : (double)ek_float_of_narrow(tensor->dtype, ((const uint16_t *)data)[at]);
}

static inline void ek_norm_store(ek_tensor *out, int64_t i, double value)
{
    void *data = ek_tensor_address(out);
    if (out->dtype == EK_F64)
        ((double *)data)[ek_norm_offset(out, i)] = value;
    else
        ((float *)data)[ek_norm_offset(out, i)] = (float)value;
}

/* ---- slots for rows with parameters per element ---- */

int ek_norm_rows_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                       const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias);
int ek_norm_rows_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_tensor *dy,
                        const ek_tensor *x, const ek_tensor *mean, const ek_tensor *invstd,
                        const ek_tensor *weight);
int ek_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                          const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight,
                          const ek_tensor *sum, const ek_tensor *sum_xhat);

#endif
