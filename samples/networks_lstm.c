/* networks_lstm.c: a recurrent network that classifies sequences of unequal length, step by step.
 */
#include "networks.h"

typedef struct letter_model {
    ek_module module;
    ek_module *embedding, *recurrent, *dropout, *head;
} letter_model;

/* Takes letters (N, L) and optionally lengths (N). Samples are along dimension 0, so that
 * data-parallel wrappers can cut batches. Logits of padded steps mean nothing: their targets must
 * be ignored. */
static ek_value letter_forward(ek_module *module, const ek_args *args)
{
    letter_model *self = (letter_model *)module;
    const ek_value inputs[] = {EK_VALUE(ek_apply(self->embedding, ek_arg_tensor(args, 0))),
                               ek_value_none(),
                               args->count > 1 ? args->inputs[1] : ek_value_none()};
    ek_value result = ek_module_forward_of(self->recurrent, inputs, 3, ek_value_none());
    ek_tensor *x = ek_apply(self->dropout, ek_value_tensor(ek_value_at(result, 0)));
    return EK_VALUE(ek_transpose(ek_apply(self->head, x), 1, 2));
}

static const ek_module_type letter_type = {.name = "letter_model",
                                           .size = sizeof(letter_model),
                                           .forward = letter_forward};

#define LETTER_LAYERS(constructor)                                                 \
    constructor(o.embedded, o.hidden, .num_layers = o.layers, .batch_first = true, \
                .dropout = dropout)

ek_module *letter_network(letter_options o)
{
    const double dropout = o.layers > 1 ? o.dropout : 0;
    letter_model *self = (letter_model *)ek_module_new(&letter_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "embedding", &self->embedding, ek_embedding(o.letters, o.embedded));
    ek_register_module(m, "recurrent", &self->recurrent,
                       o.cell == CELL_LSTM  ? LETTER_LAYERS(ek_lstm)
                       : o.cell == CELL_GRU ? LETTER_LAYERS(ek_gru)
                                            : LETTER_LAYERS(ek_rnn));
    ek_register_module(m, "dropout", &self->dropout, ek_dropout(o.dropout));
    ek_register_module(m, "head", &self->head, ek_linear(o.hidden, o.classes));
    return ek_module_finish(m);
}
