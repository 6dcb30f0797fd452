/* steps.h: one training step of a program, in the ways in which a user may write it. */
#ifndef EK_TESTS_FUZZ_STEPS_H
#define EK_TESTS_FUZZ_STEPS_H

#include "build.h"

/* Does step `number`, in `micro` micro-batches where the library cuts, and writes its loss. Its
 * batch is the same whenever it is done. Returns 0 or a negative status. */
int step_do(trainer *t, const step *s, int number, int micro, double *loss);

/* A forward of the step's batch, in the scope. */
ek_value step_forward(trainer *t, const step *s, int number);

#endif
