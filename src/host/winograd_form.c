/* winograd_form.c: the transforms of the forms, by vectors of 8 or 16 values.
 *
 * F(m, r) interpolates a polynomial at points: 0, 1 and infinity for F(2, 2), also -1 for F(2, 3),
 * and also 1/2 and -2 for F(4, 3). With 1/2 and -2 the error is a third smaller than with 2 and -2
 * (Barabasz and Gregg, "Error analysis and improving the accuracy of Winograd convolution", 2019).
 * The transforms of F(2, r) are sums and halves, exact for small integers. */
#ifndef LANES
#include "host/winograd.h"

#include <string.h>

#define LINE static inline __attribute__((always_inline)) void
enum { MOST = EK_WINOGRAD_POINTS };

/* Returns false if element i of n x n is left out. */
static inline __attribute__((always_inline)) bool form_has(int ends, int i, int n)
{
    return !((ends & 2 && i / n == n - 1) || (ends & 1 && i % n == n - 1));
}

#if defined(__x86_64__)
#define TARGET_8 __attribute__((target("avx2")))
#define TARGET_16 __attribute__((target("avx512f")))
#else
#define TARGET_8
#define TARGET_16
#endif

#define LANES 8
#define TARGET TARGET_8
#define NAME(name) name##_8
#include "host/winograd_form.c"
#undef LANES
#undef TARGET
#undef NAME

#define LANES 16
#define TARGET TARGET_16
#define NAME(name) name##_16
#include "host/winograd_form.c"
#undef LANES
#undef TARGET
#undef NAME

const ek_winograd_form *ek_winograd_form_of(int outputs, int taps, int lanes)
{
    static const ek_winograd_form *const forms[] = {&form_2_2_8,  &form_2_3_8,  &form_4_3_8,
                                                    &form_2_2_16, &form_2_3_16, &form_4_3_16};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i]->outputs == outputs && forms[i]->taps == taps && forms[i]->lanes == lanes)
            return forms[i];
    return NULL;
}

#else /* for each number of LANES */

/* Vectors are an extension of GNU C. They are used because compilers didn't vectorise loops over
 * channels. `restrict` keeps the addresses of points in registers. */
typedef float NAME(lanes) __attribute__((vector_size(4 * LANES)));
typedef void NAME(form_line)(const NAME(lanes) * in, NAME(lanes) * out);

/* ---- one dimension; `in` and `out` are lines of lanes ---- */

LINE NAME(form_inputs_2_2)(const NAME(lanes) * d, NAME(lanes) * out)
{
    out[0] = d[0] - d[1];
    out[1] = d[1];
    out[2] = d[2] - d[1];
}

LINE NAME(form_weights_2_2)(const NAME(lanes) * g, NAME(lanes) * out)
{
    out[0] = g[0];
    out[1] = g[0] + g[1];
    out[2] = g[1];
}

LINE NAME(form_gradients_2_2)(const NAME(lanes) * y, NAME(lanes) * out)
{
    NAME(form_weights_2_2)(y, out);
}

LINE NAME(form_results_2_2)(const NAME(lanes) * m, NAME(lanes) * y)
{
    y[0] = m[0] + m[1];
    y[1] = m[1] + m[2];
}

LINE NAME(form_sums_2_2)(const NAME(lanes) * u, NAME(lanes) * g)
{
    NAME(form_results_2_2)(u, g);
}

LINE NAME(form_inputs_2_3)(const NAME(lanes) * d, NAME(lanes) * out)
{
    out[0] = d[0] - d[2];
    out[1] = d[1] + d[2];
    out[2] = d[2] - d[1];
    out[3] = d[3] - d[1];
}

LINE NAME(form_weights_2_3)(const NAME(lanes) * g, NAME(lanes) * out)
{
    NAME(lanes) even = 0.5f * (g[0] + g[2]), odd = 0.5f * g[1];
    out[0] = g[0];
    out[1] = even + odd;
    out[2] = even - odd;
    out[3] = g[2];
}

LINE NAME(form_gradients_2_3)(const NAME(lanes) * y, NAME(lanes) * out)
{
    out[0] = y[0];
    out[1] = y[0] + y[1];
    out[2] = y[0] - y[1];
    out[3] = y[1];
}

LINE NAME(form_results_2_3)(const NAME(lanes) * m, NAME(lanes) * y)
{
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] + m[3];
}

