/* random_normal.c: normal numbers by the method of Box and Muller, in PyTorch's three ways.
 *
 * Fewer than 16 numbers are made in f64, a pair at a time; the second number of a pair is kept for
 * the next draw. 16 numbers or more are first drawn as uniforms, then transformed in blocks of 16:
 * eight radii and eight angles each. A last partial block is filled up with the numbers before it,
 * and the whole block is drawn anew. In f32, a block's logarithm, sine and cosine are the
 * polynomials of Cephes, rounded in the order of PyTorch's build for Linux on x86-64: the code has
 * fmaf exactly where PyTorch's compiler fuses a product and a sum. Philox's normals use this
 * logarithm, too. */
#include <math.h>
#include <string.h>

#include "core/bits.h"
#include "core/generator.h"
#include "core/multiversion.h"
#include "core/philox.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum { BLOCK = 16, HALF = 8 };

static const double pi = 3.14159265358979323846;

/* ---- f32 blocks ---- */

/* Writes sine and cosine for x >= 0, octant by octant, after Cody and Waite's reduction. */
static inline __attribute__((always_inline)) void sincos_polynomial(float x, float *sine,
                                                                    float *cosine)
{
    float scaled = x * 1.27323954473516f;
    uint32_t octant = ((uint32_t)(int32_t)scaled + 1u) & ~1u;
    float y = (float)(int32_t)octant;
    uint32_t sign_of_sine = (octant & 4u) << 29;
    uint32_t sign_of_cosine = (~(octant - 2u) & 4u) << 29;
    bool swapped = (octant & 2u) != 0;
    x = fmaf(y, -0.78515625f, x);
    x = fmaf(y, -2.4187564849853515625e-4f, x);
    x = fmaf(y, -3.77489497744594108e-8f, x);

    float z = x * x;
    float c = 2.443315711809948e-5f;
    c = fmaf(c, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = c * z;
    float half = z * 0.5f;
    c = fmaf(c, z, -half);
    c = c + 1.0f;

    float s = -1.9515295891e-4f;
    s = fmaf(s, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f);
    s = s * z;
    s = fmaf(s, x, x);

    float for_sine = swapped ? c : s;
    float for_cosine = swapped ? s : c;
    *sine = ek_float_of(ek_bits_of(for_sine) ^ sign_of_sine);
    *cosine = ek_float_of(ek_bits_of(for_cosine) ^ sign_of_cosine);
}

/* Turns whole blocks of uniforms in `data` into normal numbers. */
EK_MULTIVERSION
static void normal_transform_f32(float *data, int64_t blocks, float mean, float std)
{
    const float two_pi = (float)(2 * pi);
    for (int64_t block = 0; block < blocks; block++, data += BLOCK) {
        float first[HALF], second[HALF];
        for (int j = 0; j < HALF; j++) {
            float u = 1.0f - data[j];
            float radius = sqrtf(-2.0f * ek_philox_log_f32(u));
            float sine, cosine;
            sincos_polynomial(two_pi * data[j + HALF], &sine, &cosine);
            first[j] = fmaf(radius * cosine, std, mean);
            second[j] = fmaf(radius * sine, std, mean);
        }
        memcpy(data, first, sizeof(first));
        memcpy(data + HALF, second, sizeof(second));
    }
}

/* ---- f64 blocks ---- */

static void normal_transform_f64(double *data, int64_t blocks, double mean, double std)
{
    for (int64_t block = 0; block < blocks; block++, data += BLOCK) {
        for (int j = 0; j < HALF; j++) {
            double radius = sqrt(-2 * log(1 - data[j]));
            double theta = 2 * pi * data[j + HALF];
            data[j] = fma(radius * cos(theta), std, mean);
            data[j + HALF] = fma(radius * sin(theta), std, mean);
        }
    }
}

/* ---- blocks of 16 bits: every step rounds to the dtype ---- */

#define DEFINE_NARROW(suffix, bits)                                                                \
    static float normal_round_##suffix(float value)                                                \
    {                                                                                              \
        return ek_float_of_##suffix(ek_##suffix##_of(value));                                      \
    }                                                                                              \
                                                                                                   \
    static float normal_uniform_##suffix(ek_generator *generator)                                  \
    {                                                                                              \
        return (float)(ek_generator_u32(generator) & ((1u << (bits)) - 1)) *                       \
               (1.0f / (float)(1 << (bits)));                                                      \
    }                                                                                              \
                                                                                                   \
    static void normal_transform_##suffix(float *data, int64_t blocks, float mean, float std)      \
    {                                                                                              \
        mean = normal_round_##suffix(mean);                                                        \
        std = normal_round_##suffix(std);                                                          \
        for (int64_t block = 0; block < blocks; block++, data += BLOCK) {                          \
            for (int j = 0; j < HALF; j++) {                                                       \
                float u = normal_round_##suffix(1.0f - data[j]);                                   \
                float log_u = normal_round_##suffix(logf(u));                                      \
                float squared = normal_round_##suffix(-2.0f * log_u);                              \
                float radius = normal_round_##suffix(sqrtf(squared));                              \
                float theta = normal_round_##suffix((float)(2 * pi * (double)data[j + HALF]));     \
                float cosine = normal_round_##suffix(cosf(theta));                                 \
                float sine = normal_round_##suffix(sinf(theta));                                   \
                float first = normal_round_##suffix(normal_round_##suffix(radius * cosine) * std); \
                float second = normal_round_##suffix(normal_round_##suffix(radius * sine) * std);  \
                data[j] = normal_round_##suffix(first + mean);                                     \
                data[j + HALF] = normal_round_##suffix(second + mean);                             \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_NARROW(bf16, 8)
DEFINE_NARROW(f16, 11)

/* ---- the order of draws ---- */

static double normal_one(ek_generator *generator, double mean, double std)
{
    double value;
    if (generator->has_cached_normal) {
        value = generator->cached_normal;
        generator->has_cached_normal = false;
    } else {
        /* PyTorch 2 computes log1p(-u2). The resulting f32 is equal, but an f64 sometimes differs
         * in its last bit. */
        double u1 = ek_generator_f64(generator);
        double u2 = ek_generator_f64(generator);
        double radius = sqrt(-2 * log(1 - u2));
        double theta = 2 * pi * u1;
        generator->cached_normal = radius * sin(theta);
        generator->has_cached_normal = true;
        value = radius * cos(theta);
    }
    return fma(value, std, mean);
}

/* One body for all types: draws uniforms, transforms whole blocks, and draws a last partial block
 * anew. */
#define DEFINE_NORMAL(suffix, type, uniform)                                             \
    void ek_generator_normal_##suffix(ek_generator *generator, type *out, int64_t count, \
                                      double mean, double std)                           \
    {                                                                                    \
        if (count < BLOCK) {                                                             \
            for (int64_t i = 0; i < count; i++)                                          \
                out[i] = (type)normal_one(generator, mean, std);                         \
            return;                                                                      \
        }                                                                                \
        for (int64_t i = 0; i < count; i++)                                              \
            out[i] = uniform(generator);                                                 \
        normal_transform_##suffix(out, count / BLOCK, (type)mean, (type)std);            \
        if (count % BLOCK != 0) {                                                        \
            type *last = out + count - BLOCK;                                            \
            for (int i = 0; i < BLOCK; i++)                                              \
                last[i] = uniform(generator);                                            \
            normal_transform_##suffix(last, 1, (type)mean, (type)std);                   \
        }                                                                                \
    }

DEFINE_NORMAL(f32, float, ek_generator_f32)
DEFINE_NORMAL(f64, double, ek_generator_f64)
DEFINE_NORMAL(bf16, float, normal_uniform_bf16)
DEFINE_NORMAL(f16, float, normal_uniform_f16)
