/* conv.h: convolution without oneDNN; conv.c chooses. x, bias and y stand for their
 * gradients if these are asked for. x, w and y are channels-last, bias is contiguous or NULL. */
#ifndef EK_HOST_CONV_H
#define EK_HOST_CONV_H

#include "host/dnn.h"

/* As matrix products over columns, for what nothing else computes: f32 or f64. Empty tensors are
 * fine. */
int ek_conv_columns(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

/* ---- f32 images, read in place, for processors with AVX2 and FMA ---- */

/* Whether ek_conv_implicit can compute this: two dimensions, one group, f32 (or bf16, once it is
 * brought to f32), on this processor. The tensors' layouts are not looked at. */
bool ek_conv_implicit_can(const ek_tensor *x, const ek_conv_params *params);

/* Whether it can and was measured to be faster than ek_dnn_conv. */
bool ek_conv_implicit_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *y, const ek_conv_params *params);

/* None is empty. */
int ek_conv_implicit(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                     const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

/* The same of the weights' gradient alone. */
bool ek_conv_implicit_weight_wins(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                                  const ek_conv_params *params);
int ek_conv_implicit_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *bias, const ek_tensor *y,
                            const ek_conv_params *params);

#endif
