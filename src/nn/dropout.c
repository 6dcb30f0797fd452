/* dropout.c */
#include "nn/nn.h"

typedef struct dropout {
    ek_module module;
    double p;
} dropout;

static ek_value dropout_forward(ek_module *module, const ek_args *args)
{
    const dropout *self = (dropout *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(ek_f_dropout(x, self->p, module->training));
}

static const ek_module_type dropout_type = {.name = "dropout",
                                            .size = sizeof(dropout),
                                            .forward = dropout_forward};

ek_module *ek_dropout(double p)
{
    if (!(p >= 0 && p <= 1)) {
        EK_FAIL(EK_E_INVALID, "dropout: the probability has to be between 0 and 1, not %g", p);
        return NULL;
    }
    dropout *self = (dropout *)ek_module_new(&dropout_type);
    if (self)
        self->p = p;
    return (ek_module *)self;
}
