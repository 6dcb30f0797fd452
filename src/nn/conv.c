/* conv.c: two-dimensional convolution. The weight's shape is (out, in / groups, kh, kw); its memory
 * is channels-last, as that of the activations. */
#include "nn/nn.h"

typedef struct conv2d {
    ek_module module;
    ek_tensor *weight;
    ek_tensor *bias; /* (out) or absent */
    int stride[2], padding[2], dilation[2], groups;
} conv2d;

static ek_value conv2d_forward(ek_module *module, const ek_args *args)
{
    const conv2d *self = (conv2d *)module;
    return ek_value_of_tensor(
        ek_f_conv2d(.x = ek_only_input(module, args), .weight = self->weight, .bias = self->bias,
                    .strides = {self->stride[0], self->stride[1]},
                    .paddings = {self->padding[0], self->padding[1]},
                    .dilations = {self->dilation[0], self->dilation[1]}, .groups = self->groups));
}

static const ek_module_type conv2d_type = {.name = "conv2d",
                                           .size = sizeof(conv2d),
                                           .forward = conv2d_forward};

/* An option for both directions, or one for each: writes both to `out`. */
static int both(const char *name, int value, const int hw[2], int fallback, int least, int out[2])
{
    bool each = hw[0] != 0 || hw[1] != 0;
    if (each && value != 0)
        return EK_FAIL(EK_E_INVALID, "conv2d: give %s or %ss, not both", name, name);
    for (int i = 0; i < 2; i++) {
        out[i] = each ? ek_option_int(hw[i], 0) : ek_option_int(value, fallback);
        if (out[i] < least)
            return EK_FAIL(EK_E_INVALID, "conv2d: %s has to be at least %d, not %d", name, least,
                           out[i]);
    }
    return 0;
}

static int conv2d_check(const ek_conv_module_options *options, conv2d *settings, int kernel[2])
{
    int64_t in = options->in_channels, out = options->out_channels;
    if (in < 1 || out < 1)
        return EK_FAIL(EK_E_INVALID,
                       "conv2d: in_channels %lld and out_channels %lld have to be at least 1",
                       (long long)in, (long long)out);
    EK_TRY(both("kernel", options->kernel, options->kernels, 0, 1, kernel));
    EK_TRY(both("stride", options->stride, options->strides, 1, 1, settings->stride));
    EK_TRY(both("padding", options->padding, options->paddings, 0, 0, settings->padding));
    EK_TRY(both("dilation", options->dilation, options->dilations, 1, 1, settings->dilation));
    settings->groups = ek_option_int(options->groups, 1);
    if (settings->groups < 1 || in % settings->groups || out % settings->groups)
        return EK_FAIL(EK_E_INVALID,
                       "conv2d: groups %d has to divide in_channels %lld and out_channels %lld",
                       settings->groups, (long long)in, (long long)out);
    return 0;
}

ek_module *ek_conv2d_with(ek_conv_module_options options)
{
    conv2d settings = {0};
    int kernel[2];
    if (conv2d_check(&options, &settings, kernel) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    conv2d *self = (conv2d *)ek_module_new(&conv2d_type);
    if (self) {
        settings.module = self->module;
        *self = settings;
        ek_tensor *weight =
            ek_new_parameter(EK_SHAPE(options.out_channels, options.in_channels / self->groups,
                                      kernel[0], kernel[1]),
                             EK_F32);
        ek_tensor *bias = options.bias == EK_OFF
                              ? NULL
                              : ek_new_parameter(EK_SHAPE(options.out_channels), EK_F32);
        ek_register_parameter(&self->module, "weight", &self->weight, weight);
        ek_register_parameter(&self->module, "bias", &self->bias, bias);
        if (ek_error_status() == 0)
            ek_init_default(self->weight, self->bias);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}
