/* transform_flip.c: pictures mirrored at random. */
#include <string.h>

#include "core/generator.h"
#include "data/transform_chain.h"

typedef struct flip {
    ek_transform transform;
    float p;
} flip;

static int flip_describe(const ek_transform *transform, ek_array *array)
{
    return ek_picture_check(transform, array);
}

/* torch.rand(1) < p, which compares in f32. */
static bool drawn(const flip *self, ek_generator *generator)
{
    generator = ek_generator_lock(generator);
    bool yes = ek_generator_f32(generator) < self->p;
    ek_generator_unlock(generator);
    return yes;
}

static void copy_all(const ek_array *in, ek_array *out)
{
    size_t nbytes = (size_t)ek_shape_count(&in->shape) * ek_dtype_size(in->dtype);
    if (nbytes)
        memcpy(out->data, in->data, nbytes);
}

#define DEFINE_MIRROR(bits)                                                               \
    EK_MULTIVERSION                                                                       \
    static void mirror_##bits(int64_t rows, int64_t w, const uint##bits##_t *restrict in, \
                              uint##bits##_t *restrict out)                               \
    {                                                                                     \
        for (int64_t y = 0; y < rows; y++, in += w, out += w)                             \
            for (int64_t x = 0; x < w; x++)                                               \
                out[x] = in[w - 1 - x];                                                   \
    }
DEFINE_MIRROR(8)
DEFINE_MIRROR(16)
DEFINE_MIRROR(32)
DEFINE_MIRROR(64)
#undef DEFINE_MIRROR

static int horizontal_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                            ek_generator *generator)
{
    int64_t rows = ek_picture_planes(in) * ek_picture_height(in), w = ek_picture_width(in);
    if (!drawn((const flip *)transform, generator))
        copy_all(in, out);
    else if (ek_dtype_size(in->dtype) == 1)
        mirror_8(rows, w, in->data, out->data);
    else if (ek_dtype_size(in->dtype) == 2)
        mirror_16(rows, w, in->data, out->data);
    else if (ek_dtype_size(in->dtype) == 4)
        mirror_32(rows, w, in->data, out->data);
    else
        mirror_64(rows, w, in->data, out->data);
    return 0;
}

static int vertical_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                          ek_generator *generator)
{
    int64_t planes = ek_picture_planes(in), h = ek_picture_height(in);
    size_t row = (size_t)ek_picture_width(in) * ek_dtype_size(in->dtype);
    if (!drawn((const flip *)transform, generator) || row == 0) {
        copy_all(in, out);
        return 0;
    }
    for (int64_t p = 0; p < planes; p++)
        for (int64_t y = 0; y < h; y++)
            memcpy((char *)out->data + (size_t)(p * h + y) * row,
                   (const char *)in->data + (size_t)(p * h + h - 1 - y) * row, row);
    return 0;
}

static const ek_transform_type horizontal_type = {.name = "random_horizontal_flip",
                                                  .size = sizeof(flip),
                                                  .describe = flip_describe,
                                                  .apply = horizontal_apply};
static const ek_transform_type vertical_type = {.name = "random_vertical_flip",
                                                .size = sizeof(flip),
                                                .describe = flip_describe,
                                                .apply = vertical_apply};

static ek_transform *flip_new(const ek_transform_type *type, double p)
{
    if (!(p >= 0 && p <= 1)) {
        EK_FAIL(EK_E_INVALID, "%s: the probability has to be between 0 and 1, not %g", type->name,
                p);
        return NULL;
    }
    flip *self = (flip *)ek_transform_new(type);
    if (self)
        self->p = (float)p;
    return (ek_transform *)self;
}

ek_transform *ek_random_horizontal_flip(double p)
{
    return flip_new(&horizontal_type, p);
}

ek_transform *ek_random_vertical_flip(double p)
{
    return flip_new(&vertical_type, p);
}
