/** @file
 * shape.h: operations that change a tensor's shape or the order of its elements, and that join and
 * cut tensors. The rules of ops.h hold. */
#ifndef EVENKEEL_SHAPE_H
#define EVENKEEL_SHAPE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** Another shape, as a view if strides allow that, else as a copy. One size may be -1. */
EK_API ek_tensor *ek_reshape(ek_tensor *x, ek_shape shape);
/** ek_f_flatten joins dimensions into one; ek_unsqueeze inserts a dimension of size 1, ek_squeeze
 * removes one. Views, if strides allow. */
EK_API ek_tensor *ek_f_flatten(ek_tensor *x, int start_dim, int end_dim);
EK_API ek_tensor *ek_unsqueeze(ek_tensor *x, int dim);
EK_API ek_tensor *ek_squeeze(ek_tensor *x, int dim);
/** Dimension i of the result is dimension order.dims[i] of x. A view. */
EK_API ek_tensor *ek_permute(ek_tensor *x, ek_shape order);
/** Two dimensions exchanged. A view. */
EK_API ek_tensor *ek_transpose(ek_tensor *x, int dim0, int dim1);
/** Elements start, start + step, ... below `end` along `dim`, as a view. Negative start and end
 * count from the end of the dimension; step > 0. */
EK_API ek_tensor *ek_slice(ek_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
EK_API ek_tensor *ek_narrow(ek_tensor *x, int dim, int64_t start, int64_t length);
/** Element `index` along `dim`, as a view without that dimension. */
EK_API ek_tensor *ek_select(ek_tensor *x, int dim, int64_t index);
EK_API ek_tensor *ek_expand(ek_tensor *x, ek_shape shape); /**< a view with zero strides */
/** x in this order of memory (x itself if it has this order); a copy of x; x converted to a dtype.
 */
EK_API ek_tensor *ek_contiguous(ek_tensor *x, ek_memory_format format);
EK_API ek_tensor *ek_clone(ek_tensor *x);
EK_API ek_tensor *ek_to_dtype(ek_tensor *x, ek_dtype dtype);
/** A copy on another device, differentiable; x itself if it is there already. */
EK_API ek_tensor *ek_to_device(ek_tensor *x, ek_device device);

/** Tensors one after the other along `dim`; ek_stack: along a new dimension `dim`. */
EK_API ek_tensor *ek_cat(ek_tensor *const *tensors, int count, int dim);
EK_API ek_tensor *ek_stack(ek_tensor *const *tensors, int count, int dim);
/** Write views to `out`. ek_split: pieces of `size`, of which the last may be smaller. ek_chunk: as
 * torch.chunk. Both return how many pieces there are, at most `capacity` (else EK_E_INVALID).
 * ek_split_sizes: pieces of the given sizes, which add up to the dimension; returns 0. */
EK_API int ek_split(ek_tensor *x, int64_t size, int dim, ek_tensor **out, int capacity);
EK_API int ek_chunk(ek_tensor *x, int chunks, int dim, ek_tensor **out, int capacity);
EK_API int ek_split_sizes(ek_tensor *x, const int64_t *sizes, int count, int dim, ek_tensor **out);
/** Writes the sizes of torch.chunk for n elements in k chunks; returns how many there are. */
EK_API int ek_chunk_sizes(int64_t n, int k, int64_t *sizes);

/** ek_split in pieces of one element, without the dimension. */
EK_API int ek_unbind(ek_tensor *x, int dim, ek_tensor **out, int capacity);

/** x with dimension `from` moved to place `to`, as a view; other dimensions keep their order. */
EK_API ek_tensor *ek_movedim(ek_tensor *x, int from, int to);
/** x with dimension `dim` cut into several dimensions, of the sizes `shape`; one may be -1. */
EK_API ek_tensor *ek_f_unflatten(ek_tensor *x, int dim, ek_shape shape);
/** Elements in reverse order along these dimensions: ek_flip(x, EK_SHAPE(0, -1)). A copy. */
EK_API ek_tensor *ek_flip(ek_tensor *x, ek_shape dims);
/** Elements moved by shifts.dims[i] along dimension dims.dims[i]; those that leave at one end enter
 * at the other. With one shift and no dimension (ek_scalar_shape()), x is rolled as one row. */
EK_API ek_tensor *ek_roll(ek_tensor *x, ek_shape shifts, ek_shape dims);
/** x repeated times.dims[i] times along each dimension. If `times` has more dimensions than x, the
 * result has them first. In ek_tile `times` may also have fewer dimensions: x's last ones. */
EK_API ek_tensor *ek_repeat(ek_tensor *x, ek_shape times);
EK_API ek_tensor *ek_tile(ek_tensor *x, ek_shape times);
/** Each element along `dim` repeated `times` times in a row; or element i times[i] times (i64 or
 * i32, one dimension, on any device, read on the host). */
EK_API ek_tensor *ek_repeat_interleave(ek_tensor *x, int64_t times, int dim);
EK_API ek_tensor *ek_repeat_interleave_by(ek_tensor *x, ek_tensor *times, int dim);

/** Matrices with zeros above (below) a diagonal: 0 is the main diagonal, positive ones are above.
 */
EK_API ek_tensor *ek_tril(ek_tensor *x, int64_t diagonal);
EK_API ek_tensor *ek_triu(ek_tensor *x, int64_t diagonal);
/** The diagonals of dim0 and dim1, as a view whose last dimension goes along them. */
EK_API ek_tensor *ek_diagonal(ek_tensor *x, int64_t diagonal, int dim0, int dim1);
/** A matrix of zeros with the vector x on its diagonal, or the diagonal of the matrix x. */
EK_API ek_tensor *ek_diag(ek_tensor *x, int64_t diagonal);

/** Writes views of `count` tensors of zero or one dimension to `out`, all of one shape: tensor i
 * along dimension i, for EK_XY the first two exchanged. Returns 0. */
typedef enum ek_indexing { EK_IJ = 0, EK_XY = 1 } ek_indexing;
EK_API int ek_meshgrid(ek_tensor *const *tensors, int count, ek_indexing indexing, ek_tensor **out);

/* ---- padding and windows ---- */

/** As F.pad: pad[0] and pad[1] are put before and after the last dimension, pad[2] and pad[3]
 * before and after the one before it, and so on; `count` numbers. Negative ones cut. Constants pad
 * any dimensions. The other modes pad up to three: reflections (without the edge) by less than the
 * size, circular ones by no more than it. `value` counts for constants, limited as in ek_full. */
typedef enum ek_pad_mode {
    EK_PAD_CONSTANT = 0,
    EK_PAD_REFLECT = 1,
    EK_PAD_REPLICATE = 2,
    EK_PAD_CIRCULAR = 3
} ek_pad_mode;
EK_API ek_tensor *ek_f_pad(ek_tensor *x, const int64_t *pad, int count, ek_pad_mode mode,
                           double value);

/** A view of the windows of `size` elements along `dim`, one every `step` elements. Dimension `dim`
 * becomes the number of windows. A last dimension of `size` is added. */
EK_API ek_tensor *ek_unfold(ek_tensor *x, int dim, int64_t size, int64_t step);

typedef struct ek_unfold_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int kernel;
    int stride EK_IS(1);
    int padding;
    int dilation EK_IS(1);
    int kernels[3], strides[3], paddings[3], dilations[3]; /**< the first two */
} ek_unfold_options;
#define EK_DEFAULTS_ek_unfold_options EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1)
EK_API ek_tensor *ek_f_unfold_with(ek_unfold_options options);
/** Windows of pictures (N, C, H, W) as columns (N, C kernel[0] kernel[1], windows). Numbers for
 * both directions, or (`strides = {2, 1}`) for each. */
