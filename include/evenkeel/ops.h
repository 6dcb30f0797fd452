/** @file
 * ops.h: differentiable operations on tensors. Those that also exist as modules (relu, conv2d, ...)
 * begin with `ek_f_`, as in torch.nn.functional. This header has elementwise arithmetic and
 * products; activation.h, reduce.h, shape.h, index.h, sort.h, matrix.h, spatial.h, norm.h and
 * loss.h, which it includes, have the other operations. The rules below hold for all of them.
 *
 * Operands of one operation lie on one device (else EK_E_DEVICE), but tensors of zero dimensions on
 * cpu go with any device. Operands have one dtype (else EK_E_DTYPE); under autocast bf16, f16 and
 * f32 may mix (precision.h). A NULL operand gives NULL. Results are in the scope. Every result that
 * can carry a gradient does. Operations whose names end in `_` write in place and bump the version.
 * A negative `dim` counts from the end.
 *
 * A number that is combined with an integer tensor must be whole and in the dtype's range, else
 * EK_E_DTYPE; convert with ek_to_dtype first. Numbers are doubles and count exactly, but beyond
 * 2^53 not every i64 is a double. */
#ifndef EVENKEEL_OPS_H
#define EVENKEEL_OPS_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/activation.h"
#include "evenkeel/index.h"
#include "evenkeel/loss.h"
#include "evenkeel/matrix.h"
#include "evenkeel/norm.h"
#include "evenkeel/reduce.h"
#include "evenkeel/shape.h"
#include "evenkeel/sort.h"
#include "evenkeel/spatial.h"
#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* ---- arithmetic, with NumPy's broadcasting ---- */

