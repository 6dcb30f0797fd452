/* linear.c: y = x W^T + b. */
#include "nn/nn.h"

typedef struct linear {
    ek_module module;
    ek_tensor *weight; /* (out, in) */
    ek_tensor *bias;   /* (out) or absent */
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
