/* transform_picture.h: what transforms of pictures share: fill values, draws, resizing, colors,
 * warps. */
#ifndef EK_DATA_TRANSFORM_PICTURE_H
#define EK_DATA_TRANSFORM_PICTURE_H

#include "data/transform_chain.h"

/* ---- runs of elements: fill values, picked elements (transform_draws.c) ---- */

/* EK_E_DTYPE if the array has integers that cannot hold the fill value exactly. */
int ek_fill_check(const ek_transform *transform, const ek_array *array, double fill);
/* Writes the value as one element's bytes. */
void ek_fill_element(ek_dtype dtype, double fill, unsigned char element[8]);
/* Writes `count` elements of `size` bytes. */
void ek_fill_run(int64_t count, size_t size, const unsigned char *element, void *out);
/* Writes `count` elements of `size` bytes: in[places[i]], or, where places[i] is negative, the
 * element `outside`. If that is NULL, no place is negative. */
void ek_pick_run(int64_t count, const int64_t *places, size_t size, const void *in,
                 const unsigned char *outside, void *out);

/* ---- draws and checks of options (transform_draws.c) ---- */

/* Draws torch.rand(1) < p, which compares in f32. */
bool ek_draw_chance(ek_generator *generator, double p);
/* Draws torch.empty(1).uniform_(low, high) from a locked generator. */
float ek_draw_between(ek_generator *locked, double low, double high);
/* Draws a share of `area` and an aspect ratio from a locked generator, as RandomErasing and
 * RandomResizedCrop do. Writes the sides of that rectangle, rounded to whole pixels: sides[0] is
 * sqrt(area * ratio), sides[1] is sqrt(area / ratio). */
void ek_draw_sides(ek_generator *locked, double area, const double scale[2], const double ratio[2],
                   int64_t sides[2]);

/* EK_E_INVALID in the name of the transform unless 0 <= p <= 1. */
int ek_check_chance(const char *name, double p);
/* EK_E_INVALID unless least <= range[0] <= range[1] <= most. */
int ek_check_range(const char *name, const char *option, const double range[2], double least,
                   double most);
/* Sets a range that is all zero to {low, high}. */
void ek_range_default(double range[2], double low, double high);

/* ---- resizing (transform_resize.c) ---- */

typedef struct ek_window {
    int64_t top, left, height, width;
} ek_window;

typedef struct ek_resampling {
    bool nearest, bicubic, antialias;
} ek_resampling;

int ek_resampling_check(const char *name, const ek_resampling *how);
/* EK_E_DTYPE if such elements cannot be resampled in this way. */
int ek_resampling_check_dtype(const ek_transform *transform, const ek_array *array,
                              const ek_resampling *how);
/* Resizes the window of every plane of `in`, which lies inside it, to the size of `out`. */
int ek_picture_resize(const ek_array *in, const ek_window *window, ek_array *out,
                      const ek_resampling *how);

/* ---- colors (transform_color.c) and tones (transform_tone.c), in place ----
 *
 * Arrays are (..., C, H, W) or (H, W), u8, f32 or f64. With one channel, saturation and hue do
 * nothing. Numbers are rounded as by torchvision's functions of the same names. */

/* EK_E_DTYPE or EK_E_SHAPE unless there are 1 or 3 channels of u8, f32 or f64. */
int ek_color_check(const ek_transform *transform, const ek_array *array);
/* The number of channels; 1 if there are only two dimensions. */
int64_t ek_color_channels(const ek_array *array);
void ek_adjust_brightness(ek_array *x, double factor);
void ek_adjust_contrast(ek_array *x, double factor);
void ek_adjust_saturation(ek_array *x, double factor);
void ek_adjust_hue(ek_array *x, double shift);
/* Writes the grey values of a picture into every channel of `out`, which has 1 or 3. */
void ek_picture_grey(const ek_array *in, ek_array *out);

void ek_picture_invert(ek_array *x);
void ek_picture_posterize(ek_array *x, int bits); /* u8 only */
void ek_picture_solarize(ek_array *x, double threshold);
void ek_picture_autocontrast(ek_array *x);
void ek_picture_equalize(ek_array *x); /* u8 only */
/* Blends the picture `in` with one that is blurred by 3 x 3 pixels. */
void ek_picture_sharpen(const ek_array *in, ek_array *out, double factor);

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
int ek_warp_check(const ek_transform *transform, const ek_array *array, const ek_warp *warp);
int ek_picture_warp(const ek_array *in, ek_array *out, const ek_warp *warp);

#endif