LINE NAME(form_sums_2_3)(const NAME(lanes) * u, NAME(lanes) * g)
{
    NAME(lanes) even = 0.5f * (u[1] + u[2]);
    g[0] = u[0] + even;
    g[1] = 0.5f * (u[1] - u[2]);
    g[2] = u[3] + even;
}

LINE NAME(form_inputs_4_3)(const NAME(lanes) * d, NAME(lanes) * out)
{
    NAME(lanes) t = d[4] - d[2], u = d[3] - d[1], s = t + 1.5f * d[3], v = u + 1.5f * d[2];
    out[0] = d[0] - 2 * d[2] + d[4] + 1.5f * u;
    out[1] = s + v;
    out[2] = s - v;
    out[3] = t + 2 * u;
    out[4] = t - 0.5f * u;
    out[5] = d[1] - 2 * d[3] + d[5] + 1.5f * t;
}

LINE NAME(form_weights_4_3)(const NAME(lanes) * g, NAME(lanes) * out)
{
    NAME(lanes) even = (1 / 3.f) * (g[0] + g[2]), odd = (1 / 3.f) * g[1];
    out[0] = g[0];
    out[1] = odd + even;
    out[2] = odd - even;
    out[3] = (-16 / 15.f) * g[0] - (8 / 15.f) * g[1] - (4 / 15.f) * g[2];
    out[4] = (1 / 15.f) * g[0] - (2 / 15.f) * g[1] + (4 / 15.f) * g[2];
    out[5] = g[2];
}

LINE NAME(form_gradients_4_3)(const NAME(lanes) * y, NAME(lanes) * out)
{
    NAME(lanes) even = y[0] + y[2], odd = y[1] + y[3];
    out[0] = y[0];
    out[1] = even + odd;
    out[2] = even - odd;
    out[3] = y[0] + 0.5f * y[1] + 0.25f * y[2] + 0.125f * y[3];
    out[4] = y[0] - 2 * y[1] + 4 * y[2] - 8 * y[3];
    out[5] = y[3];
}

LINE NAME(form_results_4_3)(const NAME(lanes) * m, NAME(lanes) * y)
{
    NAME(lanes) sum = m[1] + m[2], difference = m[1] - m[2];
    y[0] = m[0] + sum + m[3] + m[4];
    y[1] = difference + 0.5f * m[3] - 2 * m[4];
    y[2] = sum + 0.25f * m[3] + 4 * m[4];
    y[3] = difference + 0.125f * m[3] - 8 * m[4] + m[5];
}

LINE NAME(form_sums_4_3)(const NAME(lanes) * u, NAME(lanes) * g)
{
    NAME(lanes) odd = (1 / 3.f) * (u[1] - u[2]);
    g[0] = u[0] + odd - (16 / 15.f) * u[3] + (1 / 15.f) * u[4];
    g[1] = (1 / 3.f) * (u[1] + u[2]) - (8 / 15.f) * u[3] - (2 / 15.f) * u[4];
    g[2] = odd - (4 / 15.f) * u[3] + (4 / 15.f) * u[4] + u[5];
}

/* ---- two dimensions: the rows, then the columns ---- */

LINE NAME(form_plane)(NAME(form_line) * line, int from, int to, const NAME(lanes) * in,
                      NAME(lanes) * out)
{
    NAME(lanes) rows[MOST][MOST];
#pragma GCC unroll 6
    for (int i = 0; i < from; i++)
        line(in + i * from, rows[i]);
#pragma GCC unroll 6
    for (int j = 0; j < to; j++) {
        NAME(lanes) column[MOST], mapped[MOST];
#pragma GCC unroll 6
        for (int i = 0; i < from; i++)
            column[i] = rows[i][j];
        line(column, mapped);
#pragma GCC unroll 6
        for (int i = 0; i < to; i++)
            out[i * to + j] = mapped[i];
    }
}

