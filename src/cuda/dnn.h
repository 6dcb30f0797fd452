/* dnn.h: convolutions by cuDNN: its handle and the plans of one device, made with first use and
 * kept under ek_cuda_device.lock. If cuDNN can't be opened, or was not there to compile against,
 * nothing is supported. */
#ifndef EK_CUDA_DNN_H
#define EK_CUDA_DNN_H

#include "cuda/dnn_problem.h"
#include "cuda/runtime.h"

/* 1 if cuDNN computes the problem (its plan is kept from now on), 0 if it doesn't, negative
 * on error. Between ek_cuda_begin and ek_cuda_end. */
int ek_cuda_dnn_supports(ek_dev *dev, const ek_dnn_problem *problem);

/* Issues it. The tensors are dense in the problem's format and aligned as it says; bias is NULL
 * where the problem has none. 1 when issued, 0 if cuDNN turned out not to support it, or only
 * with more memory than there is; negative on error. */
int ek_cuda_dnn_run(ek_dev *dev, const ek_dnn_problem *problem, const ek_tensor *x,
                    const ek_tensor *w, const ek_tensor *y, const ek_tensor *bias);

#endif
