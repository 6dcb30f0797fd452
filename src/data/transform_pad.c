/* transform_pad.c: pad_picture, which puts a border around pictures. */
#include <string.h>

#include "data/transform_picture.h"

typedef struct pad {
    ek_transform transform;
    ek_border_mode mode;
    int64_t left, top, right, bottom;
    double fill;
} pad;

static const char *const pad_modes[] = {"constant", "edge", "reflect", "symmetric"};

/* How many pixels a border may have beyond a side of `size` pixels; negative: any number. */
static int64_t pad_most(ek_border_mode mode, int64_t size)
{
    return mode == EK_BORDER_REFLECT ? size - 1 : mode == EK_BORDER_SYMMETRIC ? size : -1;
}

static int pad_check_side(const pad *self, const ek_array *array, int64_t size, int64_t first,
                          int64_t last)
{
    char text[200];
    int64_t most = pad_most(self->mode, size), border = first > last ? first : last;
    if (self->mode == EK_BORDER_EDGE && size == 0 && border > 0)
        return EK_FAIL(EK_E_SHAPE, "pad_picture: %s has no pixels to repeat",
                       ek_array_text(array, text));
    if (most < 0 || border <= most)
        return 0;
    return EK_FAIL(EK_E_SHAPE,
                   "pad_picture: %s, padded by %lld in mode %s; a side of %lld has at most %lld "
                   "pixels to mirror",
                   ek_array_text(array, text), (long long)border, pad_modes[self->mode],
                   (long long)size, (long long)most);
}

static int pad_describe(const ek_transform *transform, ek_array *array)
{
    const pad *self = (const pad *)transform;
    EK_TRY(ek_picture_check(transform, array));
    ek_picture picture = ek_picture_of(array);
    if (self->mode == EK_BORDER_CONSTANT)
        EK_TRY(ek_fill_check(transform, array, self->fill));
    EK_TRY(pad_check_side(self, array, picture.height, self->top, self->bottom));
    EK_TRY(pad_check_side(self, array, picture.width, self->left, self->right));
    array->shape.dims[array->shape.ndim - 2] = picture.height + self->top + self->bottom;
    array->shape.dims[array->shape.ndim - 1] = picture.width + self->left + self->right;
    return 0;
}

/* Returns the pixel of a side that result pixel `at` (counted from the side's first one) repeats;
 * -1: none, a constant. */
static int64_t pad_source(ek_border_mode mode, int64_t at, int64_t size)
{
    if (at >= 0 && at < size)
        return at;
    if (mode == EK_BORDER_CONSTANT)
        return -1;
    if (mode == EK_BORDER_EDGE)
        return at < 0 ? 0 : size - 1;
    int64_t twice = mode == EK_BORDER_REFLECT ? 0 : 1; /* symmetric: the edge itself is repeated */
    return at < 0 ? -at - twice : 2 * size - 2 + twice - at;
}

/* Writes one row of the result: its border on both sides, and the picture's row between them. */
static void pad_row(const pad *self, size_t size, int64_t w, const char *row, char *out,
                    const unsigned char element[8])
{
    int64_t wide = self->left + w + self->right;
    for (int64_t x = 0; x < wide; x++) {
        if (x == self->left && w > 0) {
            memcpy(out + (size_t)x * size, row, (size_t)w * size);
            x += w - 1;
            continue;
        }
        int64_t from = pad_source(self->mode, x - self->left, w);
        memcpy(out + (size_t)x * size, from < 0 ? (const char *)element : row + (size_t)from * size,
               size);
    }
}

static int pad_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                     ek_generator *generator)
{
    const pad *self = (const pad *)transform;
    ek_picture from = ek_picture_of(in), to = ek_picture_of(out);
    unsigned char element[8];
    size_t row = (size_t)from.width * from.size, wide = (size_t)to.width * to.size;
    char *result = out->data;
    (void)generator;
    ek_fill_element(in->dtype, self->fill, element);
    for (int64_t p = 0; p < from.planes; p++)
        for (int64_t y = 0; y < to.height; y++, result += wide) {
            int64_t source = pad_source(self->mode, y - self->top, from.height);
            if (source < 0)
                ek_fill_run(to.width, to.size, element, result);
            else
                pad_row(self, from.size, from.width,
                        (const char *)in->data + (size_t)(p * from.height + source) * row, result,
                        element);
        }
    return 0;
}

static const ek_transform_type pad_type = {.name = "pad_picture",
                                           .size = sizeof(pad),
                                           .describe = pad_describe,
                                           .apply = pad_apply};

static int pad_check(const ek_pad_picture_options *options)
{
    const int64_t sides[] = {options->padding, options->left, options->top, options->right,
                             options->bottom};
    if ((int)options->mode < 0 || options->mode > EK_BORDER_SYMMETRIC)
        return EK_FAIL(
            EK_E_INVALID,
            "pad_picture: mode %d; EK_BORDER_CONSTANT, EK_BORDER_EDGE, EK_BORDER_REFLECT and "
            "EK_BORDER_SYMMETRIC there are",
            (int)options->mode);
    for (int i = 0; i < 5; i++)
        if (sides[i] < 0 || sides[i] > EK_PICTURE_MOST)
            return EK_FAIL(EK_E_INVALID,
                           "pad_picture: a padding of %lld; it has to lie in [0, %lld]",
                           (long long)sides[i], (long long)EK_PICTURE_MOST);
    return 0;
}

ek_transform *ek_pad_picture_with(ek_pad_picture_options options)
{
    pad *self = pad_check(&options) < 0 ? NULL : (pad *)ek_transform_new(&pad_type);
    if (!self)
        return NULL;
    self->mode = options.mode;
    self->left = options.padding + options.left;
    self->top = options.padding + options.top;
    self->right = options.padding + options.right;
    self->bottom = options.padding + options.bottom;
    self->fill = options.fill;
    return &self->transform;
}