/** Sum, difference, product, quotient and extremes, element by element. */
EK_API ek_tensor *ek_add(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_sub(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_mul(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_div(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_maximum(ek_tensor *x, ek_tensor *y); /**< equal elements share the gradient */
EK_API ek_tensor *ek_minimum(ek_tensor *x, ek_tensor *y);
/** x + alpha * y */
EK_API ek_tensor *ek_add_scaled(ek_tensor *x, ek_tensor *y, double alpha);
/** x + c, c x, x to the power, and functions of each element. */
EK_API ek_tensor *ek_add_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_mul_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_pow_scalar(ek_tensor *x, double exponent);
EK_API ek_tensor *ek_neg(ek_tensor *x);
EK_API ek_tensor *ek_abs(ek_tensor *x); /**< gradient 0 at 0 */
EK_API ek_tensor *ek_sqrt(ek_tensor *x);
EK_API ek_tensor *ek_square(ek_tensor *x);
EK_API ek_tensor *ek_reciprocal(ek_tensor *x);
EK_API ek_tensor *ek_exp(ek_tensor *x);
EK_API ek_tensor *ek_log(ek_tensor *x);
EK_API ek_tensor *ek_sign(ek_tensor *x); /**< gradient 0 */
/** Clamps to [low, high]; the gradient is 1 if low <= x <= high, else 0. Bounds may exceed an
 * integer dtype's range. */
EK_API ek_tensor *ek_clamp(ek_tensor *x, double low, double high);

/** Comparisons give bool tensors, without a gradient. */
EK_API ek_tensor *ek_eq(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_ne(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_lt(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_le(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_gt(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_ge(ek_tensor *x, ek_tensor *y);
/** condition (bool or u8) ? x : y, all three broadcast together. */
EK_API ek_tensor *ek_where(ek_tensor *condition, ek_tensor *x, ek_tensor *y);

/** Operations that write to x in place; y is broadcast to x. EK_E_AUTOGRAD if gradient mode is on
 * and x is a leaf that requires a gradient, or a view of such a leaf. */
EK_API ek_tensor *ek_add_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_add_scaled_(ek_tensor *x, ek_tensor *y, double alpha);
EK_API ek_tensor *ek_mul_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_mul_scalar_(ek_tensor *x, double c);
EK_API ek_tensor *ek_fill_(ek_tensor *x, double value);
/** Copies y into x, across dtypes and devices. */
EK_API ek_tensor *ek_copy_(ek_tensor *x, ek_tensor *y);

/* ---- more arithmetic: numbers, functions, logic ---- */

/** Arithmetic of x and a number, and functions of each element of x. */
EK_API ek_tensor *ek_sub_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_rsub_scalar(ek_tensor *x, double c); /**< c - x */
EK_API ek_tensor *ek_div_scalar(ek_tensor *x, double c);  /**< floating dtypes */
EK_API ek_tensor *ek_sin(ek_tensor *x);
EK_API ek_tensor *ek_cos(ek_tensor *x);
EK_API ek_tensor *ek_tan(ek_tensor *x);
EK_API ek_tensor *ek_asin(ek_tensor *x);
EK_API ek_tensor *ek_acos(ek_tensor *x);
EK_API ek_tensor *ek_atan(ek_tensor *x);
EK_API ek_tensor *ek_sinh(ek_tensor *x);
EK_API ek_tensor *ek_cosh(ek_tensor *x);
EK_API ek_tensor *ek_asinh(ek_tensor *x);
EK_API ek_tensor *ek_acosh(ek_tensor *x);
EK_API ek_tensor *ek_atanh(ek_tensor *x);
EK_API ek_tensor *ek_erf(ek_tensor *x);
EK_API ek_tensor *ek_erfc(ek_tensor *x);
EK_API ek_tensor *ek_log1p(ek_tensor *x); /**< log(1 + x) */
EK_API ek_tensor *ek_expm1(ek_tensor *x); /**< exp(x) - 1 */
EK_API ek_tensor *ek_log2(ek_tensor *x);
EK_API ek_tensor *ek_log10(ek_tensor *x);
EK_API ek_tensor *ek_exp2(ek_tensor *x);
EK_API ek_tensor *ek_rsqrt(ek_tensor *x); /**< 1 / sqrt(x) */
/** Gradient 0; of integers a copy. */
EK_API ek_tensor *ek_floor(ek_tensor *x);
EK_API ek_tensor *ek_ceil(ek_tensor *x);
EK_API ek_tensor *ek_round(ek_tensor *x); /**< halves go to the even neighbour */
EK_API ek_tensor *ek_trunc(ek_tensor *x);
EK_API ek_tensor *ek_frac(ek_tensor *x); /**< x - trunc(x) */

/** x to the power of another tensor's elements. */
EK_API ek_tensor *ek_pow(ek_tensor *x, ek_tensor *exponent);
EK_API ek_tensor *ek_atan2(ek_tensor *y, ek_tensor *x); /**< the angle of the point (x, y) */
/** The remainder of x / y with x's sign; ek_remainder: with y's sign, as Python's %. An integer
 * divided by 0 has the remainder 0. */
EK_API ek_tensor *ek_fmod(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_remainder(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_fmod_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_remainder_scalar(ek_tensor *x, double c);
/** x + weight * (y - x) */
EK_API ek_tensor *ek_lerp(ek_tensor *x, ek_tensor *y, ek_tensor *weight);
EK_API ek_tensor *ek_lerp_scalar(ek_tensor *x, ek_tensor *y, double weight);
/** x + value * y * z; x + value * y / z */
EK_API ek_tensor *ek_addcmul(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value);
EK_API ek_tensor *ek_addcdiv(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value);
/** min(max(x, low), high); one of the bounds may be NULL. The gradient goes to x if low <= x <=
 * high, else to the bound that replaces x. */
EK_API ek_tensor *ek_clamp_tensors(ek_tensor *x, ek_tensor *low, ek_tensor *high);

/** Comparisons with a number, and logic, in which elements other than 0 are true. Results are bool,
 * without a gradient. */
EK_API ek_tensor *ek_eq_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_ne_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_lt_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_le_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_gt_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_ge_scalar(ek_tensor *x, double c);
EK_API ek_tensor *ek_logical_not(ek_tensor *x);
EK_API ek_tensor *ek_logical_and(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_logical_or(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_logical_xor(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_isnan(ek_tensor *x);
EK_API ek_tensor *ek_isinf(ek_tensor *x);
EK_API ek_tensor *ek_isfinite(ek_tensor *x);

typedef struct ek_nan_to_num_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    double nan;
    double posinf EK_IS(EK_UNSET); /**< EK_UNSET: the dtype's largest number */
    double neginf EK_IS(EK_UNSET); /**< EK_UNSET: the dtype's smallest number */
} ek_nan_to_num_options;
#define EK_DEFAULTS_ek_nan_to_num_options EK_DEFAULT(posinf, EK_UNSET), EK_DEFAULT(neginf, EK_UNSET)
EK_API ek_tensor *ek_nan_to_num_with(ek_nan_to_num_options options);
/** ek_nan_to_num(x, .nan = 1): x with numbers in place of NaN and of the infinities. */
#define ek_nan_to_num(...) EK_CALL_1(ek_nan_to_num_with, ek_nan_to_num_options, x, __VA_ARGS__)

/** In place, as above. */
EK_API ek_tensor *ek_sub_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_div_(ek_tensor *x, ek_tensor *y);
EK_API ek_tensor *ek_clamp_(ek_tensor *x, double low, double high);
EK_API ek_tensor *ek_lerp_(ek_tensor *x, ek_tensor *y, double weight); /**< a moving average */
EK_API ek_tensor *ek_addcmul_(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value);

/* ---- matrices ---- */

/** Products of matrices, or of batches (..., n, k) and (..., k, m), with batches broadcast.
 * Operands of one dimension are treated as by torch.matmul. */
EK_API ek_tensor *ek_matmul(ek_tensor *x, ek_tensor *y);
/** x (..., in) times weight (out, in) transposed, plus bias (out) or NULL. */
EK_API ek_tensor *ek_f_linear(ek_tensor *x, ek_tensor *weight, ek_tensor *bias);

EK_END_DECLARATIONS
#endif
