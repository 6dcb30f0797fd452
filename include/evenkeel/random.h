/* random.h: PyTorch's CPU random numbers, bit for bit (Linux x86-64, fused multiply-add).
 *
 * A generator is a Mersenne Twister with PyTorch's seeding and draw order. Numbers are always drawn
 * on the CPU and copied to the tensor's device, so that they don't depend on it. */
#ifndef EVENKEEL_RANDOM_H
#define EVENKEEL_RANDOM_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_generator ek_generator;

/* A generator of the caller's own; NULL when memory is short. Free with ek_generator_free. Not to
 * be used by two threads at the same time. */
EK_API ek_generator *ek_generator_new(uint64_t seed);
EK_API void ek_generator_free(ek_generator *generator);
EK_API void ek_generator_seed(ek_generator *generator, uint64_t seed);

/* Functions below take NULL for the default generator, which is shared by the process, guarded by a
 * lock, and starts from seed 67280421310721. On a device's worker (in replicas of several devices)
 * NULL is that device's own generator, seeded from the default one's seed and the device whenever
 * that is seeded or restored, so that what replicas draw is the same from run to run. */
EK_API void ek_manual_seed(uint64_t seed);

/* All that makes runs alike: seeds the default generator, and with it the devices'; Python's and
 * NumPy's generators, from which identity samplers draw (evenkeel/sampler.h); and has deterministic
 * algorithms used (evenkeel/precision.h), none that is chosen by timing. EK_NO_SEED does nothing.
 */
#define EK_NO_SEED INT64_MIN
EK_API void ek_set_seed(int64_t seed);

/* The generator's whole state, to be restored later into any generator. */
enum { EK_GENERATOR_STATE_BYTES = 5056 };
EK_API int ek_generator_get_state(ek_generator *generator, void *state, size_t nbytes);
EK_API int ek_generator_set_state(ek_generator *generator, const void *state, size_t nbytes);

/* One draw: 32 bits, and 64 bits (two draws, high word first). */
EK_API uint32_t ek_random_u32(ek_generator *generator);
EK_API uint64_t ek_random_u64(ek_generator *generator);

/* In-place fills: row-major and channels-last tensors in row-major order, others (transposed, with
 * gaps) in the order of memory, in which normal numbers are made one by one, as in PyTorch. Errors:
 * EK_E_DTYPE; EK_E_INVALID for low > high, std < 0. */
EK_API int ek_uniform_(ek_tensor *tensor, double low, double high, ek_generator *generator);
EK_API int ek_normal_(ek_tensor *tensor, double mean, double std, ek_generator *generator);
/* Integers in [low, high). */
EK_API int ek_random_(ek_tensor *tensor, int64_t low, int64_t high, ek_generator *generator);
/* 1 with probability p, else 0: u < p with one uniform of the tensor's dtype an element. */
EK_API int ek_bernoulli_(ek_tensor *tensor, double p, ek_generator *generator);

/* New tensors: rand in [0, 1), randn with mean 0 and deviation 1. */
EK_API ek_tensor *ek_rand_with(ek_tensor_options options);
EK_API ek_tensor *ek_randn_with(ek_tensor_options options);
#define ek_rand(...) ek_rand_with(EK_OPTIONS_2(ek_tensor_options, shape, dtype, __VA_ARGS__))
#define ek_randn(...) ek_randn_with(EK_OPTIONS_2(ek_tensor_options, shape, dtype, __VA_ARGS__))
/* i64 in [low, high): ek_randint(0, 10, EK_SHAPE(4)). options.dtype is ignored. */
EK_API ek_tensor *ek_randint_with(int64_t low, int64_t high, ek_tensor_options options);
#define ek_randint(low, high, ...) \
    ek_randint_with((low), (high), EK_OPTIONS_2(ek_tensor_options, shape, dtype, __VA_ARGS__))

/* A random permutation of 0..count-1, written to `out`. */
EK_API int ek_randperm(int64_t count, int64_t *out, ek_generator *generator);

EK_END_DECLARATIONS
#endif
