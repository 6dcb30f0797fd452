/* pad.c: padding: modules without parameters. */
#include <stdio.h>

#include "core/tensor.h"
#include "nn/nn.h"

/* ---- padding ---- */

typedef struct padding {
    ek_module module;
    int dims;
    ek_pad_mode mode;
    int64_t sides[6]; /* before and after the last dimension, then the one before it, ... */
    double value;
} padding;

static ek_value padding_forward(ek_module *module, const ek_args *args)
{
    const padding *self = (const padding *)module;
    ek_tensor *x = ek_only_input(module, args);
    char text[200];
    if (x && x->ndim != self->dims + 2 && x->ndim != self->dims + 1) {
        EK_FAIL(EK_E_SHAPE, "expected an input of %d dimensions, or %d without N, got %s",
                self->dims + 2, self->dims + 1, ek_tensor_text(x, text));
        x = NULL;
    }
    return ek_value_of_tensor(x ? ek_f_pad(x, self->sides, 2 * self->dims, self->mode, self->value)
                                : NULL);
}

static void padding_describe(const ek_module *module, char *text, size_t size)
{
    const padding *self = (const padding *)module;
    size_t length = 0;
    for (int i = 0; i < 2 * self->dims && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%lld", i ? ", " : "(",
                                   (long long)self->sides[i]);
    if (length < size)
        length += (size_t)snprintf(text + length, size - length, ")");
    if (self->mode == EK_PAD_CONSTANT && self->value != 0 && length < size)
        snprintf(text + length, size - length, ", value=%g", self->value);
}

static ek_module *padding_new(const ek_module_type *type, const ek_pad_module_options *options,
                              int dims, ek_pad_mode mode, bool zeros)
{
    bool each = false;
    for (int i = 0; i < 6; i++) {
        each = each || options->paddings[i] != 0;
        if (i >= 2 * dims && options->paddings[i] != 0) {
            EK_FAIL(EK_E_INVALID, "%s: paddings has an entry %d, but there are %d sides",
                    type->name, i + 1, 2 * dims);
            return NULL;
        }
    }
    if (options->value != 0 && (zeros || mode != EK_PAD_CONSTANT)) {
        EK_FAIL(EK_E_INVALID, "%s: value is for constant padding only", type->name);
        return NULL;
    }
    padding *self = (padding *)ek_module_new(type);
    if (self) {
        self->dims = dims;
        self->mode = mode;
        self->value = options->value;
        for (int i = 0; i < 2 * dims; i++)
            self->sides[i] = each ? options->paddings[i] : options->padding;
    }
    return (ek_module *)self;
}

#define PADDING(NAME, DIMS, MODE, ZEROS)                                   \
    ek_module *ek_##NAME##_with(ek_pad_module_options options)             \
    {                                                                      \
        static const ek_module_type type = {.name = #NAME,                 \
                                            .size = sizeof(padding),       \
                                            .forward = padding_forward,    \
                                            .describe = padding_describe}; \
        return padding_new(&type, &options, DIMS, MODE, ZEROS);            \
    }

PADDING(zero_pad1d, 1, EK_PAD_CONSTANT, true)
PADDING(zero_pad2d, 2, EK_PAD_CONSTANT, true)
PADDING(zero_pad3d, 3, EK_PAD_CONSTANT, true)
PADDING(constant_pad1d, 1, EK_PAD_CONSTANT, false)
PADDING(constant_pad2d, 2, EK_PAD_CONSTANT, false)
PADDING(constant_pad3d, 3, EK_PAD_CONSTANT, false)
PADDING(reflection_pad1d, 1, EK_PAD_REFLECT, false)
PADDING(reflection_pad2d, 2, EK_PAD_REFLECT, false)
PADDING(reflection_pad3d, 3, EK_PAD_REFLECT, false)
PADDING(replication_pad1d, 1, EK_PAD_REPLICATE, false)
PADDING(replication_pad2d, 2, EK_PAD_REPLICATE, false)
PADDING(replication_pad3d, 3, EK_PAD_REPLICATE, false)
PADDING(circular_pad1d, 1, EK_PAD_CIRCULAR, false)
PADDING(circular_pad2d, 2, EK_PAD_CIRCULAR, false)
PADDING(circular_pad3d, 3, EK_PAD_CIRCULAR, false)
