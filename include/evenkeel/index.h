/** @file
 * index.h: operations that pick elements by position. `index` is i64 or i32; out of bounds is
 * EK_E_INVALID. The rules of ops.h hold. */
#ifndef EVENKEEL_INDEX_H
#define EVENKEEL_INDEX_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** Picks slices of x along `dim`: slice i of the result is slice index[i] of x. index has one
 * dimension. */
EK_API ek_tensor *ek_index_select(ek_tensor *x, int dim, ek_tensor *index);
/** As torch.gather: out[i][j] = x[index[i][j]][j] for dim 0. ek_scatter_add_dim is its adjoint:
 * torch.scatter_add into zeros of `shape`. */
EK_API ek_tensor *ek_gather_dim(ek_tensor *x, int dim, ek_tensor *index);
EK_API ek_tensor *ek_scatter_add_dim(ek_tensor *x, int dim, ek_tensor *index, ek_shape shape);

/** x with elements of `source` written at index: y[index[i][j]][j] = source[i][j] for dim 0, as
 * torch.scatter. source isn't smaller than index. If several elements go to one place, the last one
 * wins; on a GPU any of them, unless algorithms are deterministic (precision.h). ek_scatter_fill
 * writes one number, which is limited as in ek_full. */
EK_API ek_tensor *ek_scatter_dim(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source);
EK_API ek_tensor *ek_scatter_fill(ek_tensor *x, int dim, ek_tensor *index, double value);

/** Returns a copy of x with slices index[i] along `dim` changed: slice i of `source` is added to
 * them (times alpha) or replaces them, or they are filled with a number. index has one dimension.
 * Repeated indices add up; of several slices written to one place, one wins as in ek_scatter_dim.
 */
EK_API ek_tensor *ek_index_add(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source,
                               double alpha);
EK_API ek_tensor *ek_index_copy(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source);
EK_API ek_tensor *ek_index_fill(ek_tensor *x, int dim, ek_tensor *index, double value);

/** As x[indices[0], indices[1], ...]: each index belongs to a dimension of x. A NULL takes the
 * whole dimension; dimensions after the last index are whole. i64 or i32 indices are broadcast
 * together; negative ones count from the end. A bool or u8 index is a mask over as many dimensions
 * as it has, and the host waits for it. If the indexed dimensions are neighbours, the indices'
 * common shape takes their place, else it comes first. */
EK_API ek_tensor *ek_index(ek_tensor *x, ek_tensor *const *indices, int count);
/** x with `values`, broadcast to the shape of ek_index's result, written to the indexed elements,
 * or added to them if `accumulate` is set. */
EK_API ek_tensor *ek_index_put(ek_tensor *x, ek_tensor *const *indices, int count,
                               ek_tensor *values, bool accumulate);

/** x with `source` in place of ek_slice(x, dim, start, end, step), or of ek_select(x, dim, index):
 * a differentiable assignment to a part of x. (ek_copy_ writes in place, but not to a part of a
 * tensor with a history.) */
EK_API ek_tensor *ek_slice_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t start,
                                   int64_t end, int64_t step);
EK_API ek_tensor *ek_select_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t index);

EK_END_DECLARATIONS
#endif
