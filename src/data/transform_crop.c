/* transform_crop.c: crops pictures, puts borders around pictures, mirrors them and erases parts.
 *
 * A crop may reach beyond a picture. Padding moves the window of the crop; no padded picture is
 * made. */
#include <math.h>
#include <string.h>

#include "data/transform_operation.h"

/* ---- places of result pixels in the picture ---- */

/* A picture within a result that may be larger or smaller. */
typedef struct frame {
    ek_border_mode mode;
    int64_t before[2]; /* rows and columns before the picture; negative: cut off */
    int64_t size[2];   /* the picture's height and width */
} frame;

/* Returns the place that a border pixel at `at` repeats. */
static int64_t frame_border(ek_border_mode mode, int64_t at, int64_t size)
{
    const int64_t twice = mode == EK_BORDER_REFLECT ? 0 : 1; /* symmetric repeats the edge itself */
    if (mode == EK_BORDER_EDGE)
        return at < 0 ? 0 : size - 1;
    return at < 0 ? -at - twice : 2 * size - 2 + twice - at;
}

static void frame_places(const void *user, int side, int64_t count, int64_t *places)
{
    const frame *self = user;
    const int64_t size = self->size[side], before = self->before[side];
    for (int64_t i = 0; i < count; i++)
        places[i] = i >= before && i - before < size ? i - before : -1;
    for (int64_t i = 0; i < count && self->mode != EK_BORDER_CONSTANT; i++)
        if (places[i] < 0)
            places[i] = frame_border(self->mode, i - before, size);
}

static int frame_copy(const ek_array *in, ek_array *out, ek_border_mode mode, int64_t above,
                      int64_t left, double fill)
{
    ek_picture picture = ek_picture_of(in);
    const frame self = {mode, {above, left}, {picture.height, picture.width}};
    return ek_picture_gather(in, out, frame_places, &self, fill);
}

/* ---- crops ---- */

/* Writes the height and width of the picture with its padding. */
static void crop_padded_size(const ek_crop_options *o, const ek_array *in, int64_t size[2])
{
    ek_picture picture = ek_picture_of(in);
    size[0] = picture.height + 2 * o->padding;
    size[1] = picture.width + 2 * o->padding;
    if (o->pad_if_needed && size[1] < o->width)
        size[1] += 2 * (o->width - size[1]);
    if (o->pad_if_needed && size[0] < o->height)
        size[0] += 2 * (o->height - size[0]);
}

static int crop_describe(const ek_transform *self, ek_array *array)
{
    const ek_crop_options *o = ek_options_of(self);
    EK_TRY(ek_check_fill(self, array, o->fill));
    ek_picture_set_size(array, o->height, o->width);
    return 0;
}

static ek_transform *crop_new(const ek_operation *operation, ek_crop_options *o)
{
    const char *name = operation->type.name;
    o->width = o->width ? o->width : o->height;
    if (ek_check_size(name, o->height, o->width) < 0)
        return NULL;
    if (o->padding < 0 || o->padding > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: a padding of %lld; it has to lie in [0, %lld]", name,
                            (long long)o->padding, (long long)EK_PICTURE_MOST);
    return ek_operation_new(operation, o, 0);
}

static int random_crop_describe(const ek_transform *self, ek_array *array)
{
    const ek_crop_options *o = ek_options_of(self);
    int64_t size[2];
    char text[200];
    crop_padded_size(o, array, size);
    if (size[0] < o->height || size[1] < o->width)
        return EK_FAIL(EK_E_SHAPE,
                       "random_crop: %s%s is smaller than %lld x %lld; .pad_if_needed or more "
                       "padding would make it large enough",
                       ek_array_text(array, text), o->padding ? ", padded," : "",
                       (long long)o->height, (long long)o->width);
    return crop_describe(self, array);
}

static int random_crop_draw(ek_application *a)
{
    const ek_crop_options *o = a->options;
    int64_t size[2];
    crop_padded_size(o, a->in, size);
    if (size[0] == o->height && size[1] == o->width)
        return 1;
    a->window.top = ek_generator_below(a->generator, size[0] - o->height + 1);
    a->window.left = ek_generator_below(a->generator, size[1] - o->width + 1);
    return 1;
}

static int random_crop_apply(ek_application *a)
{
    const ek_crop_options *o = a->options;
    ek_picture picture = ek_picture_of(a->in);
    int64_t size[2];
    crop_padded_size(o, a->in, size);
    return frame_copy(a->in, a->out, EK_BORDER_CONSTANT,
                      (size[0] - picture.height) / 2 - a->window.top,
                      (size[1] - picture.width) / 2 - a->window.left, o->fill);
}

static const ek_operation random_crop = {EK_OPERATION(random_crop, ek_crop_options, EK_PICTURE,
                                                      random_crop_describe, random_crop_draw,
                                                      random_crop_apply)};

ek_transform *ek_random_crop_with(ek_crop_options options)
{
    return crop_new(&random_crop, &options);
}

