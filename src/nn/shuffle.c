/* shuffle.c: elements moved between channels and space, and channels between groups: modules
 * without parameters. */
#include <stdio.h>

#include "core/tensor.h"
#include "nn/nn.h"

typedef struct shuffle {
    ek_module module;
    int factor; /* or groups */
} shuffle;

#define SHUFFLE(NAME, WHAT)                                                                \
    static ek_value NAME##_forward(ek_module *module, const ek_args *args)                 \
    {                                                                                      \
        ek_tensor *x = ek_only_input(module, args);                                        \
        return ek_value_of_tensor(x ? ek_f_##NAME(x, ((shuffle *)module)->factor) : NULL); \
    }                                                                                      \
    static void NAME##_describe(const ek_module *module, char *text, size_t size)          \
    {                                                                                      \
        snprintf(text, size, WHAT "=%d", ((const shuffle *)module)->factor);               \
    }                                                                                      \
    ek_module *ek_##NAME(int factor)                                                       \
    {                                                                                      \
        static const ek_module_type type = {.name = #NAME,                                 \
                                            .size = sizeof(shuffle),                       \
                                            .forward = NAME##_forward,                     \
                                            .describe = NAME##_describe};                  \
        return shuffle_new(&type, WHAT, factor);                                           \
    }

static ek_module *shuffle_new(const ek_module_type *type, const char *what, int factor)
{
    if (factor < 1) {
        EK_FAIL(EK_E_INVALID, "%s: %s is %d; it must be at least 1", type->name, what, factor);
        return NULL;
    }
    shuffle *self = (shuffle *)ek_module_new(type);
    if (self)
        self->factor = factor;
    return (ek_module *)self;
}

SHUFFLE(pixel_shuffle, "upscale_factor")
SHUFFLE(pixel_unshuffle, "downscale_factor")
SHUFFLE(channel_shuffle, "groups")
