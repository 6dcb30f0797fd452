// emulator_math.h: functions that device code has beyond C's mathematics.
#ifndef EK_EMULATOR_MATH_H
#define EK_EMULATOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EK_EMULATOR_MIN_MAX(type)          \
    static inline type min(type a, type b) \
    {                                      \
        return b < a ? b : a;              \
    }                                      \
    static inline type max(type a, type b) \
    {                                      \
        return a < b ? b : a;              \
    }
EK_EMULATOR_MIN_MAX(int)
EK_EMULATOR_MIN_MAX(unsigned int)
EK_EMULATOR_MIN_MAX(long)
EK_EMULATOR_MIN_MAX(unsigned long)
EK_EMULATOR_MIN_MAX(long long)
EK_EMULATOR_MIN_MAX(unsigned long long)

static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
// Products that no compiler may join with a sum.
static inline float __fmul_rn(float x, float y)
{
    volatile float product = x * y;
    return product;
}
static inline double __dmul_rn(double x, double y)
{
    volatile double product = x * y;
    return product;
}

#endif
