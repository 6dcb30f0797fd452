/* conv.h: this library's algorithms of convolution. conv.c chooses among them and oneDNN's. In an
 * input gradient x and y are gradients; in a weight gradient w, bias and y are. x, w and y are
 * channels-last, bias is contiguous or NULL. */
#ifndef EK_HOST_CONV_H
#define EK_HOST_CONV_H

#include "host/dnn.h"

/* Computes f32 or f64 by matrix products over columns (im2col), with any parameters. Tensors may be
 * empty. */
int ek_conv_columns(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

/* Writes the sum of y's gradient over all dimensions but its channels to bias. Any dtype; y may be
 * empty. */
int ek_conv_bias_gradient(ek_dev *dev, const ek_tensor *bias, const ek_tensor *y);

/* ---- f32 or bf16 images, read in place, for processors with AVX2 and FMA ---- */

/* Returns true if ek_conv_implicit can compute this convolution on this processor in f32 or bf16:
 * two dimensions, one group; in bf16, an even number of channels; for the weight gradient, channels
 * of x that fill a kernel's columns. Layouts don't matter. */
bool ek_conv_implicit_can(ek_conv_kind kind, ek_dtype dtype, const ek_tensor *x, const ek_tensor *y,
                          const ek_conv_params *params);
bool ek_conv_implicit_weight_can(ek_dtype dtype, const ek_tensor *x);

/* Both return true if ek_conv_implicit can compute this convolution, in f32 and in bf16, and was
 * measured to be faster than ek_dnn_conv. */
bool ek_conv_implicit_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *y, const ek_conv_params *params);
bool ek_conv_implicit_bf16_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                                const ek_tensor *y, const ek_conv_params *params);

/* Computes f32, or bf16 with sums in f32. No tensor is empty. */
int ek_conv_implicit(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                     const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);
int ek_conv_implicit_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *bias, const ek_tensor *y,
                            const ek_conv_params *params);

/* ---- windows of one element, without padding ---- */

/* Returns true for two dimensions, one group, windows of one element without padding, and f32, bf16
 * or f16. Layouts don't matter. */
bool ek_conv_point_can(const ek_tensor *x, const ek_tensor *w, const ek_conv_params *params);

/* Computes the weight gradient in f32. No tensor is empty. */
int ek_conv_point_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w, const ek_tensor *bias,
                         const ek_tensor *y, const ek_conv_params *params);

/* ---- f32 images by Winograd's algorithms: winograd.h ---- */

/* Returns true if ek_conv_winograd can compute this convolution. Layouts don't matter. */
bool ek_conv_winograd_can(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                          const ek_conv_params *params);

/* Returns the side of the tiles with which ek_conv_winograd is faster than the other algorithms: 2,
 * or 4 if larger errors are allowed (ek_allow_fast_convolution); 0 if it isn't faster. */
int ek_conv_winograd_side(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                          const ek_tensor *y, const ek_conv_params *params);

/* Computes f32 by tiles of side x side outputs. `side` is 2, or 4 for windows of 3 x 3 with stride
 * 1. No tensor is empty. */
int ek_conv_winograd(ek_dev *dev, ek_conv_kind kind, int side, const ek_tensor *x,
                     const ek_tensor *w, const ek_tensor *bias, const ek_tensor *y,
                     const ek_conv_params *params);

#endif
