/** @file
 * transform.h: transforms, which convert and augment samples as they are read from a data set.
 *
 * A transform takes one tensor of a sample and gives another. Pictures are (C, H, W); H and W below
 * are the last two dimensions. The library's transforms and those of the user are structs whose
 * first member is an ek_transform, with a type record. */
#ifndef EVENKEEL_TRANSFORM_H
#define EVENKEEL_TRANSFORM_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/dataset.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_transform ek_transform;

/** One tensor of a sample: elements in row-major order in memory of the host. */
typedef struct ek_array {
    ek_dtype dtype;
    ek_shape shape;
    void *data;
} ek_array;

typedef struct ek_transform_type {
    const char *name;
    size_t size; /**< size of the struct that embeds ek_transform */

    /** Changes the dtype and shape of `array` (whose data is NULL) from those of an input to those
     * of its output. Must not depend on random numbers. EK_E_SHAPE or EK_E_DTYPE if such an input
     * cannot be transformed. */
    int (*describe)(const ek_transform *self, ek_array *array);

    /** Writes out->data, which does not overlap in->data. Called by several threads at a time, each
     * with its own generator; NULL is the thread's default one (evenkeel/random.h). Returns 0 or a
     * negative status. */
    int (*apply)(const ek_transform *self, const ek_array *in, ek_array *out,
                 ek_generator *generator);

    /** Optional: frees what the struct owns. */
    void (*destroy)(ek_transform *self);
} ek_transform_type;

struct ek_transform {
    const ek_transform_type *type;
};

/** Makes a zeroed struct of type->size bytes, owned by the caller. EK_E_INVALID for a type without
 * name, describe or apply. */
EK_API ek_transform *ek_transform_new(const ek_transform_type *type);
EK_API void ek_transform_free(ek_transform *transform); /**< NULL is ignored */
#define ek_transform_free(transform) ek_transform_free(EK_PLACED(transform))

EK_API ek_dataset *ek_transformed_of(ek_dataset *dataset, int field,
                                     ek_transform *const *transforms, int count);
/** `dataset` with transforms applied in order to one tensor of each sample: element `field` of a
 * list (0: the input, 1: the target), or, for field 0, a sample that is no list. An integer counts
 * as an i64 scalar, a float as an f64 scalar. Takes ownership of the data set and the transforms,
 * also if it fails. If one of them is NULL, it fails with the pending error.
 *
 * Random numbers are drawn sample by sample, and within a sample transform by transform, for single
 * samples and in batches. If a transformed set is transformed again, the inner one draws for a
 * whole batch before the outer one does.
 *
 *     ek_transformed(ek_mnist(path, true), 0, ek_to_float(), ek_normalize(mean, std, 1)) */
#define ek_transformed(dataset, field, ...)                                      \
    ek_transformed_of((dataset), (field), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                      EK_COUNT(ek_transform *, __VA_ARGS__))
EK_API ek_dataset *ek_transformed_key_of(ek_dataset *dataset, const char *key,
                                         ek_transform *const *transforms, int count);
/** The same for the element of a dictionary. */
#define ek_transformed_key(dataset, key, ...)                                      \
    ek_transformed_key_of((dataset), (key), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                          EK_COUNT(ek_transform *, __VA_ARGS__))

/* ---- several elements of a sample transformed alike: a picture and its mask ---- */

