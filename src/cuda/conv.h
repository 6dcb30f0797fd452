/* conv.h: convolution without cuDNN (conv_direct.c). The three functions support all arguments of
 * the slots conv_forward, conv_input_gradient and conv_weight_gradient (kernels/kernels.h). */
#ifndef EK_CUDA_CONV_H
#define EK_CUDA_CONV_H

#include "cuda/view.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

struct ek_dev;
int ek_cuda_conv_direct_forward(struct ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                                const ek_tensor *w, const ek_tensor *bias,
                                const ek_conv_params *params);
int ek_cuda_conv_direct_input_gradient(struct ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                       const ek_tensor *w, const ek_conv_params *params);
int ek_cuda_conv_direct_weight_gradient(struct ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                        const ek_tensor *x, const ek_tensor *dy,
                                        const ek_conv_params *params);

/* Returns a vector (C) as a tensor of `like`'s dimensions, without a copy. If `reduced`, all sizes
 * but that of dimension 1 are 1; otherwise the shape is `like`'s and values repeat. */
ek_tensor ek_cuda_conv_along_channels(const ek_tensor *vector, const ek_tensor *like, bool reduced);
/* Sets dbias to the sums of dy over all dimensions but dimension 1. */
int ek_cuda_conv_sum_channels(struct ek_dev *dev, const ek_tensor *dbias, const ek_tensor *dy);

/* ---- the kernels' arguments ---- */

/* What forward and the input gradient compute: each element of `to` is a sum over the taps of the
 * window and, in `from`, the channels of its group. By tap t, position i of `to` reads position
 * q / divide of `from`, with
 *
 *     q = origin + i * row_step + t * tap_step,
 *
 * if divide divides q and the result lies inside. (origin, row_step, tap_step, divide) is
 * (-padding, stride, dilation, 1) for forward, and (padding, 1, -dilation, stride) for the input
 * gradient. The weights' gradient has forward's, with dy as `to`: each element of w is a sum over
 * the positions of `to`.
 *
 * As a matrix, what `from` contributes has a row for each position of `to`, with groups * depth
 * columns: for each group the channels of each tap, or the taps of each channel if taps_inside. */
typedef struct ek_cuda_conv_gather {
    ek_cuda_image from, to;
    void *w;
    const void *bias;                           /* bias may be NULL */
    int64_t groups, from_channels, to_channels; /* channels of a group */
    int64_t taps[3], origin[3], row_step[3], tap_step[3], divide[3];
    int64_t w_group, w_from, w_to, w_tap[3], by_bias; /* strides of w and bias */
    int64_t depth;
    bool taps_inside;
    ek_cuda_divider per_from, per_to, per_taps[3], per_row; /* per_row divides by a row's columns */
    bool wide;
    /* The weights' gradient: positions are cut into `parts`, whose sums are written to `partials`
     * as (output, column), in f64 for f64 and else in f32. If there is one part, its sums are the
     * result. */
    void *partials;
    int64_t rows, parts, part_rows;
} ek_cuda_conv_gather;

int ek_cuda_launch_conv_gather(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv);
/* Writes rows [first, first + rows) of the matrix, in f64 for f64 and else in f32. There are fewer
 * than 2^31 elements, and conv->wide is false. */
int ek_cuda_launch_conv_columns(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv,
                                int64_t first, int64_t rows, void *columns);
/* Sets rows, parts and part_rows. Returns the bytes of partials. */
size_t ek_cuda_conv_weights_plan(const ek_cuda_stream *stream, ek_cuda_conv_gather *conv);
int ek_cuda_launch_conv_weights(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv);

/* y[i] += bias[i / inner % channels] over `count` contiguous elements of a floating dtype: inner is
 * 1 in channels-last memory, and the size of a plane in row-major memory. */
int ek_cuda_launch_bias(const ek_cuda_stream *stream, ek_dtype dtype, void *y, const void *bias,
                        int64_t bias_stride, int64_t count, int64_t inner, int64_t channels);

EK_END_DECLARATIONS
#endif
