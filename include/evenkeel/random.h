/** @file
 * random.h: random numbers, PyTorch's of the CPU or counter-based ones, made where they are used.
 *
 * A generator has one of two engines. Both give a tensor the same numbers on every device, host or
 * GPU, bit for bit, and with any number of threads:
 *
 *     EK_RANDOM_TWISTER   the Mersenne Twister, with PyTorch's seeding and order of draws
 *     EK_RANDOM_PHILOX    Philox 4x32-10 (Salmon et al., 2011), which is counter-based
 *
 * The Mersenne Twister gives PyTorch's CPU numbers, bit for bit (Linux on x86-64 with fused
 * multiply-add). They are drawn on the CPU, one after the other, and copied to the device.
 *
 * With Philox an element's number depends on the seed, on how many tensors the generator has filled
 * before, and on the element's place in row-major order. So the tensor's device makes all numbers
 * in parallel. Dropout keeps no mask, since backward makes it again, and N devices draw what one
 * device draws.
 *
 * Generators begin with the Mersenne Twister. One call changes the default generator, which is used
 * for parameters, dropout and all draws without a given generator:
 *
 *     ek_generator_set_engine(NULL, EK_RANDOM_PHILOX); */
#ifndef EVENKEEL_RANDOM_H
#define EVENKEEL_RANDOM_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_generator ek_generator;

typedef enum ek_random_engine { EK_RANDOM_TWISTER, EK_RANDOM_PHILOX } ek_random_engine;

/** Makes a generator (a Mersenne Twister), owned by the caller and freed with ek_generator_free;
 * NULL with an error if memory is short. For one thread at a time. */
EK_API ek_generator *ek_generator_new(uint64_t seed);
EK_API void ek_generator_free(ek_generator *generator);
#define ek_generator_free(generator) ek_generator_free(EK_PLACED(generator))
EK_API void ek_generator_seed(ek_generator *generator, uint64_t seed);

/** Changes the engine of a generator, or with NULL of the default one. The generator begins anew
 * from its seed. Seeding keeps the engine; restoring a state sets the state's engine.
 * EK_E_INVALID for an engine that doesn't exist. No other thread may be drawing from the generator;
 * for the default one that means that no replica may be running. */
EK_API int ek_generator_set_engine(ek_generator *generator, ek_random_engine engine);
EK_API ek_random_engine ek_generator_engine(ek_generator *generator);

/** The functions of this header take NULL for the default generator, which the process shares. It
 * is guarded by a lock and starts from seed 67280421310721. On a device's worker (in replicas on
 * several devices) NULL is that device's own generator instead. It is seeded from the default one's
 * seed and the device's number whenever the default one is seeded or restored, so that replicas
 * draw the same numbers in every run. ek_manual_seed seeds the default generator.
 *
 * Several ranks (evenkeel/dist.h): the default generator is the process's own, and nothing makes
 * the ranks' differ. With equal seeds the ranks draw equal numbers, so that modules begin with the
 * same parameters on every rank. Devices are numbered over all ranks, rank by rank. So the replicas
 * of several ranks draw (for dropout, say) what the replicas of one process with all these devices
 * would draw, if all ranks have equally many devices. This holds for wrappers of one device too,
 * cpu included; in a process without other ranks, such a wrapper draws from the default generator.
 *
 * If the default generator has Philox, replicas draw from it instead, each as from a copy, and a
 * tensor's elements are numbered as in the whole batch. So N devices drop out what one device does,
 * however the batch is cut. A tensor counts as part of the batch if the dimension that the wrapper
 * cuts is a multiple of the replica's samples there; others get the same numbers on each replica.
 * With one sample per replica that is every tensor with this dimension: noise for weights, say, is
 * then different on each replica, as is any whose size there happens to be such a multiple. On rank
 * r of R, sample i of the rank's batch counts as sample i R + r of all, as strided samplers deal
 * them out (with a batch that is cut along another dimension than 0, as one of R equal blocks).
 * Threads of loaders draw from Mersenne Twisters, seeded by the default generator whatever it is.
 */
