/* wide_functions.h: f32 functions of the host that are computed in double and rounded once.
 *
 * ek_wide_<name> are functions of doubles with a few bits more than f32's precision. Their
 * arguments are computed from f32 arguments, so that no argument is a subnormal double. */
#ifndef EK_KERNELS_WIDE_FUNCTIONS_H
#define EK_KERNELS_WIDE_FUNCTIONS_H

#include <math.h>
#include <stdint.h>

#include "core/bits.h"

/* Returns e^x by the steps of ek_exp_f32. Beyond the limits the result is 0 or infinity in f32. NaN
 * stays NaN. */
EK_FORMULA double ek_wide_exp(double x)
{
    const double magic = 6755399441055744.0;
    x = x > 700.0 ? 700.0 : x;
    x = x < -700.0 ? -700.0 : x;
    double shifted = x * 1.4426950408889634 + magic;
    double n = shifted - magic;
    double r = x - n * 0.69314718036912382 - n * 1.9082149292705877e-10;
    double p = 0.00019775158161053401;
    p = p * r + 0.0013948192261697462;
    p = p * r + 0.0083335611666010209;
    p = p * r + 0.041666225292920578;
    p = p * r + 0.16666665125390381;
    p = p * r + 0.50000001045831277;
    p = p * r + 1.0000000002432516;
    p = p * r + 0.99999999996165911;
    return p * ek_double_of((ek_bits_of_double(shifted) + 1023u) << 52);
}

/* For x = 2^e m with m in [sqrt(1/2), sqrt(2)), returns log(m) and writes e to *exponent. */
EK_FORMULA double ek_wide_log_parts(double x, double *exponent)
{
    const double magic = 4503599627370496.0; /* 2^52: the lowest bits of 2^52 + n are n */
    uint64_t shifted = ek_bits_of_double(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    *exponent = ek_double_of((shifted >> 52) | 0x4330000000000000u) - (magic + 1023.0);
    double m = ek_double_of((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0.19609016036678442;
    p = p * z + 0.22174180918348488;
    p = p * z + 0.2857216795745216;
    p = p * z + 0.39999994872376232;
    p = p * z + 0.66666666679652686;
    p = p * z + 1.9999999999999469;
    return p * s;
}

/* Returns log(x) for x at the ends of its range (0, infinity, negative, NaN), else `value`. */
EK_FORMULA double ek_wide_log_ends(double x, double value)
{
    value = x == (double)INFINITY ? x : value;
    value = x == 0.0 ? -(double)INFINITY : value;
    return x >= 0.0 ? value : (double)NAN;
}

EK_FORMULA double ek_wide_log(double x)
{
    double e, log_m = ek_wide_log_parts(x, &e);
    return ek_wide_log_ends(x, e * 0.69314718055994531 + log_m);
}

/* Returns log(1 + x). */
EK_FORMULA double ek_wide_log1p(double x)
{
    double series = x * (1.0 - x * (0.5 - x * (1.0 / 3.0 - x * 0.25)));
    double whole = ek_wide_log(1.0 + x);
    return ((x < 1e-3) & (x > -1e-3)) != 0 ? series : whole;
}

EK_FORMULA double ek_wide_expm1(double x)
{
    double series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))));
    double whole = ek_wide_exp(x) - 1.0;
    return ((x < 0.02) & (x > -0.02)) != 0 ? series : whole;
}

EK_FORMULA float ek_log1p_f32(float x)
{
    float y = (float)ek_wide_log1p(x);
    return x == 0.0f ? x : y; /* keeps the sign of 0 */
}

EK_FORMULA float ek_expm1_f32(float x)
{
    float y = (float)ek_wide_expm1(x);
    return x == 0.0f ? x : y;
}

EK_FORMULA float ek_log2_f32(float x)
{
    double e, log_m = ek_wide_log_parts(x, &e);
    return (float)ek_wide_log_ends(x, e + log_m * 1.4426950408889634);
}

EK_FORMULA float ek_log10_f32(float x)
{
    return (float)(ek_wide_log(x) * 0.43429448190325183);
}

