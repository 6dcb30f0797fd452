/* conv.h: convolution by this library's kernels, if cuDNN is missing or has no engine. The three
 * functions support all arguments of the slots conv_forward, conv_input_gradient and
 * conv_weight_gradient (kernels/kernels.h). */
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

/* ---- the kernels' arguments ---- */

/* The arguments of forward and of the input gradient, which are one computation. Every element of
 * `to` is a sum over the taps of the window and, in `from`, the channels of its group. By tap t,
 * position i of `to` reads position q / divide of `from`, with
 *
 *     q = origin + i * row_step + t * tap_step,
 *
 * if divide divides q and the result lies inside. (origin, row_step, tap_step, divide) is
 * (-padding, stride, dilation, 1) for forward, and (padding, 1, -dilation, stride) for the input
 * gradient. */
typedef struct ek_cuda_conv_gather {
    ek_cuda_image from, to;
    const void *w, *bias;                       /* of the images' dtype; bias may be NULL */
    int64_t groups, from_channels, to_channels; /* channels of a group */
    int64_t taps[3], origin[3], row_step[3], tap_step[3], divide[3];
    int64_t w_group, w_from, w_to, w_tap[3], by_bias; /* strides of w and bias */
    ek_cuda_divider per_from, per_to;                 /* dividers by the channels of a group */
    bool wide;
} ek_cuda_conv_gather;

int ek_cuda_launch_conv_gather(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv);

/* The arguments of the gradients of weights and bias, which are computed in two steps. First the
 * rows (positions of y in all samples) are cut into `parts`, and the sums of each part are written
 * to `partials` as (outputs, columns), in f64 for f64 and else in f32. Then the parts are added. A
 * column is an input channel of a tap, channels innermost. If there is a bias, it is the last
 * column. If there is one part, its sums are the result. */
typedef struct ek_cuda_conv_weights {
    ek_cuda_image x, y;
    void *w, *bias;
    int64_t groups, channels, outputs; /* sizes of a group */
    int64_t taps[3], stride[3], padding[3], dilation[3];
    int64_t w_output, w_channel, w_tap[3], by_bias; /* strides of w and bias */
    ek_cuda_divider per_outputs, per_channels, per_taps[3];
    int64_t rows, columns; /* columns without the bias's */
    void *partials;
    int64_t parts, part_rows;
    bool tiles; /* tiles of products; if false, single sums */
    bool wide;
} ek_cuda_conv_weights;

/* Sets tiles, parts and part_rows. Returns the bytes of partials. */
size_t ek_cuda_conv_weights_plan(const ek_cuda_stream *stream, ek_cuda_conv_weights *conv);
int ek_cuda_launch_conv_weights(const ek_cuda_stream *stream, const ek_cuda_conv_weights *conv);

/* y[i] += bias[i / inner % channels] over `count` contiguous elements of a floating dtype: inner is
 * 1 in channels-last memory, and the size of a plane in row-major memory. */
int ek_cuda_launch_bias(const ek_cuda_stream *stream, ek_dtype dtype, void *y, const void *bias,
                        int64_t bias_stride, int64_t count, int64_t inner, int64_t channels);

EK_END_DECLARATIONS
#endif
