/* init.c: initial values, computed as by torch.nn.init. Bounds are computed in double and in
 * Python's order of operations, so that they equal PyTorch's to the bit. */
#include <math.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/random.h"
#include "nn/nn.h"

typedef struct fans {
    double in, out;
} fans;

static int init_fans(const ek_tensor *tensor, fans *result)
{
    if (!tensor)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "the tensor is NULL");
    EK_TRY(ek_check_alive("init", "the tensor", tensor));
    if (tensor->ndim < 2) {
        char text[200];
        return EK_FAIL(EK_E_SHAPE, "fan in and fan out need 2 dimensions or more, not %s",
                       ek_tensor_text(tensor, text));
    }
    int64_t field = 1;
    for (int i = 2; i < tensor->ndim; i++)
        field *= tensor->shape[i];
    result->in = (double)(tensor->shape[1] * field);
    result->out = (double)(tensor->shape[0] * field);
    return 0;
}

double ek_init_calculate_gain(ek_nonlinearity nonlinearity, double parameter)
{
    switch (nonlinearity) {
    case EK_GAIN_LEAKY_RELU:
        return sqrt(2.0 / (1 + parameter * parameter));
    case EK_GAIN_RELU:
        return sqrt(2.0);
    case EK_GAIN_LINEAR:
        return 1;
    case EK_GAIN_TANH:
        return 5.0 / 3;
    case EK_GAIN_SELU:
        return 3.0 / 4;
    }
    return EK_FAIL(EK_E_INVALID, "calculate_gain: there is no nonlinearity %d", (int)nonlinearity);
}

int ek_init_uniform(ek_tensor *tensor, double low, double high)
{
    return ek_uniform_(tensor, low, high, NULL);
}

int ek_init_normal(ek_tensor *tensor, double mean, double std)
{
    return ek_normal_(tensor, mean, std, NULL);
}

int ek_init_constant(ek_tensor *tensor, double value)
{
    bool before = ek_set_grad_enabled(false);
    bool done = ek_fill_(tensor, value) != NULL;
    ek_set_grad_enabled(before);
    return done ? 0 : ek_error_pending();
}

/* The deviation of kaiming's numbers. */
static int init_kaiming_std(const ek_init_kaiming_options *options, double *std)
{
    fans fan = {0};
    EK_TRY(init_fans(options->tensor, &fan));
    if (options->mode != EK_FAN_IN && options->mode != EK_FAN_OUT)
        return EK_FAIL(EK_E_INVALID, "init_kaiming: there is no mode %d", (int)options->mode);
    const double gain = ek_init_calculate_gain(options->nonlinearity, options->a);
    *std = gain / sqrt(options->mode == EK_FAN_IN ? fan.in : fan.out);
    return gain < 0 ? (int)gain : 0;
}

int ek_init_kaiming_uniform_with(ek_init_kaiming_options options)
{
    double std = 0;
    EK_TRY(init_kaiming_std(&options, &std));
    const double bound = sqrt(3.0) * std;
    return ek_count(options.tensor) ? ek_uniform_(options.tensor, -bound, bound, NULL) : 0;
}

int ek_init_kaiming_normal_with(ek_init_kaiming_options options)
{
    double std = 0;
    EK_TRY(init_kaiming_std(&options, &std));
    return ek_count(options.tensor) ? ek_normal_(options.tensor, 0, std, NULL) : 0;
}

int ek_init_xavier_uniform(ek_tensor *tensor, double gain)
{
    fans fan = {0};
    EK_TRY(init_fans(tensor, &fan));
    if (ek_count(tensor) == 0)
        return 0;
    double std = gain * sqrt(2.0 / (fan.in + fan.out));
    double bound = sqrt(3.0) * std;
    return ek_uniform_(tensor, -bound, bound, NULL);
}

int ek_init_xavier_normal(ek_tensor *tensor, double gain)
{
    fans fan = {0};
    EK_TRY(init_fans(tensor, &fan));
    return ek_count(tensor) ? ek_normal_(tensor, 0, gain * sqrt(2.0 / (fan.in + fan.out)), NULL)
                            : 0;
}

static int init_layer(ek_tensor *weight, ek_tensor *bias)
{
    fans fan = {0};
    EK_TRY(init_fans(weight, &fan));
    EK_TRY(ek_init_kaiming_uniform(weight, sqrt(5.0)));
    if (!bias)
        return 0;
    double bound = 1 / sqrt(fan.in);
    return ek_uniform_(bias, -bound, bound, NULL);
}

void ek_register_layer(ek_module *module, ek_tensor **weight, ek_shape shape, ek_tensor **bias,
                       int64_t bias_size)
{
    ek_tensor *w = ek_new_parameter(shape, EK_F32);
    ek_tensor *b = bias_size ? ek_new_parameter(EK_SHAPE(bias_size), EK_F32) : NULL;
    ek_register_parameter(module, "weight", weight, w);
    ek_register_parameter(module, "bias", bias, b);
    if (ek_error_status() == 0)
        init_layer(*weight, *bias);
}

ek_tensor *ek_new_parameter(ek_shape shape, ek_dtype dtype)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_tensor *tensor = ek_empty(shape, .dtype = dtype, .format = EK_CHANNELS_LAST);
    ek_memory_set_category(before);
    return tensor;
}
