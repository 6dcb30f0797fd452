/* walk.c: see walk.h. */
#include "kernels/walk.h"

/* Returns true if a walk has dimension i outside of dimension j. The first operand whose strides
 * for both differ and aren't 0 decides; if there is none, the order of the dimensions does. */
static bool walk_is_outside(int operands, const int64_t *const *strides, int i, int j)
{
    for (int k = 0; k < operands; k++) {
        int64_t a = strides[k][i], b = strides[k][j];
        if (a != 0 && b != 0 && a != b)
            return a > b;
    }
    return i < j;
}

/* Returns true if one step along `outer` is as long as all of `inner`, for every operand. */
static bool walk_can_join(const ek_walk *walk, int outer, int inner)
{
    for (int k = 0; k < walk->operands; k++)
        if (walk->stride[k][outer] != walk->shape[inner] * walk->stride[k][inner])
            return false;
    return true;
}

void ek_walk_init_raw(ek_walk *walk, int operands, int ndim, const int64_t *shape,
                      const int64_t *const *strides)
{
    int order[EK_MAX_DIMS], kept = 0;
    walk->operands = operands;
    walk->count = 1;
    for (int d = 0; d < ndim; d++) {
        walk->count *= shape[d];
        if (shape[d] == 1)
            continue;
        int place = kept++;
        for (; place > 0 && walk_is_outside(operands, strides, d, order[place - 1]); place--)
            order[place] = order[place - 1];
        order[place] = d;
    }
    walk->ndim = 0;
    for (int i = 0; i < kept; i++) {
        int last = walk->ndim;
        walk->shape[last] = shape[order[i]];
        for (int k = 0; k < operands; k++)
            walk->stride[k][last] = strides[k][order[i]];
        if (last > 0 && walk_can_join(walk, last - 1, last)) {
            walk->shape[last - 1] *= walk->shape[last];
            for (int k = 0; k < operands; k++)
                walk->stride[k][last - 1] = walk->stride[k][last];
        } else {
            walk->ndim++;
        }
    }
    if (walk->ndim == 0) {
        walk->ndim = 1;
        walk->shape[0] = 1;
        for (int k = 0; k < operands; k++)
            walk->stride[k][0] = 1;
    }
}

void ek_walk_init(ek_walk *walk, int operands, const ek_tensor *const *tensors)
{
    const int64_t *strides[EK_WALK_OPERANDS];
    for (int k = 0; k < operands; k++)
        strides[k] = tensors[k]->stride;
    ek_walk_init_raw(walk, operands, tensors[0]->ndim, tensors[0]->shape, strides);
}

bool ek_walk_is_flat(const ek_walk *walk, int operand)
{
    int64_t expected = 1;
    for (int d = walk->ndim - 1; d >= 0; d--) {
        if (walk->stride[operand][d] != expected)
            return false;
        expected *= walk->shape[d];
    }
    return true;
}

bool ek_walk_is_constant(const ek_walk *walk, int operand)
{
    for (int d = 0; d < walk->ndim; d++)
        if (walk->stride[operand][d] != 0 && walk->shape[d] != 1)
            return false;
    return true;
}

void ek_cursor_init(const ek_walk *walk, ek_cursor *cursor, int64_t position)
{
    for (int k = 0; k < walk->operands; k++)
        cursor->offset[k] = 0;
    for (int d = walk->ndim - 1; d >= 0; d--) {
        cursor->index[d] = 0;
        if (position == 0) /* most small walks begin at 0, which needs no slow divisions */
            continue;
        int64_t size = walk->shape[d] > 0 ? walk->shape[d] : 1;
        int64_t at = d > 0 ? position % size : position;
        position /= size;
        cursor->index[d] = at;
        for (int k = 0; k < walk->operands; k++)
            cursor->offset[k] += at * walk->stride[k][d];
    }
}
