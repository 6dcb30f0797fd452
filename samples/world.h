/* world.h: runs of several ranks, started by samples/mpirun. Such a run is that of one process with
 * the same batch: all ranks draw the same numbers and make whole batches, of which each takes its
 * rows, and loss and gradients are those of all rows. Alone, all functions do next to nothing. */
#ifndef SAMPLES_WORLD_H
#define SAMPLES_WORLD_H

#include <evenkeel/evenkeel.h>

/* Joins the ranks, before anything else. From then on standard output and complaints are rank 0's.
 * 0 or a negative status. */
int world_join(void);
int world_size(void);
/* The rank that prints and writes. */
bool world_is_first(void);

/* The largest of the ranks' values, none of which is negative; all ranks call it. Or a negative
 * status. */
int world_most(int value);
/* Whether any rank refuses its arguments, after a complaint, which is then printed once; all ranks
 * call it. 1, 0 or a negative status. */
int world_refuses(bool refused);

/* How many rows of a batch of `count` are this rank's. */
int64_t world_share(int64_t count);

/* This rank's rows (dimension 0) of a batch that all ranks have whole. */
ek_tensor *world_rows(ek_tensor *batch);
/* All ranks' rows. */
ek_tensor *world_all(ek_tensor *rows);

/* Wrap what one process trains with. Ownership passes. `sharded`: gradients and state are divided
 * over the devices of all ranks, if there are several. */
ek_module *world_model(ek_module *model, bool sharded);
ek_module *world_criterion(ek_module *criterion);

/* Whether this rank is to print the pending error: the first of those on which it began. An error
 * of one rank is made one of all, and all ranks call this. */
bool world_says_error(void);
/* args_fail on that rank. */
int world_fail(int status);

#endif
