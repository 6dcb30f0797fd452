/* conv.h: convolution as matrix products, for what oneDNN has no fast code for. */
#ifndef EK_HOST_CONV_H
#define EK_HOST_CONV_H

#include "host/dnn.h"

/* f32 or f64; x, w and y are channels-last, bias is contiguous or NULL. Empty tensors are fine. */
int ek_conv_columns(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

#endif
