/* recurrent.h: recurrent networks: a step, a layer's direction, and all layers. */
#ifndef EK_OPS_RECURRENT_H
#define EK_OPS_RECURRENT_H

#include "evenkeel/recurrent.h"

/* In the order of ek_recurrent_cell. */
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

/* Returns true if the operands of a direction have one dtype and device and fit together: x
 * (L, N, input of the network), the state (..., N, size), and weights for inputs of `input`
 * elements. Holds the weights. Doesn't set an error, unless the pending error is set already. */
bool ek_recurrent_fits(ek_recurrence kind, const ek_tensor *x, const ek_tensor *h,
                       const ek_tensor *c, const ek_recurrent_weights *weights, int64_t input);

/* Replaces the state by the next state, in the scope. x (N, gates * hidden) is the product
 * of the step's input and weight_ih, plus bias_ih. `mask` (bool, (N, 1)) is 0 for samples whose
 * state stays; NULL: none stays. Differentiable. Returns 0 or a negative status. */
int ek_recurrent_step(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *weights,
                      ek_tensor *mask, ek_recurrent_state *state);

/* Ends the scope. The outputs y, h and c, which may be NULL, move to the enclosing scope, and h and
 * c become the state. Returns rc; if it is negative, or on an error, the state is unchanged. */
int ek_recurrent_return(ek_scope *scope, int rc, ek_tensor *outputs[3], ek_recurrent_state *state);

/* Returns the outputs (L, N, size of h) of all steps of one direction, for x (L, N, input) with
 * L > 0. Replaces the state by the state after the last step. With `reverse` the steps run from the
 * last to the first. `mask` is (L, N, 1), or NULL. The steps are one node of the graph: backward
 * computes each weight's gradient by one product over all steps. Differentiable to any order. */
ek_tensor *ek_recurrent_direction(ek_recurrence kind, bool reverse, ek_tensor *x,
                                  const ek_recurrent_weights *weights, ek_tensor *mask,
                                  ek_recurrent_state *state);

typedef struct ek_recurrent_network {
    ek_recurrence kind;
    int layers, directions;
    double dropout; /* Each layer's input but the first has this dropout; 0: none. */
    const ek_recurrent_weights *weights; /* layer by layer, and direction by direction */
    ek_tensor *lengths;                  /* i64 (N) on cpu, from 0 to L; NULL: all are L */
} ek_recurrent_network;

/* Returns the last layer's outputs (L, N, directions * size of h), for x (L, N, input) with L > 0.
 * Outputs beyond a sample's length are 0. Replaces the state, whose tensors have a first dimension
 * of layers * directions, by the state after each sample's last step. Differentiable to any
 * order. */
ek_tensor *ek_recurrent_run(const ek_recurrent_network *network, ek_tensor *x,
                            ek_recurrent_state *state);

#endif
