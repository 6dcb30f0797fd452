/* upsample.c: images of another size, as a module. */
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

static ek_module *upsample_new(const ek_interpolate_options *options)
{
    const ek_upsample_mode mode = options->mode;
    if ((int)mode < 0 || mode > EK_AREA) {
        EK_FAIL(EK_E_INVALID, "upsample: mode %d is not one of EK_NEAREST to EK_AREA", (int)mode);
        return NULL;
    }
    if (options->align_corners &&
        (mode == EK_NEAREST || mode == EK_NEAREST_EXACT || mode == EK_AREA)) {
        EK_FAIL(EK_E_INVALID, "upsample: align_corners is for EK_BILINEAR, EK_LINEAR, EK_TRILINEAR "
                              "and EK_BICUBIC only");
        return NULL;
    }
    upsample *self = (upsample *)ek_module_new(&upsample_type);
    if (self)
        self->options = *options;
    return (ek_module *)self;
}

ek_module *ek_upsample(int64_t height, int64_t width, ek_upsample_mode mode, bool align_corners)
{
    if (height < 1 || width < 1) {
        EK_FAIL(EK_E_INVALID, "upsample: %s %lld has to be at least 1",
                height < 1 ? "height" : "width", (long long)(height < 1 ? height : width));
        return NULL;
    }
    return upsample_new(&(ek_interpolate_options){.sizes = {height, width},
                                                  .mode = mode,
                                                  .align_corners = align_corners});
}

/* True if a size or a factor is given. EK_E_INVALID if one is not a size, or not a factor. */
static bool upsample_check(const ek_upsampling_options *o)
{
    bool sized = o->size != 0, scaled = o->scale_factor != 0;
    bool good = o->size >= 0 && o->scale_factor >= 0;
    for (int i = 0; i < 3; i++) {
        sized = sized || o->sizes[i] != 0;
        scaled = scaled || o->scale_factors[i] != 0;
        good = good && o->sizes[i] >= 0 && o->scale_factors[i] >= 0;
    }
    if (good && sized != scaled)
        return true;
    EK_FAIL(EK_E_INVALID, "upsampling: %s",
            !good    ? "sizes and scale factors must be above 0"
            : !sized ? "neither a size nor a scale_factor is given"
                     : "a size and a scale_factor are given; only one of them must be");
    return false;
}

ek_module *ek_upsampling_with(ek_upsampling_options o)
{
    if (!upsample_check(&o))
        return NULL;
    ek_interpolate_options options = {.size = o.size,
                                      .scale_factor = o.scale_factor,
                                      .mode = o.mode,
                                      .align_corners = o.align_corners,
                                      .recompute_scale_factor = o.recompute_scale_factor,
                                      .antialias = o.antialias};
    for (int i = 0; i < 3; i++) {
        options.sizes[i] = o.sizes[i];
        options.scale_factors[i] = o.scale_factors[i];
    }
    return upsample_new(&options);
}
