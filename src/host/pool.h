/* pool.h: what the pooling kernels share: windows over channels-last planes. */
#ifndef EK_HOST_POOL_H
#define EK_HOST_POOL_H

#include <stdatomic.h>

#include "kernels/kernels.h"

/* Planes of up to three dimensions; missing ones come first, with size 1. x (N, in, C) and y (N,
 * out, C) are channels-last, in the order of their names. */
typedef struct ek_pool {
    int64_t samples, channels;
    int64_t in[3], out[3];
    int64_t in_plane, out_plane;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    bool adaptive; /* windows by the sizes alone */
    bool count_include_pad;
    void *x, *y;              /* or their gradients */
    int64_t *index;           /* (N, out, C) */
    atomic_bool out_of_range; /* set by kernels that read a position outside of the plane */
} ek_pool;

/* Whether the position can be read from or added to. */
static inline bool ek_pool_holds(ek_pool *pool, int64_t position)
{
    if (position >= 0 && position < pool->in_plane)
        return true;
    atomic_store_explicit(&pool->out_of_range, true, memory_order_relaxed);
    return false;
}

/* params NULL: adaptive. */
ek_pool ek_pool_of(const ek_tensor *x, const ek_tensor *y, const ek_pool_params *params);

/* One dimension of a window: first position, number of positions inside the plane and the step
 * between them, and how many positions count for the mean. */
typedef struct ek_window {
    int64_t first, count, step, divisor;
} ek_window;

/* The window of one output position (of the plane) in all three dimensions. */
void ek_pool_window(const ek_pool *pool, int64_t position, ek_window window[3]);

/* Channels are computed in blocks that fit the registers and the stack. */
enum { EK_POOL_BLOCK = 64 };

static inline int64_t ek_pool_blocks(const ek_pool *pool)
{
    return (pool->channels + EK_POOL_BLOCK - 1) / EK_POOL_BLOCK;
}

/* Stages x and y (and index, if not NULL) as channels-last of the dtype that bf16 computes in, runs
 * body over `count(pool)` items, and stages out what is computed. */
typedef enum ek_pool_output {
    EK_POOL_COMPUTES_X,
    EK_POOL_COMPUTES_Y,
    EK_POOL_COMPUTES_Y_INDEX
} ek_pool_output;
typedef void ek_pool_body(void *pool, int64_t begin, int64_t end);

typedef struct ek_pool_job {
    ek_pool_output output;
    ek_pool_body *f32, *f64;
    bool by_sample; /* items are (sample, channel block), else (sample, output position) */
} ek_pool_job;

int ek_pool_run(ek_dev *dev, const ek_pool_job *job, const ek_tensor *x, const ek_tensor *y,
                const ek_tensor *index, const ek_pool_params *params);

#endif
