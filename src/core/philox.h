/* philox.h: Philox 4x32-10 (J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)
 * and the numbers that tensors get from it. Valid as C11, C++17 and CUDA device code.
 *
 * Ten rounds turn a counter of 128 bits and a key of 64 bits into a block of four words. The key is
 * a generator's seed. The counter is the block's number (low half) and the number of the call (high
 * half). So a random number depends only on the seed, the call and the element's index, not on the
 * device or thread that draws it. Elements use a call's words one after another: most take one word
 * each; f64 uniforms and normals, and integers of a wide range, take two. A pair of normal numbers
 * is made of the words of both elements.
 *
 * All compilers give the same bits: every product that is added to something is written as fma, and
 * square roots and divisions are correctly rounded everywhere. */
#ifndef EK_CORE_PHILOX_H
#define EK_CORE_PHILOX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/bits.h"

typedef enum ek_draw_kind {
    EK_DRAW_UNIFORM,   /* in [a, b), or b itself by rounding */
    EK_DRAW_NORMAL,    /* mean a, deviation b */
    EK_DRAW_INTEGERS,  /* low, ..., low + range - 1 */
    EK_DRAW_BERNOULLI, /* 1 with probability a, else 0 */
    EK_DRAW_DROPOUT    /* x times b with probability a, else x times 0 */
} ek_draw_kind;

/* One call, which draws the numbers of a tensor. The tensor's element i, in row-major order, has
 * the number first + i + i / row * gap. Probabilities are rounded to multiples of 2^-32. */
typedef struct ek_draw {
    ek_draw_kind kind;
    uint64_t seed, call;
    int64_t first, row, gap; /* row >= 1 */
    double a, b;
    int64_t low;
    uint64_t range;
} ek_draw;

enum { EK_PHILOX_BLOCK = 4, EK_PHILOX_ROUNDS = 10 };
#define EK_PHILOX_MULTIPLIER_0 0xD2511F53u
#define EK_PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define EK_PHILOX_WEYL_0 0x9E3779B9u
#define EK_PHILOX_WEYL_1 0xBB67AE85u

/* Writes the block of four words that belongs to a key and a counter (high and low half). */
EK_FORMULA void ek_philox_words_of(uint64_t key, uint64_t high, uint64_t low,
                                   uint32_t words[EK_PHILOX_BLOCK])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    for (int round = 0; round < EK_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)EK_PHILOX_MULTIPLIER_0 * c0;
        uint64_t p1 = (uint64_t)EK_PHILOX_MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += EK_PHILOX_WEYL_0;
        k1 += EK_PHILOX_WEYL_1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

EK_FORMULA uint64_t ek_philox_u64(uint32_t first, uint32_t second)
{
    return (uint64_t)first << 32 | second;
}

/* ---- uniforms in [0, 1), times scale, plus low; the result may round up to the upper end ---- */

EK_FORMULA float ek_philox_uniform_f32(uint32_t word, float scale, float low)
{
    return fmaf((float)(int32_t)(word >> 8) * 5.9604644775390625e-8f, scale, low);
}

EK_FORMULA double ek_philox_uniform_f64(uint64_t word, double scale, double low)
{
    return fma((double)(int64_t)(word >> 11) * 1.1102230246251565e-16, scale, low);
}

/* Draws from as many upper bits of the word as bf16's significand has: eight. The result is not yet
 * rounded to bf16. */
EK_FORMULA float ek_philox_uniform_bf16(uint32_t word, float scale, float low)
{
    return fmaf((float)(int32_t)(word >> 24) * 0.00390625f, scale, low);
}

/* Draws from as many upper bits of the word as f16's significand has: eleven. The result is not yet
 * rounded to f16. */
EK_FORMULA float ek_philox_uniform_f16(uint32_t word, float scale, float low)
{
    return fmaf((float)(int32_t)(word >> 21) * 0.00048828125f, scale, low);
}

