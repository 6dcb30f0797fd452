/* adversary.h: functions of the programs that train a generator against a critic. */
#ifndef SAMPLES_ADVERSARY_H
#define SAMPLES_ADVERSARY_H

#include "run.h"

/* Takes over a data set of bytes (1, 28, 28) and returns one of f32 pictures (1, side, side) in
 * [-1, 1], with a dark border. */
ek_dataset *adversary_framed(ek_dataset *bytes, int side);
/* Returns Fashion-MNIST's pictures of training or of the test, framed. NULL on an error. */
ek_dataset *adversary_pictures(const char *directory, bool train, int side);
/* Returns the next pictures of all ranks, on cpu. If the loader keeps an incomplete last batch, the
 * end of a pass has fewer. NULL on an error. */
ek_tensor *adversary_real(ek_loader *loader, ek_dtype dtype);
/* Draws normal numbers for all ranks, on cpu, and returns this rank's rows. */
ek_tensor *adversary_noise(ek_shape shape, ek_dtype dtype, ek_generator *random);
/* Adds the gradient of the loss and writes the loss, which must be finite. 0 or a negative status.
 */
int adversary_backward(ek_tensor *loss, double *value);
/* Adds the gradient of the generator's loss on the critic's scores of the pictures `made`. The
 * critic's gradients stay. */
int adversary_generator_backward(const train_job *generator, const train_job *critic, ek_value made,
                                 double *value);
/* Writes the mean of a model's outputs over all devices and ranks. 0 or a negative status. */
int adversary_mean(ek_value scores, double *mean);
/* Makes pictures first, ..., first + count - 1 of numbers that `random` draws. */
typedef ek_tensor *adversary_maker(int64_t first, int64_t count, ek_generator *random, void *user);
/* Returns `count` pictures, on cpu, without a history: by the averages of the network's parameters
 * unless `average` is NULL, and of the same numbers in all calls with this seed. Parts of at most
 * `at_once` pictures are made, so that less memory is needed than in training. NULL on an error. */
ek_tensor *adversary_parts(ek_ema *average, uint64_t seed, int64_t count, int64_t at_once,
                           adversary_maker *make, void *user);
/* Writes pictures in [-1, 1] to samples-<step>.png in --out, in so many columns. */
void adversary_save(run *r, ek_tensor *pictures, int columns);
/* Adds to the checkpoint both networks with their optimizers, the generator of random numbers, the
 * loader, and if `planned` the plans. */
void adversary_keep(run *r, const train_job *generator, const train_job *critic,
                    ek_generator *random, ek_loader *loader, bool planned);

#endif
