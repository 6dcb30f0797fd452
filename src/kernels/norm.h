/* norm.h: the geometry of normalisation, which its slots derive from their operands' shapes. */
#ifndef EK_KERNELS_NORM_H
#define EK_KERNELS_NORM_H

#include "core/tensor.h"

/* x (N, C, ...) as (outer, groups, channels of a group, inner). */
typedef struct ek_norm_geometry {
    int64_t outer, groups, each, inner;
    bool batch; /* statistics are per channel, and over outer, too */
} ek_norm_geometry;

/* Returns the geometry of a non-empty x for statistics of shape (C) or (N, groups). mean or invstd
 * may be NULL. */
static inline ek_norm_geometry ek_norm_geometry_of(const ek_tensor *x, const ek_tensor *mean,
                                                   const ek_tensor *invstd)
{
    const ek_tensor *statistics = mean ? mean : invstd;
    ek_norm_geometry g;
    g.batch = statistics->ndim == 1;
    g.outer = x->shape[0];
    g.groups = g.batch ? x->shape[1] : statistics->shape[1];
    g.each = x->shape[1] / g.groups;
    g.inner = 1;
    for (int d = 2; d < x->ndim; d++)
        g.inner *= x->shape[d];
    return g;
}

/* Returns true if statistics are (N, groups) and a group of a sample is one run of elements with a
 * parameter each: if every channel has a single value, or if there is one group and `parameter`
 * (weight or bias) is NULL or has x's shape without N. */
static inline bool ek_norm_has_runs(const ek_norm_geometry *g, const ek_tensor *x,
                                    const ek_tensor *parameter)
{
    return !g->batch &&
           (g->inner == 1 || (g->groups == 1 && (!parameter || parameter->ndim == x->ndim - 1)));
}

#endif
