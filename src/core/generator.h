/* generator.h: generators of random numbers (random.h), for the library's own draws. */
#ifndef EK_CORE_GENERATOR_H
#define EK_CORE_GENERATOR_H

#include "core/philox.h"
#include "core/thread.h"
#include "evenkeel/random.h"

enum { EK_TWISTER_WORDS = 624 };

/* The part of a batch that a generator draws for. All zero: the whole batch. */
typedef struct ek_generator_share {
    int dim;             /* the dimension along which the batch is cut */
    int64_t samples;     /* the part's samples along it; 0: no part */
    int64_t first, step; /* their numbers are first, first + step, ...; step is 1 unless dim is 0 */
    int64_t total;       /* samples of the batch; read if dim isn't 0 */
} ek_generator_share;

/* The state of a generator. In a Mersenne Twister `left` counts down to the next twist, and `next`
 * is the index of the next word. left + next is 625; after seeding left is 1 and next 0. Both names
 * are PyTorch's, whose saved state holds both. */
struct ek_generator {
    ek_random_engine engine;
    uint32_t state[EK_TWISTER_WORDS];
    uint32_t left;
    uint32_t next;
    uint64_t seed;
    bool has_cached_normal;
    double cached_normal;
    /* Philox (`left` is 1): the number of the next call, and how many single words were drawn;
     * `block` holds the latest four. */
    uint64_t call, drawn;
    uint32_t block[EK_PHILOX_BLOCK];
    ek_generator_share share;
};

/* Returns `generator`; if that is NULL, the calling thread's default generator: the thread's
 * stand-in if one is set, else on a worker the generator of its device, else that of the device set
 * by ek_generator_draw_for, else the shared generator. The last two stay locked until
 * ek_generator_unlock. */
ek_generator *ek_generator_lock(ek_generator *generator);
void ek_generator_unlock(ek_generator *generator);

/* Makes `generator` (borrowed) the calling thread's default generator, so that draws can be
 * repeated and the shared generator doesn't advance. NULL ends this. Returns the stand-in set
 * before. */
ek_generator *ek_generator_stand_in(ek_generator *generator);

/* Makes the device's generator the calling thread's default generator, for work that the thread
 * does in place of the device's worker. NULL ends this. Returns the device set before. Does nothing
 * on a worker, which has that generator already, and nothing in a single process: there a wrapper
 * over one device draws from the shared generator, as a module without a wrapper does. The shared
 * generators of several ranks are equal, so that replicas of ranks with one device each would
 * otherwise all draw equal numbers. */
ek_dev *ek_generator_draw_for(ek_dev *dev);

/* Borrows the calling thread's default generator, whose draws stand-ins then repeat while user code
 * runs. `begin` becomes a copy of its state. No lock is held until ek_generator_give_back. If it is
 * the shared generator, it is reseeded, so that no two threads draw equal numbers; `meanwhile`
 * becomes a copy of the reseeded state. */
void ek_generator_borrow(ek_generator *begin, ek_generator *meanwhile);
/* Ends the loan; called by the thread that borrowed. The generator's state becomes `end`. If other
 * threads have drawn from the generator or seeded it since, it keeps its state. */
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
 * one, which the caller frees with free(), or NULL with an error. No work may run. */
typedef struct ek_generators ek_generators;
ek_generators *ek_generators_save(void);
void ek_generators_restore(const ek_generators *saved);

/* Returns the generator that the device's worker will continue with (borrowed, for files). Returns
 * NULL without an error if the worker will first seed it from the shared one. No work may run. */
ek_generator *ek_device_generator(ek_device device);
/* Sets the shared generator to `shared` and the generator of devices[i] to own[i]. Generators of
 * all other devices are seeded from the shared one at their next draw. No work may run. */
void ek_generators_load(const ek_generator *shared, const ek_device *devices,
                        const ek_generator *own, int count);

/* Draws from a locked generator: 32 bits; 64 bits, high word first. */
uint32_t ek_generator_u32(ek_generator *generator);
uint64_t ek_generator_u64(ek_generator *generator);

/* torch.randint(0, below): draws 32 bits if they are enough, else 64. */
static inline int64_t ek_generator_below(ek_generator *generator, int64_t below)
{
    uint64_t draw = below >> 32 ? ek_generator_u64(generator) : ek_generator_u32(generator);
    return (int64_t)(draw % (uint64_t)below);
}

/* Uniforms in [0, 1) with all bits of the type. */
static inline float ek_generator_f32(ek_generator *generator)
{
    return (float)(ek_generator_u32(generator) & 0xffffffu) * 0x1p-24f;
}

static inline double ek_generator_f64(ek_generator *generator)
{
    return (double)(ek_generator_u64(generator) & 0x1fffffffffffffu) * 0x1p-53;
}

/* Draw `count` normal numbers from a Mersenne Twister in PyTorch's order (random_normal.c), which
 * for 16 numbers or more differs from that for fewer. bf16 and f16 numbers are written as f32. */
void ek_generator_normal_f32(ek_generator *generator, float *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_f64(ek_generator *generator, double *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_bf16(ek_generator *generator, float *out, int64_t count, double mean,
                              double std);
void ek_generator_normal_f16(ek_generator *generator, float *out, int64_t count, double mean,
                             double std);

#endif
