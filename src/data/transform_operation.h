/* transform_operation.h: rows of operations, of which the library's transforms are made, and what
 * their functions share: checks, draws, moved elements, colors, warps. */
#ifndef EK_DATA_TRANSFORM_OPERATION_H
#define EK_DATA_TRANSFORM_OPERATION_H

#include <stddef.h>

#include "core/generator.h"
#include "core/multiversion.h"
#include "data/transform_chain.h"

/* ---- operations (transform_operation.c) ---- */

/* A part of a picture. */
typedef struct ek_window {
    int64_t top, left, height, width;
} ek_window;

/* One application of a transform to an array. */
typedef struct ek_application {
    const void *options;
    const ek_array *in;
    ek_array *out;
    ek_generator *generator; /* locked in draw; in apply not locked, and NULL for the default one */
    /* Draw writes what apply needs of these. */
    ek_window window;
    double number[8];
    float *normals; /* freed after apply */
} ek_application;

typedef enum ek_operand {
    EK_ANY_ARRAY,
    EK_PICTURE, /* (..., H, W) */
    EK_COLORS   /* a picture with 1 or 3 channels of u8, f32 or f64 */
} ek_operand;

/* A row: one of the library's transforms. Its options lie after the ek_transform.
 *
 * ek_operation_describe checks the operand, then calls `describe`. ek_operation_apply locks the
 * generator, draws the chance and calls `draw`; then it copies the input, or calls `apply`. */
typedef struct ek_operation {
    ek_transform_type type;
    ek_operand takes;
    size_t p;      /* offset of the option `p`, the probability, in the transform; 0: none */
    bool in_place; /* the input is copied to `out` before `apply` */
    /* Optional: checks the input further, and changes `array` to the output. */
    int (*describe)(const ek_transform *self, ek_array *array);
    /* Optional: draws. Returns 1, 0 if the input is kept unchanged, or a negative status. */
    int (*draw)(ek_application *a);
    int (*apply)(ek_application *a);
} ek_operation;

int ek_operation_describe(const ek_transform *self, ek_array *array);
int ek_operation_apply(const ek_transform *self, const ek_array *in, ek_array *out,
                       ek_generator *generator);

/* Begins a row: the transform's name, the struct of its options, and columns. */
#define EK_OPERATION(label, options_type, operand, describes, draws, applies)                     \
    .type.name = #label, .type.size = sizeof(ek_transform) + sizeof(options_type),                \
    .type.describe = ek_operation_describe, .type.apply = ek_operation_apply, .takes = (operand), \
    .describe = (describes), .draw = (draws), .apply = (applies)
/* The column `p`, for options that have a member `p`. */
#define EK_CHANCE(options) .p = sizeof(ek_transform) + offsetof(options, p)

/* Returns a transform with a copy of the options, and `extra` zeroed bytes after them. EK_E_INVALID
 * if the option `p` is no probability. */
ek_transform *ek_operation_new(const ek_operation *operation, const void *options, size_t extra);
/* Returns the options, after which the extra bytes lie. */
static inline const void *ek_options_of(const ek_transform *self)
{
    return self + 1;
}

/* ---- checks in the name of a transform (transform_operation.c) ---- */

/* The limit of heights, widths and paddings. Products and sums of a few of them don't overflow. */
#define EK_PICTURE_MOST (INT64_C(1) << 31)

/* EK_E_DTYPE "<name>: <array>; u8, f32 and f64 are <done>" for other dtypes. */
int ek_check_pixels(const ek_transform *self, const ek_array *array, const char *done);
/* EK_E_SHAPE if pictures have no pixels. */
int ek_check_filled(const ek_transform *self, const ek_array *array);
/* EK_E_DTYPE if the array has integers that cannot hold the fill value exactly. */
int ek_check_fill(const ek_transform *self, const ek_array *array, double fill);
/* EK_E_INVALID unless both sides lie in [1, EK_PICTURE_MOST]. */
int ek_check_size(const char *name, int64_t height, int64_t width);
/* EK_E_INVALID unless 0 <= p <= 1. */
int ek_check_chance(const char *name, double p);
/* EK_E_INVALID unless least <= range[0] <= range[1] <= most. */
int ek_check_range(const char *name, const char *option, const double range[2], double least,
                   double most);
/* Checks a range of ratios, which begins above 0. */
int ek_check_ratio(const char *name, const char *option, const double range[2]);
/* Sets a range that is all zero to {low, high}. */
void ek_range_default(double range[2], double low, double high);

/* ---- draws as torchvision's, while the generator is locked (transform_operation.c) ---- */

/* Draws torch.empty(1).uniform_(low, high). */
double ek_draw_between(ek_generator *locked, double low, double high);
/* Draws the size of a part of the picture, a->window: its share of the area, and its ratio of
 * height to width (if `is_wide`, of width to height). Draws up to ten times, until
 * least <= side < least + the picture's side holds for both sides. Returns false if no size fits.
 */
bool ek_draw_part(ek_application *a, const double scale[2], const double ratio[2], bool is_wide,
                  int64_t least);
