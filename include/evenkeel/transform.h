/* transform.h: changing samples on their way from a data set: conversion, augmentation.
 *
 * A transform takes one tensor of a sample and gives another. Pictures are (C, H, W); what is said
 * of H and W below are the last two dimensions. The library's own, and the user's, are structs
 * whose first member is an ek_transform, with a type record. */
#ifndef EVENKEEL_TRANSFORM_H
#define EVENKEEL_TRANSFORM_H

#include "evenkeel/dataset.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_transform ek_transform;

/* One tensor of a sample: elements in row-major order in plain memory. */
typedef struct ek_array {
    ek_dtype dtype;
    ek_shape shape;
    void *data;
} ek_array;

typedef struct ek_transform_type {
    const char *name;
    size_t size; /* of the struct that embeds ek_transform */

    /* What comes out if `array` (data is NULL) goes in: changes dtype and shape in place. May
     * not depend on random numbers. EK_E_SHAPE or EK_E_DTYPE if it cannot go in. */
    int (*describe)(const ek_transform *self, ek_array *array);

    /* Writes out->data. The two don't overlap. Called by several threads at a time, each with a
     * generator of its own; NULL is the thread's default one, as for all draws
     * (evenkeel/random.h). Returns 0 or a negative status. */
    int (*apply)(const ek_transform *self, const ek_array *in, ek_array *out,
                 ek_generator *generator);

    /* Optional: frees what the struct owns. */
    void (*destroy)(ek_transform *self);
} ek_transform_type;

struct ek_transform {
    const ek_transform_type *type;
};

/* A zeroed struct of type->size bytes. EK_E_INVALID for a type without name, describe or apply. */
EK_API ek_transform *ek_transform_new(const ek_transform_type *type);
EK_API void ek_transform_free(ek_transform *transform); /* NULL is ignored */

/* `dataset` with transforms applied, one after the other, to one tensor of each sample: to element
 * `field` of a list (0: the input, 1: the target) or, for field 0, the sample itself if it is no
 * list. A whole number counts as an i64 scalar, a floating one as f64. Takes over the data set and
 * the transforms, also when it fails; NULL among them gives the pending error.
 *
 * Random numbers are drawn sample by sample, and within a sample transform by transform, for single
 * samples as in batches. Of a transformed set in another, each draws for a whole batch before the
 * other does.
 *
 *     ek_transformed(ek_mnist(path, true), 0, ek_to_float(), ek_normalize(mean, std, 1)) */
EK_API ek_dataset *ek_transformed_of(ek_dataset *dataset, int field,
                                     ek_transform *const *transforms, int count);
#define ek_transformed(dataset, field, ...)                                      \
    ek_transformed_of((dataset), (field), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                      EK_COUNT(ek_transform *, __VA_ARGS__))
/* The same for a dictionary's element. */
EK_API ek_dataset *ek_transformed_key_of(ek_dataset *dataset, const char *key,
                                         ek_transform *const *transforms, int count);
#define ek_transformed_key(dataset, key, ...)                                      \
    ek_transformed_key_of((dataset), (key), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                          EK_COUNT(ek_transform *, __VA_ARGS__))

/* ---- several elements of a sample alike: a picture and its mask ---- */

/* An element of samples and the transforms for it. */
typedef struct ek_field_transforms {
    int field;       /* index in a list, as in ek_transformed */
    const char *key; /* not NULL: of a dictionary */
    ek_transform *const *transforms;
    int count;
} ek_field_transforms;
static inline ek_field_transforms ek_field_transforms_of(int index, const char *key,
                                                         ek_transform *const *transforms, int count)
{
    ek_field_transforms result = {index, key, transforms, count};
    return result;
}
#define EK_FIELD(field, ...)                                                     \
    ek_field_transforms_of((field), NULL, EK_ITEMS(ek_transform *, __VA_ARGS__), \
                           EK_COUNT(ek_transform *, __VA_ARGS__))
#define EK_KEY(key, ...)                                                    \
    ek_field_transforms_of(0, (key), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                           EK_COUNT(ek_transform *, __VA_ARGS__))

