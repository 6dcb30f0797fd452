/* latents.h: the inputs of StyleGAN's generator, which are latents, style mixing and noise, drawn
 * on the CPU for the whole batch; and pictures of a trained generator. */
#ifndef SAMPLES_LATENTS_H
#define SAMPLES_LATENTS_H

#include "adversary.h"
#include "networks.h"

/* This rank's inputs of a generator, on cpu. */
typedef struct seeds {
    ek_tensor *z, *cut, *noise;
} seeds;

/* Draws inputs for `groups` groups of all ranks. A latent has `latent` numbers. `mixing` is the
 * share of pictures that are made from two latents. */
seeds seeds_draw(int64_t groups, int64_t latent, double mixing, ek_dtype dtype,
                 ek_generator *random);

typedef struct latents_sampling {
    ek_module *generator; /* a stylegan_generator */
    ek_device device;
    int64_t latent;
    ek_dtype dtype;
    const double *truncation; /* 1 keeps w, less pulls w to their mean; NULL: w are kept, and no
                                 mean is computed */
} latents_sampling;
/* Returns pictures on cpu (count, 1, side, side), each of one latent, by the averages of the
 * generator's parameters. Calls with the same seed draw the same numbers. NULL on an error. */
ek_tensor *latents_sample(const latents_sampling *how, ek_ema *average, int64_t count,
                          uint64_t seed);

#endif
