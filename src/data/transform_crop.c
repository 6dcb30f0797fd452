/* transform_crop.c: crops pictures, with a border if the window reaches beyond them, and mirrors
 * pictures at random.
 *
 * Padding does not make a larger picture: it moves the window, in the picture's own coordinates. */
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct crop {
    ek_transform transform;
    int64_t height, width, padding;
    double fill;
    bool pad_if_needed;
} crop;

/* ---- windows ---- */

static int64_t crop_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t crop_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Copies a window of `in` to `out`. The window's first pixel, (top, left), may lie outside `in`. */
static void crop_copy(const crop *self, const ek_array *in, ek_array *out, int64_t top,
                      int64_t left)
{
    ek_picture picture = ek_picture_of(in);
    size_t size = picture.size;
    int64_t h = picture.height, w = picture.width, planes = picture.planes;
    int64_t first_row = crop_larger(0, -top), end_row = crop_smaller(self->height, h - top);
    int64_t first = crop_larger(0, -left), end = crop_smaller(self->width, w - left);
    size_t nbytes = end > first ? (size_t)(end - first) * size : 0;
    if (end_row - first_row < self->height || end - first < self->width) {
        unsigned char element[8];
        ek_fill_element(in->dtype, self->fill, element);
        ek_fill_run(planes * self->height * self->width, size, element, out->data);
    }
    if (nbytes == 0)
        return;
    for (int64_t p = 0; p < planes; p++) {
        const char *from = (const char *)in->data + (size_t)(p * h * w) * size;
        char *to = (char *)out->data + (size_t)(p * self->height * self->width) * size;
        for (int64_t y = first_row; y < end_row; y++)
            memcpy(to + (size_t)(y * self->width + first) * size,
                   from + (size_t)((y + top) * w + first + left) * size, nbytes);
    }
}

/* Writes the height and width of the picture with its padding. */
static void crop_padded_size(const crop *self, const ek_array *in, int64_t size[2])
{
    ek_picture picture = ek_picture_of(in);
    size[0] = picture.height + 2 * self->padding;
    size[1] = picture.width + 2 * self->padding;
    if (self->pad_if_needed && size[1] < self->width)
        size[1] += 2 * (self->width - size[1]);
    if (self->pad_if_needed && size[0] < self->height)
        size[0] += 2 * (self->height - size[0]);
}

static int crop_describe(const ek_transform *transform, ek_array *array)
{
    const crop *self = (const crop *)transform;
    EK_TRY(ek_picture_check(transform, array));
    EK_TRY(ek_fill_check(transform, array, self->fill));
    array->shape.dims[array->shape.ndim - 2] = self->height;
    array->shape.dims[array->shape.ndim - 1] = self->width;
    return 0;
}

static crop *crop_new(const ek_transform_type *type, const ek_crop_options *options)
{
    int64_t height = options->height, width = options->width ? options->width : height;
    if (height < 1 || height > EK_PICTURE_MOST || width < 1 || width > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "%s: a size of %lld x %lld; both have to lie in [1, %lld]", type->name,
                            (long long)height, (long long)width, (long long)EK_PICTURE_MOST);
    if (options->padding < 0 || options->padding > EK_PICTURE_MOST)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: a padding of %lld; it has to lie in [0, %lld]",
                            type->name, (long long)options->padding, (long long)EK_PICTURE_MOST);
    crop *self = (crop *)ek_transform_new(type);
    if (!self)
        return NULL;
    self->height = height;
    self->width = width;
    self->padding = options->padding;
    self->fill = options->fill;
    self->pad_if_needed = options->pad_if_needed;
    return self;
}

/* ---- random_crop ---- */

static int random_crop_describe(const ek_transform *transform, ek_array *array)
{
    const crop *self = (const crop *)transform;
    int64_t size[2];
    char text[200];
    EK_TRY(ek_picture_check(transform, array));
    crop_padded_size(self, array, size);
    if (size[0] < self->height || size[1] < self->width)
        return EK_FAIL(EK_E_SHAPE,
                       "random_crop: %s%s is smaller than %lld x %lld; .pad_if_needed or more "
                       "padding would make it large enough",
                       ek_array_text(array, text), self->padding ? ", padded," : "",
                       (long long)self->height, (long long)self->width);
    return crop_describe(transform, array);
}

static int random_crop_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                             ek_generator *generator)
{
    const crop *self = (const crop *)transform;
    int64_t size[2], top = 0, left = 0;
    crop_padded_size(self, in, size);
    if (size[0] != self->height || size[1] != self->width) {
        generator = ek_generator_lock(generator);
        top = ek_generator_below(generator, size[0] - self->height + 1);
        left = ek_generator_below(generator, size[1] - self->width + 1);
        ek_generator_unlock(generator);
    }
    ek_picture picture = ek_picture_of(in);
    crop_copy(self, in, out, top - (size[0] - picture.height) / 2,
              left - (size[1] - picture.width) / 2);
    return 0;
}

