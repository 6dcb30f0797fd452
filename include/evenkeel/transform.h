/* transform.h: transforms, which convert and augment samples as they are read from a data set.
 *
 * A transform takes one tensor of a sample and gives another. Pictures are (C, H, W); H and W below
 * are the last two dimensions. The library's transforms and those of the user are structs whose
 * first member is an ek_transform, with a type record. */
#ifndef EVENKEEL_TRANSFORM_H
#define EVENKEEL_TRANSFORM_H

#include "evenkeel/dataset.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_transform ek_transform;

/* One tensor of a sample: elements in row-major order in memory of the host. */
typedef struct ek_array {
    ek_dtype dtype;
    ek_shape shape;
    void *data;
} ek_array;

typedef struct ek_transform_type {
    const char *name;
    size_t size; /* size of the struct that embeds ek_transform */

    /* Changes the dtype and shape of `array` (whose data is NULL) from those of an input to those
     * of its output. Must not depend on random numbers. EK_E_SHAPE or EK_E_DTYPE if such an input
     * cannot be transformed. */
    int (*describe)(const ek_transform *self, ek_array *array);

    /* Writes out->data, which does not overlap in->data. Called by several threads at a time, each
     * with its own generator; NULL is the thread's default one (evenkeel/random.h). Returns 0 or a
     * negative status. */
    int (*apply)(const ek_transform *self, const ek_array *in, ek_array *out,
                 ek_generator *generator);

    /* Optional: frees what the struct owns. */
    void (*destroy)(ek_transform *self);
} ek_transform_type;

struct ek_transform {
    const ek_transform_type *type;
};

/* A zeroed struct of type->size bytes, owned by the caller. EK_E_INVALID for a type without name,
 * describe or apply. */
EK_API ek_transform *ek_transform_new(const ek_transform_type *type);
EK_API void ek_transform_free(ek_transform *transform); /* NULL is ignored */

/* `dataset` with transforms applied in order to one tensor of each sample: element `field` of a
 * list (0: the input, 1: the target), or, for field 0, a sample that is no list. An integer counts
 * as an i64 scalar, a float as an f64 one. Takes ownership of the data set and the transforms, also
 * if it fails. A NULL among them gives the pending error.
 *
 * Random numbers are drawn sample by sample, and within a sample transform by transform, for single
 * samples and in batches. If a transformed set is transformed again, the inner one draws for a
 * whole batch before the outer one does.
 *
 *     ek_transformed(ek_mnist(path, true), 0, ek_to_float(), ek_normalize(mean, std, 1)) */
EK_API ek_dataset *ek_transformed_of(ek_dataset *dataset, int field,
                                     ek_transform *const *transforms, int count);
#define ek_transformed(dataset, field, ...)                                      \
    ek_transformed_of((dataset), (field), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                      EK_COUNT(ek_transform *, __VA_ARGS__))
/* The same for the element of a dictionary. */
EK_API ek_dataset *ek_transformed_key_of(ek_dataset *dataset, const char *key,
                                         ek_transform *const *transforms, int count);
#define ek_transformed_key(dataset, key, ...)                                      \
    ek_transformed_key_of((dataset), (key), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                          EK_COUNT(ek_transform *, __VA_ARGS__))

/* ---- several elements of a sample transformed alike: a picture and its mask ---- */

/* An element of each sample, and the transforms for it. */
typedef struct ek_field_transforms {
    int field;       /* index in a list, as in ek_transformed */
    const char *key; /* key in a dictionary, if not NULL */
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

/* ek_transformed for each of these elements, but all elements of a sample draw the same random
 * numbers. So pictures of one size are cropped and flipped alike if their random transforms are of
 * the same kinds in the same order; other transforms and options (a mask's fill, a picture's
 * normalisation) may differ. Afterwards the generator is where the first element's draws left it.
 * Meanwhile the default generator has another seed, so that other threads draw other numbers; if
 * they draw, it goes on from where they left it. EK_E_INVALID for an element that is named twice.
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

/* Applies transforms to `tensor`, on cpu (else EK_E_DEVICE). Returns a new tensor without history,
 * in the scope. `generator` NULL: the default one. */
EK_API ek_tensor *ek_transform_apply(ek_transform *const *transforms, int count, ek_tensor *tensor,
                                     ek_generator *generator);

/* ---- the library's transforms ----
 *
 * Random ones draw as torchvision's do, from the loader's generator (evenkeel/loader.h). */

/* Converts to f32; u8 to [0, 1] as x / 255, other dtypes without scaling. */
EK_API ek_transform *ek_to_float(void);
/* (x - mean[c]) / std[c] for channel c, for f32 or f64. Channels are the third dimension from the
 * end; `channels` 1 means one mean and std for all. The arrays are copied. EK_E_INVALID for a std
 * that is not positive. */
EK_API ek_transform *ek_normalize(const double *mean, const double *std, int channels);

typedef struct ek_crop_options {
    const char *keywords;
    int64_t height, width; /* width 0: as height */
    int64_t padding;       /* added on all four sides before the crop */
    double fill;           /* value of the padding */
    bool pad_if_needed;    /* pads a smaller picture, on either side by as much as it lacks */
} ek_crop_options;
/* ek_random_crop(28, .padding = 2): as torchvision's RandomCrop. Draws the top edge, then the left
 * one, by one randint each; no number if the size is right already. EK_E_SHAPE for pictures that
 * are too small. EK_E_DTYPE, also of ek_center_crop, if integers cannot hold `fill`. */
EK_API ek_transform *ek_random_crop_with(ek_crop_options options);
#define ek_random_crop(...) \
    ek_random_crop_with(EK_OPTIONS_2(ek_crop_options, height, width, __VA_ARGS__))
/* The middle of a picture; its top and left edges are rounded as by torchvision's CenterCrop.
 * Smaller pictures are padded with `fill`, whatever pad_if_needed. */
EK_API ek_transform *ek_center_crop_with(ek_crop_options options);
#define ek_center_crop(...) \
    ek_center_crop_with(EK_OPTIONS_2(ek_crop_options, height, width, __VA_ARGS__))

/* Mirrors a picture with probability p: one rand() < p per picture. */
EK_API ek_transform *ek_random_horizontal_flip(double p);
EK_API ek_transform *ek_random_vertical_flip(double p);

typedef struct ek_resize_options {
    const char *keywords;
    /* Width 0: the shorter edge becomes `height`, the longer one in proportion. */
    int64_t height, width;
    bool nearest; /* nearest neighbour; else bilinear without aligned corners or antialiasing */
} ek_resize_options;
/* ek_resize(64, 64): u8 pixels are rounded to nearest. Bilinear takes u8, f32 and f64 (else
 * EK_E_DTYPE), nearest all dtypes. */
EK_API ek_transform *ek_resize_with(ek_resize_options options);
#define ek_resize(...) ek_resize_with(EK_OPTIONS_2(ek_resize_options, height, width, __VA_ARGS__))

/* Converts integers in [0, classes), i64, i32 or u8 of any shape S, to f32 (S..., classes): 1 at the
 * integer's index, else 0. */
EK_API ek_transform *ek_one_hot(int64_t classes);

EK_END_DECLARATIONS
#endif
