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

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
// The C library has declared functions of these names.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline double __dsqrt_rn(double x)
{
    return sqrt(x);
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}
// Sums and products that no compiler may join into one operation.
static inline float __fmul_rn(float x, float y)
{
    volatile float product = x * y;
    return product;
}
static inline float __fadd_rn(float x, float y)
{
    volatile float sum = x + y;
    return sum;
}
static inline double __dmul_rn(double x, double y)
{
    volatile double product = x * y;
    return product;
}
static inline double __dadd_rn(double x, double y)
{
    volatile double sum = x + y;
    return sum;
}

template <typename To, typename From> static inline To ek_emulator_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "bits are kept");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return ek_emulator_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return ek_emulator_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return ek_emulator_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return ek_emulator_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return ek_emulator_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return ek_emulator_bits<double>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)((wide)x * y >> 64);
}

#endif
