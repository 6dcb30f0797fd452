/* dnn.h: the host backend's calls of oneDNN, without oneDNN's types. Any thread may call the
 * functions. oneDNN computes on one thread; dnn_*.c divide work among the device's threads. */
#ifndef EK_HOST_DNN_H
#define EK_HOST_DNN_H

#include "host/gemm.h"
#include "kernels/kernels.h"

typedef enum ek_conv_kind {
    EK_CONV_FORWARD,
    EK_CONV_INPUT_GRADIENT,
    EK_CONV_WEIGHT_GRADIENT
} ek_conv_kind;

/* A convolution or one of its gradients. In an input gradient x and y are gradients; in a weight
 * gradient w, bias and y are. The bias may be NULL. */
typedef struct ek_conv {
    ek_conv_kind kind;
    const ek_tensor *x, *w, *bias, *y;
    const ek_conv_params *params;
} ek_conv;

/* Computes a convolution in f32 or bf16. x and y are channels-last, w is channels-last or
 * row-major, bias is contiguous or NULL; no tensor is empty. Returns 1 when done; 0 if oneDNN has
 * no fast code, in which case nothing is written; negative on error. */
int ek_dnn_conv(ek_dev *dev, const ek_conv *conv);

/* Computes f32 matrix products without a bias. Rows of all matrices are contiguous and don't
 * overlap. No size is 0. */
int ek_dnn_gemm(ek_dev *dev, const ek_gemm *gemm);

/* Computes the slot matmul for x and y that are both f32 or both bf16. out and bias are f32 or of
 * x's dtype. Strides may be any; no tensor is empty; sums are f32. Returns what ek_dnn_conv
 * returns. For f32 ek_dnn_gemm is faster. */
int ek_dnn_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                  const ek_tensor *bias, bool accumulate);

/* Returns true if the processor multiplies bf16. */
bool ek_dnn_has_bf16(void);

/* Returns true if the processor multiplies tiles of bf16 (AMX). */
bool ek_dnn_has_amx(void);

/* Frees the cached plans. No other call of this header may run meanwhile. */
void ek_dnn_shutdown(void);

#endif
