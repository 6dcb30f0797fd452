/* precision.h: how exactly, and how repeatably, devices compute.
 *
 * Autocast. Between ek_autocast_begin(EK_BF16) and ek_autocast_end the operations that gain by it
 * (convolutions, matrix products, linear) convert their f32 operands to bf16 and give bf16 results.
 * Those that need the digits (softmax, softplus, exp, log, reciprocal, powers, sum, norm, layer and
 * group norm, all losses) convert bf16 to f32 and give f32. Elementwise operations on a bf16 and an
 * f32 tensor, where, cat and stack give f32, operations in place keep x's dtype, all others give
 * what they are given; f64 is left alone. These are PyTorch's lists for CUDA.
 *
 * Parameters stay f32 (the master weights), and so do their gradients. What they were converted to
 * is kept beside them, half as many bytes of the category EK_MEMORY_PARAMETER, until they are
 * written next (ek_tensor_touch, if that is done by hand): replicas, several forwards and what
 * ek_checkpoint computes again share it, and a wrapper's parameters are converted all at once.
 *
 * The mode is the thread's; jobs on workers inherit it. Backward runs on the dtypes that the
 * forward left, in the region or after it: only the forward and the loss need to lie in it. What
 * ek_checkpoint computes again does so under the forward's mode. No loss scaling is needed: bf16
 * has f32's range. */
#ifndef EVENKEEL_PRECISION_H
#define EVENKEEL_PRECISION_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* What ek_autocast_end puts back. */
typedef struct ek_autocast {
    unsigned before;
} ek_autocast;

/* EK_BF16 switches autocast on, EK_F32 off (inside of a region that has it on). Other dtypes:
 * EK_E_DTYPE is pending and the mode is unchanged. Regions nest. */
EK_API ek_autocast ek_autocast_begin(ek_dtype dtype);
EK_API void ek_autocast_end(const ek_autocast *autocast);

/* The dtype that is cast to: EK_BF16, or EK_F32 if autocast is off. */
EK_API ek_dtype ek_autocast_dtype(void);

/* Lets GPUs round the operands of f32 matrix products and convolutions to TF32 (10 bits of
 * mantissa), which tensor cores multiply several times faster. Off by default. Of the process;
 * takes effect with the next operation. */
EK_API void ek_allow_tf32(bool allow);
EK_API bool ek_tf32_allowed(void);

/* Only algorithms whose results are the same to the bit from run to run; some are slower. On the
 * host all are. Of the process; off by default, switched on by ek_set_seed. */
EK_API void ek_use_deterministic_algorithms(bool on);
EK_API bool ek_deterministic(void);

EK_END_DECLARATIONS
#endif
