/** @file
 * tensor.h: strided tensors.
 *
 * A tensor is a reference-counted handle: dtype, shape, strides (in elements), an offset into a
 * storage on one device, and its place in the autograd graph. Two threads may use a handle at the
 * same time only if both only read. Functions that make a tensor give it to the caller's scope. */
#ifndef EVENKEEL_TENSOR_H
#define EVENKEEL_TENSOR_H

#include <stdio.h>

#include "evenkeel/base.h"
#include "evenkeel/device.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_tensor ek_tensor;

/** EK_F16 is IEEE 754's binary16. EK_BOOL is one byte, 0 or 1; conversions to it are x != 0, so
 * that NaN is true. Other conversions from floating dtypes to integers truncate. */
typedef enum ek_dtype {
    EK_F32 = 0,
    EK_F64 = 1,
    EK_BF16 = 2,
    EK_I64 = 3,
    EK_U8 = 4,
    EK_F16 = 5,
    EK_I32 = 6,
    EK_BOOL = 7
} ek_dtype;
enum { EK_DTYPES = 8 };

/** "f32", and the bytes of an element. */
EK_API const char *ek_dtype_name(ek_dtype dtype);
EK_API size_t ek_dtype_size(ek_dtype dtype);
/** True for dtypes that can carry a gradient. */
static inline bool ek_dtype_is_floating(ek_dtype dtype)
{
    return dtype == EK_F32 || dtype == EK_F64 || dtype == EK_BF16 || dtype == EK_F16;
}

/** Order of the elements in memory. EK_CHANNELS_LAST is for tensors of 4 dimensions (pictures,
 * weights): the shape stays N, C, H, W, while memory runs N, H, W, C. */
typedef enum ek_memory_format { EK_CONTIGUOUS = 0, EK_CHANNELS_LAST = 1 } ek_memory_format;

typedef struct ek_shape {
    int ndim;
    int64_t dims[EK_MAX_DIMS];
} ek_shape;

