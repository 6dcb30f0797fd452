/* divide.h: divisions by what is known before a launch: a multiplication and a shift, where a
 * machine's division takes some 20 instructions. Plain C that C++ compiles too. */
#ifndef EK_CUDA_DIVIDE_H
#define EK_CUDA_DIVIDE_H

#include "evenkeel/base.h"
#include "kernels/formulas.h"

EK_BEGIN_DECLARATIONS

/* n / by for n < 2^31: (high half of n factor + n) >> shift, with factor = floor(2^32 (2^shift -
 * by) / by) + 1 and 2^shift the first power of 2 that is not smaller than `by`. */
typedef struct ek_cuda_divisor {
    uint32_t by, factor, shift;
} ek_cuda_divisor;

/* The same for n < 2^63, with the high half of 128 bits. */
typedef struct ek_cuda_long_divisor {
    uint64_t factor;
    uint32_t shift;
} ek_cuda_long_divisor;

__extension__ typedef unsigned __int128 ek_cuda_uint128;

EK_FORMULA ek_cuda_divisor ek_cuda_divisor_of(uint32_t by)
{
    ek_cuda_divisor divisor = {by, 0, 0};
    while (divisor.shift < 31 && ((uint32_t)1 << divisor.shift) < by)
        divisor.shift++;
    uint64_t power = (uint64_t)1 << divisor.shift;
    divisor.factor = (uint32_t)((((power - by) << 32) / by) + 1);
    return divisor;
}

EK_FORMULA uint32_t ek_cuda_divide(ek_cuda_divisor divisor, uint32_t n)
{
    return ((uint32_t)(((uint64_t)n * divisor.factor) >> 32) + n) >> divisor.shift;
}

/* 1 <= by < 2^63 */
EK_FORMULA ek_cuda_long_divisor ek_cuda_long_divisor_of(uint64_t by)
{
    ek_cuda_long_divisor divisor = {0, 0};
    while (divisor.shift < 63 && ((uint64_t)1 << divisor.shift) < by)
        divisor.shift++;
    uint64_t above = ((uint64_t)1 << divisor.shift) - by;
    divisor.factor = (uint64_t)(((ek_cuda_uint128)above << 64) / by) + 1;
    return divisor;
}

EK_FORMULA uint64_t ek_cuda_divide_long(ek_cuda_long_divisor divisor, uint64_t n)
{
    return ((uint64_t)(((ek_cuda_uint128)n * divisor.factor) >> 64) + n) >> divisor.shift;
}

EK_END_DECLARATIONS
#endif
