/* upsample.c: images of another size, as a module. */
#include <string.h>

#include "nn/nn.h"

typedef struct upsample {
    ek_module module;
    ek_interpolate_options options; /* but for x */
} upsample;

static ek_value upsample_forward(ek_module *module, const ek_args *args)
{
    ek_interpolate_options options = ((upsample *)module)->options;
    options.x = ek_only_input(module, args);
    return ek_value_of_tensor(ek_f_interpolate_with(options));
}

static const ek_module_type upsample_type = {.name = "upsample",
                                             .size = sizeof(upsample),
                                             .forward = upsample_forward};

static int upsample_check_mode(const ek_upsample_options *o)
{
    const ek_upsample_mode mode = o->mode;
    if ((int)mode < 0 || mode > EK_AREA)
        return EK_FAIL(EK_E_INVALID, "upsample: mode %d is not one of EK_NEAREST to EK_AREA",
                       (int)mode);
    if (o->align_corners && (mode == EK_NEAREST || mode == EK_NEAREST_EXACT || mode == EK_AREA))
        return EK_FAIL(EK_E_INVALID,
                       "upsample: align_corners is for EK_BILINEAR, EK_LINEAR, EK_TRILINEAR and "
                       "EK_BICUBIC only");
    return 0;
}

static int upsample_check_size(const ek_upsample_options *o)
{
    bool sized = o->size != 0, scaled = o->scale_factor != 0;
    bool good = o->size >= 0 && o->scale_factor >= 0;
    for (int i = 0; i < 3; i++) {
        sized = sized || o->sizes[i] != 0;
        scaled = scaled || o->scale_factors[i] != 0;
        good = good && o->sizes[i] >= 0 && o->scale_factors[i] >= 0;
    }
    if (good && sized != scaled)
        return 0;
    return EK_FAIL(EK_E_INVALID, "upsample: %s",
                   !good    ? "sizes and scale factors must be above 0"
                   : !sized ? "neither a size nor a scale_factor is given"
                            : "a size and a scale_factor are given; only one of them must be");
}

ek_module *ek_upsample_with(ek_upsample_options o)
{
    if (upsample_check_size(&o) < 0 || upsample_check_mode(&o) < 0)
        return NULL;
    upsample *self = (upsample *)ek_module_new(&upsample_type);
    if (!self)
        return NULL;
    self->options = (ek_interpolate_options){.size = o.size,
                                             .scale_factor = o.scale_factor,
                                             .mode = o.mode,
                                             .align_corners = o.align_corners,
                                             .recompute_scale_factor = o.recompute_scale_factor,
                                             .antialias = o.antialias};
    memcpy(self->options.sizes, o.sizes, sizeof o.sizes);
    memcpy(self->options.scale_factors, o.scale_factors, sizeof o.scale_factors);
    return &self->module;
}
