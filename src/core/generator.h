/* generator.h: generators of random numbers (random.h), for the library's own draws. */
#ifndef EK_CORE_GENERATOR_H
#define EK_CORE_GENERATOR_H

#include "core/philox.h"
#include "core/thread.h"
#include "evenkeel/random.h"

enum { EK_TWISTER_WORDS = 624 };

/* The part of a batch for which a generator draws. All zero: the whole batch. */
typedef struct ek_generator_share {
    int dim;             /* the dimension along which the batch is cut */
    int64_t samples;     /* how many samples the part has along `dim`; 0: no part */
    int64_t first, step; /* the samples are first, first + step, ...; step is 1 unless dim is 0 */
    int64_t total;       /* how many samples the batch has; read if dim isn't 0 */
} ek_generator_share;

/* The state of a generator. In a Mersenne Twister `left` counts down to the next twist, and `next`
 * is the index of the next word. left + next is 625, but after seeding `left` is 1 and `next` is 0.
 * Both names are PyTorch's, whose saved state holds both numbers. */
struct ek_generator {
    ek_random_engine engine;
    uint32_t state[EK_TWISTER_WORDS];
    uint32_t left;
    uint32_t next;
    uint64_t seed;
    bool has_cached_normal;
    double cached_normal;
    /* For Philox (`left` is 1): the number of the next call, and how many single words were drawn;
     * `block` holds the latest four. */
    uint64_t call, drawn;
    uint32_t block[EK_PHILOX_BLOCK];
    ek_generator_share share;
};

/* Returns `generator` or, if it is NULL, the calling thread's default generator. This is the
 * thread's stand-in, if one is set; else, on a worker, the generator of the worker's device; else
 * the generator of the device set by ek_generator_draw_for; else the shared generator. The last two
 * generators stay locked until ek_generator_unlock. */
ek_generator *ek_generator_lock(ek_generator *generator);
void ek_generator_unlock(ek_generator *generator);

/* Makes `generator` (borrowed) the calling thread's default generator, so that draws can be
 * repeated and the shared generator doesn't advance. NULL removes the stand-in. Returns the
 * stand-in that was set before. */
ek_generator *ek_generator_stand_in(ek_generator *generator);

/* Makes the device's generator the calling thread's default generator, for work that the thread
 * does in place of the device's worker. NULL ends this. Returns the device that was set before.
 * Does nothing on a worker, which draws from its own device's generator already, or in a single
 * process, where a wrapper over one device draws from the shared generator, as a module without a
 * wrapper does. The shared generators of several ranks are equal, so replicas of ranks with one
 * device each would otherwise draw equal numbers. */
ek_dev *ek_generator_draw_for(ek_dev *dev);

/* Borrows the calling thread's default generator, so that user code can draw from stand-ins with
 * its state. `begin` becomes a copy of this state. No lock is held until ek_generator_give_back. If
 * the default generator is the shared one, it is reseeded, so that no two threads draw equal
 * numbers, and `meanwhile` becomes a copy of the reseeded state. */
void ek_generator_borrow(ek_generator *begin, ek_generator *meanwhile);
/* Ends the loan; called by the thread that borrowed. The generator's state becomes `end`. But if
 * other threads have drawn from the shared generator or seeded it since, the generator keeps its
 * state. */
void ek_generator_give_back(const ek_generator *end, const ek_generator *meanwhile);

/* Seeds a Mersenne Twister that is used as a stand-in only. Its words are computed when the first
 * number is drawn; until then `left` is 0. */
static inline void ek_generator_seed_late(ek_generator *generator, uint64_t seed)
{
    generator->engine = EK_RANDOM_TWISTER;
    generator->left = 0;
    generator->seed = seed;
}

/* A copy of the shared default generator and of all devices' generators. ek_generators_save returns
 * such a copy, which the caller frees with free(), or NULL with an error. No work may run. */
typedef struct ek_generators ek_generators;
ek_generators *ek_generators_save(void);
void ek_generators_restore(const ek_generators *saved);

/* Returns the generator with which the device's worker will continue (borrowed, for files). Returns
 * NULL without an error if the worker will first seed its generator from the shared one. No work
 * may run. */
ek_generator *ek_device_generator(ek_device device);
/* Sets the shared generator to `shared` and the generator of devices[i] to own[i]. Generators of
 * other devices are seeded from the shared generator at their next draw. No work may run. */
void ek_generators_load(const ek_generator *shared, const ek_device *devices,
                        const ek_generator *own, int count);

/* Draw 32 bits, or 64 bits with the high word first, from a locked generator. */
uint32_t ek_generator_u32(ek_generator *generator);
uint64_t ek_generator_u64(ek_generator *generator);

/* Draws what torch.randint(0, below) draws, from 32 bits if they are enough, else from 64. */
static inline int64_t ek_generator_below(ek_generator *generator, int64_t below)
{
    uint64_t draw = below >> 32 ? ek_generator_u64(generator) : ek_generator_u32(generator);
    return (int64_t)(draw % (uint64_t)below);
}

/* Draw uniform numbers in [0, 1) with as many bits as the type's significand has. */
static inline float ek_generator_f32(ek_generator *generator)
{
    return (float)(ek_generator_u32(generator) & 0xffffffu) * 0x1p-24f;
}

static inline double ek_generator_f64(ek_generator *generator)
{
    return (double)(ek_generator_u64(generator) & 0x1fffffffffffffu) * 0x1p-53;
}

/* Draw `count` normal numbers from a Mersenne Twister in PyTorch's order (random_normal.c), which
 * differs between fewer than 16 numbers and 16 or more. bf16 and f16 numbers are written as f32. */
void ek_generator_normal_f32(ek_generator *generator, float *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_f64(ek_generator *generator, double *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_bf16(ek_generator *generator, float *out, int64_t count, double mean,
                              double std);
void ek_generator_normal_f16(ek_generator *generator, float *out, int64_t count, double mean,
                             double std);

#endif
