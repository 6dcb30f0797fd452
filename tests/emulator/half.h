// half.h: numbers of 16 bits, IEEE 754's and bf16, by arithmetic instead of the library's formulas.
#ifndef EK_EMULATOR_HALF_H
#define EK_EMULATOR_HALF_H

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator
{

inline float half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    float value = exponent == 31  ? mantissa ? NAN : INFINITY
                  : exponent == 0 ? ldexpf((float)mantissa, -24)
                                  : ldexpf((float)(1024 + mantissa), exponent - 25);
    return half & 0x8000 ? -value : value;
}

// Rounds to nearest even.
inline uint16_t half_of(float value)
{
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    float magnitude = std::fabs(value);
    if (std::isnan(value))
        return 0x7e00;
    if (magnitude >= 65520)
        return sign | 0x7c00;
    int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
    long units = std::lrint(std::ldexp((double)magnitude, 10 - exponent));
    return (uint16_t)(sign | (((exponent + 14) << 10) + units));
}

inline float bf16_value(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(std::isnan(value) ? 0x7fc0u | (bits >> 16) : rounded);
}

} // namespace emulator

#endif
