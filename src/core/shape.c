/* shape.c: dtypes, shapes, and strides that follow from a shape alone. */
#include <math.h>
#include <stdio.h>

#include "core/dtypes.h"
#include "core/tensor.h"

/* ---- dtypes ---- */

const char *ek_dtype_name(ek_dtype dtype)
{
#define NAME(label, text, ...) [EK_##label] = text,
    static const char *const names[EK_DTYPES] = {EK_DTYPE_ROWS(NAME)};
#undef NAME
    return (unsigned)dtype < EK_DTYPES ? names[dtype] : "unknown";
}

size_t ek_dtype_size(ek_dtype dtype)
{
#define SIZE(label, text, type, ...) [EK_##label] = sizeof(type),
    static const size_t sizes[EK_DTYPES] = {EK_DTYPE_ROWS(SIZE)};
#undef SIZE
    return (unsigned)dtype < EK_DTYPES ? sizes[dtype] : 0;
}

const ek_dtype_range *ek_dtype_range_of(ek_dtype dtype)
{
#define RANGE(label, text, type, class, first, last, numbers) \
    [EK_##label] = {(double)(first), (double)(last), numbers},
    static const ek_dtype_range ranges[EK_DTYPES] = {EK_DTYPE_ROWS(RANGE)};
#undef RANGE
    return &ranges[dtype];
}

bool ek_dtype_holds(ek_dtype dtype, double value)
{
    const ek_dtype_range *range = ek_dtype_range_of(dtype);
    /* (double)INT64_MAX is 2^63, which i64 doesn't hold. */
    return ek_dtype_is_floating(dtype) || (value >= range->first && value <= range->last &&
                                           value < 0x1p63 && value == floor(value));
}

/* ---- shapes ---- */

/* Returns a * b, or INT64_MAX if the product exceeds it; for sizes that aren't checked yet. */
static int64_t shape_multiply(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int64_t ek_shape_count(const ek_shape *shape)
{
    if (!shape || shape->ndim < 0 || shape->ndim > EK_MAX_DIMS)
        return 0;
    int64_t count = 1;
    for (int i = 0; i < shape->ndim; i++)
        count = shape_multiply(count, shape->dims[i]);
    return count;
}

bool ek_shape_equal(const ek_shape *a, const ek_shape *b)
{
    if (!a || !b)
        return a == b;
    if (a->ndim != b->ndim || a->ndim > EK_MAX_DIMS)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

char *ek_shape_text(const ek_shape *shape, char text[160])
{
    size_t used = 0;
    if (!text)
        return NULL;
    if (!shape) {
        snprintf(text, 160, "NULL");
        return text;
    }
    text[used++] = '[';
    for (int i = 0; i < shape->ndim && i < EK_MAX_DIMS && used < 150; i++)
        used += (size_t)snprintf(text + used, 150 - used + 1, i ? ", %lld" : "%lld",
                                 (long long)shape->dims[i]);
    if (used > 150)
        used = 150;
    text[used++] = ']';
    text[used] = '\0';
    return text;
}

void ek_strides_of(const ek_shape *shape, ek_memory_format format, int64_t *strides)
{
    int64_t step = 1;
    if (format == EK_CHANNELS_LAST && shape->ndim == 4) {
        static const int order[4] = {1, 3, 2, 0};
        for (int i = 0; i < 4; i++) {
            strides[order[i]] = step;
            step = shape_multiply(step, shape->dims[order[i]] > 0 ? shape->dims[order[i]] : 1);
        }
        return;
    }
    for (int i = shape->ndim - 1; i >= 0; i--) {
        strides[i] = step;
        step = shape_multiply(step, shape->dims[i] > 0 ? shape->dims[i] : 1);
    }
}
