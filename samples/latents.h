/* latents.h: what StyleGAN's pictures are made of: latents, style mixing and noise, drawn on the
 * CPU for the whole batch; and pictures of a trained generator. */
#ifndef SAMPLES_LATENTS_H
#define SAMPLES_LATENTS_H

#include "adversary.h"
#include "networks.h"

/* What a generator is called with, this rank's, on cpu. */
typedef struct seeds {
    ek_tensor *z, *cut, *noise;
} seeds;

/* Draws for `groups` groups of all ranks, of latents of so many numbers; `mixing` is the share of
 * pictures that are made from two. */
seeds seeds_draw(int64_t groups, int64_t latent, double mixing, ek_dtype dtype,
                 ek_generator *random);

typedef struct latents_sampling {
    ek_module *generator; /* a stylegan_generator */
    ek_device device;
    int64_t latent;
    ek_dtype dtype;
    const double *truncation; /* how far from their mean the w are, 1: as they were; NULL: the same,
                                 and no mean is made */
} latents_sampling;
/* Pictures on cpu (count, 1, side, side), each of one latent, of the network as it is. NULL on an
 * error. */
ek_tensor *latents_sample(const latents_sampling *how, int64_t count, ek_generator *random);

#endif