/** EK_SHAPE(2, 3) is a shape of two dimensions; a scalar's is ek_scalar_shape(). */
#ifdef __cplusplus
} /* extern "C" */
template <class... D> ek_shape ek_shape_of(D... dims)
{
    static_assert(sizeof...(D) <= EK_MAX_DIMS, "a tensor has at most EK_MAX_DIMS dimensions");
    return ek_shape{(int)sizeof...(D), {(int64_t)dims...}};
}
#define EK_SHAPE(...) ek_shape_of(__VA_ARGS__)
extern "C" {
#else
#define EK_SHAPE(...) ((ek_shape){.ndim = EK_COUNT(int64_t, __VA_ARGS__), .dims = {__VA_ARGS__}})
#endif

/** The shape of a scalar, which has no dimensions. */
static inline ek_shape ek_scalar_shape(void)
{
    ek_shape shape = {0, {0}};
    return shape;
}

/** The product of the sizes, at most INT64_MAX. */
EK_API int64_t ek_shape_count(const ek_shape *shape);
/** True for equally many dimensions of equal sizes. */
EK_API bool ek_shape_equal(const ek_shape *a, const ek_shape *b);
/** Writes "[2, 3]" to `text` (at least 160 bytes); returns it. */
EK_API char *ek_shape_text(const ek_shape *shape, char text[160]);

/* ---- making tensors ---- */

typedef struct ek_tensor_options {
    int begin; /**< no option, see base.h */
    ek_shape shape;
    ek_dtype dtype;
    ek_device device; /**< zero: cpu */
    ek_memory_format format;
    bool requires_grad;
} ek_tensor_options;
#define EK_DEFAULTS_ek_tensor_options EK_NO_DEFAULTS

/** Calls the function with options that are made of the arguments, the first two by position.
 * EK_TENSOR_CALL_AFTER passes `first` before the options. A shape without EK_SHAPE does not
 * compile. */
#ifdef __cplusplus
#define EK_TENSOR_MADE(...)                               \
    ek_shaped<ek_is_shaped(EK_TEXT_OF(__VA_ARGS__))>::of( \
        EK_MADE_2(ek_tensor_options, shape, dtype, __VA_ARGS__))
#define EK_TENSOR_CALL(function, ...) function(EK_TENSOR_MADE(__VA_ARGS__))
#define EK_TENSOR_CALL_AFTER(function, first, ...) function(first, EK_TENSOR_MADE(__VA_ARGS__))
#else
#define EK_TENSOR_CALL(function, ...)                                                         \
    EK_CALL_CHECKED(function(ek_options), ek_tensor_options, EK_SHAPED(EK_TEXT(__VA_ARGS__)), \
                    __VA_ARGS__)
#define EK_TENSOR_CALL_AFTER(function, first, ...)                  \
    EK_CALL_CHECKED(function(first, ek_options), ek_tensor_options, \
                    EK_SHAPED(EK_TEXT(__VA_ARGS__)), __VA_ARGS__)
#endif
EK_API ek_tensor *ek_empty_with(ek_tensor_options options);
EK_API ek_tensor *ek_zeros_with(ek_tensor_options options);
EK_API ek_tensor *ek_ones_with(ek_tensor_options options);
EK_API ek_tensor *ek_full_with(double value, ek_tensor_options options);
/** ek_empty(EK_SHAPE(2, 3), .dtype = EK_F64, .device = ek_host(1)); likewise ek_zeros and ek_ones.
 * A size may be 0. Errors: EK_E_SHAPE for a negative size or more than EK_MAX_DIMS dimensions;
 * EK_E_DEVICE; EK_E_OUT_OF_MEMORY; EK_E_DTYPE if requires_grad is set and the dtype is not
 * floating. */
#define ek_empty(...) EK_TENSOR_CALL(ek_empty_with, __VA_ARGS__)
#define ek_zeros(...) EK_TENSOR_CALL(ek_zeros_with, __VA_ARGS__)
#define ek_ones(...) EK_TENSOR_CALL(ek_ones_with, __VA_ARGS__)
/** ek_full(0.5, EK_SHAPE(2, 3), ...). EK_E_DTYPE for an integer dtype that cannot hold the value.
 * Beyond 2^53 not every i64 is a double; use ek_from_data for those that are not. */
#define ek_full(value, ...) EK_TENSOR_CALL_AFTER(ek_full_with, (value), __VA_ARGS__)

EK_API ek_tensor *ek_from_data_with(const void *data, ek_tensor_options options);
/** A tensor of ek_shape_count(shape) elements of options.dtype, row-major, copied from `data`. */
#define ek_from_data(data, ...) EK_TENSOR_CALL_AFTER(ek_from_data_with, (data), __VA_ARGS__)

/** 0, 1, ..., count - 1, rounded if floating; EK_E_DTYPE if beyond an integer dtype's range. */
EK_API ek_tensor *ek_arange(int64_t count, ek_dtype dtype, ek_device device);

/** start, start + step, ... below `end` (above it for a negative step), computed in f64 and
 * rounded. EK_E_INVALID for a step of 0 or away from `end`. */
EK_API ek_tensor *ek_arange_step(double start, double end, double step, ek_dtype dtype,
                                 ek_device device);
/** `steps` numbers in equal distances, from start to end, both of them included. f32, f64 and
 * integers are PyTorch 2's to the bit. */
EK_API ek_tensor *ek_linspace(double start, double end, int64_t steps, ek_dtype dtype,
                              ek_device device);
/** A matrix of zeros with ones on its diagonal. */
EK_API ek_tensor *ek_eye(int64_t rows, int64_t columns, ek_dtype dtype, ek_device device);
/** Make tensors of x's shape, dtype, device and memory order, without gaps and without a history.
 */
EK_API ek_tensor *ek_full_like(const ek_tensor *x, double value);
EK_API ek_tensor *ek_zeros_like(const ek_tensor *x);
EK_API ek_tensor *ek_ones_like(const ek_tensor *x);

/** A tensor of zero dimensions. The value is limited as in ek_full. */
EK_API ek_tensor *ek_scalar(double value, ek_dtype dtype, ek_device device);

/* ---- looking at tensors ---- */

/** What a tensor is. */
EK_API ek_dtype ek_tensor_dtype(const ek_tensor *tensor);
EK_API ek_device ek_tensor_device(const ek_tensor *tensor);
EK_API ek_shape ek_tensor_shape(const ek_tensor *tensor);
EK_API ek_shape ek_tensor_strides(const ek_tensor *tensor); /**< in elements */
EK_API int ek_tensor_ndim(const ek_tensor *tensor);
/** Size of dimension `dim`; a negative `dim` counts from the end. EK_E_SHAPE if the tensor has no
 * such dimension. */
EK_API int64_t ek_tensor_size(const ek_tensor *tensor, int dim);
/** The number of elements, and whether they lie in memory without gaps in this order. */
EK_API int64_t ek_tensor_count(const ek_tensor *tensor);
EK_API bool ek_tensor_is_contiguous(const ek_tensor *tensor, ek_memory_format format);

/** How often the tensor's memory was written. Views share the count. */
EK_API uint64_t ek_tensor_version(const ek_tensor *tensor);

/** The only element of a tensor, as a double, which rounds an i64 beyond 2^53. Waits for the
 * device. Returns 0, or EK_E_SHAPE if there are more or fewer elements. */
EK_API int ek_item(const ek_tensor *tensor, double *value);

/** Copies all elements, row-major, to `data` (nbytes is their size). Waits for the device. */
EK_API int ek_to_data(const ek_tensor *tensor, void *data, size_t nbytes);

/** Copies all elements, row-major, from `data` (nbytes is their size); bumps the version. */
EK_API int ek_set_data(ek_tensor *tensor, const void *data, size_t nbytes);

/** The address of the first element if the CPU can read it (cpu and host devices), else NULL
 * without an error. Valid as long as the tensor; of a sharded parameter (EK_SHARD_PARAMETERS) until
 * the scope ends. After a write there call ek_tensor_touch. Replicas on host devices stop sharing
 * the memory of a parameter whose address was asked for; ek_to_data reads without that effect. */
EK_API void *ek_tensor_data(const ek_tensor *tensor);

/** Tells the library that the caller has written to the tensor's memory. */
EK_API void ek_tensor_touch(ek_tensor *tensor);

/** Writes dtype, shape, device and elements to `stream`. Rows are in brackets; long ones take
 * several lines. If there are more than 1000 elements, only the first and last 3 along each
 * dimension are written. A NULL tensor is written as NULL. Returns EK_E_IO if the stream fails. */
EK_API int ek_tensor_print(const ek_tensor *tensor, FILE *stream);

EK_END_DECLARATIONS
#endif
