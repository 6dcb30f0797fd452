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

/* Where element i in row-major order lies. */
static inline int64_t case_position(const ek_tensor *tensor, int64_t i)
{
    int64_t position = 0;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        position += i % tensor->shape[d] * tensor->stride[d];
        i /= tensor->shape[d];
    }
    return position;
}

/* A way over all elements in row-major order, without the divisions of case_position. */
typedef struct case_walk {
    const ek_tensor *tensor;
    void *data;
    int64_t i, count, at; /* at: the position of element i */
    int64_t index[EK_MAX_DIMS];
} case_walk;

static inline case_walk case_walk_of(const ek_tensor *tensor)
{
    return (
        case_walk){.tensor = tensor, .data = ek_tensor_address(tensor), .count = ek_count(tensor)};
}

static inline void case_walk_next(case_walk *w)
{
    w->i++;
    for (int d = w->tensor->ndim - 1; d >= 0; d--) {
        w->at += w->tensor->stride[d];
        if (++w->index[d] < w->tensor->shape[d])
            return;
        w->at -= w->index[d] * w->tensor->stride[d];
        w->index[d] = 0;
    }
}

#define CASE_EACH(w, tensor) \
    for (case_walk w = case_walk_of(tensor); w.i < w.count; case_walk_next(&w))

static inline double case_get_at(ek_dtype dtype, const void *data, int64_t at)
{
    if (dtype == EK_F64)
        return ((const double *)data)[at];
    if (dtype == EK_I64)
        return (double)((const int64_t *)data)[at];
    if (dtype == EK_U8 || dtype == EK_BOOL)
        return (double)((const uint8_t *)data)[at];
    if (dtype == EK_I32)
        return (double)((const int32_t *)data)[at];
    if (dtype == EK_F16)
        return (double)ek_float_of_f16(((const uint16_t *)data)[at]);
    if (dtype == EK_F32)
        return (double)((const float *)data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static inline void case_set_at(ek_dtype dtype, void *data, int64_t at, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (dtype == EK_F64)
        ((double *)data)[at] = value;
    else if (dtype == EK_I64)
        ((int64_t *)data)[at] = (int64_t)value;
    else if (dtype == EK_U8)
        ((uint8_t *)data)[at] = (uint8_t)value;
    else if (dtype == EK_BOOL)
        ((uint8_t *)data)[at] = value != 0;
    else if (dtype == EK_I32)
        ((int32_t *)data)[at] = (int32_t)value;
    else if (dtype == EK_F16)
        ((uint16_t *)data)[at] = ek_f16_of(narrow);
    else if (dtype == EK_F32)
        ((float *)data)[at] = narrow;
    else
        ((uint16_t *)data)[at] = (uint16_t)(bits >> 16); /* values of these tests are exact */
}

static inline double case_walk_get(const case_walk *w)
{
    return case_get_at(w->tensor->dtype, w->data, w->at);
}

static inline void case_walk_set(const case_walk *w, double value)
{
    case_set_at(w->tensor->dtype, w->data, w->at, value);
}

/* Element i in row-major order. */
static inline double case_get(const ek_tensor *tensor, int64_t i)
{
    return case_get_at(tensor->dtype, ek_tensor_address(tensor), case_position(tensor, i));
}

static inline void case_set(ek_tensor *tensor, int64_t i, double value)
{
    case_set_at(tensor->dtype, ek_tensor_address(tensor), case_position(tensor, i), value);
}

/* Multiples of 1/16 in (-2, 2): exact in bf16. */
static inline void case_fill(ek_tensor *tensor, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 12345u;
    CASE_EACH(w, tensor) {
        state = state * 1664525u + 1013904223u;
        case_walk_set(&w, (double)((int)(state >> 16) % 63 - 31) / 16.0);
    }
}

static inline void case_poison(ek_tensor *tensor)
{
    const double poison = ek_dtype_is_floating(tensor->dtype) ? (double)NAN
                          : tensor->dtype == EK_BOOL          ? 1
                          : tensor->dtype == EK_U8            ? 77
                                                              : -7;
    CASE_EACH(w, tensor)
        case_walk_set(&w, poison);
}

/* |a - b|_2 <= relative |b|_2 over the whole tensor. */
static inline void case_compare(const ek_tensor *a, const double *b, double relative,
                                const char *what)
{
    double difference = 0, norm = 0;
    CASE_EACH(w, a) {
        double d = case_walk_get(&w) - b[w.i];
        difference += d * d;
        norm += b[w.i] * b[w.i];
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
    CASE_EACH(w, tensor)
        values[w.i] = case_walk_get(&w);
    return values;
}

/* The same bits, element by element. */
static inline void case_same(const ek_tensor *a, const ek_tensor *b, const char *what)
{
    case_walk other = case_walk_of(b);
    CASE_EACH(w, a) {
        double x = case_walk_get(&w), y = case_walk_get(&other);
        if (memcmp(&x, &y, sizeof x) != 0)
            ck_abort_msg("%s: element %lld is %.17g, then %.17g", what, (long long)w.i, x, y);
        case_walk_next(&other);
    }
}

#endif
