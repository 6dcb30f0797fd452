/* conv.c: convolution and transposed convolution over one to three dimensions. The weight is (out,
 * in / groups, window...), of a transposed convolution (in, out / groups, window...). The weight of
 * two dimensions is channels-last in memory, as activations are. */
#include <stdio.h>
#include <string.h>

#include "nn/nn.h"
#include "ops/spatial.h"

int ek_kernel_option(const char *layer, int kernel, int kernel_size)
{
    if (kernel && kernel_size && kernel != kernel_size)
        return EK_FAIL(EK_E_INVALID,
                       "%s: kernel is %d and kernel_size is %d; they are one option, give one",
                       layer, kernel, kernel_size);
    return kernel_size ? kernel_size : kernel;
}

int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3])
{
    int given[3];
    int64_t chosen[3];
    for (int i = 0; i < 3; i++)
        given[i] = each[i] == 0 && all == EK_UNSET && i < dims ? fallback[i] : each[i];
    EK_TRY(ek_spatial_option(layer, name, dims, given, all == EK_UNSET ? 0 : all, least, chosen));
    for (int i = 0; i < dims; i++)
        result[i] = (int)chosen[i];
    return 0;
}

/* The differences between the constructors of convolutions. */
typedef struct conv_family {
    ek_module_type type;
    int dims;
    bool transposed;
} conv_family;

typedef struct conv {
    ek_module module;
    ek_tensor *weight;
    ek_tensor *bias; /* (out), or NULL */
    const conv_family *family;
    ek_conv_transpose_options options; /* all options but the tensors */
    /* EK_PAD_CONSTANT: the operation pads with zeros. Other modes: `pad` pads x first. */
    ek_pad_mode padding_mode;
    int64_t pad[6];
} conv;

static ek_value conv_forward(ek_module *module, const ek_args *args)
{
    const conv *self = (conv *)module;
    ek_conv_transpose_options options = self->options;
    options.x = ek_only_input(module, args);
    options.weight = self->weight;
    options.bias = self->bias;
    if (self->padding_mode != EK_PAD_CONSTANT && options.x) {
        const int dims = self->family->dims;
        options.x = options.x->ndim > dims
                        ? ek_f_pad(options.x, self->pad, 2 * dims, self->padding_mode, 0)
                        : options.x;
        options.padding = 0;
        memset(options.paddings, 0, sizeof options.paddings);
    }
    return ek_value_of_tensor(ek_convolve(self->family->dims, self->family->transposed, options));
}

static int conv_read_output_padding(const conv_family *family,
                                    const ek_conv_transpose_module_options *from,
                                    ek_conv_transpose_options *to)
{
    const char *name = family->type.name;
    EK_TRY(ek_window_option(name, "output_padding", family->dims, from->output_padding,
                            from->output_paddings, NULL, 0, to->output_paddings));
    for (int i = 0; i < family->dims; i++) {
        int extra = to->output_paddings[i];
        if (extra > 0 && extra >= to->strides[i] && extra >= to->dilations[i])
            return EK_FAIL(EK_E_INVALID,
                           "%s: output_padding %d has to be smaller than the stride, %d, or the "
                           "dilation, %d",
                           name, extra, to->strides[i], to->dilations[i]);
    }
    return 0;
}

static int conv_read_padding(const conv_family *family,
                             const ek_conv_transpose_module_options *from,
                             ek_conv_transpose_options *to)
{
    const char *name = family->type.name;
    if (family->transposed && from->padding == EK_SAME)
        return EK_FAIL(EK_E_INVALID, "%s: EK_SAME is not for transposed convolution", name);
    if (from->padding != EK_SAME)
        return ek_window_option(name, "padding", family->dims, from->padding, from->paddings, NULL,
                                0, to->paddings);
    to->padding = EK_SAME;
    for (int i = 0; i < 3; i++)
        if (from->paddings[i] != 0 || (i < family->dims && to->strides[i] != 1))
            return EK_FAIL(EK_E_INVALID, "%s: EK_SAME goes with a stride of 1 and no other padding",
                           name);
    return 0;
}

