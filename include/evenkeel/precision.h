/* precision.h: how exactly, and how repeatably, devices compute.
 *
 * Autocast. Between ek_autocast_begin(EK_BF16) and ek_autocast_end the operations that gain by it
 * (convolutions, matrix products, linear) convert their floating f32 operands to bf16 and give bf16
 * results, and those that need the range (softmax, losses, norms, sums, powers, exp and log) take
 * what they are given and compute in f32, as PyTorch's autocast does; elementwise operations on a
 * bf16 and an f32 tensor give f32. Parameters stay f32 (the master weights), and so do their
 * gradients; a weight is converted once per change, not once per use. The mode is the thread's;
 * jobs on workers and backward inherit it from the call that made them. No loss scaling is needed:
 * bf16 has f32's range. */
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

/* The dtype that is cast to: EK_BF16, or EK_F32 where autocast is off. */
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

/* ek_manual_seed for every generator, and deterministic algorithms. */
EK_API void ek_set_seed(uint64_t seed);

EK_END_DECLARATIONS
#endif
