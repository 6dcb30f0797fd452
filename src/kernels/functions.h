/* functions.h: the functions that formulas of reals are made of, as <name>_f32 and <name>_f64, in
 * the common subset of C11 and C++17 that gcc, clang and nvcc compile.
 *
 * The f32 functions, except ek_fmod_f32, are free of branches and calls, so that loops over them
 * vectorise. exp, log and tanh are within 2 ulp of the true value (S. L. Moshier's Cephes
 * polynomials). On the host, the functions of wide_functions.h are computed in double by
 * polynomials with a relative error below 1e-8, and rounded once. GPUs use CUDA's f32 functions
 * instead, because double is slow on many GPUs. The f64 functions call those of the C library. */
#ifndef EK_KERNELS_FUNCTIONS_H
#define EK_KERNELS_FUNCTIONS_H

#include <math.h>
#include <stdint.h>

#include "core/bits.h"

/* ---- f32 in f32 ---- */

/* Splits e^(x + low) = 2^n e^r with n = x / ln 2, rounded by adding 1.5 * 2^23, and |r| <= ln 2
 * / 2. Returns e^r, and writes n to *exponent. `low` is small: the digits of the sum that x can't
 * hold. */
EK_FORMULA float ek_exp_parts_f32(float x, float low, int32_t *exponent)
{
    const float magic = 12582912.0f;
    float shifted = x * 1.44269504088896341f + magic;
    float n = shifted - magic;
    *exponent = (int32_t)(ek_bits_of(shifted) - 0x4b400000u);
    float r = x - n * 0.693359375f - n * -2.12194440e-4f + low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r + 1.0f;
}

/* Returns e^(x + low). Beyond the limits of x the result is 0 or infinity. */
EK_FORMULA float ek_exp_sum_f32(float x, float low)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    int32_t exponent;
    float p = ek_exp_parts_f32(x, low, &exponent);
    /* p is multiplied by 2^n in two factors: p 2^n may be finite for n = 128, or subnormal. */
    int32_t half = exponent >> 1;
    float first = ek_float_of((uint32_t)(half + 127) << 23);
    float second = ek_float_of((uint32_t)(exponent - half + 127) << 23);
    return p * first * second;
}

EK_FORMULA float ek_exp_f32(float x)
{
    return ek_exp_sum_f32(x, -0.0f); /* adding -0 changes nothing */
}

/* Returns e^x for x in [-87, 88], where it is a normal number, and beyond these limits what they
 * give. It takes fewer instructions than ek_exp_f32. */
EK_FORMULA float ek_exp_normal_f32(float x)
{
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    int32_t exponent;
    float p = ek_exp_parts_f32(x, -0.0f, &exponent);
    return p * ek_float_of((uint32_t)(exponent + 127) << 23);
}

/* Returns log(1 + m) - m + m^2 / 2 for 1 + m in [sqrt(1/2), sqrt(2)]. */
EK_FORMULA float ek_log_series_f32(float m)
{
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
    return p * m * z;
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
    float y = ek_log_series_f32(m) + e * -2.12194440e-4f - 0.5f * (m * m);
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
    float far = 1.0f - 2.0f / (ek_exp_normal_f32(magnitude + magnitude) + 1.0f);
    far = x < 0.0f ? -far : far;
    return magnitude < 0.625f ? near_zero : far;
}

/* Returns log(1 + x) for x in [0, 1]. For 1 + x = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)], m
 * is computed without 1 + x, which would be rounded. */
EK_FORMULA float ek_log1p_unit_f32(float x)
{
    int above = x > 0.41421356f;
    float m = above ? 0.5f * (x - 1.0f) : x;
    float y = ek_log_series_f32(m) - 0.5f * (m * m);
    return above ? m + (y - 2.12194440e-4f) + 0.693359375f : m + y;
}

/* Returns the normal distribution function of x, from e = exp(-x^2 / 2). The tail keeps its digits:
 * it is e times a quotient of polynomials of |x|, which rounds little, because all their
 * coefficients are positive. */
EK_FORMULA float ek_ndtr_of_f32(float x, float e)
{
    float z = fabsf(x);
    z = z > 15.0f ? 15.0f : z;
    float n = 0.00416268265f;
    n = n * z + 0.0409444824f;
    n = n * z + 0.18415651f;
    n = n * z + 0.439535388f;
    n = n * z + 0.500000003f;
    float d = 0.0104341884f;
    d = d * z + 0.102638632f;
    d = d * z + 0.471903481f;
    d = d * z + 1.20632503f;
    d = d * z + 1.67695579f;
    d = d * z + 1.0f;
    float tail = n * e / d;
    return x > 0.0f ? 1.0f - tail : tail;
}

