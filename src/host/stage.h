/* stage.h: a tensor as a dense copy of another dtype or layout, for kernels that read only some. */
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
 * in. */
int ek_stage_begin(ek_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype, int axis,
                   bool keep, bool load);
/* With `store`, copies back into the original; frees the workspace. Keeps `rc` if it is an
 * error. */
int ek_stage_end(ek_stage *stage, ek_dev *dev, bool store, int rc);

#endif
