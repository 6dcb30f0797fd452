/* transforms_setup.h: what the tests of transforms share: inputs, one application, refusals. */
#ifndef EK_TESTS_TRANSFORMS_SETUP_H
#define EK_TESTS_TRANSFORMS_SETUP_H

#include "unit.h"

/* Applies the transform once, and frees it. */
static inline ek_tensor *apply(ek_transform *transform, ek_tensor *in, ek_generator *generator)
{
    assert_made(transform);
    ek_tensor *out = ek_transform_apply(&transform, 1, in, generator);
    ek_transform_free(transform);
    return out;
}

/* A tensor of one value. */
static inline ek_tensor *full(double value, ek_shape shape, ek_dtype dtype)
{
    int64_t count = ek_shape_count(&shape);
    double *values = malloc((size_t)(count ? count : 1) * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
    ek_tensor *tensor = tensor_of(values, shape, dtype, ek_cpu());
    free(values);
    return tensor;
}

/* Row i of a golden of several results. */
static inline ek_tensor *row(const ek_tensor *rows, int64_t i)
{
    ek_shape shape = ek_tensor_shape(rows);
    size_t nbytes =
        (size_t)(ek_tensor_count(rows) / shape.dims[0]) * ek_dtype_size(ek_tensor_dtype(rows));
    shape.ndim--;
    memmove(shape.dims, shape.dims + 1, (size_t)shape.ndim * sizeof *shape.dims);
    return ek_from_data((char *)ek_tensor_data(rows) + (size_t)i * nbytes, shape,
                        ek_tensor_dtype(rows));
}

/* The generator continues where torch's does. */
static inline void assert_next(ek_generator *generator, const ek_tensor *next)
{
    for (int64_t i = 0; i < ek_tensor_count(next); i++)
        ck_assert_int_eq(ek_random_u32(generator) % 1000, (int64_t)element(next, i));
}

/* Options that make no transform. */
static inline void assert_not_made(ek_transform *transform, const char *part)
{
    ck_assert_ptr_null(transform);
    assert_error(EK_E_INVALID, part);
}

/* A picture that the transform refuses. */
static inline void assert_not_applied(ek_transform *transform, ek_shape shape, ek_dtype dtype,
                                      int status, const char *part)
{
    assert_refused(apply(transform, full(0, shape, dtype), NULL), status, part);
}

#endif