/* Returns where a centered window of size `wanted` begins in `size`. Halves are rounded to even, as
 * by Python's round. If the window is larger, the smaller half of the border comes first. */
static int64_t crop_middle(int64_t size, int64_t wanted)
{
    if (size < wanted)
        return -((wanted - size) / 2);
    int64_t half = (size - wanted) / 2;
    return half + ((size - wanted) & half & 1);
}

static int center_crop_apply(ek_application *a)
{
    const ek_crop_options *o = a->options;
    int64_t size[2];
    crop_padded_size(o, a->in, size);
    return frame_copy(a->in, a->out, EK_BORDER_CONSTANT,
                      o->padding - crop_middle(size[0], o->height),
                      o->padding - crop_middle(size[1], o->width), o->fill);
}

static const ek_operation center_crop = {
    EK_OPERATION(center_crop, ek_crop_options, EK_PICTURE, crop_describe, NULL, center_crop_apply)};

ek_transform *ek_center_crop_with(ek_crop_options options)
{
    options.pad_if_needed = false; /* center_crop itself pads by what is missing */
    return crop_new(&center_crop, &options);
}

/* ---- borders ---- */

/* Checks the wider of the borders at both ends of a side of `size` pixels. */
static int pad_check_side(const ek_pad_picture_options *o, const ek_array *array, int64_t size,
                          int64_t first, int64_t last)
{
    static const char *const modes[] = {"constant", "edge", "reflect", "symmetric"};
    char text[200];
    int64_t border = first > last ? first : last;
    int64_t most = o->mode == EK_BORDER_REFLECT && size > 0 ? size - 1 : size;
    if (o->mode == EK_BORDER_EDGE && size == 0 && border > 0)
        return EK_FAIL(EK_E_SHAPE, "pad_picture: %s has no pixels to repeat",
                       ek_array_text(array, text));
    if (o->mode < EK_BORDER_REFLECT || border <= most)
        return 0;
    return EK_FAIL(EK_E_SHAPE,
                   "pad_picture: %s, padded by %lld in mode %s; a side of %lld has at most %lld "
                   "pixels to mirror",
                   ek_array_text(array, text), (long long)border, modes[o->mode], (long long)size,
                   (long long)most);
}

static int pad_describe(const ek_transform *self, ek_array *array)
{
    const ek_pad_picture_options *o = ek_options_of(self);
    ek_picture picture = ek_picture_of(array);
    if (o->mode == EK_BORDER_CONSTANT)
        EK_TRY(ek_check_fill(self, array, o->fill));
    EK_TRY(pad_check_side(o, array, picture.height, o->top, o->bottom));
    EK_TRY(pad_check_side(o, array, picture.width, o->left, o->right));
    ek_picture_set_size(array, picture.height + o->top + o->bottom,
                        picture.width + o->left + o->right);
    return 0;
}

static int pad_apply(ek_application *a)
{
    const ek_pad_picture_options *o = a->options;
    return frame_copy(a->in, a->out, o->mode, o->top, o->left, o->fill);
}

static const ek_operation pad_picture = {
    EK_OPERATION(pad_picture, ek_pad_picture_options, EK_PICTURE, pad_describe, NULL, pad_apply)};

ek_transform *ek_pad_picture_with(ek_pad_picture_options options)
{
    int64_t *const sides[] = {&options.padding, &options.left, &options.top, &options.right,
                              &options.bottom};
    if ((int)options.mode < 0 || options.mode > EK_BORDER_SYMMETRIC)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "pad_picture: mode %d; EK_BORDER_CONSTANT, EK_BORDER_EDGE, "
                            "EK_BORDER_REFLECT and EK_BORDER_SYMMETRIC there are",
                            (int)options.mode);
    for (int i = 0; i < 5; i++) {
        if (*sides[i] < 0 || *sides[i] > EK_PICTURE_MOST)
            return EK_FAIL_NULL(EK_E_INVALID,
                                "pad_picture: a padding of %lld; it has to lie in [0, %lld]",
                                (long long)*sides[i], (long long)EK_PICTURE_MOST);
        if (i > 0)
            *sides[i] += options.padding;
    }
    return ek_operation_new(&pad_picture, &options, 0);
}

/* ---- flips ---- */

typedef struct flip {
    double p;
    int side; /* 0: rows are mirrored, 1: columns */
} flip;

static void flip_places(const void *user, int side, int64_t count, int64_t *places)
{
    const flip *o = user;
    for (int64_t i = 0; i < count; i++)
        places[i] = side == o->side ? count - 1 - i : i;
}

static int flip_apply(ek_application *a)
{
    return ek_picture_gather(a->in, a->out, flip_places, a->options, 0);
}

static const ek_operation random_horizontal_flip = {EK_OPERATION(random_horizontal_flip, flip,
                                                                 EK_PICTURE, NULL, NULL,
                                                                 flip_apply),
                                                    EK_CHANCE(flip)};
static const ek_operation random_vertical_flip = {EK_OPERATION(random_vertical_flip, flip,
                                                               EK_PICTURE, NULL, NULL, flip_apply),
                                                  EK_CHANCE(flip)};

