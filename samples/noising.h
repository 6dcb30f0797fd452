/* noising.h: how pictures become noise step by step (Ho et al. 2020), and how a network that finds
 * noise makes pictures of noise (DDIM, Song et al. 2021). */
#ifndef SAMPLES_NOISING_H
#define SAMPLES_NOISING_H

#include <evenkeel/evenkeel.h>

typedef enum noising_kind {
    NOISING_COSINE, /* shares left fall as a squared cosine (Nichol and Dhariwal 2021) */
    NOISING_LINEAR  /* variances added rise from 0.1 to 20, each over the number of steps */
} noising_kind;

/* After step t a picture is sqrt(left[t]) x + sqrt(1 - left[t]) noise. */
typedef struct noising {
    int64_t steps;
    double *left; /* owned; the papers' alpha bar */
} noising;

/* Returns 0 or a negative status; close it anyway. */
int noising_open(noising *self, noising_kind kind, int64_t steps);
void noising_close(noising *self);

/* Returns the pictures (N, ...) after steps t (N) of i64. `noise` has the shape of the pictures.
 * All tensors are on cpu. */
ek_tensor *noising_mix(const noising *self, ek_tensor *pictures, ek_tensor *noise, ek_tensor *t);

/* How pictures are made. */
typedef struct noising_sampling {
    ek_module *network; /* called with pictures, steps and classes */
    ek_device device;   /* the network's device */
    int64_t steps;      /* calls of the network, at most the noising's steps */
    double eta;         /* 0: only the first noise is random; 1: as random as in DDPM */
    /* Weight of what the class adds to the noise that is found without a class (Ho and Salimans
     * 2022). If it is 1, the network is called with the class alone, which takes half the time. */
    double guidance;
    int64_t no_class; /* the number of no class */
} noising_sampling;

/* Returns pictures in [-1, 1] on cpu, in `shape` and `dtype`, of classes (N) of i64 on cpu. Each
 * step's numbers are drawn on the CPU. Takes no history if gradients are off. NULL on an error. */
ek_tensor *noising_sample(const noising *self, const noising_sampling *how, ek_tensor *classes,
                          ek_shape shape, ek_dtype dtype, ek_generator *random);

#endif