#define ek_f_unfold(...) EK_CALL_2(ek_f_unfold_with, ek_unfold_options, x, kernel, __VA_ARGS__)

typedef struct ek_fold_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    int kernel;
    int stride EK_IS(1);
    int padding;
    int dilation EK_IS(1);
    int kernels[3], strides[3], paddings[3], dilations[3]; /**< the first two */
    int64_t height, width;                                 /**< the size of the result */
} ek_fold_options;
#define EK_DEFAULTS_ek_fold_options EK_DEFAULT(stride, 1), EK_DEFAULT(dilation, 1)
EK_API ek_tensor *ek_f_fold_with(ek_fold_options options);
/** Sums of columns where their windows lie, (N, C, height, width): the gradient of ek_f_unfold, as
 * ek_f_unfold is the gradient of ek_f_fold. */
#define ek_f_fold(...) EK_CALL_2(ek_f_fold_with, ek_fold_options, x, kernel, __VA_ARGS__)

/** (..., C r^2, H, W) to (..., C, H r, W r), and back. */
EK_API ek_tensor *ek_f_pixel_shuffle(ek_tensor *x, int factor);
EK_API ek_tensor *ek_f_pixel_unshuffle(ek_tensor *x, int factor);
/** Channels of x (N, C, ...) in turn from each of the groups. */
EK_API ek_tensor *ek_f_channel_shuffle(ek_tensor *x, int groups);

EK_END_DECLARATIONS
#endif