static const ek_transform_type random_crop_type = {.name = "random_crop",
                                                   .size = sizeof(crop),
                                                   .describe = random_crop_describe,
                                                   .apply = random_crop_apply};

ek_transform *ek_random_crop_with(ek_crop_options options)
{
    return (ek_transform *)crop_new(&random_crop_type, &options);
}

/* ---- center_crop ---- */

/* Returns where a centered window of size `wanted` begins in `size`. Halves are rounded to even, as
 * by Python's round. If the window is larger, the smaller half of the border comes first. */
static int64_t crop_middle(int64_t size, int64_t wanted)
{
    if (size < wanted)
        return -((wanted - size) / 2);
    int64_t half = (size - wanted) / 2;
    return half + ((size - wanted) & half & 1);
}

static int center_crop_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                             ek_generator *generator)
{
    const crop *self = (const crop *)transform;
    int64_t size[2];
    (void)generator;
    crop_padded_size(self, in, size);
    crop_copy(self, in, out, crop_middle(size[0], self->height) - self->padding,
              crop_middle(size[1], self->width) - self->padding);
    return 0;
}

static const ek_transform_type center_crop_type = {.name = "center_crop",
                                                   .size = sizeof(crop),
                                                   .describe = crop_describe,
                                                   .apply = center_crop_apply};

ek_transform *ek_center_crop_with(ek_crop_options options)
{
    options.pad_if_needed = false; /* center_crop itself pads by what is missing */
    return (ek_transform *)crop_new(&center_crop_type, &options);
}

/* ---- flips ---- */

typedef struct flip {
    ek_transform transform;
    double p;
} flip;

static int flip_describe(const ek_transform *transform, ek_array *array)
{
    return ek_picture_check(transform, array);
}

#define DEFINE_MIRROR(bits)                                                                 \
    EK_MULTIVERSION                                                                         \
    static void flip_row_##bits(int64_t rows, int64_t w, const uint##bits##_t *restrict in, \
                                uint##bits##_t *restrict out)                               \
    {                                                                                       \
        for (int64_t y = 0; y < rows; y++, in += w, out += w)                               \
            for (int64_t x = 0; x < w; x++)                                                 \
                out[x] = in[w - 1 - x];                                                     \
    }
DEFINE_MIRROR(8)
DEFINE_MIRROR(16)
DEFINE_MIRROR(32)
DEFINE_MIRROR(64)
#undef DEFINE_MIRROR

static int flip_horizontal(const ek_transform *transform, const ek_array *in, ek_array *out,
                           ek_generator *generator)
{
    ek_picture picture = ek_picture_of(in);
    int64_t rows = picture.planes * picture.height, w = picture.width;
    if (!ek_draw_chance(generator, ((const flip *)transform)->p))
        ek_array_keep(in, out);
    else if (picture.size == 1)
        flip_row_8(rows, w, in->data, out->data);
    else if (picture.size == 2)
        flip_row_16(rows, w, in->data, out->data);
    else if (picture.size == 4)
        flip_row_32(rows, w, in->data, out->data);
    else
        flip_row_64(rows, w, in->data, out->data);
    return 0;
}

static int flip_vertical(const ek_transform *transform, const ek_array *in, ek_array *out,
                         ek_generator *generator)
{
    ek_picture picture = ek_picture_of(in);
    int64_t h = picture.height;
    size_t row = (size_t)picture.width * picture.size;
    if (!ek_draw_chance(generator, ((const flip *)transform)->p) || row == 0) {
        ek_array_keep(in, out);
        return 0;
    }
    for (int64_t p = 0; p < picture.planes; p++)
        for (int64_t y = 0; y < h; y++)
            memcpy((char *)out->data + (size_t)(p * h + y) * row,
                   (const char *)in->data + (size_t)(p * h + h - 1 - y) * row, row);
    return 0;
}

static const ek_transform_type flip_horizontal_type = {.name = "random_horizontal_flip",
                                                       .size = sizeof(flip),
                                                       .describe = flip_describe,
                                                       .apply = flip_horizontal};
static const ek_transform_type flip_vertical_type = {.name = "random_vertical_flip",
                                                     .size = sizeof(flip),
                                                     .describe = flip_describe,
                                                     .apply = flip_vertical};

static ek_transform *flip_new(const ek_transform_type *type, double p)
{
    if (ek_check_chance(type->name, p) < 0)
        return NULL;
    flip *self = (flip *)ek_transform_new(type);
    if (self)
        self->p = p;
    return (ek_transform *)self;
}

ek_transform *ek_random_horizontal_flip(double p)
{
    return flip_new(&flip_horizontal_type, p);
}

ek_transform *ek_random_vertical_flip(double p)
{
    return flip_new(&flip_vertical_type, p);
}
