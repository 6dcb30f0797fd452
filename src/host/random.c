/* random.c: tensors of Philox numbers (core/philox.h), by the device's team.
 *
 * A word lies in the low half of a lane of 64 bits, which has room for a product of two words.
 * Products read low halves only, so that the rounds may leave any bits in high halves. A round is
 * two products, two shifts and four exclusive ors for as many blocks as a register has lanes. */
#include "core/backend.h"
#include "core/draw.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "kernels/stage.h"

enum { GRAIN = 16384 };

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))

/* The Philox blocks of one step. Several chains of registers hide the products' latency. */
enum {
    CHAINS_AVX2 = 8,
    STEP_AVX2 = 4 * CHAINS_AVX2,
    CHAINS_AVX512 = 4,
    STEP_AVX512 = 8 * CHAINS_AVX512
};

#define EACH_CHAIN(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

/* The keys of all rounds, each as the low half of a lane. */
typedef struct random_keys {
    long long first[EK_PHILOX_ROUNDS], second[EK_PHILOX_ROUNDS];
} random_keys;

static random_keys random_keys_of(uint64_t seed)
{
    random_keys keys;
    for (uint32_t round = 0; round < EK_PHILOX_ROUNDS; round++) {
        keys.first[round] = (uint32_t)seed + round * EK_PHILOX_WEYL_0;
        keys.second[round] = (uint32_t)(seed >> 32) + round * EK_PHILOX_WEYL_1;
    }
    return keys;
}

/* The two functions below write whole steps, and return how many blocks they have written. */

AVX2 static int64_t random_steps_avx2(const random_keys *keys, uint64_t call, uint64_t first,
                                      int64_t count, uint32_t *words)
{
    const __m256i m0 = _mm256_set1_epi64x(EK_PHILOX_MULTIPLIER_0);
    const __m256i m1 = _mm256_set1_epi64x(EK_PHILOX_MULTIPLIER_1);
    const __m256i lanes = _mm256_set_epi64x(3, 2, 1, 0);
    int64_t done = 0;
    for (; done + STEP_AVX2 <= count; done += STEP_AVX2) {
        __m256i c0[CHAINS_AVX2], c1[CHAINS_AVX2], c2[CHAINS_AVX2], c3[CHAINS_AVX2];
        EACH_CHAIN(i, CHAINS_AVX2)
        {
            const uint64_t at = first + (uint64_t)(done + 4 * i);
            c0[i] = _mm256_add_epi64(_mm256_set1_epi64x((long long)at), lanes);
            c1[i] = _mm256_srli_epi64(c0[i], 32);
            c2[i] = _mm256_set1_epi64x((long long)(call & UINT32_MAX));
            c3[i] = _mm256_set1_epi64x((long long)(call >> 32));
        }
        _Pragma("GCC unroll 10") for (int round = 0; round < EK_PHILOX_ROUNDS; round++)
        {
            const __m256i key0 = _mm256_set1_epi64x(keys->first[round]);
            const __m256i key1 = _mm256_set1_epi64x(keys->second[round]);
            EACH_CHAIN(i, CHAINS_AVX2)
            {
                __m256i p0 = _mm256_mul_epu32(c0[i], m0), p1 = _mm256_mul_epu32(c2[i], m1);
                c0[i] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1[i], key0));
                c2[i] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3[i], key1));
                c1[i] = p1;
                c3[i] = p0;
            }
        }
        EACH_CHAIN(i, CHAINS_AVX2)
        {
            __m256i low = _mm256_blend_epi32(c0[i], _mm256_slli_epi64(c1[i], 32), 0xaa);
            __m256i high = _mm256_blend_epi32(c2[i], _mm256_slli_epi64(c3[i], 32), 0xaa);
            __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
            __m256i *to = (__m256i *)(words + EK_PHILOX_BLOCK * (done + 4 * i));
            _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
            _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
        }
    }
    return done;
}

