/* noising.h: how pictures become noise step by step (Ho et al. 2020), and how a network that finds
 * the noise makes pictures of it (DDIM, Song et al. 2021). */
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

/* 0 or a negative status; close it anyway. */
int noising_open(noising *self, noising_kind kind, int64_t steps);
void noising_close(noising *self);

/* The pictures (N, ...) after steps t (N) of i64, all on cpu, with noise in their shape. */
ek_tensor *noising_mix(const noising *self, ek_tensor *pictures, ek_tensor *noise, ek_tensor *t);

/* How pictures are made. */
typedef struct noising_sampling {
    ek_module *network; /* called with pictures, steps and classes */
    ek_device device;   /* where it is */
    int64_t steps;      /* calls of it, up to the noising's steps */
    double eta;         /* 0: nothing is random but the first noise; 1: as much as in DDPM */
    /* Weight of what the class adds to the noise found without one (Ho and Salimans 2022): 1 is
     * the class's alone, which takes half the time. */
    double guidance;
    int64_t no_class; /* what the network takes for none */
} noising_sampling;

/* Pictures in [-1, 1] on cpu, in `shape` and `dtype`, of classes (N) of i64 on cpu. Each step's
 * numbers are drawn on the CPU. Takes no history if gradients are off. NULL on an error. */
ek_tensor *noising_sample(const noising *self, const noising_sampling *how, ek_tensor *classes,
                          ek_shape shape, ek_dtype dtype, ek_generator *random);

#endif
