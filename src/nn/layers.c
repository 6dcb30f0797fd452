/* layers.c: layers without windows: linear, dropout, elementwise functions, and the identity. */

#include "core/tensor.h"
#include "nn/nn.h"

/* ---- linear: y = x W^T + b ---- */

typedef struct linear {
    ek_module module;
    ek_tensor *weight; /* (out, in) */
    ek_tensor *bias;   /* (out), or NULL */
} linear;

static ek_value linear_forward(ek_module *module, const ek_args *args)
{
    linear *self = (linear *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(ek_f_linear(x, self->weight, self->bias));
}

static const ek_module_type linear_type = {.name = "linear",
                                           .size = sizeof(linear),
                                           .forward = linear_forward};

ek_module *ek_linear_with(ek_linear_options options)
{
    if (options.in_features < 1 || options.out_features < 1) {
        EK_FAIL(EK_E_INVALID,
                "linear: in_features %lld and out_features %lld have to be at least 1",
                (long long)options.in_features, (long long)options.out_features);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    linear *self = (linear *)ek_module_new(&linear_type);
    if (self) {
        ek_tensor *weight =
            ek_new_parameter(EK_SHAPE(options.out_features, options.in_features), EK_F32);
        ek_tensor *bias = options.bias == EK_OFF
                              ? NULL
                              : ek_new_parameter(EK_SHAPE(options.out_features), EK_F32);
        ek_register_parameter(&self->module, "weight", &self->weight, weight);
        ek_register_parameter(&self->module, "bias", &self->bias, bias);
        if (ek_error_status() == 0)
            ek_init_default(self->weight, self->bias);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

/* ---- dropout ---- */

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

/* As in PyTorch, one number is drawn for each channel of each sample. */
static ek_value dropout2d_forward(ek_module *module, const ek_args *args)
{
    const dropout *self = (dropout *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (x && x->ndim != 4) {
        char text[200];
        EK_FAIL(EK_E_SHAPE, "expected an input of 4 dimensions, got %s", ek_tensor_text(x, text));
        x = NULL;
    }
    if (!x || !module->training || self->p == 0)
        return ek_value_of_tensor(x ? ek_f_dropout(x, self->p, false) : NULL);
    ek_tensor *channels = ek_ones(EK_SHAPE(x->shape[0], x->shape[1], 1, 1), .dtype = x->dtype,
                                  .device = ek_tensor_device(x));
    return ek_value_of_tensor(ek_mul(x, ek_f_dropout(channels, self->p, true)));
}

static const ek_module_type dropout2d_type = {.name = "dropout2d",
                                              .size = sizeof(dropout),
                                              .forward = dropout2d_forward};

static ek_module *dropout_make(const ek_module_type *type, double p)
{
    if (!(p >= 0 && p <= 1)) {
        EK_FAIL(EK_E_INVALID, "%s: the probability has to be between 0 and 1, not %g", type->name,
                p);
        return NULL;
    }
    dropout *self = (dropout *)ek_module_new(type);
    if (self)
        self->p = p;
    return (ek_module *)self;
}

ek_module *ek_dropout(double p)
{
    return dropout_make(&dropout_type, p);
}

ek_module *ek_dropout2d(double p)
{
    return dropout_make(&dropout2d_type, p);
}

/* ---- elementwise functions, and the identity ---- */

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
