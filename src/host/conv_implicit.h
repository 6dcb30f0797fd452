/* conv_implicit.h: f32 convolution of channels-last images that reads its input in place, for
 * processors with AVX2 and FMA. */
#ifndef EK_HOST_CONV_IMPLICIT_H
#define EK_HOST_CONV_IMPLICIT_H

#include "host/dnn.h"

/* Whether ek_conv_implicit can compute this: two dimensions, one group, f32 (or bf16, once it is
 * brought to f32), on this processor. The tensors' layouts are not looked at. */
bool ek_conv_implicit_can(const ek_tensor *x, const ek_conv_params *params);

/* Whether it can and was measured to be faster than ek_dnn_conv. */
bool ek_conv_implicit_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *y, const ek_conv_params *params);

/* x, bias and y stand for their gradients if these are asked for. x, w and y are channels-last,
 * bias is contiguous or NULL; none is empty. */
int ek_conv_implicit(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                     const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

/* The same of the weights' gradient alone. */
bool ek_conv_implicit_weight_wins(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                                  const ek_conv_params *params);
int ek_conv_implicit_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *bias, const ek_tensor *y,
                            const ek_conv_params *params);

/* ---- the innermost loop ---- */

enum { EK_CONV_ROWS = 6, EK_CONV_COLUMNS = 16 };

/* One tap of the window at each of some output positions: where its channels are read. */
typedef struct ek_conv_tap {
    const float *row[EK_CONV_ROWS];
    int64_t tap;
} ek_conv_tap;

/* out (rows, EK_CONV_COLUMNS) = start (EK_CONV_COLUMNS) + for each tap, row (channels) b[tap]
 * (channels, EK_CONV_COLUMNS). 1 to EK_CONV_ROWS rows. */
typedef void ek_conv_kernel(const ek_conv_tap *taps, int64_t count, int64_t channels,
                            const float *b, const float *start, float *out);

/* By rows - 1; NULL if the processor has no AVX2 or no FMA. */
ek_conv_kernel *const *ek_conv_kernels(void);

/* Whether the processor has no wider vectors than they use. */
bool ek_conv_kernels_are_widest(void);

#endif
