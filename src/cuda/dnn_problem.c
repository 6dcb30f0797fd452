/* dnn_problem.c: see dnn_problem.h. */
#include "cuda/dnn_problem.h"

#include <string.h>

#include "evenkeel/precision.h"

void ek_dnn_strides(int ndim, const int64_t *shape, ek_memory_format format, int64_t *strides)
{
    bool last = format == EK_CHANNELS_LAST;
    int64_t step = last ? shape[1] : 1;
    for (int d = ndim - 1; d >= 0; d--) {
        if (last && d == 1)
            continue;
        strides[d] = step;
        step *= shape[d];
    }
    if (last)
        strides[1] = 1;
}

bool ek_dnn_is_dense(const ek_tensor *tensor, ek_memory_format format)
{
    int64_t strides[EK_MAX_DIMS];
    ek_dnn_strides(tensor->ndim, tensor->shape, format, strides);
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] != 1 && tensor->stride[d] != strides[d])
            return false;
    return true;
}

int64_t ek_dnn_alignment(const void *address)
{
    int64_t alignment = 16;
    while ((uintptr_t)address % (uintptr_t)alignment != 0)
        alignment /= 2;
    return alignment;
}

/* cuDNN derives y's size from the padding, so y's size decides about the padding after: as much as
 * before if that fits (most engines know only this), else the most that gives y. If that is
 * less than nothing, the end of x is not read, and cuDNN can't be told. */
static bool fit_padding(ek_dnn_problem *p, int i)
{
    int64_t window = p->dilation[i] * (p->w[2 + i] - 1) + 1;
    int64_t read = (p->y[2 + i] - 1) * p->stride[i] + window; /* positions of the padded x */
    int64_t least = read - p->x[2 + i] - p->before[i], most = least + p->stride[i] - 1;
    p->after[i] = p->before[i];
    if (p->before[i] < least || p->before[i] > most)
        p->after[i] = most;
    return p->after[i] >= 0;
}

bool ek_dnn_problem_of(ek_dnn_problem *p, ek_dnn_operation operation, const ek_tensor *x,
                       const ek_tensor *w, const ek_tensor *y, const ek_conv_params *params,
                       ek_memory_format format)
{
    memset(p, 0, sizeof *p);
    if (x->dtype != EK_F32 && x->dtype != EK_BF16)
        return false;
    if ((params->dims != 2 && params->dims != 3) || x->ndim != 2 + params->dims)
        return false;
    p->operation = operation;
    p->dtype = x->dtype;
    p->format = format;
    p->dims = params->dims;
    p->alignment = 16;
    p->tf32 = x->dtype == EK_F32 && ek_tf32_allowed();
    p->deterministic = ek_deterministic();
    for (int d = 0; d < x->ndim; d++) {
        p->x[d] = x->shape[d];
        p->w[d] = w->shape[d];
        p->y[d] = y->shape[d];
    }
    for (int i = 0; i < params->dims; i++) {
        p->stride[i] = params->stride[i];
        p->before[i] = params->padding[i];
        p->dilation[i] = params->dilation[i];
        if (!fit_padding(p, i))
            return false;
    }
    return true;
}
