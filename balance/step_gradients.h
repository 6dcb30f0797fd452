/* step_gradients.h: the gradients that a training step makes, wherever they lie. */
#ifndef EK_BALANCE_STEP_GRADIENTS_H
#define EK_BALANCE_STEP_GRADIENTS_H

#include "evenkeel/module.h"
#include "evenkeel/optim.h"

/* The optimizer's parameters and the model's, each once, and gradients that they had before. All
 * zero is none. */
typedef struct ek_step_gradients {
    int leaf_count;
    ek_tensor **leaves; /* references */
    int earlier_count;
    ek_tensor **holders; /* whose gradients were put aside, and those: references, NULLs possible */
    ek_tensor **earlier;
} ek_step_gradients;

int ek_step_gradients_open(ek_optimizer *optimizer, ek_module *model, ek_step_gradients *gradients);
void ek_step_gradients_close(ek_step_gradients *gradients);

/* Puts the gradients there are aside, so that they are not scaled with those to come. */
int ek_step_gradients_set_aside(ek_step_gradients *gradients);
/* Adds them to what has come. */
int ek_step_gradients_add_earlier(ek_step_gradients *gradients);

/* Multiplies all gradients by a number or, where it isn't NULL, by a f64 scalar on any device,
 * which nobody waits for. */
int ek_step_gradients_scale(const ek_step_gradients *gradients, double number, ek_tensor *scalar);

/* After an error: there are none. */
void ek_step_gradients_remove(const ek_step_gradients *gradients);

#endif