/* As ek_transformed for each of these elements, but in a sample all of them draw the same random
 * numbers: pictures of one size are cropped and flipped alike if their random transforms are of the
 * same kinds in the same order. Others (a mask's fill, its nearest neighbours, a picture's
 * normalisation) are each element's own. The generator goes on behind the numbers of the first
 * element, as if that alone were transformed. Other threads may use the default generator while a
 * sample is transformed: they then draw numbers of another seed, so that none is drawn twice, and
 * it goes on behind theirs. EK_E_INVALID for an element that is named twice.
 *
 *     ek_transformed_alike(set,
 *                          EK_FIELD(0, ek_random_crop(256, .padding = 8),
 *                                   ek_random_horizontal_flip(0.5), ek_to_float()),
 *                          EK_FIELD(1, ek_random_crop(256, .padding = 8, .fill = 255),
 *                                   ek_random_horizontal_flip(0.5))) */
EK_API ek_dataset *ek_transformed_alike_of(ek_dataset *dataset, const ek_field_transforms *fields,
                                           int count);
#define ek_transformed_alike(dataset, ...)                                         \
    ek_transformed_alike_of((dataset), EK_ITEMS(ek_field_transforms, __VA_ARGS__), \
                            EK_COUNT(ek_field_transforms, __VA_ARGS__))

/* The tensor that transforms make of `tensor` (on cpu, else EK_E_DEVICE), in the scope: a new one,
 * no part of a graph. `generator` NULL: the default one. */
EK_API ek_tensor *ek_transform_apply(ek_transform *const *transforms, int count, ek_tensor *tensor,
                                     ek_generator *generator);

/* ---- the library's ----
 *
 * Random ones draw as torchvision's do, from the loader's generator (evenkeel/loader.h). */

/* u8 to f32 in [0, 1]: x / 255. Floating and i64 elements become f32 as they are. */
EK_API ek_transform *ek_to_float(void);
/* (x - mean[c]) / std[c] for channel c, the last dimension but two, of f32 or f64; 1 channel: for
 * all. The arrays are copied. EK_E_INVALID for std that is not positive. */
EK_API ek_transform *ek_normalize(const double *mean, const double *std, int channels);

typedef struct ek_crop_options {
    const char *keywords;
    int64_t height, width; /* width 0: as height */
    int64_t padding;       /* on all four sides, before */
    double fill;           /* of the padding */
    bool pad_if_needed; /* smaller pictures are padded to size, by the difference on both sides */
} ek_crop_options;
/* ek_random_crop(28, .padding = 2): as torchvision's RandomCrop: top, then left edge, one randint
 * each, nothing drawn if the size is right already. EK_E_SHAPE for pictures that are too small.
 */
EK_API ek_transform *ek_random_crop_with(ek_crop_options options);
#define ek_random_crop(...) \
    ek_random_crop_with(EK_OPTIONS_2(ek_crop_options, height, width, __VA_ARGS__))
/* The middle, padded by fill if the picture is smaller (whatever pad_if_needed); edges rounded
 * as torchvision's CenterCrop. Of both: EK_E_DTYPE if integers cannot be filled by `fill`. */
EK_API ek_transform *ek_center_crop_with(ek_crop_options options);
#define ek_center_crop(...) \
    ek_center_crop_with(EK_OPTIONS_2(ek_crop_options, height, width, __VA_ARGS__))

/* Mirrored with probability p: one rand() < p a picture. */
EK_API ek_transform *ek_random_horizontal_flip(double p);
EK_API ek_transform *ek_random_vertical_flip(double p);

typedef struct ek_resize_options {
    const char *keywords;
    int64_t height,
        width;    /* width 0: the shorter edge becomes `height`, the longer one in proportion */
    bool nearest; /* else bilinear, corners not aligned, without antialiasing */
} ek_resize_options;
/* ek_resize(64, 64): pixels of u8 are rounded to the nearest. Bilinear: u8, f32 and f64, else
 * EK_E_DTYPE; nearest: all. */
EK_API ek_transform *ek_resize_with(ek_resize_options options);
#define ek_resize(...) ek_resize_with(EK_OPTIONS_2(ek_resize_options, height, width, __VA_ARGS__))

/* A whole number in [0, classes), i64 or u8 of any shape S, to f32 (S..., classes): 1 there, else
 * 0. */
EK_API ek_transform *ek_one_hot(int64_t classes);

EK_END_DECLARATIONS
#endif
