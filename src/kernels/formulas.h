/* formulas.h: the scalar arithmetic of elementwise kernels, once, in the common subset of C11 and
 * C++17 that gcc, clang and nvcc compile: the operations of elementwise.h's list.
 *
 * Functions exist as <name>_f32, <name>_f64 and, for the operations that integers have, <name>_i64.
 * A NaN stays NaN where it does in PyTorch. */
#ifndef EK_KERNELS_FORMULAS_H
#define EK_KERNELS_FORMULAS_H

#include <math.h>
#include <stdint.h>

#include "core/bits.h"
#include "kernels/elementwise.h"
#include "kernels/functions.h"

/* ---- operations: ek_unary_<NAME>_f32(x, a, b), ek_binary_<NAME>_f32(x, y, a) ---- */

EK_FORMULA float ek_clamp_f32(float x, float low, float high)
{
    float raised = x < low ? low : x;
    return raised > high ? high : raised;
}

EK_FORMULA double ek_clamp_f64(double x, double low, double high)
{
    double raised = x < low ? low : x;
    return raised > high ? high : raised;
}

/* Clamps x to [a, b]. The bounds may be fractions or infinite. They are rounded to integers first,
 * because doubles don't hold all i64. */
EK_FORMULA int64_t ek_clamp_i64(int64_t x, double a, double b)
{
    int64_t low = a >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(ceil(a));
    int64_t high = b >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(floor(b));
    int64_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}

/* Computes x - floor(x / y) y, which has y's sign, from fmod_ = x - trunc(x / y) y. */
#define EK_REMAINDER_OF(fmod_, y) \
    ((fmod_) != 0 && ((fmod_) < 0) != ((y) < 0) ? (fmod_) + (y) : (fmod_))

EK_FORMULA float ek_remainder_f32(float x, float y)
{
    float rest = fmodf(x, y);
    return EK_REMAINDER_OF(rest, y);
}

EK_FORMULA double ek_remainder_f64(double x, double y)
{
    double rest = fmod(x, y);
    return EK_REMAINDER_OF(rest, y);
}

/* Returns 0 if y is 0, as DIV does. */
EK_FORMULA int64_t ek_fmod_i64(int64_t x, int64_t y)
{
    return y == 0 || y == -1 ? 0 : x % y;
}

EK_FORMULA int64_t ek_remainder_i64(int64_t x, int64_t y)
{
    int64_t rest = ek_fmod_i64(x, y);
    return EK_REMAINDER_OF(rest, y);
}

/* Returns log(1 + e^ax) / a, computed as (max(ax, 0) + log(1 + e^-|ax|)) / a. Returns x if ax is
 * above b. */
