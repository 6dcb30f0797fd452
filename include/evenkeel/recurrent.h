/** @file
 * recurrent.h: recurrent networks as modules. Ownership, errors and initial values are those of
 * nn.h: all parameters are uniform in +-1 / sqrt(hidden_size).
 *
 *     ek_module *lstm = ek_lstm(32, 64, .num_layers = 2, .batch_first = true);
 *     ek_value result = ek_forward(lstm, x);
 *     ek_tensor *output = ek_value_tensor(ek_value_at(result, 0));
 *
 * A network takes x (L, N, input_size), or (N, L, input_size) with batch_first, or (L, input_size)
 * for one sample. It returns a list: the output of the last layer for all steps, shaped as x, and
 * the state after the last step. The state is h_n (directions * num_layers, N, hidden_size); for an
 * LSTM, a list of h_n and c_n. Without a batch the states have no dimension N.
 *
 * The next input, or keyword "hx", is the state before the first step, of the same form; none
 * (ek_value_none) means zeros. The third input, or keyword "lengths", is an i64 tensor (N), on any
 * device, in any order: how many steps each sample has, from 0 to L. Steps beyond a sample's end
 * leave its state unchanged, and their outputs are zeros; the reverse direction starts
 * at each sample's own end. This is what torch computes for a packed sequence. Lengths on a device
 * are read by the CPU, which waits for them.
 *
 * On GPUs cuDNN computes networks of f32, bf16 and f16, under autocast in its narrow dtype, unless
 * algorithms must be deterministic (precision.h). Backward then needs the output unmodified.
 *
 * The batch is dimension 0 of lengths, 1 of states, and of the input and the output 1 or, with
 * batch_first, 0. Results are marked so (ek_value_batched), and data-parallel wrappers obey: they
 * join h_n and c_n along dimension 1, and such a state can be given to them as it is. A wrapper
 * cuts what has no mark along its own dimension, which is to be the input's: .dim = 1 without
 * batch_first. A new state then needs a mark with batch_first, and lengths without. What was cut
 * along another dimension is refused, if the wrapper's inputs reach the network as they are. */
#ifndef EVENKEEL_RECURRENT_H
#define EVENKEEL_RECURRENT_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef enum ek_rnn_nonlinearity { EK_RNN_TANH = 0, EK_RNN_RELU } ek_rnn_nonlinearity;

typedef struct ek_rnn_options {
    int begin; /**< no option, see base.h */
    int64_t input_size, hidden_size;
    int num_layers EK_IS(1);
    ek_rnn_nonlinearity nonlinearity;
    bool bias EK_IS(true);
    bool batch_first;
    double dropout; /**< between layers, in training; padded steps draw numbers, too */
    bool bidirectional;
} ek_rnn_options;
#define EK_DEFAULTS_ek_rnn_options EK_DEFAULT(num_layers, 1), EK_DEFAULT(bias, true)
EK_API ek_module *ek_rnn_with(ek_rnn_options options);
/** Parameters of layer k: weight_ih_lk (gates * hidden_size, input), weight_hh_lk, bias_ih_lk,
 * bias_hh_lk, then those whose names end in _reverse. Gates are in torch's order: i, f, g, o of an
 * LSTM and r, z, n of a GRU. */
#define ek_rnn(...) EK_CALL_2(ek_rnn_with, ek_rnn_options, input_size, hidden_size, __VA_ARGS__)

typedef struct ek_lstm_options {
    int begin; /**< no option, see base.h */
    int64_t input_size, hidden_size;
    int num_layers EK_IS(1);
    bool bias EK_IS(true);
    bool batch_first;
    double dropout; /**< between layers, in training; padded steps draw numbers, too */
    bool bidirectional;
    /** If not 0, each step's h is replaced by W h, of this size; W is the parameter weight_hr_lk
     * (proj_size, hidden_size). */
    int64_t proj_size;
} ek_lstm_options;
#define EK_DEFAULTS_ek_lstm_options EK_DEFAULT(num_layers, 1), EK_DEFAULT(bias, true)
EK_API ek_module *ek_lstm_with(ek_lstm_options options);
/** LSTM, with the parameters of ek_rnn and, with proj_size, weight_hr_lk. */
#define ek_lstm(...) EK_CALL_2(ek_lstm_with, ek_lstm_options, input_size, hidden_size, __VA_ARGS__)

typedef struct ek_gru_options {
    int begin; /**< no option, see base.h */
    int64_t input_size, hidden_size;
    int num_layers EK_IS(1);
    bool bias EK_IS(true);
    bool batch_first;
    double dropout; /**< between layers, in training; padded steps draw numbers, too */
    bool bidirectional;
} ek_gru_options;
#define EK_DEFAULTS_ek_gru_options EK_DEFAULT(num_layers, 1), EK_DEFAULT(bias, true)
EK_API ek_module *ek_gru_with(ek_gru_options options);
/** GRU, with the parameters of ek_rnn. */
#define ek_gru(...) EK_CALL_2(ek_gru_with, ek_gru_options, input_size, hidden_size, __VA_ARGS__)

typedef struct ek_rnn_cell_options {
    int begin; /**< no option, see base.h */
    int64_t input_size, hidden_size;
    ek_rnn_nonlinearity nonlinearity;
    bool bias EK_IS(true);
} ek_rnn_cell_options;
#define EK_DEFAULTS_ek_rnn_cell_options EK_DEFAULT(bias, true)
EK_API ek_module *ek_rnn_cell_with(ek_rnn_cell_options options);
/** One step: takes x (N, input_size) or (input_size), and optionally the state: h, or for an LSTM a
 * list of h and c, (N, hidden_size) each. Returns the new state in the same form. Parameters
 * weight_ih, weight_hh, bias_ih, bias_hh. */
#define ek_rnn_cell(...) \
    EK_CALL_2(ek_rnn_cell_with, ek_rnn_cell_options, input_size, hidden_size, __VA_ARGS__)
typedef struct ek_cell_options {
    int begin; /**< no option, see base.h */
    int64_t input_size, hidden_size;
    bool bias EK_IS(true);
} ek_cell_options;
#define EK_DEFAULTS_ek_cell_options EK_DEFAULT(bias, true)
EK_API ek_module *ek_lstm_cell_with(ek_cell_options options);
EK_API ek_module *ek_gru_cell_with(ek_cell_options options);
#define ek_lstm_cell(...) \
    EK_CALL_2(ek_lstm_cell_with, ek_cell_options, input_size, hidden_size, __VA_ARGS__)
#define ek_gru_cell(...) \
    EK_CALL_2(ek_gru_cell_with, ek_cell_options, input_size, hidden_size, __VA_ARGS__)

/** Joins tensors (L_i, ...), which differ in L_i alone, to one tensor (L, count, ...), or (count,
 * L, ...) with batch_first, where L is the largest L_i. Missing elements are `value`.
 * Differentiable. */
EK_API ek_tensor *ek_pad_sequence(ek_tensor *const *tensors, int count, bool batch_first,
                                  double value);

EK_END_DECLARATIONS
#endif
