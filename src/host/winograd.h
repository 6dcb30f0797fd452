/* winograd.h: convolutions with fewer multiplications.
 *
 * After Winograd, "Arithmetic complexity of computations" (1980), and Lavin and Gray, "Fast
 * algorithms for convolutional neural networks" (2016). F(m x m, r x r) computes a tile of m x m
 * outputs under windows of r x r taps from points x points inputs, where points = m + r - 1. Inputs
 * and weights are transformed, multiplied point by point (a sum over channels at each point), and
 * the products are transformed to outputs:
 *
 *     y = A' [(G w G') . (B' x B)] A
 *
 * The gradient of x is a convolution of y's gradient with the reversed window. The gradient of w is
 *
 *     dw = G' [(B' x B) . (A dy A')] G
 *
 * A window of 4 x 4 with stride 2 is the sum of four windows of 2 x 2 with stride 1, its parts,
 * each on every second row and column of the input. A window of 3 x 3 with stride 2 is treated as
 * one of 4 x 4 whose fourth row and column are zero. A part with a single tap in a dimension then
 * has zero weights at the last point (infinity), so that its products there are left out: 25 of 36
 * products remain. */
#ifndef EK_HOST_WINOGRAD_H
#define EK_HOST_WINOGRAD_H

#include "host/conv.h"
#include "host/gemm_kernel.h"

/* The largest numbers of any form. POINTS are those of one dimension. ENDS is the number of ways to
 * leave out ends of a part: bit 1 is set if the last row of points and taps is left out, bit 0 if
 * the last column is. */
enum {
    EK_WINOGRAD_POINTS = 6,
    EK_WINOGRAD_AREA = EK_WINOGRAD_POINTS * EK_WINOGRAD_POINTS,
    EK_WINOGRAD_PARTS = 4,
    EK_WINOGRAD_ENDS = 4
};

/* Transforms q x q arrays of n values, whose addresses are given, to p x p arrays, which lie at
 * to + at[i]. n is a multiple of the form's lanes. Ends that are left out are neither read nor
 * written. */
typedef void ek_winograd_spread(const float *const *from, float *to, const int64_t *at, int64_t n);

/* Transforms q x q arrays of n values, which lie at from + at[i], to p x p arrays, whose addresses
 * are given, and adds start (n) to each of them. */
typedef void ek_winograd_collect(const float *from, const int64_t *at, const float *start,
                                 float *const *to, int64_t n);

/* F(outputs x outputs, taps x taps). In the arrays, only F(2x2, 2x2) has entries after the first;
 * those of the other forms are NULL. */
typedef struct ek_winograd_form {
    int outputs, taps, points;                      /* in one dimension */
    int lanes;                                      /* the length of vectors: 8 or 16 */
    ek_winograd_spread *gradients;                  /* A: outputs x outputs to points x points */
    ek_winograd_spread *inputs[EK_WINOGRAD_ENDS];   /* B': points x points to points x points */
    ek_winograd_spread *weights[EK_WINOGRAD_ENDS];  /* G: taps x taps to points x points */
    ek_winograd_collect *results[EK_WINOGRAD_ENDS]; /* A': points x points to outputs x outputs */
    ek_winograd_collect *sums[EK_WINOGRAD_ENDS];    /* G': points x points to taps x taps */
} ek_winograd_form;

/* Returns F(2x2, 2x2), F(2x2, 3x3) or F(4x4, 3x3). 16 lanes need AVX-512, 8 lanes AVX2. */
const ek_winograd_form *ek_winograd_form_of(int outputs, int taps, int lanes);

/* The elements that tiles read and write in one dimension. Input i of tile t is element
 * (t * outputs + i) * stride + shift + p of part p, and 0 outside of [0, in). Tap j of part p is
 * tap first_tap + (j * parts + p) * tap_step of the window. Output i is element
 * (t * outputs + i) * out_stride + out_shift - p of the result, if that is in [0, to). */
typedef struct ek_winograd_line {
    int64_t in, stride, shift;
    int64_t first_tap, tap_step;
    int64_t out, out_stride, out_shift; /* out: how many outputs tiles must reach */
    int64_t to;                         /* the result's size */
    int64_t tiles;
} ek_winograd_line;

