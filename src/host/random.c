/* random.c: tensors of Philox numbers (core/philox.h), by the device's team.
 *
 * A word lies in the low half of a lane of 64 bits, which has room for a product of two words.
 * Products read low halves only, so that the rounds may leave any bits in high halves. A round is
 * two products, two shifts and four exclusive ors for as many blocks as a register has lanes. */
#ifndef LANES
#include "core/backend.h"
#include "core/draw.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "kernels/stage.h"

enum { GRAIN = 16384 };

#if defined(__x86_64__)
#include <immintrin.h>

/* The keys of all rounds. */
typedef struct random_keys {
    uint64_t first[EK_PHILOX_ROUNDS], second[EK_PHILOX_ROUNDS];
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

/* Store blocks. `low` has the first two words of each block, `high` the others. */
__attribute__((target("avx2"))) static inline void random_store_avx2(uint32_t *words, __m256i low,
                                                                     __m256i high)
{
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    __m256i *to = (__m256i *)words;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

__attribute__((target("avx512f"))) static inline void random_store_avx512(uint32_t *words,
                                                                          __m512i low, __m512i high)
{
    const __m512i front = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                  back = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(low, front, high));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(low, back, high));
}

/* Several chains of registers hide the products' latency. */
#define LANES 4
#define CHAINS 8
#define TARGET "avx2"
#define VECTOR __m256i
#define MULTIPLY _mm256_mul_epu32
#define NAME(name) name##_avx2
#include "host/random.c"

#define LANES 8
#define CHAINS 4
#define TARGET "avx512f"
#define VECTOR __m512i
#define MULTIPLY _mm512_mul_epu32
#define NAME(name) name##_avx512
#include "host/random.c"

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

#else /* for each number of LANES */

typedef uint64_t NAME(lanes) __attribute__((vector_size(8 * LANES)));
#define EACH_CHAIN(i) _Pragma("GCC unroll 8") for (int i = 0; i < CHAINS; i++)
#define PRODUCT(a, b) ((NAME(lanes))MULTIPLY((VECTOR)(a), (VECTOR)(b)))

/* Writes steps of LANES * CHAINS blocks at a time, and the rest one by one. */
__attribute__((target(TARGET))) static void
NAME(random_blocks)(uint64_t seed, uint64_t call, uint64_t first, int64_t count, uint32_t *words)
{
    const random_keys keys = random_keys_of(seed);
    const NAME(lanes) none = {0}, word = none + UINT32_MAX, m0 = none + EK_PHILOX_MULTIPLIER_0,
                      m1 = none + EK_PHILOX_MULTIPLIER_1;
    NAME(lanes) own = none;
    for (int l = 0; l < LANES; l++)
        own[l] = (uint64_t)l;
    int64_t done = 0;
    for (; done + LANES * CHAINS <= count; done += LANES * CHAINS) {
        NAME(lanes) c0[CHAINS], c1[CHAINS], c2[CHAINS], c3[CHAINS];
        EACH_CHAIN(i)
        {
            c0[i] = own + (first + (uint64_t)(done + LANES * i));
            c1[i] = c0[i] >> 32;
            c2[i] = none + call;
            c3[i] = none + (call >> 32);
        }
        _Pragma("GCC unroll 10") for (int round = 0; round < EK_PHILOX_ROUNDS; round++)
        {
            const NAME(lanes) key0 = none + keys.first[round], key1 = none + keys.second[round];
            EACH_CHAIN(i)
            {
                const NAME(lanes) p0 = PRODUCT(c0[i], m0), p1 = PRODUCT(c2[i], m1);
                c0[i] = (p1 >> 32) ^ c1[i] ^ key0;
                c2[i] = (p0 >> 32) ^ c3[i] ^ key1;
                c1[i] = p1;
                c3[i] = p0;
            }
        }
        EACH_CHAIN(i)
        NAME(random_store)
        (words + EK_PHILOX_BLOCK * (done + LANES * i), (VECTOR)((c0[i] & word) | c1[i] << 32),
         (VECTOR)((c2[i] & word) | c3[i] << 32));
    }
    ek_philox_plain_blocks(seed, call, first + (uint64_t)done, count - done,
                           words + done * EK_PHILOX_BLOCK);
}
#undef EACH_CHAIN
#undef PRODUCT
#undef LANES
#undef CHAINS
#undef TARGET
#undef VECTOR
#undef MULTIPLY
#undef NAME

#endif
