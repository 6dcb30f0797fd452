/* recurrent_module.h: the module of recurrent networks, for folders that read its calls. */
#ifndef EK_NN_RECURRENT_MODULE_H
#define EK_NN_RECURRENT_MODULE_H

#include "nn/nn.h"
#include "ops/recurrent.h"

typedef struct ek_recurrent_module {
    ek_module module;
    ek_recurrence kind;
    int64_t input_size, hidden_size;
    int64_t proj_size; /* 0: none */
    int num_layers, directions;
    bool bias, batch_first, is_cell;
    double dropout;
} ek_recurrent_module;

/* The arguments of a call. */
typedef struct ek_recurrent_inputs {
    ek_tensor *x;
    ek_recurrent_state state; /* both NULL: zeros */
    ek_tensor *lengths;       /* or NULL */
} ek_recurrent_inputs;

/* Returns the module if it is a recurrent network, NULL if it is a cell or another module. */
const ek_recurrent_module *ek_recurrent_module_of(const ek_module *module);

ek_recurrent_weights ek_recurrent_module_weights(const ek_recurrent_module *self, int layer,
                                                 int direction);

int ek_recurrent_module_read(const ek_recurrent_module *self, const ek_args *args,
                             ek_recurrent_inputs *inputs);

#endif
