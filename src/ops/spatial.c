/* spatial.c: see spatial.h. */
#include "ops/spatial.h"

#include <stdio.h>

#include "core/keywords.h"

const int64_t ek_spatial_zeros[3] = {0, 0, 0}, ek_spatial_ones[3] = {1, 1, 1};

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

int ek_spatial_check(const char *name, const ek_tensor *x, int dims)
{
    static const char *const axes[] = {"", "L", "H, W", "D, H, W"};
    char text[200];
    if (!ek_dtype_is_floating(x->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: expected a floating x, got %s", name,
                       ek_tensor_text(x, text));
    if (x->ndim != dims + 2)
        return EK_FAIL(EK_E_SHAPE, "%s: expected x of %d dimensions (N, C, %s), got %s", name,
                       dims + 2, axes[dims], ek_tensor_text(x, text));
    return 0;
}

const char *ek_spatial_direction(int dims, int i)
{
    static const char *const names[] = {"depth", "height", "width"};
    return dims == 1 ? "length" : names[3 - dims + i];
}

int ek_spatial_option(const char *name, const char *option, int dims, const int each[3], int all,
                      const int64_t otherwise[3], int64_t least, int64_t result[3])
{
    for (int i = dims; i < 3; i++)
        if (each[i] != 0)
            return EK_FAIL(EK_E_INVALID, "%s: %ss has an entry %d, %d, but there %s", name, option,
                           i + 1, each[i] == EK_ZERO ? 0 : each[i],
                           dims == 1 ? "is only one direction" : "are only two directions");
    for (int i = 0; i < dims; i++) {
        int given = each[i] ? each[i] : all;
        result[i] = ek_integer_or(given, otherwise[i]);
    }
    return ek_spatial_least(name, option, dims, result, least);
}

int ek_spatial_least(const char *name, const char *option, int dims, const int64_t *values,
                     int64_t least)
{
    bool fine = true;
    char text[3 * 24];
    int length = 0;
    for (int i = 0; i < dims; i++) {
        fine = fine && values[i] >= least;
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%lld",
                           i > 0 ? " x " : "", (long long)values[i]);
    }
    return fine ? 0
                : EK_FAIL(EK_E_INVALID, "%s: %s must be at least %lld, got %s", name, option,
                          (long long)least, text);
}

void ek_spatial_lift(int64_t values[3], int64_t first)
{
    values[1] = values[0];
    values[0] = first;
}