EK_FORMULA float ek_exp2_f32(float x)
{
    return (float)ek_wide_exp(x * 0.69314718055994531);
}

/* Returns x^y by C's rules (F.10.4.4). */
EK_FORMULA float ek_power_f32(float x, float y)
{
    double magnitude = fabsf(x);
    double result = ek_wide_exp((double)y * ek_wide_log(magnitude));
    float half = 0.5f * y;
    int whole = truncf(y) == y, odd = whole & (truncf(half) != half);
    int negative = x < 0.0f;
    /* Odd powers keep the sign, also of -0. */
    result = (odd & (int)(ek_bits_of(x) >> 31)) != 0 ? -result : result;
    result = (negative & !whole & (x > -INFINITY)) != 0 ? (double)NAN : result;
    /* |x| = 1 to an infinite power is 1. So is 1 to any power, and any number to the power of 0. */
    result = ((magnitude == 1.0) & (fabsf(y) == INFINITY)) != 0 ? 1.0 : result;
    return ((x == 1.0f) | (y == 0.0f)) != 0 ? 1.0f : (float)result;
}

/* ---- remainders ---- */

/* Returns true if x and y are finite and x / y is small enough for ek_small_fmod_f32. */
EK_FORMULA int ek_quotient_is_small(float x, float y)
{
    return (fabsf(x) < 268435456.0f * fabsf(y)) & (fabsf(y) < INFINITY);
}

/* Returns fmod(x, y) for quotients below 2^28. The result is exact: a quotient's distance to the
 * next whole number is too large to be rounded away, and the product of y and a whole number of 28
 * bits has at most 53 bits. */
EK_FORMULA float ek_small_fmod_f32(float x, float y)
{
    double whole = (double)(int32_t)((double)x / (double)y);
    return copysignf((float)((double)x - whole * (double)y), x);
}

/* ---- trigonometric functions ---- */

/* pi / 2 in three parts, the first two of 23 bits */
#define EK_HALF_PI_1 1.5707962512969971
#define EK_HALF_PI_2 7.5497894158615964e-08
#define EK_HALF_PI_3 5.390302858158119e-15

/* Returns r of x = r + q pi / 2, |r| <= pi / 4; *quarter becomes q modulo 2^51. Valid for |x| <=
 * 2^30, where q times each of the first two parts of pi / 2 is exact. */
EK_FORMULA double ek_wide_quarter(double x, uint64_t *quarter)
{
    const double magic = 6755399441055744.0;
    double shifted = x * 0.63661977236758138 + magic;
    double q = shifted - magic;
    *quarter = ek_bits_of_double(shifted);
    return x - q * EK_HALF_PI_1 - q * EK_HALF_PI_2 - q * EK_HALF_PI_3;
}

EK_FORMULA double ek_wide_sin_of(double r)
{
    double z = r * r;
    double p = -2.4805233586649041e-08;
    p = p * z + 2.7555986045848787e-06;
    p = p * z - 0.00019841266898474092;
    p = p * z + 0.0083333333310567706;
    p = p * z - 0.16666666666663843;
    return p * z * r + r;
}

EK_FORMULA double ek_wide_cos_of(double r)
{
    double z = r * r;
    double p = -2.7300623282316946e-07;
    p = p * z + 2.480059736147815e-05;
    p = p * z - 0.0013888887665251515;
    p = p * z + 0.041666666664298704;
    return p * z * z - 0.5 * z + 1.0;
}

/* sin, cos and tan below return an argument beyond EK_FAR_ANGLE unchanged. Their caller recognises
 * that result by its size, and calls the C library for it. */
#define EK_FAR_ANGLE 1073741824.0f

EK_FORMULA float ek_sin_f32(float x)
{
    uint64_t quarter;
    double r = ek_wide_quarter(x, &quarter), s = ek_wide_sin_of(r), c = ek_wide_cos_of(r);
    double y = (quarter & 1) != 0 ? c : s;
    y = (quarter & 2) != 0 ? -y : y;
    y = x == 0.0f ? x : y;
    return fabsf(x) > EK_FAR_ANGLE ? x : (float)y;
}

