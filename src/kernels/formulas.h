/* formulas.h: the scalar arithmetic of elementwise kernels, once, in the common subset of C11 and
 * C++17 that gcc, clang and nvcc compile: functions that formulas are made of, and the operations'
 * own, from elementwise.h's list.
 *
 * Functions exist as <name>_f32, <name>_f64 and, for the operations that integers have, <name>_i64.
 * The f32 functions are free of branches and calls, so that loops over them vectorise; exp, log and
 * tanh are within 2 ulp of the true value (S. L. Moshier's Cephes polynomials). NaN stays NaN if
 * PyTorch keeps it. */
#ifndef EK_KERNELS_FORMULAS_H
#define EK_KERNELS_FORMULAS_H

#include <math.h>
#include <stdint.h>

#include "core/bits.h"
#include "kernels/elementwise.h"

/* Truncates. NaN and values that don't fit become INT64_MIN, as with the x86 instruction. */
EK_FORMULA int64_t ek_i64_of(double x)
{
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

/* ---- f32 mathematics ---- */

EK_FORMULA float ek_exp_f32(float x)
{
    /* e^x = 2^n e^r with n = x / ln 2 rounded by adding 1.5 * 2^23, |r| <= ln 2 / 2. Beyond
     * the limits the result is 0 or infinity. */
    const float magic = 12582912.0f;
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = x * 1.44269504088896341f + magic;
    float n = shifted - magic;
    int32_t exponent = (int32_t)(ek_bits_of(shifted) - 0x4b400000u);
    float r = x - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* Two factors, so that subnormal results and 2^128 come out. */
    int32_t half = exponent >> 1;
    float low = ek_float_of((uint32_t)(half + 127) << 23);
    float high = ek_float_of((uint32_t)(exponent - half + 127) << 23);
    return p * low * high;
}

EK_FORMULA float ek_log_f32(float x)
{
    /* Subnormal numbers are scaled up first. x = 2^e (1 + m), 1 + m in [sqrt(1/2), sqrt(2)). */
    int tiny = x < 1.17549435e-38f;
    float scaled = tiny ? x * 8388608.0f : x;
    uint32_t bits = ek_bits_of(scaled);
    int32_t exponent = (int32_t)((bits - 0x3f3504f3u) & 0xff800000u);
    float m = ek_float_of(bits - (uint32_t)exponent) - 1.0f;
    float e = (float)(exponent >> 23) - (tiny ? 23.0f : 0.0f);
    float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float y = p * m * z;
    y = y + e * -2.12194440e-4f - 0.5f * z;
    float result = m + y + e * 0.693359375f;
    result = x == INFINITY ? x : result;
    result = x == 0.0f ? -INFINITY : result;
    return x >= 0.0f ? result : NAN;
}

EK_FORMULA float ek_tanh_f32(float x)
{
    float magnitude = fabsf(x);
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near_zero = p * z * x + x;
    float far = 1.0f - 2.0f / (ek_exp_f32(magnitude + magnitude) + 1.0f);
    far = x < 0.0f ? -far : far;
    return magnitude < 0.625f ? near_zero : far;
}

/* log(1 + x) for x in [0, 1]: the rounding of 1 + x is put right by the factor x / ((1 + x) - 1).
 */
EK_FORMULA float ek_log1p_f32(float x)
{
    float u = 1.0f + x;
    float d = u - 1.0f;
    float corrected = ek_log_f32(u) * (x / (d > 0.0f ? d : 1.0f));
    return d == 0.0f ? x : corrected;
}

/* Functions of the C library. */
#define EK_LIBRARY_FUNCTION(type, name, function) \
    EK_FORMULA type name(type x)                  \
    {                                             \
        return function(x);                       \
    }
EK_LIBRARY_FUNCTION(float, ek_sqrt_f32, sqrtf)
EK_LIBRARY_FUNCTION(float, ek_abs_f32, fabsf)
EK_LIBRARY_FUNCTION(double, ek_exp_f64, exp)
EK_LIBRARY_FUNCTION(double, ek_log_f64, log)
EK_LIBRARY_FUNCTION(double, ek_tanh_f64, tanh)
EK_LIBRARY_FUNCTION(double, ek_log1p_f64, log1p)
EK_LIBRARY_FUNCTION(double, ek_sqrt_f64, sqrt)
EK_LIBRARY_FUNCTION(double, ek_abs_f64, fabs)

EK_FORMULA float ek_power_f32(float x, float a)
{
    return powf(x, a);
}

EK_FORMULA double ek_power_f64(double x, double a)
{
    return pow(x, a);
}

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

/* Bounds may be fractions or infinite. They are compared as integers, because doubles don't hold
 * all i64. */
EK_FORMULA int64_t ek_clamp_i64(int64_t x, double a, double b)
{
    int64_t low = a >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(ceil(a));
    int64_t high = b >= 9223372036854775808.0 ? INT64_MAX : ek_i64_of(floor(b));
    int64_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}

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
EK_BINARY_REALS(EK_BINARY_REAL)
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
EK_UNARY_REALS(EK_UNARY_REAL)
EK_BINARY_REALS(EK_BINARY_REAL)
#undef EK_REAL
#undef EK_NAME

#define EK_NAME(name) name##_i64
EK_UNARY_INTEGERS(EK_UNARY_INTEGER)
EK_BINARY_INTEGERS(EK_BINARY_INTEGER)
#undef EK_NAME

#endif
