/* adversary.h: what the programs share that train a generator against a critic. */
#ifndef SAMPLES_ADVERSARY_H
#define SAMPLES_ADVERSARY_H

#include "run.h"

/* Takes over bytes (1, 28, 28): f32 pictures (1, side, side) in [-1, 1], with a dark border. */
ek_dataset *adversary_framed(ek_dataset *bytes, int side);
/* Those of Fashion-MNIST, of training or of the test. NULL on an error. */
ek_dataset *adversary_pictures(const char *directory, bool train, int side);
/* The next pictures of all ranks, on cpu: fewer at the end of a pass unless the loader drops those.
 * NULL on an error. */
ek_tensor *adversary_real(ek_loader *loader, ek_dtype dtype);
/* This rank's rows of normal numbers that are drawn for all ranks, on cpu. */
ek_tensor *adversary_noise(ek_shape shape, ek_dtype dtype, ek_generator *random);
/* Adds the gradient of the loss, and writes its value, which has to be finite: 0 or a negative
 * status. */
int adversary_backward(ek_tensor *loss, double *value);
/* Adds the gradient of the generator's loss on the critic's scores of what it `made`. The critic's
 * gradients are as before. */
int adversary_generator_backward(const train_job *generator, const train_job *critic, ek_value made,
                                 double *value);
/* The mean over all devices and ranks of what a model gave: 0 or a negative status. */
int adversary_mean(ek_value scores, double *mean);
/* `count` pictures, on cpu, without a history: `make` makes part after part of at most `at_once`,
 * those from number `first` on, so that this needs less memory than training. NULL on an error. */
ek_tensor *adversary_parts(int64_t count, int64_t at_once,
                           ek_tensor *(*make)(int64_t first, int64_t count, void *user),
                           void *user);
/* Keeps both networks with their optimizers, the generator of random numbers and the loader; and
 * the plans if there are any. */
void adversary_keep(run *r, const train_job *generator, const train_job *critic,
                    ek_generator *random, ek_loader *loader, bool planned);

#endif
