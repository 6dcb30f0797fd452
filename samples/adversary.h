/* adversary.h: what the programs share that train a generator against a critic. */
#ifndef SAMPLES_ADVERSARY_H
#define SAMPLES_ADVERSARY_H

#include "run.h"

/* Takes over bytes (1, 28, 28): f32 pictures (1, side, side) in [-1, 1], with a dark border. */
ek_dataset *adversary_pictures(ek_dataset *bytes, int side);
/* The next pictures of all ranks, on cpu: fewer at the end of a pass unless the loader drops those.
 * NULL on an error. */
ek_tensor *adversary_real(ek_loader *loader, ek_dtype dtype);
/* This rank's rows of normal numbers that are drawn for all ranks, on cpu. */
ek_tensor *adversary_noise(ek_shape shape, ek_dtype dtype, ek_generator *random);
/* Adds the gradient of the loss, and writes its value, which has to be finite: 0 or a negative
 * status. */
int adversary_backward(ek_tensor *loss, double *value);
/* The mean over all devices and ranks of what a model gave: 0 or a negative status. */
int adversary_mean(ek_value scores, double *mean);

#endif
