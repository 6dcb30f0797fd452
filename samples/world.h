/* world.h: runs of several ranks, started by samples/mpirun. Several ranks compute what one process
 * does with the same batch: all ranks draw the same numbers and make whole batches, each takes its
 * rows, and loss and gradients are those of all rows. In a world of one rank the functions do next
 * to nothing. */
#ifndef SAMPLES_WORLD_H
#define SAMPLES_WORLD_H

#include <evenkeel/evenkeel.h>

/* Joins the ranks, as the program's first call. Afterwards only rank 0 prints. 0 or a negative
 * status. */
int world_join(void);
int world_size(void);
/* Tells whether this rank is rank 0, which prints and writes. */
bool world_is_first(void);

/* Returns the largest of the ranks' values, which must not be negative, or a negative status. All
 * ranks call it. */
int world_most(int value);
/* Returns 1 if any rank refuses its arguments, else 0, or a negative status. The complaint of one
 * of the refusing ranks is printed. All ranks call it. */
int world_refuses(bool refused);

/* Returns how many rows of a batch of `count` are this rank's. */
int64_t world_share(int64_t count);

/* Returns this rank's rows (dimension 0) of a batch that all ranks have whole. */
ek_tensor *world_rows(ek_tensor *batch);
/* Joins the rows of all ranks. */
ek_tensor *world_all(ek_tensor *rows);

/* Tells whether this rank must print the pending error: it is the first rank on which the error
 * began. An error of one rank becomes an error of all. All ranks call it. */
bool world_says_error(void);
/* Is args_fail on the rank that must print. */
int world_fail(int status);

#endif
