/* python_random.h: the draws of Python's `random` and of NumPy's RandomState, for samplers that
 * follow Python programs.
 *
 * Both use the Mersenne Twister of generator.h, and differ in how they seed it and draw from it. A
 * NULL generator means the process's global generator, as in `random.shuffle` and
 * `np.random.choice`. The two global generators start from seed 0; one thread at a time may use
 * them. Numbers equal those of CPython 3.2 and later. */
#ifndef EK_CORE_PYTHON_RANDOM_H
#define EK_CORE_PYTHON_RANDOM_H

#include "core/generator.h"

/* Does what random.seed(seed) does: seeds with the 32-bit words of the seed's absolute value. */
void ek_python_seed(ek_generator *generator, int64_t seed);
/* Does what random._randbelow(below) does: draws a number in [0, below); below is at least 1. */
int64_t ek_python_below(ek_generator *generator, int64_t below);
/* Does what random.shuffle does, to `count` elements of `size` bytes. */
void ek_python_shuffle(ek_generator *generator, void *elements, int64_t count, size_t size);

/* Does what numpy.random.seed(seed) does. */
void ek_numpy_seed(ek_generator *generator, uint32_t seed);
/* Does what numpy.random.randint(0, below) does, by which numpy.random.choice draws indices with
 * replacement. */
int64_t ek_numpy_below(ek_generator *generator, int64_t below);

/* Return the process's global generators, for checkpoints (borrowed). */
ek_generator *ek_python_generator(void);
ek_generator *ek_numpy_generator(void);

#endif
