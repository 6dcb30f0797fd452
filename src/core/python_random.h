/* python_random.h: what Python's `random` and NumPy's legacy generator draw, for samplers that were
 * written with them.
 *
 * Both are the Mersenne Twister of generator.h, seeded and used in other ways. Functions take NULL
 * for the process' own one of each, as `random.shuffle` and `np.random.choice` do; those are not
 * locked: one thread at a time, from seed 0 at first. Numbers are CPython's of 3.2 and later, and
 * NumPy's RandomState. */
#ifndef EK_CORE_PYTHON_RANDOM_H
#define EK_CORE_PYTHON_RANDOM_H

#include "core/generator.h"

/* random.seed(seed): by the 32-bit words of the seed's absolute value. */
void ek_python_seed(ek_generator *generator, int64_t seed);
/* random._randbelow(below): [0, below), below at least 1. */
int64_t ek_python_below(ek_generator *generator, int64_t below);
/* random.shuffle of `count` elements of `size` bytes. */
void ek_python_shuffle(ek_generator *generator, void *elements, int64_t count, size_t size);

/* numpy.random.seed(seed). */
void ek_numpy_seed(ek_generator *generator, uint32_t seed);
/* numpy.random.randint(0, below), which numpy.random.choice with replacement draws indices by. */
int64_t ek_numpy_below(ek_generator *generator, int64_t below);

/* The process' own two, for checkpoints. */
ek_generator *ek_python_generator(void);
ek_generator *ek_numpy_generator(void);

#endif
