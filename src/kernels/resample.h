/* resample.h: the inputs that an output reads when an image is resized, and their weights, for one
 * direction at a time: PyTorch 1.13's rules, in the common subset of C11 and C++17 that gcc, clang
 * and nvcc compile. Positions are computed in double and rounded to the images' type after each
 * step, which gives the results of arithmetic in that type.
 *
 * Cubic interpolation is Keys' (1981) with a = -0.75, and with antialias a = -0.5. Antialias
 * widens the filter by the scale when an image shrinks, as Pillow does. */
#ifndef EK_KERNELS_RESAMPLE_H
#define EK_KERNELS_RESAMPLE_H

#include <math.h>

#include "core/bits.h"
#include "kernels/params.h"

/* One direction of the map from `in` to `out` positions. */
typedef struct ek_resample_axis {
    ek_resample_kind kind;
    bool align_corners;
    bool in_f64; /* positions are f64, else f32 */
    int64_t in, out;
    double scale;   /* inputs per output */
    double support; /* antialias only: half the filter's width, in inputs */
} ek_resample_axis;

/* The inputs [first, end) that an output reads, and the numbers that define their weights. */
typedef struct ek_resample_row {
    int64_t first, end;
    int64_t at;      /* linear, cubic: the input before the output's position */
    double fraction; /* linear, cubic: the distance from input `at` to the position, in [0, 1] */
    double center;   /* antialias: the output's position */
} ek_resample_row;

EK_FORMULA double ek_resample_round(const ek_resample_axis *axis, double value)
{
    return axis->in_f64 ? value : (double)(float)value;
}

EK_FORMULA bool ek_resample_is_nearest(ek_resample_kind kind)
{
    return kind == EK_RESAMPLE_NEAREST || kind == EK_RESAMPLE_NEAREST_EXACT;
}

EK_FORMULA bool ek_resample_has_antialias(ek_resample_kind kind)
{
    return kind == EK_RESAMPLE_LINEAR_ANTIALIAS || kind == EK_RESAMPLE_CUBIC_ANTIALIAS;
}

/* Returns direction d of the map. Positions of nearest interpolation are f32 for images of any
 * type. */
EK_FORMULA ek_resample_axis ek_resample_axis_of(const ek_resample_params *params, int d,
                                                bool in_f64, int64_t in, int64_t out)
{
    ek_resample_axis axis = {params->kind, params->align_corners, in_f64, in, out, 0, 0};
    double factor = params->factor[d];
    if (ek_resample_is_nearest(axis.kind))
        axis.in_f64 = false;
    if (axis.align_corners)
        axis.scale = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    else
        axis.scale = factor > 0 ? 1 / factor : (double)in / (double)out;
    axis.scale = ek_resample_round(&axis, axis.scale);
    axis.support = axis.kind == EK_RESAMPLE_CUBIC_ANTIALIAS ? 2 : 1;
    if (axis.scale > 1)
        axis.support = ek_resample_round(&axis, axis.support * axis.scale);
    return axis;
}

EK_FORMULA int64_t ek_resample_within(int64_t at, int64_t size)
{
    return at < 0 ? 0 : at < size ? at : size - 1;
}

EK_FORMULA ek_resample_row ek_resample_nearest_row(const ek_resample_axis *axis, int64_t i)
{
    ek_resample_row row = {i, i + 1, i, 0, 0};
    if (axis->kind == EK_RESAMPLE_NEAREST_EXACT)
        row.at = (int64_t)floorf((float)(((double)i + 0.5) * axis->scale));
    else if (axis->out == 2 * axis->in)
        row.at = i / 2;
    else if (axis->out != axis->in)
        row.at = (int64_t)floorf((float)i * (float)axis->scale);
    row.first = ek_resample_within(row.at, axis->in);
    row.end = row.first + 1;
    return row;
}

EK_FORMULA ek_resample_row ek_resample_antialias_row(const ek_resample_axis *axis, int64_t i)
{
    ek_resample_row row = {0, 0, 0, 0, 0};
    row.center = ek_resample_round(axis, axis->scale * ((double)i + 0.5));
    row.first = (int64_t)ek_resample_round(axis, row.center - axis->support + 0.5);
    row.first = row.first > 0 ? row.first : 0;
    row.end = (int64_t)ek_resample_round(axis, row.center + axis->support + 0.5);
    row.end = row.end < axis->in ? row.end : axis->in;
    return row;
}