/* ---- logarithm, sine and cosine of fused steps ---- */

/* Returns log(x) for x in (0, 1] by Cephes' polynomial, with x = 2^e m and m in [sqrt(1/2),
 * sqrt(2)). */
EK_FORMULA float ek_philox_log_f32(float x)
{
    uint32_t bits = ek_bits_of(x);
    int32_t exponent = (int32_t)((bits - 0x3f3504f3u) & 0xff800000u);
    float m = ek_float_of(bits - (uint32_t)exponent) - 1.0f;
    float e = (float)(exponent >> 23);
    float z = m * m;
    float y = 7.0376836292e-2f;
    y = fmaf(y, m, -1.1514610310e-1f);
    y = fmaf(y, m, 1.1676998740e-1f);
    y = fmaf(y, m, -1.2420140846e-1f);
    y = fmaf(y, m, 1.4249322787e-1f);
    y = fmaf(y, m, -1.6668057665e-1f);
    y = fmaf(y, m, 2.0000714765e-1f);
    y = fmaf(y, m, -2.4999993993e-1f);
    y = fmaf(y, m, 3.3333331174e-1f);
    y = fmaf(y * m, z, e * -2.12194440e-4f);
    y = fmaf(z, -0.5f, y);
    return fmaf(e, 0.693359375f, m + y);
}

/* Writes sine and cosine of word / 2^32 turns. The upper bits choose the quarter turn; the
 * remainder lies in [-1/8, 1/8) turns, for which Cephes has polynomials. */
