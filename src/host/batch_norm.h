/* batch_norm.h: the geometry that the batch normalisation kernels share.
 *
 * Rows: memory is `rows` of C contiguous channels (channels-last, and (N, C)). Where C is small and
 * rows follow each other without gaps, `lanes` of them are taken as one row of lanes * C, so that
 * loops over a row are long enough for vectors; parameters are repeated accordingly. Planes: for
 * each of `outer` samples and C channels a contiguous run of `inner` elements. */
#ifndef EK_HOST_BATCH_NORM_H
#define EK_HOST_BATCH_NORM_H

#include "host/tile.h"

typedef struct ek_norm_plan {
    int64_t channels;
    bool planes;
    /* rows */
    int64_t rows, row_stride; /* of the joined rows */
    int64_t lanes, width;     /* width = lanes * channels */
    int64_t rest;             /* elements after the last joined row (lanes > 1) */
    int64_t block_rows, blocks;
    /* planes */
    int64_t outer, outer_stride, channel_stride, inner;
} ek_norm_plan;

enum {
    EK_NORM_COLUMNS = 256, /* channels of one task */
    EK_NORM_LANES = 64     /* elements of a joined row */
};

/* Rows that are summed in the tensor's own type before they join the sums in f64. */
static inline int64_t ek_norm_short_rows(int64_t columns)
{
    int64_t rows = 3072 / (columns > 0 ? columns : 1);
    return rows > 32 ? 32 : rows < 8 ? 8 : rows;
}

/* Partial sums of one task, one value per column of the plan. */
typedef struct ek_norm_job {
    ek_norm_plan plan;
    const void *x, *dy, *mask;                  /* mask: y_relu or NULL */
    void *y;                                    /* also dx */
    const void *center, *scale, *shift, *slope; /* parameters per column, or NULL */
    double *first, *second;                     /* partial sums, [block][width] */
    bool relu;
} ek_norm_job;

#endif