EK_FORMULA float ek_cos_f32(float x)
{
    uint64_t quarter;
    double r = ek_wide_quarter(x, &quarter), s = ek_wide_sin_of(r), c = ek_wide_cos_of(r);
    double y = (quarter & 1) != 0 ? s : c;
    y = ((quarter + 1) & 2) != 0 ? -y : y;
    return fabsf(x) > EK_FAR_ANGLE ? x : (float)y;
}

EK_FORMULA float ek_tan_f32(float x)
{
    uint64_t quarter;
    double r = ek_wide_quarter(x, &quarter), s = ek_wide_sin_of(r), c = ek_wide_cos_of(r);
    double y = (quarter & 1) != 0 ? -c / s : s / c;
    y = x == 0.0f ? x : y;
    return fabsf(x) > EK_FAR_ANGLE ? x : (float)y;
}

/* Returns atan(t) for t in [0, 1]. */
EK_FORMULA double ek_wide_atan_of(double t)
{
    double z = t * t;
    double p = -0.00068478378195491185;
    p = p * z + 0.0048508865038575377;
    p = p * z - 0.016111569842472216;
    p = p * z + 0.034209461165437938;
    p = p * z - 0.054278985620973344;
    p = p * z + 0.072457117952893946;
    p = p * z - 0.089802368437343669;
    p = p * z + 0.11093240766804213;
    p = p * z - 0.14283980695824264;
    p = p * z + 0.19999912047184132;
    p = p * z - 0.33333331571101776;
    p = p * z + 0.99999999994123168;
    return p * t;
}

EK_FORMULA float ek_atan_f32(float x)
{
    double magnitude = fabsf(x);
    int far = magnitude > 1.0;
    double angle = ek_wide_atan_of(far ? 1.0 / magnitude : magnitude);
    angle = far ? 1.5707963267948966 - angle : angle;
    float y = (float)angle;
    return ek_float_of(ek_bits_of(y) | (ek_bits_of(x) & 0x80000000u));
}

/* Returns C's atan2 (F.10.1.4): the angle of the point (x, y). */
EK_FORMULA float ek_atan2_f32(float y, float x)
{
    double height = fabsf(y), width = fabsf(x);
    int steep = height > width;
    double small = steep ? width : height, large = steep ? height : width;
    double t = small / large;
    t = large == 0.0 ? 0.0 : t;
    t = small == (double)INFINITY ? 1.0 : t;
    double angle = ek_wide_atan_of(t);
    angle = steep ? 1.5707963267948966 - angle : angle;
    angle = ek_bits_of(x) >> 31 != 0 ? 3.1415926535897932 - angle : angle;
    float result = ek_float_of(ek_bits_of((float)angle) | (ek_bits_of(y) & 0x80000000u));
    return ((x != x) | (y != y)) != 0 ? x + y : result;
}

/* Returns asin(t) for t in [0, 1 / 2] and z = t^2. */
EK_FORMULA double ek_wide_asin_of(double t, double z)
{
    double p = 0.034951505062139177;
    p = p * z + 0.00722387250035883;
    p = p * z + 0.024711527101906272;
    p = p * z + 0.030092212011966775;
    p = p * z + 0.044662035296722705;
    p = p * z + 0.074999382001132861;
    p = p * z + 0.16666667421650136;
    p = p * z + 0.99999999998490374;
    return p * t;
}

/* Returns asin(|x|) for |x| up to 1 / 2. For larger |x| sets *far and returns
 * a = asin(sqrt((1 - |x|) / 2)), so that asin(|x|) = pi / 2 - 2 a. */
EK_FORMULA double ek_wide_asin_near(float x, int *far)
{
    double magnitude = fabsf(x);
    *far = magnitude > 0.5;
    double z = *far ? 0.5 - 0.5 * magnitude : magnitude * magnitude;
    return ek_wide_asin_of(*far ? sqrt(z) : magnitude, z);
}

EK_FORMULA float ek_asin_f32(float x)
{
    int far;
    double angle = ek_wide_asin_near(x, &far);
    angle = far ? 1.5707963267948966 - 2.0 * angle : angle;
    float y = (float)angle;
    return ek_float_of(ek_bits_of(y) | (ek_bits_of(x) & 0x80000000u));
}

