/* dnn.h: all that the host backend asks of oneDNN. No other header shows oneDNN's names; a second
 * set of dnn*.c could serve another version of its interface. Any thread; the caller has called
 * ek_parallel_enter for the device. */
#ifndef EK_HOST_DNN_H
#define EK_HOST_DNN_H

#include "host/gemm.h"
#include "kernels/kernels.h"

typedef enum ek_conv_kind {
    EK_CONV_FORWARD,
    EK_CONV_INPUT_GRADIENT,
    EK_CONV_WEIGHT_GRADIENT
} ek_conv_kind;

/* Convolution of f32 or bf16 or its gradients: x, bias and y stand for their gradients where these
 * are asked for. x and y are channels-last, w is channels-last or row-major, bias is contiguous or
 * NULL; none is empty. Returns 1 when it is done, 0 if oneDNN has nothing fast for it (nothing
 * is written then), negative on error. */
int ek_dnn_conv(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params);

/* f32 matrix products; none of the dimensions but k is 0. */
int ek_dnn_gemm(ek_dev *dev, const ek_gemm *gemm);

/* The kernel slot's matrix products with x and y both f32 or both bf16 and out and bias of f32 or
 * the same; strides are any, nothing is empty. Sums are f32. Returns as ek_dnn_conv does. For f32
 * ek_dnn_gemm is faster. */
int ek_dnn_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                  const ek_tensor *bias, bool accumulate);

/* Whether the processor multiplies bf16. */
bool ek_dnn_has_bf16(void);

/* Frees what is cached. No other call may run. */
void ek_dnn_shutdown(void);

#endif