ek_transform *ek_random_horizontal_flip(double p)
{
    return ek_operation_new(&random_horizontal_flip, &(flip){p, 1}, 0);
}

ek_transform *ek_random_vertical_flip(double p)
{
    return ek_operation_new(&random_vertical_flip, &(flip){p, 0}, 0);
}

/* ---- erased rectangles ---- */

/* Returns the value of a channel. One value for all channels, or one for each, lies after the
 * options. */
static double erasing_value(const ek_erasing_options *o, int64_t channel)
{
    return ((const double *)(o + 1))[channel % o->channels];
}

static int erasing_describe(const ek_transform *self, ek_array *array)
{
    const ek_erasing_options *o = ek_options_of(self);
    char text[200];
    if (o->random && array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE,
                       "random_erasing: %s; f32 and f64 are erased by random numbers "
                       "(ek_to_float comes before it)",
                       ek_array_text(array, text));
    if (o->channels > 1 && ek_picture_channels(array) != o->channels)
        return EK_FAIL(EK_E_SHAPE,
                       "random_erasing: %s; %d values are for pictures of as many channels, "
                       "(..., %d, height, width)",
                       ek_array_text(array, text), o->channels, o->channels);
    for (int c = 0; !o->random && c < o->channels; c++)
        EK_TRY(ek_check_fill(self, array, erasing_value(o, c)));
    return 0;
}

/* Draws a rectangle that is smaller than the picture on both sides, and its normal numbers, which
 * are (channels, height, width). If no rectangle fits, the picture is kept. */
static int erasing_draw(ek_application *a)
{
    const ek_erasing_options *o = a->options;
    if (!ek_draw_part(a, o->scale, o->ratio, false, 0))
        return 0;
    int64_t count = ek_picture_channels(a->in) * a->window.height * a->window.width;
    if (o->random) {
        a->normals = ek_calloc((size_t)count + 1, sizeof *a->normals);
        if (!a->normals)
            return EK_E_NO_MEMORY;
        ek_generator_normal_f32(a->generator, a->normals, count, 0, 1);
    }
    ek_draw_place(a);
    return 1;
}

static void erasing_copy(ek_dtype dtype, const float *numbers, int64_t count, void *out)
{
    for (int64_t i = 0; i < count && dtype == EK_F64; i++)
        ((double *)out)[i] = (double)numbers[i];
    if (dtype == EK_F32)
        memcpy(out, numbers, (size_t)count * sizeof *numbers);
}

static int erasing_apply(ek_application *a)
{
    const ek_erasing_options *o = a->options;
    ek_picture picture = ek_picture_of(a->in);
    int64_t channels = ek_picture_channels(a->in), h = a->window.height, w = a->window.width;
    for (int64_t p = 0; p < picture.planes; p++) {
        int64_t channel = p % channels;
        unsigned char element[8];
        ek_fill_element(a->out->dtype, erasing_value(o, channel), element);
        for (int64_t y = 0; y < h; y++) {
            char *to = ek_picture_row(a->out, p, a->window.top + y);
            to += (size_t)a->window.left * picture.size;
            if (o->random)
                erasing_copy(a->out->dtype, a->normals + (channel * h + y) * w, w, to);
            else
                ek_fill_run(w, picture.size, element, to);
        }
    }
    return 0;
}

static const ek_operation random_erasing = {EK_OPERATION(random_erasing, ek_erasing_options,
                                                         EK_PICTURE, erasing_describe, erasing_draw,
                                                         erasing_apply),
                                            EK_CHANCE(ek_erasing_options), .in_place = true};

static int erasing_check(const ek_erasing_options *o)
{
    EK_TRY(ek_check_range("random_erasing", "scale", o->scale, 0, 1));
    EK_TRY(ek_check_ratio("random_erasing", "ratio", o->ratio));
    if (o->channels < 0 || (o->channels > 0) != (o->values != NULL))
        return EK_FAIL(EK_E_INVALID,
                       "random_erasing: %d channels%s; .values and .channels go together",
                       o->channels, o->values ? "" : " without values");
    if (o->random && (o->values || o->value != 0))
        return EK_FAIL(EK_E_INVALID, "random_erasing: .random excludes values");
    if (o->values && o->value != 0)
        return EK_FAIL(EK_E_INVALID, "random_erasing: .value and .values exclude each other");
    return 0;
}

ek_transform *ek_random_erasing_with(ek_erasing_options options)
{
    ek_range_default(options.scale, 0.02, 0.33);
    ek_range_default(options.ratio, 0.3, 3.3);
    if (erasing_check(&options) < 0)
        return NULL;
    const double *values = options.values ? options.values : &options.value;
    options.channels = options.values ? options.channels : 1;
    size_t nbytes = (size_t)options.channels * sizeof *values;
    ek_transform *self = ek_operation_new(&random_erasing, &options, nbytes);
    if (self)
        memcpy((char *)self + random_erasing.type.size, values, nbytes);
    return self;
}
