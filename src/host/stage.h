/* stage.h: tensors in the dtype and order of memory that a kernel reads: the original if it is
 * like that, else a dense copy. */
#ifndef EK_HOST_STAGE_H
#define EK_HOST_STAGE_H

#include "core/tensor.h"

/* `tensor` is what the kernel uses: the original, or the copy in `own`. */
typedef struct ek_stage {
    ek_tensor *tensor;
    ek_tensor *original;
    ek_tensor own;
    ek_storage storage;
    size_t nbytes; /* of the copy; 0 if there is none */
} ek_stage;

/* Makes a stage for x: x itself with `keep`, else workspace of `dtype` whose memory runs with
 * dimension `axis` fastest and the others in row-major order. With `load` the elements are copied
 * in. x may be NULL: so is `tensor` then. */
int ek_stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                   bool keep, bool load);
/* The same as channels-last: x itself if it is that, and of `dtype`. */
int ek_stage_image(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, bool load);
/* With `store`, copies back into the original; frees the workspace. Keeps `rc` if it is an
 * error. */
int ek_stage_end(ek_stage *stage, ek_dev *dev, bool store, int rc);

/* Dense with dimension 1 fastest and the others in order, for any number of dimensions from 2 on.
 * Dimensions of size 1 don't matter. */
bool ek_is_channels_last(const ek_tensor *tensor);
void ek_channels_last_strides(int ndim, const int64_t *shape, int64_t *stride);

#endif