LINE NAME(form_spread_lanes)(NAME(form_line) * line, int from, int to, int ends,
                             const float *const *sources, int64_t first, float *target,
                             const int64_t *at)
{
    NAME(lanes) in[MOST * MOST], out[MOST * MOST];
#pragma GCC unroll 36
    for (int i = 0; i < from * from; i++) {
        in[i] = (NAME(lanes)){0};
        if (form_has(ends, i, from))
            memcpy(&in[i], sources[i] + first, sizeof in[i]);
    }
    NAME(form_plane)(line, from, to, in, out);
#pragma GCC unroll 36
    for (int i = 0; i < to * to; i++)
        if (form_has(ends, i, to))
            memcpy(target + at[i] + first, &out[i], sizeof out[i]);
}

LINE NAME(form_collect_lanes)(NAME(form_line) * line, int from, int to, int ends, int ends_to,
                              const float *source, const int64_t *at, const float *start,
                              int64_t first, float *const *targets)
{
    NAME(lanes) in[MOST * MOST], out[MOST * MOST], more;
#pragma GCC unroll 36
    for (int i = 0; i < from * from; i++) {
        in[i] = (NAME(lanes)){0};
        if (form_has(ends, i, from))
            memcpy(&in[i], source + at[i] + first, sizeof in[i]);
    }
    memcpy(&more, start + first, sizeof more);
    NAME(form_plane)(line, from, to, in, out);
#pragma GCC unroll 36
    for (int i = 0; i < to * to; i++) {
        out[i] += more;
        if (form_has(ends_to, i, to))
            memcpy(targets[i] + first, &out[i], sizeof out[i]);
    }
}

#define SPREAD(LINE_NAME, FROM, TO, ENDS)                                                     \
    TARGET static void NAME(LINE_NAME##_spread_##ENDS)(const float *const *from, float *to,   \
                                                       const int64_t *restrict at, int64_t n) \
    {                                                                                         \
        for (int64_t i = 0; i < n; i += LANES)                                                \
            NAME(form_spread_lanes)(NAME(LINE_NAME), FROM, TO, ENDS, from, i, to, at);        \
    }

#define COLLECT(LINE_NAME, FROM, TO, ENDS, ENDS_TO)                                           \
    TARGET static void NAME(LINE_NAME##_collect_##ENDS)(const float *from, const int64_t *at, \
                                                        const float *start, float *const *to, \
                                                        int64_t n)                            \
    {                                                                                         \
        for (int64_t i = 0; i < n; i += LANES)                                                \
            NAME(form_collect_lanes)                                                          \
        (NAME(LINE_NAME), FROM, TO, ENDS, ENDS_TO, from, at, start, i, to);                   \
    }

#define TRANSFORMS(M, R, ENDS)                                \
    SPREAD(form_inputs_##M##_##R, M + R - 1, M + R - 1, ENDS) \
    SPREAD(form_weights_##M##_##R, R, M + R - 1, ENDS)        \
    COLLECT(form_results_##M##_##R, M + R - 1, M, ENDS, 0)    \
    COLLECT(form_sums_##M##_##R, M + R - 1, R, ENDS, ENDS)

/* ALL(NAME) lists the functions NAME_0, NAME_1 and so on. */
#define FORM(M, R, ALL)                                                            \
    SPREAD(form_gradients_##M##_##R, M, M + R - 1, 0)                              \
    static const ek_winograd_form NAME(                                            \
        form_##M##_##R) = {.outputs = M,                                           \
                           .taps = R,                                              \
                           .points = M + R - 1,                                    \
                           .lanes = LANES,                                         \
                           .gradients = NAME(form_gradients_##M##_##R##_spread_0), \
                           .inputs = {ALL(form_inputs_##M##_##R##_spread)},        \
                           .weights = {ALL(form_weights_##M##_##R##_spread)},      \
                           .results = {ALL(form_results_##M##_##R##_collect)},     \
                           .sums = {ALL(form_sums_##M##_##R##_collect)}};
#define WHOLE(F) NAME(F##_0)
#define ENDS(F) NAME(F##_0), NAME(F##_1), NAME(F##_2), NAME(F##_3)

TRANSFORMS(2, 2, 0)
TRANSFORMS(2, 2, 1)
TRANSFORMS(2, 2, 2)
TRANSFORMS(2, 2, 3)
TRANSFORMS(2, 3, 0)
TRANSFORMS(4, 3, 0)
FORM(2, 2, ENDS)
FORM(2, 3, WHOLE)
FORM(4, 3, WHOLE)
#undef SPREAD
#undef COLLECT
#undef TRANSFORMS
#undef FORM
#undef WHOLE
#undef ENDS

#endif
