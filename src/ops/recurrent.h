/* recurrent.h: a step of recurrent networks. */
#ifndef EK_OPS_RECURRENT_H
#define EK_OPS_RECURRENT_H

#include "evenkeel/recurrent.h"

typedef enum ek_recurrence {
    EK_RECURRENCE_TANH,
    EK_RECURRENCE_RELU,
    EK_RECURRENCE_LSTM,
    EK_RECURRENCE_GRU
} ek_recurrence;

/* h (N, hidden or proj_size), and c (N, hidden) for an LSTM, else NULL. */
typedef struct ek_recurrent_state {
    ek_tensor *h, *c;
} ek_recurrent_state;

/* weight_hh (gates * hidden, size of h); bias_hh and weight_hr may be NULL. */
typedef struct ek_recurrent_weights {
    ek_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh, *weight_hr;
} ek_recurrent_weights;

/* Returns how many gates a cell has: its weights have gates * hidden rows. */
int ek_recurrence_gates(ek_recurrence kind);

/* Replaces the state by the next state, in the scope. x (N, gates * hidden) is the product
 * of the step's input and weight_ih, plus bias_ih. `mask` (bool, (N, 1)) is 0 for samples whose
 * state stays; NULL: none stays. Differentiable. Returns 0 or a negative status. */
int ek_recurrent_step(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *weights,
                      ek_tensor *mask, ek_recurrent_state *state);

#endif