/* Returns exp(-x^2 / 2), computed with the digits of x^2 that f32 doesn't hold. */
EK_FORMULA float ek_exp_half_square_f32(float x)
{
    float bounded = x > 20.0f ? 20.0f : x < -20.0f ? -20.0f : x;
    float high = ek_float_of(ek_bits_of(bounded) & 0xfffff000u);
    return ek_exp_sum_f32(-0.5f * high * high, -0.5f * (bounded - high) * (bounded + high));
}

EK_FORMULA float ek_ndtr_f32(float x)
{
    return ek_ndtr_of_f32(x, ek_exp_half_square_f32(x));
}

/* Returns the derivative of x ek_ndtr_f32(x). */
EK_FORMULA float ek_gelu_slope_f32(float x)
{
    float e = ek_exp_half_square_f32(x);
    return ek_ndtr_of_f32(x, e) + x * (0.39894228f * e);
}

/* ---- functions of a library ---- */

#define EK_LIBRARY_FUNCTION(type, name, function) \
    EK_FORMULA type name(type x)                  \
    {                                             \
        return function(x);                       \
    }
#define EK_LIBRARY_FUNCTION_2(type, name, function) \
    EK_FORMULA type name(type x, type y)            \
    {                                               \
        return function(x, y);                      \
    }
EK_LIBRARY_FUNCTION(float, ek_sqrt_f32, sqrtf)
EK_LIBRARY_FUNCTION(float, ek_abs_f32, fabsf)
EK_LIBRARY_FUNCTION(float, ek_floor_f32, floorf)
EK_LIBRARY_FUNCTION(float, ek_ceil_f32, ceilf)
EK_LIBRARY_FUNCTION(float, ek_round_f32, rintf)
EK_LIBRARY_FUNCTION(float, ek_trunc_f32, truncf)
EK_LIBRARY_FUNCTION_2(float, ek_fmod_f32, fmodf)
EK_LIBRARY_FUNCTION(double, ek_exp_f64, exp)
EK_LIBRARY_FUNCTION(double, ek_log_f64, log)
EK_LIBRARY_FUNCTION(double, ek_tanh_f64, tanh)
EK_LIBRARY_FUNCTION(double, ek_log1p_unit_f64, log1p)
EK_LIBRARY_FUNCTION(double, ek_sqrt_f64, sqrt)
EK_LIBRARY_FUNCTION(double, ek_abs_f64, fabs)
EK_LIBRARY_FUNCTION(double, ek_floor_f64, floor)
EK_LIBRARY_FUNCTION(double, ek_ceil_f64, ceil)
EK_LIBRARY_FUNCTION(double, ek_round_f64, rint)
EK_LIBRARY_FUNCTION(double, ek_trunc_f64, trunc)
EK_LIBRARY_FUNCTION_2(double, ek_fmod_f64, fmod)

/* Functions that have their names from the C library. The library computes them in f64; on GPUs
 * CUDA also computes them in f32. */
/* clang-format off */
#define EK_C_FUNCTIONS(X) \
    X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) \
    X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) \
    X(erf) X(erfc) X(log1p) X(expm1) X(log2) X(log10) X(exp2)
/* clang-format on */
#define EK_C_FUNCTION(name) EK_LIBRARY_FUNCTION(double, ek_##name##_f64, name)
EK_C_FUNCTIONS(EK_C_FUNCTION)
#undef EK_C_FUNCTION
EK_LIBRARY_FUNCTION_2(double, ek_power_f64, pow)
EK_LIBRARY_FUNCTION_2(double, ek_atan2_f64, atan2)

/* Returns the normal distribution function of x. erfc keeps the tail's digits. */
EK_FORMULA double ek_ndtr_f64(double x)
{
    return 0.5 * erfc(-0.70710678118654752 * x);
}

/* Returns the derivative of x ek_ndtr_f64(x). */
EK_FORMULA double ek_gelu_slope_f64(double x)
{
    return ek_ndtr_f64(x) + x * (0.39894228040143268 * exp(-0.5 * x * x));
}

#ifdef __CUDACC__

#define EK_C_FUNCTION(name) EK_LIBRARY_FUNCTION(float, ek_##name##_f32, name##f)
EK_C_FUNCTIONS(EK_C_FUNCTION)
#undef EK_C_FUNCTION
EK_LIBRARY_FUNCTION_2(float, ek_power_f32, powf)
EK_LIBRARY_FUNCTION_2(float, ek_atan2_f32, atan2f)

#else
#include "kernels/wide_functions.h"
#endif

#endif
