/** @file
 * index.h: operations that pick elements by position. `index` is i64 or i32; out of bounds is
 * EK_E_INVALID. The rules of ops.h hold. */
#ifndef EVENKEEL_INDEX_H
#define EVENKEEL_INDEX_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** x with slice index[i] along `dim` as slice i. index has one dimension. */
EK_API ek_tensor *ek_index_select(ek_tensor *x, int dim, ek_tensor *index);
/** As torch.gather: out[i][j] = x[index[i][j]][j] for dim 0. ek_scatter_add_dim is its adjoint:
 * torch.scatter_add into zeros of `shape`. */
EK_API ek_tensor *ek_gather_dim(ek_tensor *x, int dim, ek_tensor *index);
EK_API ek_tensor *ek_scatter_add_dim(ek_tensor *x, int dim, ek_tensor *index, ek_shape shape);

/** x with elements of `source` written at index: y[index[i][j]][j] = source[i][j] for dim 0, as
 * torch.scatter. source isn't smaller than index. Of several elements for one place the last one
 * stays, on a GPU any of them, unless algorithms are deterministic (precision.h). ek_scatter_fill
 * writes one number, which is limited as in ek_full. */
EK_API ek_tensor *ek_scatter_dim(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source);
EK_API ek_tensor *ek_scatter_fill(ek_tensor *x, int dim, ek_tensor *index, double value);

/** x, of which slice index[i] along `dim` is added to, replaced or filled; slice i of `source` is
 * added (times alpha) or written. index has one dimension. Repeated indices add up; of several
 * written slices one stays as in ek_scatter_dim. */
EK_API ek_tensor *ek_index_add(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source,
                               double alpha);
EK_API ek_tensor *ek_index_copy(ek_tensor *x, int dim, ek_tensor *index, ek_tensor *source);
EK_API ek_tensor *ek_index_fill(ek_tensor *x, int dim, ek_tensor *index, double value);

/** As x[indices[0], indices[1], ...]: each index belongs to a dimension of x. A NULL takes the
 * whole dimension; dimensions after the last index are whole. i64 or i32 indices are broadcast
 * together, and may be negative, which counts from the end. A bool or u8 index is a mask over as
 * many dimensions as it has, for which the host waits. The indices' common shape takes the place of
 * the indexed dimensions if these are neighbours, else it comes first. */
EK_API ek_tensor *ek_index(ek_tensor *x, ek_tensor *const *indices, int count);
/** x with `values`, broadcast to ek_index's shape, written (or added, if they accumulate) there. */
EK_API ek_tensor *ek_index_put(ek_tensor *x, ek_tensor *const *indices, int count,
                               ek_tensor *values, bool accumulate);

/** x with `source` in place of ek_slice(x, dim, start, end, step), or of ek_select(x, dim, index):
 * assignment to a part within a graph. ek_copy_ writes to a part in place, but not to that of a
 * tensor with a history. */
EK_API ek_tensor *ek_slice_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t start,
                                   int64_t end, int64_t step);
EK_API ek_tensor *ek_select_scatter(ek_tensor *x, ek_tensor *source, int dim, int64_t index);

EK_END_DECLARATIONS
#endif
