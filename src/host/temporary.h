/* temporary.h: tensors that live for the length of one kernel, in workspace memory. */
#ifndef EK_HOST_TEMPORARY_H
#define EK_HOST_TEMPORARY_H

#include "core/tensor.h"

/* Lives on the stack of its user and is seen by nobody else: no scope, no references. */
typedef struct ek_temporary {
    ek_tensor tensor;
    ek_storage storage;
} ek_temporary;

/* Nothing to free. */
void ek_temporary_none(ek_temporary *temporary);

/* Uninitialised, of the shape of `like`; channels-last (channels innermost, dimension 1) from 3
 * dimensions on where `channels_last`, else row-major. */
int ek_temporary_new(ek_temporary *temporary, ek_dev *dev, const ek_tensor *like, ek_dtype dtype,
                     bool channels_last);

/* A copy, converted to dtype. */
int ek_temporary_copy(ek_temporary *temporary, ek_dev *dev, const ek_tensor *source, ek_dtype dtype,
                      bool channels_last);

void ek_temporary_free(ek_temporary *temporary);

/* Dense with dimension 1 innermost and the others in order; dimensions of size 1 don't matter. */
bool ek_is_channels_last(const ek_tensor *tensor);

bool ek_is_row_major(const ek_tensor *tensor);

/* Sets the strides of such tensors. */
void ek_channels_last_strides(int ndim, const int64_t *shape, int64_t *stride);
void ek_row_major_strides(int ndim, const int64_t *shape, int64_t *stride);

#endif
