/* walk.h: index arithmetic of kernels over several tensors of one shape.
 *
 * A walk is an order in which elements are visited. Dimensions are sorted by the first tensor's
 * strides, largest first; dimensions of size 1 are dropped; neighbours are joined if all tensors
 * allow it. So dense tensors of one layout have a single dimension of stride 1, and a bias that is
 * broadcast over channels-last memory has rows over the channels. */
#ifndef EK_KERNELS_WALK_H
#define EK_KERNELS_WALK_H

#include "core/tensor.h"

enum { EK_WALK_OPERANDS = 6 };

typedef struct ek_walk {
    int ndim; /* 1 or more */
    int operands;
    int64_t count; /* elements */
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_WALK_OPERANDS][EK_MAX_DIMS]; /* counted in elements */
} ek_walk;

/* A place on a walk: position in each dimension, and offset of each operand in elements. */
typedef struct ek_cursor {
    int64_t index[EK_MAX_DIMS];
    int64_t offset[EK_WALK_OPERANDS];
} ek_cursor;

/* Begins a walk over tensors that all have the first tensor's shape. */
void ek_walk_init(ek_walk *walk, int operands, const ek_tensor *const *tensors);

/* Begins a walk over explicit geometry. strides[k] has ndim entries. */
void ek_walk_init_raw(ek_walk *walk, int operands, int ndim, const int64_t *shape,
                      const int64_t *const *strides);

/* Returns true if the operand is one run of stride 1, in the order of the walk. */
bool ek_walk_is_flat(const ek_walk *walk, int operand);
/* Returns true if the operand is one element, repeated. */
bool ek_walk_is_constant(const ek_walk *walk, int operand);

void ek_cursor_init(const ek_walk *walk, ek_cursor *cursor, int64_t position);

/* Advances the cursor by `count` steps of dimension d, which must not extend beyond the dimension's
 * end. The cursor must be at the beginning of the dimensions within d. */
static inline void ek_cursor_step(const ek_walk *walk, ek_cursor *cursor, int d, int64_t count)
{
    cursor->index[d] += count;
    for (int k = 0; k < walk->operands; k++)
        cursor->offset[k] += count * walk->stride[k][d];
    for (; d > 0 && cursor->index[d] == walk->shape[d]; d--) {
        cursor->index[d] = 0;
        cursor->index[d - 1]++;
        for (int k = 0; k < walk->operands; k++)
            cursor->offset[k] += walk->stride[k][d - 1] - walk->shape[d] * walk->stride[k][d];
    }
}

/* Advances the cursor by `count` elements, which must not extend beyond its innermost row. */
static inline void ek_cursor_advance(const ek_walk *walk, ek_cursor *cursor, int64_t count)
{
    ek_cursor_step(walk, cursor, walk->ndim - 1, count);
}

/* Returns the number of elements from the cursor to the end of its innermost row. */
static inline int64_t ek_cursor_row_rest(const ek_walk *walk, const ek_cursor *cursor)
{
    return walk->shape[walk->ndim - 1] - cursor->index[walk->ndim - 1];
}

/* Returns the smaller of `rest` and the number of elements to the end of the innermost row. */
static inline int64_t ek_cursor_run(const ek_walk *walk, const ek_cursor *cursor, int64_t rest)
{
    int64_t run = ek_cursor_row_rest(walk, cursor);
    return run < rest ? run : rest;
}

/* Returns how many whole rows there are among the next `rest` elements, up to the end of the
 * dimension around the innermost one; 0 if the cursor isn't at the beginning of a row. */
static inline int64_t ek_cursor_rows(const ek_walk *walk, const ek_cursor *cursor, int64_t rest)
{
    const int last = walk->ndim - 1;
    if (last == 0 || cursor->index[last] != 0)
        return 0;
    const int64_t rows = rest / walk->shape[last];
    const int64_t most = walk->shape[last - 1] - cursor->index[last - 1];
    return rows < most ? rows : most;
}

#endif
