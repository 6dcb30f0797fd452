/* conv.h: this library's algorithms of convolution. conv.c chooses among them and oneDNN's. x, w
 * and y are channels-last, a bias is contiguous. The layouts of what only a choice looks at don't
 * matter. */
#ifndef EK_HOST_CONV_H
#define EK_HOST_CONV_H

#include "host/dnn.h"

/* Writes the sum of y's gradient over all dimensions but its channels to bias. Any dtype; y may be
 * empty. */
int ek_conv_bias_gradient(ek_dev *dev, const ek_tensor *bias, const ek_tensor *y);

/* ---- matrix products over columns (im2col) ---- */

/* Returns true if ek_conv_columns can compute this convolution in the dtype on this processor: all
 * of f32 and f64; in bf16, if the processor multiplies that, with an even number of channels. */
bool ek_conv_columns_can(const ek_conv *conv, ek_dtype dtype);

/* Computes f32, f64, or bf16 with sums in f32, with any parameters. Tensors may be empty. In a
 * weight gradient padding is zeros that are multiplied: by infinities they give NaN. */
int ek_conv_columns(ek_dev *dev, const ek_conv *conv);

/* ---- windows of one element, without padding ---- */

/* Returns true for two dimensions, one group, windows of one element without padding, and f32, bf16
 * or f16. */
bool ek_conv_point_can(const ek_conv *conv);

/* Computes the weight gradient in f32. No tensor is empty. */
int ek_conv_point_weight(ek_dev *dev, const ek_conv *conv);

/* ---- f32 images by Winograd's algorithms: winograd.h ---- */

/* Returns true if ek_conv_winograd can compute this convolution. */
bool ek_conv_winograd_can(const ek_conv *conv);

/* Returns the side of the tiles with which ek_conv_winograd is faster than the other algorithms: 2,
 * or 4 if larger errors are allowed (ek_allow_fast_convolution); 0 if it isn't faster. */
int ek_conv_winograd_side(const ek_conv *conv);

/* Computes f32 by tiles of side x side outputs. `side` is 2, or 4 for windows of 3 x 3 with stride
 * 1. No tensor is empty. */
int ek_conv_winograd(ek_dev *dev, const ek_conv *conv, int side);

#endif
