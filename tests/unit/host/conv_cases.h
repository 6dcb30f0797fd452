/* conv_cases.h: a convolution, its gradients, and what they are by loops in double. */
#ifndef EK_TESTS_CONV_CASES_H
#define EK_TESTS_CONV_CASES_H

#include "host/twin.h"

typedef struct conv_case {
    const char *what;
    int dims;
    int64_t samples, channels, outputs, groups;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3];
} conv_case;

enum { Y, DX, DW, DBIAS, RESULTS };

typedef struct problem {
    const char *what;
    ek_conv_params params;
    twin x, w, bias, dy, out[RESULTS];
    double *wanted[RESULTS];
} problem;

/* Returns which element of a plane of x tap `tap` of the window of output `at` reads; -1: none. */
static inline int64_t problem_reads(const problem *p, int64_t at, int64_t tap)
{
    const int64_t *xs = p->x.host->shape, *ws = p->w.host->shape, *ys = p->dy.host->shape;
    int64_t position = 0, step = 1;
    for (int i = p->params.dims - 1; i >= 0; i--) {
        int64_t q = at % ys[2 + i] * p->params.stride[i] - p->params.padding[i] +
                    tap % ws[2 + i] * p->params.dilation[i];
        if (q < 0 || q >= xs[2 + i])
            return -1;
        at /= ys[2 + i];
        tap /= ws[2 + i];
        position += q * step;
        step *= xs[2 + i];
    }
    return position;
}

/* Computes all four results at once: each product of an input and a weight counts in three sums. */
static inline void problem_solve(problem *p)
{
    const int64_t *xs = p->x.host->shape, *ws = p->w.host->shape, *ys = p->dy.host->shape;
    double *x = case_values(p->x.host), *w = case_values(p->w.host), *dy = case_values(p->dy.host);
    int64_t taps = 1, in_plane = 1, plane = 1, inputs = ws[1], each = ys[1] / p->params.groups;
    for (int i = 0; i < p->params.dims; i++) {
        taps *= ws[2 + i];
        in_plane *= xs[2 + i];
        plane *= ys[2 + i];
    }
    for (int64_t yi = 0; yi < ek_count(p->dy.host); yi++) {
        int64_t o = yi / plane % ys[1];
        p->wanted[Y][yi] = p->bias.host ? case_get(p->bias.host, o) : 0;
        p->wanted[DBIAS][o] += dy[yi];
    }
    for (int64_t at = 0; at < plane; at++)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t position = problem_reads(p, at, tap);
            for (int64_t no = 0; no < ys[0] * ys[1] && position >= 0; no++) {
                int64_t o = no % ys[1], yi = no * plane + at, wi = o * inputs * taps + tap;
                int64_t xi = (no / ys[1] * xs[1] + o / each * inputs) * in_plane + position;
                for (int64_t c = 0; c < inputs; c++, xi += in_plane, wi += taps) {
                    p->wanted[Y][yi] += x[xi] * w[wi];
                    p->wanted[DX][xi] += dy[yi] * w[wi];
                    p->wanted[DW][wi] += dy[yi] * x[xi];
                }
            }
        }
    free(x), free(w), free(dy);
}

/* `unread`: windows at the end of each dimension that y lacks; layouts of x, w and y. */
static inline problem problem_of(const conv_case *c, int64_t unread, ek_dtype dtype,
                                 const twin_layout layouts[3], bool with_bias)
{
    problem p = {.what = c->what, .params = {.dims = c->dims, .groups = c->groups}};
    int64_t x[5] = {c->samples, c->channels}, w[5] = {c->outputs, c->channels / c->groups};
    int64_t y[5] = {c->samples, c->outputs};
    int ndim = 2 + c->dims;
    for (int i = 0; i < c->dims; i++) {
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = c->dilation[i];
        x[2 + i] = c->in[i];
        w[2 + i] = c->window[i];
        y[2 + i] = (c->in[i] + 2 * c->padding[i] - c->dilation[i] * (c->window[i] - 1) - 1) /
                       c->stride[i] +
                   1;
        y[2 + i] -= y[2 + i] > unread ? unread : 0;
    }
    p.x = twin_uniform(twin_new(dtype, ndim, x, layouts[0]), -2, 2, 1);
    p.w = twin_uniform(twin_new(dtype, ndim, w, layouts[1]), -2, 2, 2);
    p.dy = twin_uniform(twin_new(dtype, ndim, y, layouts[2]), -2, 2, 3);
    p.out[Y] = twin_new(dtype, ndim, y, layouts[2]);
    p.out[DX] = twin_new(dtype, ndim, x, layouts[0]);
    p.out[DW] = twin_new(dtype, ndim, w, layouts[1]);
    if (with_bias) {
        const twin_layout rows = layouts[1] == TWIN_GAPS ? TWIN_GAPS : TWIN_DENSE_OFFSET;
        p.bias = twin_uniform(twin_new(dtype, 1, w, rows), -2, 2, 4);
        p.out[DBIAS] = twin_new(dtype, 1, w, rows);
    }
    for (int i = 0; i < DBIAS; i++)
        p.wanted[i] = case_zeros(ek_count(p.out[i].host));
    p.wanted[DBIAS] = case_zeros(c->outputs);
    problem_solve(&p);
    return p;
}

static inline void problem_free(problem *p)
{
    for (int i = 0; i < RESULTS; i++)
        free(p->wanted[i]);
}

#endif
