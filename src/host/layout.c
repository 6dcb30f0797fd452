/* layout.c: see layout.h. */
#include "host/layout.h"

void ek_row_major_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape[i];
    }
}

void ek_channels_last_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = shape[1];
    stride[1] = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (i == 1)
            continue;
        stride[i] = step;
        step *= shape[i];
    }
}

static bool has_strides(const ek_tensor *tensor, const int64_t *stride)
{
    for (int i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride[i])
            return false;
    return true;
}

bool ek_is_row_major(const ek_tensor *tensor)
{
    int64_t stride[EK_MAX_DIMS];
    ek_row_major_strides(tensor->ndim, tensor->shape, stride);
    return has_strides(tensor, stride);
}

bool ek_is_channels_last(const ek_tensor *tensor)
{
    int64_t stride[EK_MAX_DIMS];
    if (tensor->ndim < 2)
        return false;
    ek_channels_last_strides(tensor->ndim, tensor->shape, stride);
    return has_strides(tensor, stride);
}