/* Sets how many elements padding_mode adds before and after each dimension, from the last on. */
static void conv_set_pad(conv *self, ek_pad_mode mode, const int kernel[3])
{
    const ek_conv_transpose_options *o = &self->options;
    const int dims = self->family->dims;
    self->padding_mode = mode;
    for (int i = 0; i < dims; i++) {
        const int64_t total = o->padding == EK_SAME ? (int64_t)o->dilations[i] * (kernel[i] - 1)
                                                    : 2 * (int64_t)o->paddings[i];
        self->pad[2 * (dims - 1 - i)] = total / 2;
        self->pad[2 * (dims - 1 - i) + 1] = total - total / 2;
    }
}

static int conv_read_options(const conv_family *family,
                             const ek_conv_transpose_module_options *from,
                             ek_conv_transpose_options *to, int kernel[3])
{
    const char *name = family->type.name;
    const int dims = family->dims;
    int64_t in = from->in_channels, out = from->out_channels;
    if (in < 1 || out < 1)
        return EK_FAIL(EK_E_INVALID,
                       "%s: in_channels %lld and out_channels %lld have to be at least 1", name,
                       (long long)in, (long long)out);
    int all;
    EK_TRY(all = ek_kernel_option(name, from->kernel, from->kernel_size));
    EK_TRY(ek_window_option(name, "kernel", dims, all, from->kernels, NULL, 1, kernel));
    EK_TRY(
        ek_window_option(name, "stride", dims, from->stride, from->strides, NULL, 1, to->strides));
    EK_TRY(conv_read_padding(family, from, to));
    EK_TRY(ek_window_option(name, "dilation", dims, from->dilation, from->dilations, NULL, 1,
                            to->dilations));
    EK_TRY(conv_read_output_padding(family, from, to));
    to->groups = from->groups;
    if (to->groups < 1 || in % to->groups || out % to->groups)
        return EK_FAIL(EK_E_INVALID,
                       "%s: groups %d has to divide in_channels %lld and out_channels %lld", name,
                       to->groups, (long long)in, (long long)out);
    return 0;
}

static ek_shape conv_weight_shape(const conv_family *family,
                                  const ek_conv_transpose_module_options *options, int groups,
                                  const int kernel[3])
{
    int64_t in = options->in_channels, out = options->out_channels;
    ek_shape shape = {.ndim = family->dims + 2,
                      .dims = {family->transposed ? in : out,
                               (family->transposed ? out : in) / groups}};
    for (int i = 0; i < family->dims; i++)
        shape.dims[2 + i] = kernel[i];
    return shape;
}

