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

static ek_module *padding_new(const ek_module_type *type, int64_t all, const int64_t paddings[6],
                              double value, int dims, ek_pad_mode mode)
{
    bool each = false;
    for (int i = 0; i < 6; i++) {
        each = each || paddings[i] != 0;
        if (i >= 2 * dims && paddings[i] != 0) {
            EK_FAIL(EK_E_INVALID, "%s: paddings has an entry %d, but there are %d sides",
                    type->name, i + 1, 2 * dims);
            return NULL;
        }
    }
    if (each && all != 0) {
        EK_FAIL(EK_E_INVALID, "%s: padding is %lld, and paddings are given; give one of the two",
                type->name, (long long)all);
        return NULL;
    }
    padding *self = (padding *)ek_module_new(type);
    if (self) {
        self->dims = dims;
        self->mode = mode;
        self->value = value;
        for (int i = 0; i < 2 * dims; i++)
            self->sides[i] = each ? paddings[i] : all;
    }
    return (ek_module *)self;
}

#define PADDING(NAME, DIMS, OPTIONS, MODE, VALUE)                                        \
    ek_module *ek_##NAME##DIMS##d_with(OPTIONS options)                                  \
    {                                                                                    \
        static const ek_module_type type = {.name = #NAME #DIMS "d",                     \
                                            .size = sizeof(padding),                     \
                                            .forward = padding_forward,                  \
                                            .describe = padding_describe};               \
        return padding_new(&type, options.padding, options.paddings, VALUE, DIMS, MODE); \
    }
#define PADDINGS(DIMS)                                                                          \
    PADDING(zero_pad, DIMS, ek_pad_module_options, EK_PAD_CONSTANT, 0)                          \
    PADDING(constant_pad, DIMS, ek_constant_pad_module_options, EK_PAD_CONSTANT, options.value) \
    PADDING(reflection_pad, DIMS, ek_pad_module_options, EK_PAD_REFLECT, 0)                     \
    PADDING(replication_pad, DIMS, ek_pad_module_options, EK_PAD_REPLICATE, 0)                  \
    PADDING(circular_pad, DIMS, ek_pad_module_options, EK_PAD_CIRCULAR, 0)

PADDINGS(1)
PADDINGS(2)
PADDINGS(3)
