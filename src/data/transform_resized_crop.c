/* transform_resized_crop.c: random_resized_crop, a part of a picture of random size and shape that
 * is resized. */
#include <math.h>
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct resized_crop {
    ek_transform transform;
    int64_t height, width;
    double scale[2], ratio[2];
    ek_resampling how;
} resized_crop;

static int resized_crop_describe(const ek_transform *transform, ek_array *array)
{
    const resized_crop *self = (const resized_crop *)transform;
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    EK_TRY(ek_resampling_check_dtype(transform, array, &self->how));
    if (ek_picture_of(array).height < 1 || ek_picture_of(array).width < 1)
        return EK_FAIL(EK_E_SHAPE, "random_resized_crop: %s has no pixels; at least one is needed",
                       ek_array_text(array, text));
    array->shape.dims[array->shape.ndim - 2] = self->height;
    array->shape.dims[array->shape.ndim - 1] = self->width;
    return 0;
}

/* The largest part in the middle whose aspect ratio is allowed. */
static ek_window resized_crop_middle(const resized_crop *self, ek_picture picture)
{
    ek_window window = {.height = picture.height, .width = picture.width};
    double ratio = (double)picture.width / (double)picture.height;
    if (ratio < self->ratio[0])
        window.height = (int64_t)rint((double)picture.width / self->ratio[0]);
    else if (ratio > self->ratio[1])
        window.width = (int64_t)rint((double)picture.height * self->ratio[1]);
    window.height = window.height < 1 ? 1 : window.height;
    window.width = window.width < 1 ? 1 : window.width;
    window.top = (picture.height - window.height) / 2;
    window.left = (picture.width - window.width) / 2;
    return window;
}

static ek_window resized_crop_draw(const resized_crop *self, ek_picture picture,
                                   ek_generator *locked)
{
    double area = (double)(picture.height * picture.width);
    for (int attempt = 0; attempt < 10; attempt++) {
        int64_t sides[2];
        ek_draw_sides(locked, area, self->scale, self->ratio, sides);
        ek_window window = {.height = sides[1], .width = sides[0]};
        if (window.width < 1 || window.width > picture.width || window.height < 1 ||
            window.height > picture.height)
            continue;
        window.top = ek_generator_below(locked, picture.height - window.height + 1);
        window.left = ek_generator_below(locked, picture.width - window.width + 1);
        return window;
    }
    return resized_crop_middle(self, picture);
}

static int resized_crop_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                              ek_generator *generator)
{
    const resized_crop *self = (const resized_crop *)transform;
    generator = ek_generator_lock(generator);
    ek_window window = resized_crop_draw(self, ek_picture_of(in), generator);
    ek_generator_unlock(generator);
    return ek_picture_resize(in, &window, out, &self->how);
}

static const ek_transform_type resized_crop_type = {.name = "random_resized_crop",
                                                    .size = sizeof(resized_crop),
                                                    .describe = resized_crop_describe,
                                                    .apply = resized_crop_apply};

static int resized_crop_check(const ek_resized_crop_options *options, const ek_resampling *how)
{
    int64_t height = options->height, width = options->width;
    if (height < 1 || height > EK_PICTURE_MOST || width < 1 || width > EK_PICTURE_MOST)
        return EK_FAIL(EK_E_INVALID,
                       "random_resized_crop: a size of %lld x %lld; both have to lie in [1, %lld]",
                       (long long)height, (long long)width, (long long)EK_PICTURE_MOST);
    EK_TRY(ek_resampling_check("random_resized_crop", how));
    EK_TRY(ek_check_range("random_resized_crop", "scale", options->scale, 0, INFINITY));
    EK_TRY(ek_check_range("random_resized_crop", "ratio", options->ratio, 0, INFINITY));
    if (options->ratio[0] == 0)
        return EK_FAIL(EK_E_INVALID, "random_resized_crop: a ratio of 0; it has to be above 0");
    return 0;
}

ek_transform *ek_random_resized_crop_with(ek_resized_crop_options options)
{
    const ek_resampling how = {options.nearest, options.bicubic, options.antialias};
    options.width = options.width ? options.width : options.height;
    ek_range_default(options.scale, 0.08, 1);
    ek_range_default(options.ratio, 3.0 / 4, 4.0 / 3);
    if (resized_crop_check(&options, &how) < 0)
        return NULL;
    resized_crop *self = (resized_crop *)ek_transform_new(&resized_crop_type);
    if (!self)
        return NULL;
    self->height = options.height;
    self->width = options.width;
    self->how = how;
    memcpy(self->scale, options.scale, sizeof self->scale);
    memcpy(self->ratio, options.ratio, sizeof self->ratio);
    return &self->transform;
}