static ek_module *conv_new(const conv_family *family,
                           const ek_conv_transpose_module_options *options, ek_pad_mode mode)
{
    ek_conv_transpose_options settings = {.groups = 1};
    int kernel[3];
    if ((unsigned)mode > EK_PAD_CIRCULAR)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "%s: padding_mode must be EK_PAD_CONSTANT, EK_PAD_REFLECT, "
                            "EK_PAD_REPLICATE or EK_PAD_CIRCULAR, got %d",
                            family->type.name, (int)mode);
    if (conv_read_options(family, options, &settings, kernel) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    conv *self = (conv *)ek_module_new(&family->type);
    if (self) {
        self->family = family;
        self->options = settings;
        conv_set_pad(self, mode, kernel);
        const ek_shape shape = conv_weight_shape(family, options, settings.groups, kernel);
        ek_register_layer(&self->module, &self->weight, shape, &self->bias,
                          options->bias ? options->out_channels : 0);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

static void conv_describe_sizes(char *text, size_t size, const char *name, const int *sizes,
                                int dims)
{
    size_t length = strlen(text);
    for (int i = 0; i < dims && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%s%d%s", i == 0 ? name : ", ",
                                   i == 0 ? "=(" : "", sizes[i],
                                   i < dims - 1 ? ""
                                   : dims == 1  ? ",)"
                                                : ")");
}

static bool conv_has_other(const int *sizes, int dims, int common)
{
    for (int i = 0; i < dims; i++)
        if (sizes[i] != common)
            return true;
    return false;
}

/* Describes the module as PyTorch does: options with their default are left out, except the stride.
 */
static void conv_describe(const ek_module *module, char *text, size_t size)
{
    static const char *const modes[] = {"zeros", "reflect", "replicate", "circular"};
    const conv *self = (const conv *)module;
    const ek_conv_transpose_options *o = &self->options;
    const int dims = self->family->dims;
    if (!self->weight)
        return;
    const int64_t *shape = self->weight->shape;
    int kernel[3];
    for (int i = 0; i < dims; i++)
        kernel[i] = (int)shape[2 + i];
    snprintf(text, size, "%lld, %lld",
             (long long)(self->family->transposed ? shape[0] : shape[1] * o->groups),
             (long long)(self->family->transposed ? shape[1] * o->groups : shape[0]));
    conv_describe_sizes(text, size, ", kernel_size", kernel, dims);
    conv_describe_sizes(text, size, ", stride", o->strides, dims);
    if (o->padding == EK_SAME)
        snprintf(text + strlen(text), size - strlen(text), ", padding=same");
    else if (conv_has_other(o->paddings, dims, 0))
        conv_describe_sizes(text, size, ", padding", o->paddings, dims);
    if (conv_has_other(o->dilations, dims, 1))
        conv_describe_sizes(text, size, ", dilation", o->dilations, dims);
    if (conv_has_other(o->output_paddings, dims, 0))
        conv_describe_sizes(text, size, ", output_padding", o->output_paddings, dims);
    size_t length = strlen(text);
    if (o->groups != 1)
        length += (size_t)snprintf(text + length, size - length, ", groups=%d", o->groups);
    if (!self->bias && length < size)
        length += (size_t)snprintf(text + length, size - length, ", bias=False");
    if (self->padding_mode != EK_PAD_CONSTANT && length < size)
        snprintf(text + length, size - length, ", padding_mode=%s", modes[self->padding_mode]);
}

static const char conv_modules[] = "conv"; /* the family of all their types */

bool ek_module_is_transposed(const ek_module *module)
{
    return module->type->family == conv_modules && ((const conv *)module)->family->transposed;
}

/* Returns the options of a convolution as those of a transposed convolution. */
static ek_conv_transpose_module_options conv_as_transposed(const ek_conv_module_options *o)
{
    ek_conv_transpose_module_options all = {.in_channels = o->in_channels,
                                            .out_channels = o->out_channels,
                                            .kernel = o->kernel,
                                            .stride = o->stride,
                                            .padding = o->padding,
                                            .dilation = o->dilation,
                                            .groups = o->groups,
                                            .bias = o->bias,
                                            .kernel_size = o->kernel_size};
    memcpy(all.kernels, o->kernels, sizeof all.kernels);
    memcpy(all.strides, o->strides, sizeof all.strides);
    memcpy(all.paddings, o->paddings, sizeof all.paddings);
    memcpy(all.dilations, o->dilations, sizeof all.dilations);
    return all;
}

/* The families and constructors. */
#define CONV_FAMILY(NAME, DIMS, TRANSPOSED)                                \
    static const conv_family family = {.type = {.name = #NAME,             \
                                                .size = sizeof(conv),      \
                                                .forward = conv_forward,   \
                                                .describe = conv_describe, \
                                                .family = conv_modules},   \
                                       .dims = DIMS,                       \
                                       .transposed = TRANSPOSED}
#define CONVS(DIMS)                                                                      \
    ek_module *ek_conv##DIMS##d_with(ek_conv_module_options options)                     \
    {                                                                                    \
        CONV_FAMILY(conv##DIMS##d, DIMS, false);                                         \
        const ek_conv_transpose_module_options all = conv_as_transposed(&options);       \
        return conv_new(&family, &all, options.padding_mode);                            \
    }                                                                                    \
    ek_module *ek_conv_transpose##DIMS##d_with(ek_conv_transpose_module_options options) \
    {                                                                                    \
        CONV_FAMILY(conv_transpose##DIMS##d, DIMS, true);                                \
        return conv_new(&family, &options, EK_PAD_CONSTANT);                             \
    }

CONVS(1)
CONVS(2)
CONVS(3)