EK_API void ek_manual_seed(uint64_t seed);

/** Makes runs repeatable: seeds the default generator and with it the devices', seeds Python's and
 * NumPy's generators, from which identity samplers draw (evenkeel/sampler.h), and turns
 * deterministic algorithms on (evenkeel/precision.h), so that ek_benchmark_convolution has no
 * effect. EK_NO_SEED does nothing. */
#define EK_NO_SEED INT64_MIN
EK_API void ek_set_seed(int64_t seed);

/** Save and restore the whole state of a generator, also into another generator. A Mersenne
 * Twister's state has PyTorch's format, Philox's has Evenkeel's. nbytes must be
 * EK_GENERATOR_STATE_BYTES. */
enum { EK_GENERATOR_STATE_BYTES = 5056 };
EK_API int ek_generator_get_state(ek_generator *generator, void *state, size_t nbytes);
EK_API int ek_generator_set_state(ek_generator *generator, const void *state, size_t nbytes);

/** Draw 32 bits, and 64 bits (two draws, the high word first). With Philox these draws don't change
 * the numbers that tensors get. */
EK_API uint32_t ek_random_u32(ek_generator *generator);
EK_API uint64_t ek_random_u64(ek_generator *generator);

/** Fill a tensor in place. Row-major and channels-last tensors are filled in row-major order.
 * Others (transposed, with gaps) are filled in the order of memory by the Mersenne Twister, with
 * normal numbers made one by one, as in PyTorch; by Philox in row-major order too. Uniform numbers
 * lie in [low, high), or are high if they are rounded up to it. Errors: EK_E_DTYPE; EK_E_INVALID
 * for low > high or std < 0. */
EK_API int ek_uniform_(ek_tensor *tensor, double low, double high, ek_generator *generator);
EK_API int ek_normal_(ek_tensor *tensor, double mean, double std, ek_generator *generator);
/** Integers in [low, high). */
EK_API int ek_random_(ek_tensor *tensor, int64_t low, int64_t high, ek_generator *generator);
/** 1 with probability p, else 0. Each element draws an f64 uniform u, whatever its dtype, and is 1
 * if u < p. With Philox it draws 32 bits, and p is rounded to a multiple of 2^-32. */
EK_API int ek_bernoulli_(ek_tensor *tensor, double p, ek_generator *generator);

EK_API ek_tensor *ek_rand_with(ek_tensor_options options);
EK_API ek_tensor *ek_randn_with(ek_tensor_options options);
/** New tensors in the scope: rand in [0, 1), randn normal with mean 0 and deviation 1. */
#define ek_rand(...) EK_TENSOR_CALL(ek_rand_with, __VA_ARGS__)
#define ek_randn(...) EK_TENSOR_CALL(ek_randn_with, __VA_ARGS__)
/** ek_rand and ek_randn of x's shape, dtype, device and memory order. */
EK_API ek_tensor *ek_rand_like(const ek_tensor *x);
EK_API ek_tensor *ek_randn_like(const ek_tensor *x);
EK_API ek_tensor *ek_randint_with(int64_t low, int64_t high, ek_tensor_options options);
/** ek_randint(0, 10, EK_SHAPE(4)): i64 numbers in [low, high). options.dtype is ignored. */
#define ek_randint(low, high, ...) \
    EK_TENSOR_CALL_AFTER(ek_randint_with, EK_RANDINT_RANGE(low, high), __VA_ARGS__)
#define EK_RANDINT_RANGE(low, high) (low), (high)

/** Writes a random permutation of 0, ..., count-1 to `out`. */
EK_API int ek_randperm(int64_t count, int64_t *out, ek_generator *generator);

EK_END_DECLARATIONS
#endif