/* A convolution, or one of its gradients, by a form. */
typedef struct ek_winograd {
    const ek_winograd_form *form;
    ek_winograd_line line[2];
    int64_t samples, channels, outputs; /* channels are summed over; in a weight gradient, w's */
    int64_t window[2];
    int parts;     /* of the window in one dimension; 1: the window isn't taken apart */
    bool spread;   /* true: parts share inputs and have separate outputs; false: the reverse */
    int64_t tiles; /* of all samples */
    const float *from;
    int ends[EK_WINOGRAD_PARTS]; /* a part's ends that are left out: an index of transforms */
    int products;                /* number of pairs of a part and a point that are multiplied */
    int slots[EK_WINOGRAD_AREA]; /* the number of parts that have products at a point */
    int slot[EK_WINOGRAD_PARTS][EK_WINOGRAD_AREA]; /* a part's place among these; -1: no product */
} ek_winograd;

/* Returns about how many multiplications take as long as the transform of one value, with kernels
 * of so many columns. */
#define EK_WINOGRAD_VALUE(columns) ((columns) > 16 ? 17.0 : 9.0)

/* ek_winograd_budget returns the bytes of transformed weights at a time: as many as a direct
 * convolution's packed weights have, but at least EK_WINOGRAD_LITTLE; of more than EK_WINOGRAD_MUCH
 * only half, but at least EK_WINOGRAD_MUCH. Kept transformed inputs take at most as many bytes. */
enum { EK_WINOGRAD_LITTLE = 1 << 20, EK_WINOGRAD_MUCH = 4 << 20 };
static inline int64_t ek_winograd_budget(const ek_winograd *w)
{
    int64_t direct =
        (int64_t)sizeof(float) * w->window[0] * w->window[1] * w->channels * w->outputs;
    if (direct <= EK_WINOGRAD_MUCH)
        return direct > EK_WINOGRAD_LITTLE ? direct : EK_WINOGRAD_LITTLE;
    return direct / 2 > EK_WINOGRAD_MUCH ? direct / 2 : EK_WINOGRAD_MUCH;
}

/* Returns the number of points of a tile. */
static inline int ek_winograd_area(const ek_winograd *w)
{
    return w->form->points * w->form->points;
}

/* Returns true if all parts are multiplied at all points. */
static inline bool ek_winograd_whole(const ek_winograd *w)
{
    return w->products == ek_winograd_area(w) * w->parts * w->parts;
}

/* Return how many separate inputs and how many separate outputs the parts have. */
static inline int ek_winograd_sources(const ek_winograd *w)
{
    return w->spread ? 1 : w->parts * w->parts;
}

static inline int ek_winograd_targets(const ek_winograd *w)
{
    return w->spread ? w->parts * w->parts : 1;
}

/* The sample of a tile, and its row and column of tiles. */
typedef struct ek_winograd_place {
    int64_t sample, at[2];
} ek_winograd_place;

ek_winograd_place ek_winograd_place_of(const ek_winograd *w, int64_t tile);

/* Steps to the next tile, without a division. */
static inline void ek_winograd_step(const ek_winograd *w, ek_winograd_place *place)
{
    if (++place->at[1] < w->line[1].tiles)
        return;
    place->at[1] = 0;
    if (++place->at[0] < w->line[0].tiles)
        return;
    place->at[0] = 0;
    place->sample++;
}

/* Writes the addresses of the points x points inputs of a tile in part (p0, p1) to `from`, and
 * prefetches `count` channels from `first` on of the inputs that the tile before it doesn't read.
 */
void ek_winograd_inputs_ahead(const ek_winograd *w, const ek_winograd_place *place, int p0, int p1,
                              const float *zeros, int64_t first, int64_t count, const float **from);

/* Writes the positions in the result, counted through all samples, of the outputs of a tile in part
 * (p0, p1); -1 for those that lie outside. */
void ek_winograd_outputs(const ek_winograd *w, const ek_winograd_place *place, int p0, int p1,
                         int64_t *position);

/* Returns the number in the window of tap (j0, j1) of part (p0, p1); -1 if it lies outside. */
int64_t ek_winograd_tap(const ek_winograd *w, int p0, int p1, int j0, int j1);

/* Returns how many plans compute a convolution: four for the input gradient of a 4 x 4 window with
 * stride 2. */
int ek_winograd_problems(const ek_conv *conv);

/* Returns plan `problem` of those that compute a convolution, with tiles of side x side outputs. A
 * weight gradient has the forward's plan. */
ek_winograd ek_winograd_plan(const ek_conv *conv, int side, int problem);

/* Computes ek_conv_winograd's weight gradient. */
int ek_winograd_weight(ek_dev *dev, const ek_conv *conv, int side);

#endif
