/* activations.c: activation functions as modules. */
#include <stdio.h>

#include "core/tensor.h"
#include "nn/nn.h"

/* ---- without numbers ---- */

#define PLAIN_ACTIVATION(activation)                                                   \
    static ek_value activation##_forward(ek_module *module, const ek_args *args)       \
    {                                                                                  \
        return ek_value_of_tensor(ek_f_##activation(ek_only_input(module, args)));     \
    }                                                                                  \
    static const ek_module_type activation##_type = {.name = #activation,              \
                                                     .size = sizeof(ek_module),        \
                                                     .forward = activation##_forward}; \
    ek_module *ek_##activation(void)                                                   \
    {                                                                                  \
        return ek_module_new(&activation##_type);                                      \
    }

PLAIN_ACTIVATION(relu)
PLAIN_ACTIVATION(sigmoid)
PLAIN_ACTIVATION(tanh)
PLAIN_ACTIVATION(silu)
PLAIN_ACTIVATION(mish)
PLAIN_ACTIVATION(selu)
PLAIN_ACTIVATION(relu6)
PLAIN_ACTIVATION(hardsigmoid)
PLAIN_ACTIVATION(hardswish)
PLAIN_ACTIVATION(softsign)
PLAIN_ACTIVATION(tanhshrink)
PLAIN_ACTIVATION(log_sigmoid)

bool ek_module_is_relu(const ek_module *module)
{
    return module->type == &relu_type;
}

/* ---- activations with one or two numbers, which the function takes after x ---- */

typedef struct activation {
    ek_module module;
    double a, b;
    int choice; /* a dimension, or an enumerator */
} activation;

static ek_module *activation_make(const ek_module_type *type, double a, double b, int choice)
{
    activation *self = (activation *)ek_module_new(type);
    if (self) {
        self->a = a;
        self->b = b;
        self->choice = choice;
    }
    return (ek_module *)self;
}

/* Defines the type of an activation. `call` is an expression of x and self. */
#define ACTIVATION_TYPE(id, call) ACTIVATION_TYPE_DESCRIBED(id, call, NULL)
#define ACTIVATION_TYPE_DESCRIBED(id, call, describe_)                   \
    static ek_value id##_forward(ek_module *module, const ek_args *args) \
    {                                                                    \
        const activation *self = (activation *)module;                   \
        ek_tensor *x = ek_only_input(module, args);                      \
        return ek_value_of_tensor(call);                                 \
    }                                                                    \
    static const ek_module_type id##_type = {.name = #id,                \
                                             .size = sizeof(activation), \
                                             .forward = id##_forward,    \
                                             .describe = describe_};

#define NUMBERED_ACTIVATION(id, number)                                          \
    static void id##_describe(const ek_module *module, char *text, size_t size)  \
    {                                                                            \
        snprintf(text, size, "%s=%g", #number, ((const activation *)module)->a); \
    }                                                                            \
    ACTIVATION_TYPE_DESCRIBED(id, ek_f_##id(x, self->a), id##_describe)          \
    ek_module *ek_##id(double number)                                            \
    {                                                                            \
        return activation_make(&id##_type, number, 0, 0);                        \
    }
NUMBERED_ACTIVATION(leaky_relu, negative_slope)
NUMBERED_ACTIVATION(elu, alpha)
NUMBERED_ACTIVATION(celu, alpha)
NUMBERED_ACTIVATION(hardshrink, lambda)
NUMBERED_ACTIVATION(softshrink, lambda)

#define CHOOSING_ACTIVATION(id, type, choice_)                  \
    ACTIVATION_TYPE(id, ek_f_##id(x, (type)self->choice))       \
    ek_module *ek_##id(type choice_)                            \
    {                                                           \
        return activation_make(&id##_type, 0, 0, (int)choice_); \
    }
CHOOSING_ACTIVATION(glu, int, dim)
CHOOSING_ACTIVATION(softmax, int, dim)
CHOOSING_ACTIVATION(log_softmax, int, dim)
CHOOSING_ACTIVATION(softmin, int, dim)
CHOOSING_ACTIVATION(gelu, ek_gelu_approximate, approximate)

bool ek_module_is_gelu(const ek_module *module, ek_gelu_approximate *approximate)
{
    if (module->type != &gelu_type)
        return false;
    *approximate = (ek_gelu_approximate)((const activation *)module)->choice;
    return *approximate == EK_GELU_NONE || *approximate == EK_GELU_TANH;
}

ACTIVATION_TYPE(hardtanh, ek_f_hardtanh(x, self->a, self->b))
ACTIVATION_TYPE(threshold, ek_f_threshold(x, self->a, self->b))
ACTIVATION_TYPE(softplus, ek_f_softplus(x, .beta = self->a, .threshold = self->b))

ACTIVATION_TYPE(rrelu, ek_f_rrelu(x, self->a, self->b, module->training))

ek_module *ek_rrelu_with(ek_rrelu_options options)
{
    return activation_make(&rrelu_type, options.lower, options.upper, 0);
}

ek_module *ek_hardtanh(double low, double high)
{
    if (low < high)
        return activation_make(&hardtanh_type, low, high, 0);
    EK_FAIL(EK_E_INVALID, "hardtanh: low is %g and high %g; low must be below high", low, high);
    return NULL;
}

ek_module *ek_threshold(double threshold, double value)
{
    return activation_make(&threshold_type, threshold, value, 0);
}

ek_module *ek_softplus_with(ek_softplus_module_options options)
{
    return activation_make(&softplus_type, options.beta, options.threshold, 0);
}

/* ---- with a parameter ---- */

typedef struct prelu {
    ek_module module;
    ek_tensor *weight; /* (1) or (C) */
} prelu;

static ek_value prelu_forward(ek_module *module, const ek_args *args)
{
    prelu *self = (prelu *)module;
    return ek_value_of_tensor(ek_f_prelu(ek_only_input(module, args), self->weight));
}

static const ek_module_type prelu_type = {.name = "prelu",
                                          .size = sizeof(prelu),
                                          .forward = prelu_forward};

ek_module *ek_prelu_with(ek_prelu_options options)
{
    const int64_t count = options.num_parameters;
    if (count < 1) {
        EK_FAIL(EK_E_INVALID, "prelu: num_parameters is %lld; it must be at least 1",
                (long long)count);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    prelu *self = (prelu *)ek_module_new(&prelu_type);
    if (self) {
        ek_tensor *weight = ek_new_parameter(EK_SHAPE(count), EK_F32);
        ek_register_parameter(&self->module, "weight", &self->weight, weight);
        if (ek_error_status() == 0)
            ek_init_constant(self->weight, options.init);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}
