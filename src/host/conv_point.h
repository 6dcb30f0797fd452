/* conv_point.h: the job that conv_point.c and conv_point_weight.c compute. */
#ifndef EK_HOST_CONV_POINT_H
#define EK_HOST_CONV_POINT_H

#include <stdatomic.h>

#include "host/conv.h"
#include "host/gemm_kernel.h"
#include "host/parallel.h"

/* A convolution with windows of one element, or one of its gradients. */
typedef struct ek_point {
    const ek_gemm_kernel *kernel;
    bool gradient; /* the input gradient */
    float *x, *y, *w, *bias;
    int64_t channels, outputs, in[2], out[2], stride[2];
    int64_t positions; /* of all of y */
    bool dense;        /* position p of y is position p of x */
    int64_t panels;    /* as wide as the kernel */

    /* Forward and input gradient: to (positions, columns) = from (positions, depth) times weights.
     * A tile has a kernel's rows. A unit is a group of panels times a range of tiles. */
    const float *from;
    float *to;
    int64_t depth, columns, groups, group_depth, tiles, ranges;
    int64_t row_parts; /* tiles of a row of a plane, unless dense */

    /* Weight gradient: a tile has a kernel's outputs. A unit is a block of panels of channels times
     * a block of tiles. */
    int64_t row_tiles, row_blocks, panel_blocks, position_blocks;
    int64_t block_outputs; /* the most outputs of a block */
    bool copies_x, copies_y;

    char *workspace; /* of each part */
    size_t workspace_stride;
    atomic_int next_part;
} ek_point;

/* Returns the position of x that belongs to a position of y. */
static inline int64_t ek_point_of(const ek_point *j, int64_t position)
{
    if (j->dense)
        return position;
    int64_t column = position % j->out[1], row = position / j->out[1];
    int64_t sample = row / j->out[0];
    row %= j->out[0];
    return (sample * j->in[0] + row * j->stride[0]) * j->in[1] + column * j->stride[1];
}

/* Returns what to prefetch of `count` positions of y from `position` on: `channels` outputs of y
 * from `first` on, or with `of_x` channels of x. */
ek_gemm_ahead ek_point_ahead(const ek_point *j, bool of_x, int64_t position, int64_t count,
                             int64_t first, int64_t channels);

/* Spreads the prefetching over `steps` steps along k. */
void ek_point_set_pace(ek_gemm_ahead *ahead, int64_t steps);

/* Returns a workspace that only the calling part of ek_point_run uses. */
float *ek_point_take_workspace(ek_point *j);

/* Runs the body over `units` units in parts, each with `count` floats of workspace. `work` is the
 * number of multiplications of all units. */
int ek_point_run(ek_dev *dev, ek_point *j, int64_t units, int64_t work, int64_t count,
                 ek_parallel_body *body);

/* Computes ek_conv_point's weight gradient. */
int ek_point_weight(ek_dev *dev, ek_point *j);

#endif