EK_FORMULA float ek_acos_f32(float x)
{
    int far;
    double angle = ek_wide_asin_near(x, &far);
    double near = x < 0.0f ? 1.5707963267948966 + angle : 1.5707963267948966 - angle;
    double beyond = x < 0.0f ? 3.1415926535897932 - 2.0 * angle : 2.0 * angle;
    return (float)(far ? beyond : near);
}

/* ---- hyperbolic functions ---- */

EK_FORMULA float ek_sinh_f32(float x)
{
    double wide = x, z = wide * wide;
    double p = 2.8185239127463289e-06;
    p = p * z + 0.0001983581245341402;
    p = p * z + 0.0083333525928710218;
    p = p * z + 0.16666666430247581;
    p = p * z + 1.0000000000459759;
    double e = ek_wide_exp(wide);
    return (float)(z < 1.0 ? p * wide : 0.5 * e - 0.5 / e);
}

EK_FORMULA float ek_cosh_f32(float x)
{
    double e = ek_wide_exp(x);
    return (float)(0.5 * e + 0.5 / e);
}

EK_FORMULA float ek_asinh_f32(float x)
{
    double magnitude = fabsf(x), z = magnitude * magnitude;
    float y = (float)ek_wide_log1p(magnitude + z / (1.0 + sqrt(1.0 + z)));
    y = magnitude == (double)INFINITY ? INFINITY : y;
    return ek_float_of(ek_bits_of(y) | (ek_bits_of(x) & 0x80000000u));
}

EK_FORMULA float ek_acosh_f32(float x)
{
    double t = (double)x - 1.0;
    double y = ek_wide_log1p(t + sqrt(t * (t + 2.0)));
    return x < 1.0f ? NAN : (float)y;
}

EK_FORMULA float ek_atanh_f32(float x)
{
    double magnitude = fabsf(x);
    float y = (float)(0.5 * ek_wide_log1p(2.0 * magnitude / (1.0 - magnitude)));
    return ek_float_of(ek_bits_of(y) | (ek_bits_of(x) & 0x80000000u));
}

/* ---- the error function ---- */

/* Returns exp(x^2) erfc(x) for x in [0, 10.6]. */
EK_FORMULA double ek_wide_erfcx(double x)
{
    double q = (x - 3.0) / (x + 3.0);
    double p = -0.00026342693293736433;
    p = p * q - 0.00076550521857216675;
    p = p * q + 0.0020090568000270754;
    p = p * q + 0.0025630293434555245;
    p = p * q - 0.023802491122473561;
    p = p * q + 0.06829580506708012;
    p = p * q - 0.11927005985919402;
    p = p * q + 0.12964649724260088;
    p = p * q - 0.047562453011302304;
    p = p * q - 0.13562114316579338;
    p = p * q + 1.2530080596234237;
    return p / (1.0 + 2.0 * x);
}

EK_FORMULA float ek_erf_f32(float x)
{
    double magnitude = fabsf(x), z = magnitude * magnitude;
    double p = -9.6415152716425312e-06;
    p = p * z + 0.00011256947615428253;
    p = p * z - 0.00084828288030607425;
    p = p * z + 0.005220945429755988;
    p = p * z - 0.026865400040982004;
    p = p * z + 0.11283781974083865;
    p = p * z - 0.37612638434649459;
    p = p * z + 1.1283791670580223;
    double near = p * magnitude;
    double bounded = magnitude > 10.0 ? 10.0 : magnitude;
    double far = 1.0 - ek_wide_erfcx(bounded) * ek_wide_exp(-bounded * bounded);
    float y = (float)(magnitude < 1.0 ? near : far);
    return ek_float_of(ek_bits_of(y) | (ek_bits_of(x) & 0x80000000u));
}

EK_FORMULA float ek_erfc_f32(float x)
{
    double magnitude = fabsf(x), bounded = magnitude > 10.6 ? 10.6 : magnitude;
    double tail = ek_wide_erfcx(bounded) * ek_wide_exp(-bounded * bounded);
    return (float)(x < 0.0f ? 2.0 - tail : tail);
}

#endif