/* Draws the top and left edge of a->window within the picture. */
void ek_draw_place(ek_application *a);

/* ---- pictures (transform_operation.c) ---- */

/* An array seen as planes of height x width. */
typedef struct ek_picture {
    int64_t planes, height, width;
    size_t size; /* bytes of one element */
} ek_picture;
ek_picture ek_picture_of(const ek_array *array);
/* Returns the address of row `row` of plane `plane`. */
void *ek_picture_row(const ek_array *array, int64_t plane, int64_t row);
/* Sets the last two dimensions. */
void ek_picture_set_size(ek_array *array, int64_t height, int64_t width);
/* Returns the number of channels, or 1 if there are only two dimensions. */
int64_t ek_picture_channels(const ek_array *array);

/* Pixels that are computed: name, element, the type that an element is computed in, white. */
#define EK_PIXEL_ROWS(X)       \
    X(u8, uint8_t, float, 255) \
    X(f32, float, float, 1)    \
    X(f64, double, double, 1)
/* The function of the dtype, one of u8, f32 and f64. */
#define EK_PIXEL_FUNCTION(function, dtype) \
    ((dtype) == EK_U8 ? function##_u8 : (dtype) == EK_F32 ? function##_f32 : function##_f64)

/* The element for a number: bytes are rounded, or cut off. */
#define EK_ROUNDED_u8(v) ((uint8_t)(int32_t)rintf(v))
#define EK_ROUNDED_f32(v) (v)
#define EK_ROUNDED_f64(v) (v)
#define EK_CUT(value, white) ((value) < 0 ? 0 : (value) > (white) ? (white) : (value))

/* ---- elements that are moved (transform_gather.c) ---- */

/* Writes the bytes of an element that has the value. */
void ek_fill_element(ek_dtype dtype, double fill, unsigned char element[8]);
/* Writes `count` elements of `size` bytes. */
void ek_fill_run(int64_t count, size_t size, const unsigned char *element, void *out);
/* Writes `count` elements of `size` bytes: in[places[i]], or, where places[i] is negative, the
 * element `outside`. If that is NULL, no place is negative. */
void ek_pick_run(int64_t count, const int64_t *places, size_t size, const void *in,
                 const unsigned char *outside, void *out);

/* Writes the rows (side 0) or columns (side 1) of the input that those of the output repeat;
 * negative: none, a fill value. */
typedef void ek_places(const void *user, int side, int64_t count, int64_t *places);
/* Writes every plane of `out` from the pixels of `in` at these places. */
int ek_picture_gather(const ek_array *in, ek_array *out, ek_places *find, const void *user,
                      double fill);

/* ---- colors (transform_color.c) ----
 *
 * Arrays are EK_COLORS. Numbers are rounded as by torchvision's functions of the same names. */

typedef enum ek_adjustment {
    EK_ADJUST_BRIGHTNESS, /* by a factor; contrast, saturation and sharpness also by a factor */
    EK_ADJUST_CONTRAST,
    EK_ADJUST_SATURATION, /* changes nothing if there is one channel */
    EK_ADJUST_HUE,        /* by a shift; changes nothing if there is one channel */
    EK_ADJUST_SHARPNESS,
    EK_ADJUST_SOLARIZE,     /* inverts the values from a threshold on; -INFINITY: all values */
    EK_ADJUST_POSTERIZE,    /* keeps a number of bits; u8 only */
    EK_ADJUST_AUTOCONTRAST, /* needs no number */
    EK_ADJUST_EQUALIZE,     /* needs no number; u8 only */
    EK_ADJUSTMENTS
} ek_adjustment;
/* Adjusts a picture in place. The number is a factor, a shift, a threshold or bits. */
int ek_picture_adjust(ek_array *x, ek_adjustment what, double number);
/* Writes the grey values of a picture into every channel of `out`, which has 1 or 3. */
void ek_picture_grey(const ek_array *in, ek_array *out);

/* ---- warps (transform_warp.c) ---- */

/* Where a result pixel (x, y) comes from. Affine: coordinates are measured from the center of the
 * picture, source x is c[0] x + c[1] y + c[2], source y is c[3] x + c[4] y + c[5]. Perspective:
 * from the top left corner; both are divided by c[6] x + c[7] y + 1. */
typedef struct ek_warp {
    double c[8];
    bool perspective;
    bool bilinear; /* else nearest */
    bool fills;    /* blends with `fill` what comes from outside; else it is 0 */
    double fill;
} ek_warp;

/* Sets c[0..5] for the inverse of a rotation (degrees), shift (pixels), scale and shear (degrees)
 * about `center`, which is measured from the picture's center. */
void ek_warp_affine(ek_warp *warp, const double center[2], double angle, const double shift[2],
                    double scale, const double shear[2]);
/* Checks dtype and fill: bilinear warps take u8, f32 and f64, nearest ones all dtypes. */
int ek_warp_check(const ek_transform *self, const ek_array *array, const ek_warp *warp);
int ek_picture_warp(const ek_array *in, ek_array *out, const ek_warp *warp);

#endif
