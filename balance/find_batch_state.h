/* find_batch_state.h: what training steps change, to be put back. */
#ifndef EK_BALANCE_FIND_BATCH_STATE_H
#define EK_BALANCE_FIND_BATCH_STATE_H

#include "core/generator.h"
#include "evenkeel/module.h"
#include "evenkeel/optim.h"

/* A tensor that is written, or a gradient that comes and goes. */
typedef struct ek_saved_tensor {
    ek_tensor *tensor;           /* a reference */
    ek_tensor *copy;             /* on cpu, a reference; of gradients NULL where there was none */
    ek_memory_category category; /* of the gradient's memory */
    uint64_t version;            /* of the tensor, when it was equal to the copy last */
} ek_saved_tensor;

typedef struct ek_saved_slot {
    ek_tensor *parameter; /* a reference */
    int64_t steps;
    ek_tensor **states; /* by the optimizer's names; references, on cpu */
} ek_saved_slot;

/* Parameters, buffers, gradients, the optimizer and all generators. All zero is nothing. */
typedef struct ek_training_state {
    ek_optimizer *optimizer;
    ek_saved_tensor *tensors, *gradients;
    int tensor_count, gradient_count;
    ek_saved_slot *slots;
    int slot_count, state_names;
    double *rates; /* of the optimizer's groups */
    ek_generators *generators;
} ek_training_state;

/* Copies go to cpu and keep their originals' layout, so that putting them back takes no memory but
 * for gradients that have no slot. model and optimizer may be NULL. If it fails, nothing is held.
 */
int ek_training_state_save(ek_module *model, ek_optimizer *optimizer, ek_training_state *state);
/* As often as need be. Goes on after an error, and returns the first. */
int ek_training_state_restore(ek_training_state *state);
void ek_training_state_close(ek_training_state *state);

#endif
