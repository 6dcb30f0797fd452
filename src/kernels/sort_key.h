/* sort_key.h: numbers as unsigned keys of the same order, in the common subset of C11 and C++17.
 * NaN comes after all numbers, and -0 is equal to 0. Equal numbers have equal keys. */
#ifndef EK_KERNELS_SORT_KEY_H
#define EK_KERNELS_SORT_KEY_H

#include <stdint.h>

#include "core/bits.h"

/* Returns a key below 2^32. */
EK_FORMULA uint64_t ek_sort_key_f32(float x)
{
    if (x != x)
        return UINT32_MAX;
    uint32_t bits = x == 0 ? 0 : ek_bits_of(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Returns a key below 2^16. x is the value of the bf16 or f16 with these bits. */
EK_FORMULA uint64_t ek_sort_key_16(float x, uint16_t bits)
{
    if (x != x)
        return UINT16_MAX;
    return x == 0 ? 0x8000u : bits >> 15 ? (uint16_t)~bits : bits | 0x8000u;
}

EK_FORMULA uint64_t ek_sort_key_f64(double x)
{
    union {
        double number;
        uint64_t bits;
    } both;
    if (x != x)
        return UINT64_MAX;
    both.number = x == 0 ? 0 : x;
    return both.bits >> 63 ? ~both.bits : both.bits | (uint64_t)1 << 63;
}

EK_FORMULA uint64_t ek_sort_key_i64(int64_t x)
{
    return (uint64_t)x ^ (uint64_t)1 << 63;
}

#endif
