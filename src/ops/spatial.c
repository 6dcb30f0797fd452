/* spatial.c: what the operations on images share. */
#include "ops/spatial.h"

ek_memory_format ek_spatial_format(const ek_tensor *x)
{
    if (x->ndim != 4)
        return EK_CONTIGUOUS;
    if (ek_tensor_is_contiguous(x, EK_CHANNELS_LAST))
        return EK_CHANNELS_LAST;
    if (ek_tensor_is_contiguous(x, EK_CONTIGUOUS))
        return EK_CONTIGUOUS;
    return x->stride[1] <= x->stride[3] ? EK_CHANNELS_LAST : EK_CONTIGUOUS;
}

int ek_spatial_check(const char *name, const ek_tensor *x)
{
    char text[200];
    if (!ek_dtype_is_floating(x->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: expected a floating x, got %s", name,
                       ek_tensor_text(x, text));
    if (x->ndim != 4)
        return EK_FAIL(EK_E_SHAPE, "%s: expected x of 4 dimensions (N, C, H, W), got %s", name,
                       ek_tensor_text(x, text));
    return 0;
}

void ek_spatial_pair(int64_t result[2], const int pair[2], int both, int otherwise)
{
    for (int i = 0; i < 2; i++) {
        int value = pair[i] ? pair[i] : both ? both : otherwise;
        result[i] = value == EK_ZERO ? 0 : value;
    }
}

int ek_spatial_least(const char *name, const char *option, const int64_t values[2], int64_t least)
{
    for (int i = 0; i < 2; i++)
        if (values[i] < least)
            return EK_FAIL(EK_E_INVALID, "%s: %s must be at least %lld, got %lld x %lld", name,
                           option, (long long)least, (long long)values[0], (long long)values[1]);
    return 0;
}
