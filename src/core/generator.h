/* generator.h: the Mersenne Twister behind random.h, for the library's own draws. */
#ifndef EK_CORE_GENERATOR_H
#define EK_CORE_GENERATOR_H

#include "evenkeel/random.h"

enum { EK_TWISTER_WORDS = 624 };

/* left counts down to the next twist, next is the word drawn next: left + next is 625, except that
 * a fresh seed has left 1 and next 0. PyTorch's names, whose state blob holds both. */
struct ek_generator {
    uint32_t state[EK_TWISTER_WORDS];
    uint32_t left;
    uint32_t next;
    uint64_t seed;
    bool has_cached_normal;
    double cached_normal;
};

/* The default generator (on a worker: its device's own), locked until ek_generator_unlock.
 * `generator` not NULL is returned as it is, without a lock. */
ek_generator *ek_generator_lock(ek_generator *generator);
void ek_generator_unlock(ek_generator *generator);

/* Makes `generator` the calling thread's default one until it is called again; NULL ends that.
 * Returns the one before. For draws that are repeated: the default generator doesn't notice. */
ek_generator *ek_generator_stand_in(ek_generator *generator);

/* For draws that are repeated by stand-ins, with calls of the user's between them: `begin` becomes
 * what the calling thread's default generator is. No lock is held until it is given back: other
 * threads that share it draw from `meanwhile`, another seed, so that no two draw the same. */
void ek_generator_borrow(ek_generator *begin, ek_generator *meanwhile);
/* By the same thread. The generator goes on as `end`; as it is if others have drawn from it or have
 * seeded it. */
void ek_generator_give_back(const ek_generator *end, const ek_generator *meanwhile);

/* Seeds a generator that is only used as a stand-in: the words are worked out when the first number
 * is drawn from it, if ever. Until then `left` is 0. */
static inline void ek_generator_seed_late(ek_generator *generator, uint64_t seed)
{
    generator->left = 0;
    generator->seed = seed;
}

/* The default generator and all devices' own, with what they have drawn. No work may run. NULL with
 * an error; freed with free(). */
typedef struct ek_generators ek_generators;
ek_generators *ek_generators_save(void);
void ek_generators_restore(const ek_generators *saved);

/* The same one by one, for files; no work may run. A device's own, which its worker goes on with;
 * NULL without an error if it would be seeded from the default one first. */
ek_generator *ek_device_generator(ek_device device);
/* The default generator becomes `shared`; these devices go on with theirs, all others' are seeded
 * from it at their next draw. */
void ek_generators_load(const ek_generator *shared, const ek_device *devices,
                        const ek_generator *own, int count);

/* Draws from a locked generator: 32 bits; 64 bits, high word first. */
uint32_t ek_generator_u32(ek_generator *generator);
uint64_t ek_generator_u64(ek_generator *generator);

/* Uniforms in [0, 1) with all bits of the type. */
static inline float ek_generator_f32(ek_generator *generator)
{
    return (float)(ek_generator_u32(generator) & 0xffffffu) * 0x1p-24f;
}

static inline double ek_generator_f64(ek_generator *generator)
{
    return (double)(ek_generator_u64(generator) & 0x1fffffffffffffu) * 0x1p-53;
}

/* `count` normal numbers in PyTorch's order (random_normal.c). The draws of 16 numbers and more
 * differ from those of fewer; bf16 numbers come as f32. */
void ek_generator_normal_f32(ek_generator *generator, float *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_f64(ek_generator *generator, double *out, int64_t count, double mean,
                             double std);
void ek_generator_normal_bf16(ek_generator *generator, float *out, int64_t count, double mean,
                              double std);

#endif
