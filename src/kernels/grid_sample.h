/* grid_sample.h: the pixels that are read at a place between pixels, their weights, and the
 * derivatives of the weights by the place: PyTorch 1.13's rules, in the common subset of C11 and
 * C++17 that gcc, clang and nvcc compile. Directions are independent. With align_corners the
 * coordinates -1 and 1 are the centers of the first and the last pixel, otherwise their outer
 * edges.
 *
 * A place outside of the image is brought inside by the padding mode. Linear and nearest
 * interpolation do this with the place, cubic interpolation (Keys 1981, a = -0.75) with each pixel
 * that it reads. */
#ifndef EK_REAL
#ifndef EK_KERNELS_GRID_SAMPLE_H
#define EK_KERNELS_GRID_SAMPLE_H

#include <math.h>

#include "core/bits.h"
#include "kernels/params.h"

enum { EK_GRID_TAPS = 4 /* the most pixels that a place reads in a direction */ };

/* Returns how many pixels a place reads in a direction. */
EK_FORMULA int ek_grid_taps(ek_grid_mode mode)
{
    return mode == EK_GRID_BICUBIC ? 4 : mode == EK_GRID_BILINEAR ? 2 : 1;
}

/* Returns true if all derivatives by a direction of an order above `order` are 0 everywhere. */
EK_FORMULA bool ek_grid_is_flat(ek_grid_mode mode, int order)
{
    return order >= (mode == EK_GRID_BICUBIC ? 3 : mode == EK_GRID_BILINEAR ? 1 : 0);
}

#define EK_FOR_REALS "kernels/grid_sample.h"
#include "kernels/for_reals.h"

#endif
#else /* for each EK_REAL */

/* The taps of a place in one direction. A tap outside of the image has index 0 and weight 0. */
typedef struct EK_NAME(ek_grid_place) {
    int64_t index[EK_GRID_TAPS];
    EK_REAL weight[EK_GRID_TAPS]; /* differentiated params->order[d] times */
    EK_REAL slope[EK_GRID_TAPS];  /* the weight differentiated once more */
} EK_NAME(ek_grid_place);

/* Returns the position to which padding brings the position `at` in a direction of `size` pixels.
 * Multiplies *factor by the result's derivative by `at`. */
EK_FORMULA EK_REAL EK_NAME(ek_grid_inside)(const ek_grid_params *params, int64_t size, EK_REAL at,
                                           EK_REAL *factor)
{
    const EK_REAL last = (EK_REAL)(size - 1), half = (EK_REAL)0.5;
    if (params->padding == EK_GRID_ZEROS)
        return at;
    if (params->padding == EK_GRID_REFLECTION) {
        const EK_REAL low = params->align_corners ? 0 : -half;
        const EK_REAL span = params->align_corners ? last : (EK_REAL)size;
        EK_REAL distance = at - low, sign = 1;
        if (span == 0) {
            *factor = 0;
            return 0;
        }
        if (distance < 0) {
            distance = -distance;
            sign = -1;
        }
        const EK_REAL turns = (EK_REAL)floor((double)(distance / span));
        const EK_REAL extra = distance - turns * span;
        const bool even = floor((double)turns / 2) * 2 == (double)turns;
        at = even ? extra + low : span - extra + low;
        *factor *= even ? sign : -sign;
    }
    if (!(at > 0) || !(at < last)) { /* also true for NaN, which becomes 0 */
        *factor = 0;
        at = at >= last ? last : 0;
    }
    return at;
}

/* Writes Keys' weights of the two pixels before and the two after a position, or their derivatives
 * of order `order`. t is the distance to the pixel before the position. */
EK_FORMULA void EK_NAME(ek_grid_cubic)(EK_REAL t, int order, EK_REAL weight[4])
{
    const EK_REAL a = (EK_REAL)-0.75;
    for (int tap = 0; tap < 4; tap++) {
        /* The polynomial of the distance x = |t - (tap - 1)|, and the sign of dx / dt. */
        const bool before = tap < 2, far = tap == 0 || tap == 3;
        const EK_REAL x = before ? t + (EK_REAL)(1 - tap) : (EK_REAL)(tap - 1) - t;
        const EK_REAL p = far ? a : a + 2, q = far ? -5 * a : -(a + 3), r = far ? 8 * a : 0;
        const EK_REAL s = far ? -4 * a : 1;
        const EK_REAL value = order == 0   ? ((p * x + q) * x + r) * x + s
                              : order == 1 ? (3 * p * x + 2 * q) * x + r
                              : order == 2 ? 6 * p * x + 2 * q
                              : order == 3 ? 6 * p
                                           : 0;
        weight[tap] = before || order % 2 == 0 ? value : -value;
    }
}

/* Writes the weights' derivatives of order `order` by the position, which is at distance t after a
 * pixel. */
EK_FORMULA void EK_NAME(ek_grid_weights)(ek_grid_mode mode, EK_REAL t, int order,
                                         EK_REAL weight[EK_GRID_TAPS])
{
    if (mode == EK_GRID_BICUBIC) {
        EK_NAME(ek_grid_cubic)(t, order, weight);
    } else if (mode == EK_GRID_BILINEAR) {
        weight[0] = order == 0 ? 1 - t : order == 1 ? (EK_REAL)-1 : 0;
        weight[1] = order == 0 ? t : order == 1 ? (EK_REAL)1 : 0;
    } else {
        weight[0] = order == 0 ? (EK_REAL)1 : 0;
    }
}

/* Computes the taps of direction d, in which x has `size` pixels, for a coordinate of the grid.
 * Computes `slope` only if `slopes` is true. */
EK_FORMULA void EK_NAME(ek_grid_place_at)(const ek_grid_params *params, int d, int64_t size,
                                          EK_REAL coordinate, bool slopes,
                                          EK_NAME(ek_grid_place) * place)
{
    const int taps = ek_grid_taps(params->mode), order = params->order[d];
    const bool cubic = params->mode == EK_GRID_BICUBIC;
    EK_REAL factor = (EK_REAL)(params->align_corners ? size - 1 : size) / 2;
    EK_REAL at = params->align_corners ? (coordinate + 1) / 2 * (EK_REAL)(size - 1)
                                       : ((coordinate + 1) * (EK_REAL)size - 1) / 2;
    EK_REAL scale = 1, first;
    if (!cubic)
        at = EK_NAME(ek_grid_inside)(params, size, at, &factor);
    /* The comparisons are false for NaN, for which nothing is read. */
    const bool finite = at > (EK_REAL)-1e9 && at < (EK_REAL)2e9;
    at = finite ? at : 0;
    first = params->mode == EK_GRID_NEAREST ? (EK_REAL)nearbyint((double)at)
                                            : (EK_REAL)floor((double)at);
    EK_NAME(ek_grid_weights)(params->mode, at - first, order, place->weight);
    if (slopes)
        EK_NAME(ek_grid_weights)(params->mode, at - first, order + 1, place->slope);
    for (int i = 0; i < order; i++)
        scale *= factor;
    for (int t = 0; t < taps; t++) {
        EK_REAL pixel = first + (EK_REAL)(cubic ? t - 1 : t), unused = 1;
        if (cubic)
            pixel = EK_NAME(ek_grid_inside)(params, size, pixel, &unused);
        const bool inside = finite && pixel >= 0 && pixel < (EK_REAL)size;
        place->index[t] = inside ? (int64_t)pixel : 0;
        place->weight[t] = inside ? place->weight[t] * scale : 0;
        if (slopes)
            place->slope[t] = inside ? place->slope[t] * (scale * factor) : 0;
    }
}

#endif
