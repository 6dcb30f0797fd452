/** @file
 * precision.h: precision and determinism of computations.
 *
 * Autocast. Between ek_autocast_begin(EK_BF16), or EK_F16, and ek_autocast_end, operations that
 * are faster in a narrow dtype (convolutions, matrix products, linear) convert f32 operands to this
 * dtype and return results of it. Operations that need the precision (softmax, softplus,
 * exponentials, logarithms, reciprocal, powers, hyperbolic functions, tan, asin, acos, sums,
 * products, cumulative ones, norm, layer and group norm, all losses) convert bf16 and f16 to f32
 * and give f32. Elementwise operations, where, cat and stack give f32 if their operands are mixed.
 * Operations in place keep the dtype of x. All others give the dtype of their operands. f64 is not
 * converted. These are PyTorch's lists for CUDA.
 *
 * Parameters (the master weights) and their gradients stay f32. Their narrow copies, half as large
 * and counted in the parameters' category (device.h), are kept until the parameters are next
 * written (after a write by hand call ek_tensor_touch). Replicas, further forwards and
 * ek_checkpoint's recomputation share the copies. A wrapper's parameters are converted all at once.
 *
 * The mode belongs to the thread; device threads that compute for it have it too. Only the forward
 * and the loss need to be in the region: backward, inside or outside, uses the dtypes of the
 * forward, and ek_checkpoint's recomputation the mode of the forward. bf16 has the range of f32.
 * f16 has more digits and less range: small gradients become 0, unless the loss is scaled
 * (scaler.h). */
#ifndef EVENKEEL_PRECISION_H
#define EVENKEEL_PRECISION_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** The mode that ek_autocast_end restores. */
typedef struct ek_autocast {
    unsigned before;
} ek_autocast;

/** EK_BF16 and EK_F16 turn autocast on; EK_F32 turns it off, within a region that has it on. For
 * other dtypes EK_E_DTYPE is pending and the mode is unchanged. Regions nest. */
EK_API ek_autocast ek_autocast_begin(ek_dtype dtype);
EK_API void ek_autocast_end(const ek_autocast *autocast);

/** The dtype that operands are cast to: EK_BF16 or EK_F16, or EK_F32 if autocast is off. */
EK_API ek_dtype ek_autocast_dtype(void);

/** Lets GPUs round the operands of f32 matrix products to TF32 (10 bits of mantissa), which tensor
 * cores multiply several times faster. Off by default. Convolutions have a switch of their own.
 * Both are set for the process, from the next operation on. */
EK_API void ek_allow_tf32(bool allow);
EK_API bool ek_tf32_allowed(void);

/** Lets GPUs round the operands of f32 convolutions, and of recurrent networks that cuDNN computes,
 * to TF32. On by default, as in PyTorch: results on a GPU are within about 1e-3 of the host's.
 * ek_allow_tf32_convolution(false) makes GPUs compute them in f32, which takes two to three times
 * as long. */
EK_API void ek_allow_tf32_convolution(bool allow);
EK_API bool ek_tf32_convolution_allowed(void);

/** Lets the host compute f32 convolutions with windows of 3 x 3 by Winograd's F(4x4, 3x3), with a
 * quarter of the multiplications. Errors are three to eight times those of a direct sum: up to 1e-4
 * of the root mean square of the result. Without it the host uses F(2x2, 3x3) and F(2x2, 2x2),
 * with less than half of the multiplications (with stride 2 and 3 x 3: 25 of 36), whose errors are
 * those of a direct sum. With either, an infinity or NaN reaches all outputs of its tile. Off by
 * default. Set for the process, from the next operation on. */
EK_API void ek_allow_fast_convolution(bool allow);
EK_API bool ek_fast_convolution_allowed(void);

/** Lets GPUs time cuDNN's algorithms for each convolution of new shapes when it is first computed,
 * and keep the fastest. The first computation takes some milliseconds more, and memory for one more
 * result and the algorithms' workspaces; if shapes change all the time, training becomes slower.
 * The fastest algorithm, and so the last digits of results, may differ from run to run. While
 * ek_deterministic(), which ek_set_seed turns on, nothing is timed. Off by default. Set for the
 * process, from the next operation on.
 */
EK_API void ek_benchmark_convolution(bool on);
EK_API bool ek_convolution_benchmarked(void);

/** Restricts GPUs to algorithms whose results are the same to the bit in every run; some are
 * slower, and ek_benchmark_convolution has no effect. The host uses no others. Set for the process;
 * off by default, turned on by ek_set_seed. TF32 is allowed or not as before: its results repeat,
 * too. */
EK_API void ek_use_deterministic_algorithms(bool on);
EK_API bool ek_deterministic(void);

EK_END_DECLARATIONS
#endif
