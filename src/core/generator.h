/* generator.h: the Mersenne Twister behind random.h, for the library's own draws. */
#ifndef EK_CORE_GENERATOR_H
#define EK_CORE_GENERATOR_H

#include "evenkeel/random.h"

struct ek_generator {
    uint32_t state[624];
    int next; /* position in state; 624: twist first */
    uint64_t seed;
    bool has_cached_normal;
    double cached_normal;
};

/* The default generator, locked until ek_generator_unlock. `generator` not NULL is returned as it is,
 * without a lock. */
ek_generator *ek_generator_lock(ek_generator *generator);
void ek_generator_unlock(ek_generator *generator);

#endif
