/* layers.c: layers without windows: linear, dropout, and the identity. */
#include <math.h>
#include <stdio.h>

#include "core/tensor.h"
#include "evenkeel/random.h"
#include "nn/module_table.h"
#include "nn/nn.h"
#include "ops/dropout.h"
#include "ops/linear.h"

/* ---- linear: y = x W^T + b ---- */

typedef struct linear {
    ek_module module;
    ek_tensor *weight; /* (out, in) */
    ek_tensor *bias;   /* (out), or NULL */
} linear;

static ek_tensor *linear_apply(ek_module *module, const ek_args *args, bool relu)
{
    linear *self = (linear *)module;
    return ek_linear_activated(ek_only_input(module, args), self->weight, self->bias, relu);
}

static ek_value linear_forward(ek_module *module, const ek_args *args)
{
    return ek_value_of_tensor(linear_apply(module, args, false));
}

static ek_value linear_relu_forward(ek_module *module, const ek_args *args)
{
    return ek_value_of_tensor(linear_apply(module, args, true));
}

static ek_value linear_gelu_forward(ek_module *module, const ek_args *args)
{
    const linear *self = (const linear *)module;
    return ek_value_of_tensor(
        ek_linear_gelu(ek_only_input(module, args), self->weight, self->bias, EK_GELU_NONE));
}

static ek_value linear_gelu_tanh_forward(ek_module *module, const ek_args *args)
{
    const linear *self = (const linear *)module;
    return ek_value_of_tensor(
        ek_linear_gelu(ek_only_input(module, args), self->weight, self->bias, EK_GELU_TANH));
}

static void linear_describe(const ek_module *module, char *text, size_t size)
{
    const linear *self = (const linear *)module;
    if (!self->weight)
        return;
    snprintf(text, size, "in_features=%lld, out_features=%lld, bias=%s",
             (long long)self->weight->shape[1], (long long)self->weight->shape[0],
             self->bias ? "True" : "False");
}

static const ek_module_type linear_type = {.name = "linear",
                                           .size = sizeof(linear),
                                           .forward = linear_forward,
                                           .describe = linear_describe};

ek_forward_function *ek_linear_with_relu(const ek_module *layer)
{
    return layer->type == &linear_type ? linear_relu_forward : NULL;
}

ek_forward_function *ek_linear_with_gelu(const ek_module *layer, ek_gelu_approximate approximate)
{
    if (layer->type != &linear_type)
        return NULL;
    return approximate == EK_GELU_TANH ? linear_gelu_tanh_forward : linear_gelu_forward;
}

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
        const ek_shape shape = EK_SHAPE(options.out_features, options.in_features);
        ek_register_layer(&self->module, &self->weight, shape, &self->bias,
                          options.bias ? options.out_features : 0);
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

ek_tensor *ek_dropout_module_added(ek_module *module, ek_tensor *residual, ek_tensor *x)
{
    if (!residual || !x)
        return NULL;
    if (module->type->forward != dropout_forward || !ek_module_is_fusible(module))
        return ek_add(residual, ek_apply(module, x));
    return ek_dropout_added(residual, x, ((const dropout *)module)->p, module->training);
}

bool ek_dropout_module_is_idle(const ek_module *module)
{
    return module->type->forward == dropout_forward && ek_module_is_fusible(module) &&
           (!module->training || ((const dropout *)module)->p == 0);
}

static void dropout_describe(const ek_module *module, char *text, size_t size)
{
    snprintf(text, size, "p=%g", ((const dropout *)module)->p);
}

static const ek_module_type dropout_type = {.name = "dropout",
                                            .size = sizeof(dropout),
                                            .forward = dropout_forward,
                                            .describe = dropout_describe};

/* As in PyTorch, one number is drawn for each channel of each sample. */
static ek_value dropout_channels(ek_module *module, const ek_args *args, int ndim)
{
    const dropout *self = (dropout *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (x && x->ndim != ndim) {
        char text[200];
        EK_FAIL(EK_E_SHAPE, "expected an input of %d dimensions, got %s", ndim,
                ek_tensor_text(x, text));
        x = NULL;
    }
    if (!x || !module->training || self->p == 0)
        return ek_value_of_tensor(x ? ek_f_dropout(x, self->p, false) : NULL);
    ek_shape shape = {.ndim = ndim, .dims = {x->shape[0], x->shape[1], 1, 1, 1}};
    ek_tensor *channels = ek_ones(shape, .dtype = x->dtype, .device = ek_tensor_device(x));
    return ek_value_of_tensor(ek_mul(x, ek_f_dropout(channels, self->p, true)));
}

#define DROPOUT(NAME, NDIM)                                                \
    static ek_value NAME##_forward(ek_module *module, const ek_args *args) \
    {                                                                      \
        return dropout_channels(module, args, NDIM);                       \
    }                                                                      \
    static const ek_module_type NAME##_type = {.name = #NAME,              \
                                               .size = sizeof(dropout),    \
                                               .forward = NAME##_forward,  \
                                               .describe = dropout_describe};
DROPOUT(dropout1d, 3)
DROPOUT(dropout2d, 4)
DROPOUT(dropout3d, 5)
#undef DROPOUT

/* Dropped elements become SELU's limit for very negative numbers; then all elements are scaled. */
static ek_value alpha_dropout_forward(ek_module *module, const ek_args *args)
{
    const double alpha = 1.7580993408473766, p = ((dropout *)module)->p;
    ek_tensor *x = ek_only_input(module, args);
    if (!x || !module->training || p == 0)
        return ek_value_of_tensor(x ? ek_f_dropout(x, p, false) : NULL);
    if (p == 1)
        return ek_value_of_tensor(ek_mul_scalar(x, 0));
    const double a = 1 / sqrt((alpha * alpha * p + 1) * (1 - p));
    ek_tensor *kept =
        ek_empty(ek_tensor_shape(x), .dtype = x->dtype, .device = ek_tensor_device(x));
    if (!kept || ek_bernoulli_(kept, 1 - p, NULL) < 0)
        return ek_value_error();
    ek_tensor *shift =
        ek_add_scalar(ek_mul_scalar(ek_add_scalar(kept, -1), alpha * a), alpha * a * p);
    return ek_value_of_tensor(ek_add(ek_mul(x, ek_mul_scalar(kept, a)), shift));
}

static const ek_module_type alpha_dropout_type = {.name = "alpha_dropout",
                                                  .size = sizeof(dropout),
                                                  .forward = alpha_dropout_forward,
                                                  .describe = dropout_describe};

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

ek_module *ek_dropout1d(double p)
{
    return dropout_make(&dropout1d_type, p);
}

ek_module *ek_dropout2d(double p)
{
    return dropout_make(&dropout2d_type, p);
}

ek_module *ek_dropout3d(double p)
{
    return dropout_make(&dropout3d_type, p);
}

ek_module *ek_alpha_dropout(double p)
{
    return dropout_make(&alpha_dropout_type, p);
}

/* ---- the identity ---- */

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