AVX512 static int64_t random_steps_avx512(const random_keys *keys, uint64_t call, uint64_t first,
                                          int64_t count, uint32_t *words)
{
    enum { XOR_OF_THREE = 0x96 };
    const __m512i m0 = _mm512_set1_epi64(EK_PHILOX_MULTIPLIER_0);
    const __m512i m1 = _mm512_set1_epi64(EK_PHILOX_MULTIPLIER_1);
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i front = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i back = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    int64_t done = 0;
    for (; done + STEP_AVX512 <= count; done += STEP_AVX512) {
        __m512i c0[CHAINS_AVX512], c1[CHAINS_AVX512], c2[CHAINS_AVX512], c3[CHAINS_AVX512];
        EACH_CHAIN(i, CHAINS_AVX512)
        {
            const uint64_t at = first + (uint64_t)(done + 8 * i);
            c0[i] = _mm512_add_epi64(_mm512_set1_epi64((long long)at), lanes);
            c1[i] = _mm512_srli_epi64(c0[i], 32);
            c2[i] = _mm512_set1_epi64((long long)(call & UINT32_MAX));
            c3[i] = _mm512_set1_epi64((long long)(call >> 32));
        }
        _Pragma("GCC unroll 10") for (int round = 0; round < EK_PHILOX_ROUNDS; round++)
        {
            const __m512i key0 = _mm512_set1_epi64(keys->first[round]);
            const __m512i key1 = _mm512_set1_epi64(keys->second[round]);
            EACH_CHAIN(i, CHAINS_AVX512)
            {
                __m512i p0 = _mm512_mul_epu32(c0[i], m0), p1 = _mm512_mul_epu32(c2[i], m1);
                c0[i] =
                    _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1[i], key0, XOR_OF_THREE);
                c2[i] =
                    _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3[i], key1, XOR_OF_THREE);
                c1[i] = p1;
                c3[i] = p0;
            }
        }
        EACH_CHAIN(i, CHAINS_AVX512)
        {
            __m512i low = _mm512_mask_blend_epi32(0xaaaa, c0[i], _mm512_slli_epi64(c1[i], 32));
            __m512i high = _mm512_mask_blend_epi32(0xaaaa, c2[i], _mm512_slli_epi64(c3[i], 32));
            __m512i even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high);
            uint32_t *to = words + EK_PHILOX_BLOCK * (done + 8 * i);
            _mm512_storeu_si512(to, _mm512_permutex2var_epi64(even, front, odd));
            _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(even, back, odd));
        }
    }
    return done;
}

#define DEFINE_BLOCKS(isa)                                                                       \
    static void random_blocks_##isa(uint64_t seed, uint64_t call, uint64_t first, int64_t count, \
                                    uint32_t *words)                                             \
    {                                                                                            \
        const random_keys keys = random_keys_of(seed);                                           \
        int64_t done = random_steps_##isa(&keys, call, first, count, words);                     \
        ek_philox_plain_blocks(seed, call, first + (uint64_t)done, count - done,                 \
                               words + done * EK_PHILOX_BLOCK);                                  \
    }
DEFINE_BLOCKS(avx2)
DEFINE_BLOCKS(avx512)

ek_philox_blocks *ek_host_philox_blocks(void)
{
    static ek_philox_blocks *const of_isa[] = {[EK_ISA_PLAIN] = ek_philox_plain_blocks,
                                               [EK_ISA_AVX2] = random_blocks_avx2,
                                               [EK_ISA_AVX512] = random_blocks_avx512};
    return of_isa[ek_host_isa()];
}
#else
ek_philox_blocks *ek_host_philox_blocks(void)
{
    return ek_philox_plain_blocks;
}
#endif

typedef struct random_job {
    const ek_draw *draw;
    ek_philox_blocks *blocks;
    ek_drawn_rows rows;
} random_job;

static void random_fill(void *context, int64_t begin, int64_t end)
{
    const random_job *job = context;
    ek_draw_fill(job->draw, job->blocks, &job->rows, begin, end);
}

static int random_rows(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw)
{
    const ek_tensor *x = tensors->x, *residual = tensors->residual;
    random_job job = {.draw = draw,
                      .blocks = ek_host_philox_blocks(),
                      .rows = {.out = ek_tensor_address(tensors->out),
                               .x = x ? ek_tensor_address(x) : NULL,
                               .residual = residual ? ek_tensor_address(residual) : NULL,
                               .dtype = tensors->out->dtype,
                               .x_dtype = x ? x->dtype : tensors->out->dtype}};
    ek_parallel_for(dev, ek_count(tensors->out), GRAIN, random_fill, &job);
    return 0;
}

int ek_host_draw(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw)
{
    return ek_stage_draw(dev, tensors, draw, random_rows);
}
