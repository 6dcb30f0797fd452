/* activation.c: modules of elementwise functions, and the identity. */
#include "nn/nn.h"

#define EK_PLAIN_ACTIVATION(activation, function)                                      \
    static ek_value activation##_forward(ek_module *module, const ek_args *args)       \
    {                                                                                  \
        return ek_value_of_tensor(function(ek_only_input(module, args)));              \
    }                                                                                  \
    static const ek_module_type activation##_type = {.name = #activation,              \
                                                     .size = sizeof(ek_module),        \
                                                     .forward = activation##_forward}; \
    ek_module *ek_##activation(void)                                                   \
    {                                                                                  \
        return ek_module_new(&activation##_type);                                      \
    }

EK_PLAIN_ACTIVATION(relu, ek_f_relu)
EK_PLAIN_ACTIVATION(sigmoid, ek_f_sigmoid)
EK_PLAIN_ACTIVATION(tanh, ek_f_tanh)

bool ek_module_is_relu(const ek_module *module)
{
    return module->type == &relu_type;
}

typedef struct leaky_relu {
    ek_module module;
    double negative_slope;
} leaky_relu;

static ek_value leaky_relu_forward(ek_module *module, const ek_args *args)
{
    const leaky_relu *self = (leaky_relu *)module;
    return ek_value_of_tensor(ek_f_leaky_relu(ek_only_input(module, args), self->negative_slope));
}

static const ek_module_type leaky_relu_type = {.name = "leaky_relu",
                                               .size = sizeof(leaky_relu),
                                               .forward = leaky_relu_forward};

ek_module *ek_leaky_relu(double negative_slope)
{
    leaky_relu *self = (leaky_relu *)ek_module_new(&leaky_relu_type);
    if (self)
        self->negative_slope = negative_slope;
    return (ek_module *)self;
}

static ek_value identity_forward(ek_module *module, const ek_args *args)
{
    return ek_value_of_tensor(ek_only_input(module, args));
}

static const ek_module_type identity_type = {.name = "identity",
                                             .size = sizeof(ek_module),
                                             .forward = identity_forward};

ek_module *ek_identity(void)
{
    return ek_module_new(&identity_type);
}