EK_FORMULA void ek_philox_sincos_f32(uint32_t word, float *sine, float *cosine)
{
    uint32_t quarter = (word + 0x20000000u) >> 30;
    float x = (float)(int32_t)(word - (quarter << 30)) * 1.4629180792671596e-9f;
    float z = x * x;
    float c = 2.443315711809948e-5f;
    c = fmaf(c, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = fmaf(c * z, z, fmaf(z, -0.5f, 1.0f));
    float s = -1.9515295891e-4f;
    s = fmaf(s, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f);
    s = fmaf(s * z, x, x);
    uint32_t swapped = 0u - (quarter & 1u);
    uint32_t of_sine = (ek_bits_of(c) & swapped) | (ek_bits_of(s) & ~swapped);
    uint32_t of_cosine = (ek_bits_of(s) & swapped) | (ek_bits_of(c) & ~swapped);
    *sine = ek_float_of(of_sine ^ ((quarter & 2u) << 30));
    *cosine = ek_float_of(of_cosine ^ (((quarter + 1u) & 2u) << 30));
}

/* Returns log(x) for x in (0, 1] by the series of FreeBSD's library in s = (m - 1) / (m + 1). */
EK_FORMULA double ek_philox_log_f64(double x)
{
    uint64_t bits = ek_bits_of_double(x);
    int64_t exponent = (int64_t)((bits - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u);
    double f = ek_double_of(bits - (uint64_t)exponent) - 1.0;
    double e = (double)(int32_t)(exponent >> 52);
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 1.479819860511658591e-01;
    p = fma(p, z, 1.531383769920937332e-01);
    p = fma(p, z, 1.818357216161805012e-01);
    p = fma(p, z, 2.222219843214978396e-01);
    p = fma(p, z, 2.857142874366239149e-01);
    p = fma(p, z, 3.999999999940941908e-01);
    p = fma(p, z, 6.666666666666735130e-01);
    double half = 0.5 * f;
    double y = fma(s, fma(half, f, z * p), e * 1.90821492927058770002e-10);
    y = fma(half, f, -y) - f;
    return fma(e, 6.93147180369123816490e-01, -y);
}

EK_FORMULA void ek_philox_sincos_f64(uint64_t word, double *sine, double *cosine)
{
    uint64_t quarter = (word + 0x2000000000000000u) >> 62;
    double x = (double)(int64_t)(word - (quarter << 62)) * 3.4061215800865545e-19;
    double z = x * x;
    double c = -1.13596475577881948265e-11;
    c = fma(c, z, 2.08757232129817482790e-09);
    c = fma(c, z, -2.75573143513906633035e-07);
    c = fma(c, z, 2.48015872894767294178e-05);
    c = fma(c, z, -1.38888888888741095749e-03);
    c = fma(c, z, 4.16666666666666019037e-02);
    c = fma(c * z, z, fma(z, -0.5, 1.0));
    double s = 1.58969099521155010221e-10;
    s = fma(s, z, -2.50507602534068634195e-08);
    s = fma(s, z, 2.75573137070700676789e-06);
    s = fma(s, z, -1.98412698298579493134e-04);
    s = fma(s, z, 8.33333333332248946124e-03);
    s = fma(s, z, -1.66666666666666324348e-01);
    s = fma(s * z, x, x);
    double of_sine = quarter & 1 ? c : s, of_cosine = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -of_sine : of_sine;
    *cosine = (quarter + 1) & 2 ? -of_cosine : of_cosine;
}

/* ---- pairs of normal numbers by the method of Box and Muller ---- */

EK_FORMULA void ek_philox_normals_f32(const uint32_t words[2], float mean, float std, float pair[2])
{
    float u = fmaf((float)words[0], 2.3283064365386963e-10f, 1.1641532182693481e-10f);
    float radius = sqrtf(-2.0f * ek_philox_log_f32(u));
    float sine, cosine;
    ek_philox_sincos_f32(words[1], &sine, &cosine);
    pair[0] = fmaf(radius * cosine, std, mean);
    pair[1] = fmaf(radius * sine, std, mean);
}

EK_FORMULA void ek_philox_normals_f64(const uint32_t words[4], double mean, double std,
                                      double pair[2])
{
    double u = fma((double)ek_philox_u64(words[0], words[1]), 5.421010862427522e-20,
                   2.710505431213761e-20);
    double radius = sqrt(-2.0 * ek_philox_log_f64(u));
    double sine, cosine;
    ek_philox_sincos_f64(ek_philox_u64(words[2], words[3]), &sine, &cosine);
    pair[0] = fma(radius * cosine, std, mean);
    pair[1] = fma(radius * sine, std, mean);
}

/* ---- integers and choices ---- */

__extension__ typedef unsigned __int128 ek_philox_u128;

/* Returns low plus a number below `range`, which is at most 2^32: the upper half of word * range.
 */
EK_FORMULA int64_t ek_philox_integer(uint32_t word, int64_t low, uint64_t range)
{
    return (int64_t)((uint64_t)low + (word * range >> 32));
}

EK_FORMULA int64_t ek_philox_wide_integer(uint64_t word, int64_t low, uint64_t range)
{
    return (int64_t)((uint64_t)low + (uint64_t)((ek_philox_u128)word * range >> 64));
}

/* A word is chosen if it is at most `last`; no word is chosen if `any` is 0. */
typedef struct ek_philox_choice {
    uint32_t last, any;
} ek_philox_choice;

EK_FORMULA ek_philox_choice ek_philox_choice_of(double probability)
{
    uint64_t chosen = (uint64_t)(probability * 4294967296.0 + 0.5);
    ek_philox_choice choice = {(uint32_t)(chosen - 1), chosen > 0};
    return choice;
}

EK_FORMULA uint32_t ek_philox_chosen(uint32_t word, ek_philox_choice choice)
{
    return (word <= choice.last) & choice.any;
}

/* Returns how many words an element takes. */
EK_FORMULA int ek_draw_width(const ek_draw *draw, bool f64)
{
    if (draw->kind == EK_DRAW_INTEGERS)
        return draw->range > 4294967296u ? 2 : 1;
    return f64 && (draw->kind == EK_DRAW_UNIFORM || draw->kind == EK_DRAW_NORMAL) ? 2 : 1;
}

#endif
