/* stage.h: brings tensors into the dtype and memory order that a kernel reads. A stage uses the
 * original if it fits, else a dense copy. */
#ifndef EK_KERNELS_STAGE_H
#define EK_KERNELS_STAGE_H

#include "core/draw.h"
#include "core/tensor.h"

/* `tensor` is what the kernel uses: the original, or the copy in `own`. */
typedef struct ek_stage {
    ek_tensor *tensor;
    ek_tensor *original;
    ek_tensor own;
    ek_storage storage;
    size_t nbytes; /* size of the copy; 0 if there is none */
} ek_stage;

/* Begins a stage for x. With `keep`, `tensor` is x. Otherwise `tensor` is a workspace of `dtype` in
 * which dimension `axis` runs fastest and the others are row-major; with `load`, x's elements are
 * copied to the workspace. If x is NULL, `tensor` is NULL. */
int ek_stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                   bool keep, bool load);
/* ek_stage_begin for callers that can do without the workspace. Returns 1; 0 without an error if
 * memory is short, and `tensor` is NULL. */
int ek_stage_try(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                 bool keep, bool load);
/* Begins a stage in channels-last order. `tensor` is x if x has that order and `dtype`. */
int ek_stage_image(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, bool load);
/* Ends a stage. With `store`, copies the workspace to the original if rc isn't an error. Frees the
 * workspace. Returns rc, or the result of the copy. */
int ek_stage_end(ek_stage *stage, ek_dev *dev, bool store, int rc);

/* ek_stage_draw does what ek_draw_run does: it calls `run` with row-major tensors. */
typedef int ek_draw_rows(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw);
int ek_stage_draw(ek_dev *dev, const ek_drawn *tensors, const ek_draw *draw, ek_draw_rows *run);

/* Writes the strides of a dense tensor in which dimension `axis` runs fastest and the others are
 * row-major. */
void ek_strides_along(int ndim, const int64_t *shape, int axis, int64_t *stride);
/* Returns true if the tensor has the strides of ek_strides_along. Strides of dimensions of size 1
 * don't matter. */
bool ek_is_dense_along(const ek_tensor *tensor, int axis);
/* Returns ek_is_dense_along(tensor, 1); false if there are fewer than 2 dimensions. */
bool ek_is_channels_last(const ek_tensor *tensor);

/* Returns a tensor without memory of x's dtype and sizes (batch, head, row, column), but with
 * `width` columns. In memory its heads lie outside or inside of rows, as x's do, so that a module
 * joins the heads without a copy. */
ek_tensor ek_heads_like(const ek_tensor *x, int64_t width);

/* Returns the dimension that runs fastest in a format. EK_CHANNELS_LAST applies to 4 and 5
 * dimensions only. */
static inline int ek_axis_of(ek_memory_format format, int ndim)
{
    return format == EK_CHANNELS_LAST && (ndim == 4 || ndim == 5) ? 1 : ndim - 1;
}

#endif