/** An element of each sample, and the transforms for it. */
typedef struct ek_field_transforms {
    int field;       /**< index in a list, as in ek_transformed */
    const char *key; /**< key in a dictionary, if not NULL */
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

EK_API ek_dataset *ek_transformed_alike_of(ek_dataset *dataset, const ek_field_transforms *fields,
                                           int count);
/** ek_transformed for each of these elements, but all elements of a sample draw the same random
 * numbers. So pictures of one size are cropped and flipped alike if their random transforms are of
 * the same kinds in the same order; other transforms and options (a mask's fill, a picture's
 * normalisation) may differ. Afterwards the generator continues after the first element's draws.
 * Meanwhile the default generator has another seed, so that other threads draw other numbers; if
 * they draw, it continues after their draws. EK_E_INVALID for an element that is named twice.
 *
 *     ek_transformed_alike(set,
 *                          EK_FIELD(0, ek_random_crop(256, .padding = 8),
 *                                   ek_random_horizontal_flip(0.5), ek_to_float()),
 *                          EK_FIELD(1, ek_random_crop(256, .padding = 8, .fill = 255),
 *                                   ek_random_horizontal_flip(0.5))) */
#define ek_transformed_alike(dataset, ...)                                         \
    ek_transformed_alike_of((dataset), EK_ITEMS(ek_field_transforms, __VA_ARGS__), \
                            EK_COUNT(ek_field_transforms, __VA_ARGS__))

/** Applies transforms to `tensor`, on cpu (else EK_E_DEVICE). Returns a new tensor without history,
 * in the scope. `generator` NULL: the default one. */
EK_API ek_tensor *ek_transform_apply(ek_transform *const *transforms, int count, ek_tensor *tensor,
                                     ek_generator *generator);

/* ---- the library's transforms ----
 *
 * Random ones draw as torchvision's do, from the loader's generator (evenkeel/loader.h). */

/** Converts to f32; u8 to [0, 1] as x / 255, other dtypes without scaling. */
EK_API ek_transform *ek_to_float(void);
/** (x - mean[c]) / std[c] for channel c, for f32 or f64. Channels are the third dimension from the
 * end; `channels` 1 means one mean and std for all. The arrays are copied. EK_E_INVALID for a std
 * that is not positive. */
EK_API ek_transform *ek_normalize(const double *mean, const double *std, int channels);

typedef struct ek_crop_options {
    int begin;             /**< no option, see base.h */
    int64_t height, width; /**< width 0: as height */
    int64_t padding;       /**< added on all four sides before the crop */
    double fill;           /**< value of the padding */
    bool pad_if_needed;    /**< pads a smaller picture, on both sides by as much as it lacks */
} ek_crop_options;
#define EK_DEFAULTS_ek_crop_options EK_NO_DEFAULTS
EK_API ek_transform *ek_random_crop_with(ek_crop_options options);
/** ek_random_crop(28, .padding = 2): as torchvision's RandomCrop. Draws the top edge, then the left
 * edge, by one randint each; draws nothing if the picture has the size already. EK_E_SHAPE for
 * pictures that are too small. EK_E_DTYPE, also in ek_center_crop, if integers cannot hold `fill`.
 */
#define ek_random_crop(...) \
    EK_CALL_2(ek_random_crop_with, ek_crop_options, height, width, __VA_ARGS__)
EK_API ek_transform *ek_center_crop_with(ek_crop_options options);
/** The middle of a picture; its top and left edges are rounded as by torchvision's CenterCrop.
 * Smaller pictures are padded with `fill`, whatever pad_if_needed. */
#define ek_center_crop(...) \
    EK_CALL_2(ek_center_crop_with, ek_crop_options, height, width, __VA_ARGS__)

/** Mirrors a picture with probability p: one rand() < p per picture. */
EK_API ek_transform *ek_random_horizontal_flip(double p);
EK_API ek_transform *ek_random_vertical_flip(double p);

typedef struct ek_resize_options {
    int begin; /**< no option, see base.h */
    /** Width 0: the shorter edge becomes `height`, the longer one in proportion. */
    int64_t height, width;
    bool nearest;   /**< nearest neighbour; else bilinear, without aligned corners */
    bool bicubic;   /**< bicubic in place of bilinear; u8 is cut to [0, 255] */
    bool antialias; /**< widens the filter as far as the picture shrinks, as Pillow does */
} ek_resize_options;
#define EK_DEFAULTS_ek_resize_options EK_NO_DEFAULTS
EK_API ek_transform *ek_resize_with(ek_resize_options options);
/** ek_resize(64, 64): u8 pixels are rounded to nearest. Bilinear and bicubic take u8, f32 and f64
 * (else EK_E_DTYPE), nearest all dtypes. EK_E_INVALID for .nearest with one of the others. */
#define ek_resize(...) EK_CALL_2(ek_resize_with, ek_resize_options, height, width, __VA_ARGS__)

typedef enum ek_border_mode {
    EK_BORDER_CONSTANT, /**< `fill` */
    EK_BORDER_EDGE,     /**< the pixel at the edge */
    EK_BORDER_REFLECT,  /**< mirrored at the pixel on the edge: 3 2 | 1 2 3 */
    EK_BORDER_SYMMETRIC /**< mirrored beside it: 2 1 | 1 2 3 */
} ek_border_mode;

typedef struct ek_pad_picture_options {
    int begin;       /**< no option, see base.h */
    int64_t padding; /**< pixels on all four sides */
    ek_border_mode mode;
    double fill;
    int64_t left, top, right, bottom; /**< pixels on one side, besides */
} ek_pad_picture_options;
#define EK_DEFAULTS_ek_pad_picture_options EK_NO_DEFAULTS
EK_API ek_transform *ek_pad_picture_with(ek_pad_picture_options options);
/** ek_pad_picture(4, EK_BORDER_REFLECT): torchvision's Pad. All dtypes. EK_E_SHAPE for a border
 * that is wider than what it mirrors. */
#define ek_pad_picture(...) \
    EK_CALL_2(ek_pad_picture_with, ek_pad_picture_options, padding, mode, __VA_ARGS__)

typedef struct ek_resized_crop_options {
    int begin;                        /**< no option, see base.h */
    int64_t height, width;            /**< width 0: as height */
    bool nearest, bicubic, antialias; /**< as of ek_resize */
    double scale[2];                  /**< the part's share of the area; both 0: {0.08, 1} */
    double ratio[2];                  /**< its width / height; both 0: {3/4, 4/3} */
} ek_resized_crop_options;
#define EK_DEFAULTS_ek_resized_crop_options EK_NO_DEFAULTS
EK_API ek_transform *ek_random_resized_crop_with(ek_resized_crop_options options);
/** ek_random_resized_crop(224, 224): a part of random size and shape, resized, as torchvision's
 * RandomResizedCrop. Draws area, shape, top and left edge, up to ten times until the part lies
 * within the picture, else it takes the middle. */
#define ek_random_resized_crop(...) \
    EK_CALL_2(ek_random_resized_crop_with, ek_resized_crop_options, height, width, __VA_ARGS__)

typedef struct ek_erasing_options {
    int begin;            /**< no option, see base.h */
    double p EK_IS(0.5);  /**< probability */
    double value;         /**< erased elements become this */
    const double *values; /**< one for each channel instead, copied; `channels` of them */
    int channels;
    bool random;     /**< standard normal numbers instead, for f32 and f64 */
    double scale[2]; /**< the rectangle's share of the area; both 0: {0.02, 0.33} */
    double ratio[2]; /**< its height / width; both 0: {0.3, 3.3} */
} ek_erasing_options;
#define EK_DEFAULTS_ek_erasing_options EK_DEFAULT(p, 0.5)
EK_API ek_transform *ek_random_erasing_with(ek_erasing_options options);
/** ek_random_erasing(0.5): overwrites a rectangle, as torchvision's RandomErasing (Zhong et al.,
 * 2020). With .random, pictures with other numbers of channels draw other rectangles. EK_E_DTYPE if
 * integers cannot hold a value, and for .random with other dtypes. */
#define ek_random_erasing(...) EK_CALL_1(ek_random_erasing_with, ek_erasing_options, p, __VA_ARGS__)

/* ---- colors: u8, f32 or f64 (else EK_E_DTYPE), 1 or 3 channels (else EK_E_SHAPE) ----
 *
 * Floating-point pictures lie in [0, 1]. u8 is computed in f32 and truncated, as by torchvision. */

/** Grey values, 0.2989 red + 0.587 green + 0.114 blue, in 1 channel or in 3 equal ones. */
EK_API ek_transform *ek_grayscale(int channels);
/** ek_grayscale with probability p; the number of channels is unchanged. */
EK_API ek_transform *ek_random_grayscale(double p);

typedef struct ek_jitter_options {
    int begin; /**< no option, see base.h */
    /** Factors are drawn from [max(0, 1 - number), 1 + number], the hue's shift from +-hue. */
    double brightness, contrast, saturation, hue;
    double brightness_range[2] EK_IS(
        {EK_UNSET}); /**< {low, high} instead, at least 0; low EK_UNSET: none */
    double contrast_range[2] EK_IS({EK_UNSET});
    double saturation_range[2] EK_IS({EK_UNSET});
    double hue_range[2] EK_IS({EK_UNSET}); /**< in [-0.5, 0.5] */
} ek_jitter_options;
#define EK_DEFAULTS_ek_jitter_options                                                   \
    EK_DEFAULT(brightness_range[0], EK_UNSET), EK_DEFAULT(contrast_range[0], EK_UNSET), \
        EK_DEFAULT(saturation_range[0], EK_UNSET), EK_DEFAULT(hue_range[0], EK_UNSET)
EK_API ek_transform *ek_color_jitter_with(ek_jitter_options options);
/** ek_color_jitter(0.4, 0.4, .saturation = 0.4, .hue = 0.1): torchvision's ColorJitter. Draws the
 * order of the four, then a factor for each that is not left out. Hues of u8 are rounded as since
 * torchvision 0.15. */
#define ek_color_jitter(...) \
    EK_CALL_2(ek_color_jitter_with, ek_jitter_options, brightness, contrast, __VA_ARGS__)

/** Change a picture with probability p. Invert: x becomes white - x. Posterize: u8 keeps its
 * highest `bits`. Solarize: pixels >= `threshold` are inverted. Sharpness: the picture is blended
 * with a blurred one (factor 0: blurred, 1: unchanged, 2: sharper). Autocontrast: each channel is
 * stretched to [black, white]. Equalize: each channel's histogram is equalized (u8). */
EK_API ek_transform *ek_random_invert(double p);
EK_API ek_transform *ek_random_posterize(int bits, double p);
EK_API ek_transform *ek_random_solarize(double threshold, double p);
EK_API ek_transform *ek_random_adjust_sharpness(double factor, double p);
EK_API ek_transform *ek_random_autocontrast(double p);
EK_API ek_transform *ek_random_equalize(double p);

typedef struct ek_blur_options {
    int begin;             /**< no option, see base.h */
    int64_t height, width; /**< the kernel's, odd; width 0: as height */
    double sigma[2];       /**< range of the deviation, 1e-6 to 1e6 pixels; both 0: {0.1, 2} */
} ek_blur_options;
#define EK_DEFAULTS_ek_blur_options EK_NO_DEFAULTS
EK_API ek_transform *ek_gaussian_blur_with(ek_blur_options options);
/** ek_gaussian_blur(5, 5): torchvision's GaussianBlur. u8, f32 and f64; any number of channels. */
#define ek_gaussian_blur(...) \
    EK_CALL_2(ek_gaussian_blur_with, ek_blur_options, height, width, __VA_ARGS__)

/* ---- warps: pixels come from other places of a picture of the same size ----
 *
 * The nearest pixel is taken (all dtypes), or four are blended (u8, f32 and f64). Pixels from
 * outside the picture are `fill`. */

typedef struct ek_rotation_options {
    int begin;      /**< no option, see base.h */
    double degrees; /**< counter-clockwise, drawn from +-degrees */
    bool bilinear;  /**< else nearest */
    double fill;
    double degrees_range[2]; /**< {low, high} instead */
    double center[2] EK_IS(
        {EK_UNSET}); /**< x, y in pixels from the top left corner; x EK_UNSET: the middle */
} ek_rotation_options;
#define EK_DEFAULTS_ek_rotation_options EK_DEFAULT(center[0], EK_UNSET)
EK_API ek_transform *ek_random_rotation_with(ek_rotation_options options);
/** ek_random_rotation(15): torchvision's RandomRotation without expand. */
#define ek_random_rotation(...) \
    EK_CALL_2(ek_random_rotation_with, ek_rotation_options, degrees, bilinear, __VA_ARGS__)

typedef struct ek_affine_options {
    int begin;                    /**< no option, see base.h */
    double degrees;               /**< clockwise, drawn from +-degrees */
    double shear EK_IS(EK_UNSET); /**< degrees along x, drawn from +-shear; EK_UNSET: none */
    bool bilinear;                /**< else nearest */
    double fill;
    double degrees_range[2]; /**< {low, high} instead */
    double translate[2] EK_IS(
        {EK_UNSET});       /**< the most x and y shift, as shares of the sides; x EK_UNSET: none */
    double scale[2];       /**< range of the factor; both 0: none */
    double shear_range[2]; /**< {low, high} instead of +-shear */
    double shear_y_range[2];            /**< {low, high} along y; both 0: none */
    double center[2] EK_IS({EK_UNSET}); /**< as of ek_random_rotation */
} ek_affine_options;
#define EK_DEFAULTS_ek_affine_options \
    EK_DEFAULT(shear, EK_UNSET), EK_DEFAULT(translate[0], EK_UNSET), EK_DEFAULT(center[0], EK_UNSET)
EK_API ek_transform *ek_random_affine_with(ek_affine_options options);
/** ek_random_affine(10, .translate = {0.1, 0.1}, .scale = {0.9, 1.1}): torchvision's RandomAffine.
 * Draws the angle, then what is given of shift, scale and shear. */
#define ek_random_affine(...) \
    EK_CALL_1(ek_random_affine_with, ek_affine_options, degrees, __VA_ARGS__)

typedef struct ek_perspective_options {
    int begin;                          /**< no option, see base.h */
    double distortion_scale EK_IS(0.5); /**< from 0 to 1 */
    double p EK_IS(0.5);                /**< probability */
    bool nearest;                       /**< else bilinear */
    double fill;
} ek_perspective_options;
#define EK_DEFAULTS_ek_perspective_options EK_DEFAULT(distortion_scale, 0.5), EK_DEFAULT(p, 0.5)
EK_API ek_transform *ek_random_perspective_with(ek_perspective_options options);
/** ek_random_perspective(0.5): torchvision's RandomPerspective: each corner moves into the picture
 * by up to distortion_scale of half a side. The equations are solved in f64, in torchvision in f32:
 * places differ by thousandths of a pixel. */
#define ek_random_perspective(...) \
    EK_CALL_2(ek_random_perspective_with, ek_perspective_options, distortion_scale, p, __VA_ARGS__)

/* ---- policies, for u8 pictures of 1 or 3 channels, as torchvision's ---- */

typedef enum ek_augment_policy {
    EK_POLICY_IMAGENET,
    EK_POLICY_CIFAR10,
    EK_POLICY_SVHN
} ek_augment_policy;

typedef struct ek_auto_augment_options {
    int begin; /**< no option, see base.h */
    ek_augment_policy policy;
    bool bilinear; /**< interpolation of rotations, shifts and shears; else nearest */
    double fill EK_IS(
        EK_UNSET); /**< of what comes from outside; EK_UNSET: 0, without blending at the edges */
} ek_auto_augment_options;
#define EK_DEFAULTS_ek_auto_augment_options EK_DEFAULT(fill, EK_UNSET)
EK_API ek_transform *ek_auto_augment_with(ek_auto_augment_options options);
/** ek_auto_augment(EK_POLICY_CIFAR10): two operations that were learned for a data set (Cubuk et
 * al., 2019). */
#define ek_auto_augment(...) \
    EK_CALL_1(ek_auto_augment_with, ek_auto_augment_options, policy, __VA_ARGS__)

typedef struct ek_rand_augment_options {
    int begin;              /**< no option, see base.h */
    int num_ops EK_IS(2);   /**< operations one after the other */
    int magnitude EK_IS(9); /**< in [0, num_magnitude_bins) */
    int num_magnitude_bins EK_IS(31);
    bool bilinear; /**< as of ek_auto_augment */
    double fill EK_IS(EK_UNSET);
} ek_rand_augment_options;
#define EK_DEFAULTS_ek_rand_augment_options                                               \
    EK_DEFAULT(num_ops, 2), EK_DEFAULT(magnitude, 9), EK_DEFAULT(num_magnitude_bins, 31), \
        EK_DEFAULT(fill, EK_UNSET)
EK_API ek_transform *ek_rand_augment_with(ek_rand_augment_options options);
/** ek_rand_augment(2, 9): random operations of one magnitude (Cubuk et al., 2020). */
#define ek_rand_augment(...) \
    EK_CALL_2(ek_rand_augment_with, ek_rand_augment_options, num_ops, magnitude, __VA_ARGS__)

typedef struct ek_trivial_augment_options {
    int begin; /**< no option, see base.h */
    int num_magnitude_bins EK_IS(31);
    bool bilinear; /**< as of ek_auto_augment */
    double fill EK_IS(EK_UNSET);
} ek_trivial_augment_options;
#define EK_DEFAULTS_ek_trivial_augment_options \
    EK_DEFAULT(num_magnitude_bins, 31), EK_DEFAULT(fill, EK_UNSET)
EK_API ek_transform *ek_trivial_augment_wide_with(ek_trivial_augment_options options);
/** ek_trivial_augment_wide(31): one operation of a random magnitude (Müller and Hutter, 2021). */
#define ek_trivial_augment_wide(...)                                                        \
    EK_CALL_1(ek_trivial_augment_wide_with, ek_trivial_augment_options, num_magnitude_bins, \
              __VA_ARGS__)

/* ---- transforms of transforms, which they take over, also if they fail ----
 *
 * EK_E_SHAPE if dtype or shape of the result would depend on chance. */

EK_API ek_transform *ek_random_apply_of(double p, ek_transform *const *transforms, int count);
/** ek_random_apply(0.8, ek_color_jitter(0.4, 0.4), ek_gaussian_blur(5, 5)): all of them with
 * probability p, or none. */
#define ek_random_apply(p, ...)                                    \
    ek_random_apply_of((p), EK_ITEMS(ek_transform *, __VA_ARGS__), \
                       EK_COUNT(ek_transform *, __VA_ARGS__))
EK_API ek_transform *ek_random_choice_of(ek_transform *const *transforms, int count,
                                         const double *weights);
/** Applies one transform, chosen by one rand() with a probability in proportion to its weight
 * (copied; NULL: equal weights). (torchvision draws from Python's generator.) EK_E_INVALID if no
 * weight is above 0. */
#define ek_random_choice(...)                                  \
    ek_random_choice_of(EK_ITEMS(ek_transform *, __VA_ARGS__), \
                        EK_COUNT(ek_transform *, __VA_ARGS__), NULL)
EK_API ek_transform *ek_random_order_of(ek_transform *const *transforms, int count);
/** Applies all transforms, in the order of one randperm() (torchvision draws from Python's
 * generator). */
#define ek_random_order(...) \
    ek_random_order_of(EK_ITEMS(ek_transform *, __VA_ARGS__), EK_COUNT(ek_transform *, __VA_ARGS__))

/** Converts integers in [0, classes), i64, i32 or u8 of any shape S, to f32 (S..., classes): 1 at
 * the integer's index, else 0. */
EK_API ek_transform *ek_one_hot(int64_t classes);

EK_END_DECLARATIONS
#endif
