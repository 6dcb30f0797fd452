/* host_cases.h: what the tests of the host's kernels share: seeded tensors in any layout, on a
 * device with a given number of threads. */
#ifndef EK_TESTS_HOST_CASES_H
#define EK_TESTS_HOST_CASES_H

#include "core/tensor.h"
#include "kernels/kernels.h"
#include "unit.h"

/* A layout of memory: channels-last, row-major, or row-major with a gap after each innermost row
 * and an offset. */
typedef enum case_layout { CASE_LAST, CASE_ROWS, CASE_GAPS, CASE_LAYOUTS } case_layout;

/* ck_assert writes to a pipe each time it holds: too slow for every element. */
#define case_must(condition)                                               \
    do {                                                                   \
        if (!(condition))                                                  \
            ck_abort_msg("%s:%d: not %s", __FILE__, __LINE__, #condition); \
    } while (0)

static inline ek_dev *case_device(int threads)
{
    ek_dev *dev = ek_dev_get(ek_host(0));
    assert_made(dev);
    assert_ok(ek_device_set_threads(ek_host(0), threads));
    return dev;
}

static inline ek_tensor *case_tensor(ek_dev *dev, ek_dtype dtype, int ndim, const int64_t *dims,
                                     case_layout layout)
{
    ek_shape shape = {ndim, {0}};
    memcpy(shape.dims, dims, sizeof *dims * (size_t)ndim);
    if (layout == CASE_GAPS && ndim > 0) {
        ek_shape wide = shape;
        int64_t stride[EK_MAX_DIMS];
        wide.dims[ndim - 1] += 3;
        ek_tensor *base = ek_tensor_new(dev, dtype, &wide, EK_CONTIGUOUS);
        assert_made(base);
        memcpy(stride, base->stride, sizeof stride);
        ek_tensor *view = ek_tensor_view(base, ndim, shape.dims, stride, base->offset + 1);
        assert_made(view);
        return view;
    }
    int64_t stride[EK_MAX_DIMS] = {0}, step = 1;
    if (layout == CASE_LAST && ndim >= 3) {
        stride[1] = 1;
        step = dims[1];
    }
    for (int i = ndim - 1; i >= 0; i--) {
        if (layout == CASE_LAST && ndim >= 3 && i == 1)
            continue;
        stride[i] = step;
        step *= dims[i];
    }
    ek_tensor *tensor = ek_tensor_new_strided(dev, dtype, &shape, stride);
    assert_made(tensor);
    return tensor;
}

static inline int64_t case_position(const ek_tensor *tensor, int64_t i)
{
    int64_t position = 0, step = 1;
    bool dense = true; /* row-major without gaps, as most tensors of these tests are */
    for (int d = tensor->ndim - 1; d >= 0 && dense; step *= tensor->shape[d--])
        dense = tensor->stride[d] == step;
    if (dense)
        return i;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        position += i % tensor->shape[d] * tensor->stride[d];
        i /= tensor->shape[d];
    }
    return position;
}

/* Element i in row-major order. */
static inline double case_get(const ek_tensor *tensor, int64_t i)
{
    int64_t at = case_position(tensor, i);
    const void *data = ek_tensor_address(tensor);
    if (tensor->dtype == EK_F64)
        return ((const double *)data)[at];
    if (tensor->dtype == EK_I64)
        return (double)((const int64_t *)data)[at];
    if (tensor->dtype == EK_U8 || tensor->dtype == EK_BOOL)
        return (double)((const uint8_t *)data)[at];
    if (tensor->dtype == EK_I32)
        return (double)((const int32_t *)data)[at];
    if (tensor->dtype == EK_F16)
        return (double)ek_float_of_f16(((const uint16_t *)data)[at]);
    if (tensor->dtype == EK_F32)
        return (double)((const float *)data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static inline void case_set(ek_tensor *tensor, int64_t i, double value)
{
    int64_t at = case_position(tensor, i);
    void *data = ek_tensor_address(tensor);
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (tensor->dtype == EK_F64)
        ((double *)data)[at] = value;
    else if (tensor->dtype == EK_I64)
        ((int64_t *)data)[at] = (int64_t)value;
    else if (tensor->dtype == EK_U8)
        ((uint8_t *)data)[at] = (uint8_t)value;
    else if (tensor->dtype == EK_BOOL)
        ((uint8_t *)data)[at] = value != 0;
    else if (tensor->dtype == EK_I32)
        ((int32_t *)data)[at] = (int32_t)value;
    else if (tensor->dtype == EK_F16)
        ((uint16_t *)data)[at] = ek_f16_of(narrow);
    else if (tensor->dtype == EK_F32)
        ((float *)data)[at] = narrow;
    else
        ((uint16_t *)data)[at] = (uint16_t)(bits >> 16); /* values of these tests are exact */
}

/* Multiples of 1/16 in (-2, 2): exact in bf16. */
static inline void case_fill(ek_tensor *tensor, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < ek_count(tensor); i++) {
        state = state * 1664525u + 1013904223u;
        case_set(tensor, i, (double)((int)(state >> 16) % 63 - 31) / 16.0);
    }
}

static inline void case_poison(ek_tensor *tensor)
{
    for (int64_t i = 0; i < ek_count(tensor); i++)
        case_set(tensor, i,
                 ek_dtype_is_floating(tensor->dtype) ? (double)NAN
                 : tensor->dtype == EK_BOOL          ? 1
                 : tensor->dtype == EK_U8            ? 77
                                                     : -7);
}

/* |a - b|_2 <= relative |b|_2 over the whole tensor. */
static inline void case_compare(const ek_tensor *a, const double *b, double relative,
                                const char *what)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < ek_count(a); i++) {
        double d = case_get(a, i) - b[i];
        difference += d * d;
        norm += b[i] * b[i];
    }
    if (!(sqrt(difference) <= relative * sqrt(norm) + 1e-30))
        ck_abort_msg("%s: |a - b| %g, |b| %g", what, sqrt(difference), sqrt(norm));
}

static inline double case_tolerance(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-6 : 4e-3;
}

static inline double *case_zeros(int64_t count)
{
    double *values = calloc((size_t)count + 1, sizeof *values);
    ck_assert_ptr_nonnull(values);
    return values;
}

/* All elements in row-major order; free(). */
static inline double *case_values(const ek_tensor *tensor)
{
    double *values = case_zeros(ek_count(tensor));
    for (int64_t i = 0; i < ek_count(tensor); i++)
        values[i] = case_get(tensor, i);
    return values;
}

/* The same bits, element by element. */
static inline void case_same(const ek_tensor *a, const ek_tensor *b, const char *what)
{
    for (int64_t i = 0; i < ek_count(a); i++) {
        double x = case_get(a, i), y = case_get(b, i);
        if (memcmp(&x, &y, sizeof x) != 0)
            ck_abort_msg("%s: element %lld is %.17g, then %.17g", what, (long long)i, x, y);
    }
}

#endif