#define EK_DEFINE_SOFTPLUS(type, suffix)                                               \
    EK_FORMULA type ek_softplus_##suffix(type x, type a, type b)                       \
    {                                                                                  \
        type scaled = a * x;                                                           \
        type y = ((scaled <= 0 ? 0 : scaled) +                                         \
                  ek_log1p_unit_##suffix(ek_exp_##suffix(-ek_abs_##suffix(scaled)))) / \
                 a;                                                                    \
        return scaled > b ? x : y;                                                     \
    }
EK_DEFINE_SOFTPLUS(float, f32)
EK_DEFINE_SOFTPLUS(double, f64)

/* ek_mish_gate is t = tanh(softplus(x)) = n / (n + 2) with n = e^2x + 2 e^x. ek_mish_slope is the
 * derivative of x t. */
#define EK_DEFINE_MISH(type, suffix)                                  \
    EK_FORMULA type ek_mish_gate_##suffix(type x)                     \
    {                                                                 \
        type e = ek_exp_##suffix(x > 20 ? 20 : x), n = e * (e + 2);   \
        return n / (n + 2);                                           \
    }                                                                 \
    EK_FORMULA type ek_mish_slope_##suffix(type x)                    \
    {                                                                 \
        type e = ek_exp_##suffix(x > 20 ? 20 : x), n = e * (e + 2);   \
        type gate = n / (n + 2);                                      \
        return gate + x * (e / (1 + e)) * (1 + gate) * (2 / (n + 2)); \
    }
EK_DEFINE_MISH(float, f32)
EK_DEFINE_MISH(double, f64)

/* Returns the derivative of x s by x for s = 1 / (1 + e^-inner), from inner and its derivative. */
#define EK_DEFINE_GATED_SLOPE(type, suffix)                                       \
    EK_FORMULA type ek_gated_slope_##suffix(type x, type inner, type inner_slope) \
    {                                                                             \
        type gate = 1 / (1 + ek_exp_##suffix(-inner));                            \
        return gate * (1 + x * inner_slope * (1 - gate));                         \
    }
EK_DEFINE_GATED_SLOPE(float, f32)
EK_DEFINE_GATED_SLOPE(double, f64)

/* Returns max(x, low); NaN if x is NaN. */
#define EK_DEFINE_FLOORED(type, suffix)                   \
    EK_FORMULA type ek_floored_##suffix(type x, type low) \
    {                                                     \
        return x < low ? low : x;                         \
    }
EK_DEFINE_FLOORED(float, f32)
EK_DEFINE_FLOORED(double, f64)

/* Returns d^2 / 2 for d = |x - y| below delta; from delta on, the tangent of d^2 / 2 at delta. */
#define EK_DEFINE_HUBER(type, suffix)                                           \
    EK_FORMULA type ek_huber_##suffix(type d, type delta)                       \
    {                                                                           \
        return d < delta ? (type)0.5 * d * d : delta * (d - (type)0.5 * delta); \
    }
EK_DEFINE_HUBER(float, f32)
EK_DEFINE_HUBER(double, f64)

/* Returns -t log(x) - (1 - t) log(1 - x), with logarithms below -100 raised to -100. */
#define EK_DEFINE_BCE(type, suffix)                                         \
    EK_FORMULA type ek_bce_##suffix(type x, type t)                         \
    {                                                                       \
        return (t - 1) * ek_floored_##suffix(ek_log1p_##suffix(-x), -100) - \
               t * ek_floored_##suffix(ek_log_##suffix(x), -100);           \
    }
EK_DEFINE_BCE(float, f32)
EK_DEFINE_BCE(double, f64)

/* Returns (1 - t) softplus(x) + t softplus(-x), as a sum of terms of one sign, so that small losses
 * keep their digits. */
#define EK_DEFINE_BCE_LOGITS(type, suffix)                                           \
    EK_FORMULA type ek_bce_logits_##suffix(type x, type t)                           \
    {                                                                                \
        type magnitude = ek_abs_##suffix(x);                                         \
        type both = ek_log1p_unit_##suffix(ek_exp_##suffix(-magnitude));             \
        return (1 - t) * (both + (x <= 0 ? 0 : x)) + t * (both + (x >= 0 ? 0 : -x)); \
    }
EK_DEFINE_BCE_LOGITS(float, f32)
EK_DEFINE_BCE_LOGITS(double, f64)

#define EK_DEFINE_UNARY(type, scalar, name, formula)                     \
    EK_FORMULA type EK_NAME(ek_unary_##name)(type x, scalar a, scalar b) \
    {                                                                    \
        (void)a, (void)b;                                                \
        return formula;                                                  \
    }
#define EK_DEFINE_BINARY(type, scalar, name, formula)                   \
    EK_FORMULA type EK_NAME(ek_binary_##name)(type x, type y, scalar a) \
    {                                                                   \
        (void)a;                                                        \
        return formula;                                                 \
    }
#define EK_UNARY_REAL(name, formula) EK_DEFINE_UNARY(EK_REAL, EK_REAL, name, formula)
#define EK_BINARY_REAL(name, formula) EK_DEFINE_BINARY(EK_REAL, EK_REAL, name, formula)
#define EK_UNARY_INTEGER(name, formula) EK_DEFINE_UNARY(int64_t, double, name, formula)
#define EK_BINARY_INTEGER(name, formula) EK_DEFINE_BINARY(int64_t, double, name, formula)

#define EK_REAL float
#define EK_NAME(name) name##_f32
EK_UNARY_REALS(EK_UNARY_REAL)
EK_UNARY_MATHEMATICS(EK_UNARY_REAL)
EK_BINARY_REALS(EK_BINARY_REAL)
EK_BINARY_MATHEMATICS(EK_BINARY_REAL)
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
EK_UNARY_REALS(EK_UNARY_REAL)
EK_UNARY_MATHEMATICS(EK_UNARY_REAL)
EK_BINARY_REALS(EK_BINARY_REAL)
EK_BINARY_MATHEMATICS(EK_BINARY_REAL)
#undef EK_REAL
#undef EK_NAME

#define EK_NAME(name) name##_i64
EK_UNARY_INTEGERS(EK_UNARY_INTEGER)
EK_BINARY_INTEGERS(EK_BINARY_INTEGER)
#undef EK_NAME

#endif
