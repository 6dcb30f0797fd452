/* bits.h: the bits of floats, conversions of bf16 and f16, and of real numbers to integers. Valid
 * as C11, C++17 and CUDA device code. */
#ifndef EK_CORE_BITS_H
#define EK_CORE_BITS_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define EK_FORMULA static __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define EK_FORMULA static inline __attribute__((always_inline, unused))
#else
#define EK_FORMULA static inline
#endif

EK_FORMULA uint32_t ek_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

EK_FORMULA float ek_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

EK_FORMULA uint64_t ek_bits_of_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

EK_FORMULA double ek_double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* bf16 is the upper half of an f32. Conversion rounds to nearest even; NaN becomes a quiet NaN. */
EK_FORMULA float ek_float_of_bf16(uint16_t bits)
{
    return ek_float_of((uint32_t)bits << 16);
}

EK_FORMULA uint16_t ek_bf16_of(float x)
{
    uint32_t bits = ek_bits_of(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u | (bits >> 16) : rounded);
}

/* f16 is IEEE 754's binary16: a sign, five bits of exponent, ten of mantissa. Conversion rounds to
 * nearest even; NaN becomes a quiet NaN that keeps its upper bits, as processors convert it. There
 * are no branches, so that loops vectorise, and no subnormal f32, which processors may flush. */
EK_FORMULA float ek_float_of_f16(uint16_t half)
{
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    uint32_t magnitude = (uint32_t)(half & 0x7fffu), sign = (uint32_t)(half & 0x8000u) << 16;
    /* The bits of a subnormal number are put after the leading one of 2^-14, and 2^-14 is then
     * subtracted. From all other numbers 0 is subtracted, because compilers vectorise no branch
     * here. */
    uint32_t one = magnitude < 0x400u ? 0x38800000u : 0u;
    uint32_t bits = (magnitude << 13) + (magnitude < 0x400u ? 0x38800000u : 0x38000000u);
    bits = ek_bits_of(ek_float_of(bits) - ek_float_of(one));
    bits += magnitude >= 0x7c00u ? 0x38000000u : 0u;
    bits |= magnitude > 0x7c00u ? 0x400000u : 0u;
    return ek_float_of(bits | sign);
#endif
}

EK_FORMULA uint16_t ek_f16_of(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    uint32_t bits = ek_bits_of(x), magnitude = bits & 0x7fffffffu;
    /* From 65520 on, which is between the largest number and 2^16, everything is infinite. */
    uint32_t finite = magnitude < 0x477ff000u ? magnitude : 0x47800000u;
    uint32_t rounded = (finite - 0x38000000u + 0xfffu + ((finite >> 13) & 1u)) >> 13;
    /* Adding 1/2 to a number below 2^-14 shifts its bits to their place and rounds them. */
    float small = ek_float_of(magnitude < 0x38800000u ? magnitude : 0u);
    uint32_t tiny = ek_bits_of(small + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? tiny : rounded;
    result = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : result;
    return (uint16_t)(result | (bits >> 16 & 0x8000u));
#endif
}

/* Truncates. NaN and values that don't fit become INT64_MIN, as with the x86 instruction. */
EK_FORMULA int64_t ek_i64_of(double x)
{
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

/* Truncates. NaN and values that don't fit become INT32_MIN. */
EK_FORMULA int32_t ek_i32_of(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

#endif
