/* bits.h: the bits of floats, and bf16. Valid as C11, C++17 and CUDA device code. */
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

#endif