/* Returns the inputs that output i reads. Neither end of the row decreases with i. */
EK_FORMULA ek_resample_row ek_resample_row_of(const ek_resample_axis *axis, int64_t i)
{
    if (ek_resample_is_nearest(axis->kind))
        return ek_resample_nearest_row(axis, i);
    if (ek_resample_has_antialias(axis->kind))
        return ek_resample_antialias_row(axis, i);
    const bool cubic = axis->kind == EK_RESAMPLE_CUBIC;
    ek_resample_row row = {i, i + 1, i, 0, 0};
    double source;
    if (!cubic && axis->in == axis->out)
        return row;
    if (axis->align_corners) {
        source = ek_resample_round(axis, axis->scale * (double)i);
    } else {
        source = ek_resample_round(axis, axis->scale * ((double)i + 0.5));
        source = ek_resample_round(axis, source - 0.5);
        source = !cubic && source < 0 ? 0 : source;
    }
    row.at = (int64_t)floor(source);
    row.at = row.at < axis->in - 1 ? row.at : axis->in - 1;
    row.fraction = ek_resample_round(axis, source - (double)row.at);
    row.fraction = row.fraction < 1 ? row.fraction : 1;
    row.first = ek_resample_within(row.at - (cubic ? 1 : 0), axis->in);
    row.end = ek_resample_within(row.at + (cubic ? 2 : 1), axis->in) + 1;
    return row;
}

/* Returns Keys' filter with the parameter a at distance x. */
EK_FORMULA double ek_resample_cubic(double x, double a)
{
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* Returns the weight of input j in its row; with antialias, not yet divided by the weights' sum. */
EK_FORMULA double ek_resample_weight(const ek_resample_axis *axis, const ek_resample_row *row,
                                     int64_t j)
{
    if (ek_resample_has_antialias(axis->kind)) {
        double x = ((double)j - row->center + 0.5) / (axis->scale > 1 ? axis->scale : 1);
        if (axis->kind == EK_RESAMPLE_CUBIC_ANTIALIAS)
            return ek_resample_cubic(x, -0.5);
        return fabs(x) < 1 ? 1 - fabs(x) : 0;
    }
    if (axis->kind == EK_RESAMPLE_CUBIC) {
        double weight = 0;
        for (int tap = -1; tap <= 2; tap++)
            if (ek_resample_within(row->at + tap, axis->in) == j)
                weight += ek_resample_cubic(row->fraction - (double)tap, -0.75);
        return weight;
    }
    if (row->end - row->first == 1)
        return 1;
    return j == row->at ? ek_resample_round(axis, 1 - row->fraction) : row->fraction;
}

/* Returns the factor of a row's weights: with antialias 1 / their sum if the sum isn't 0, else
 * 1. */
EK_FORMULA double ek_resample_norm(const ek_resample_axis *axis, const ek_resample_row *row)
{
    double sum = 0;
    if (!ek_resample_has_antialias(axis->kind))
        return 1;
    for (int64_t j = row->first; j < row->end; j++)
        sum += ek_resample_weight(axis, row, j);
    return sum != 0 ? 1 / sum : 1;
}

/* Returns an upper bound of the number of inputs that an output reads. */
EK_FORMULA int64_t ek_resample_taps(const ek_resample_axis *axis)
{
    if (ek_resample_has_antialias(axis->kind))
        return 2 * (int64_t)ceil(axis->support) + 1;
    return axis->kind == EK_RESAMPLE_CUBIC ? 4 : axis->kind == EK_RESAMPLE_LINEAR ? 2 : 1;
}

/* Returns a bound of the range of outputs that read input j. With `begin` this is the first of
 * them: the first output whose row ends after j. Otherwise it is the first output whose row begins
 * after j. If no row does, returns axis->out. */
EK_FORMULA int64_t ek_resample_reader(const ek_resample_axis *axis, int64_t j, bool begin)
{
    int64_t low = 0, high = axis->out;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        ek_resample_row row = ek_resample_row_of(axis, middle);
        if ((begin ? row.end : row.first) > j)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

#endif
