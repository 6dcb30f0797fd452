/* broadcast.c: brings operands to one shape, makes results in their memory order, and views on the
 * stack for kernels. */
#include <string.h>

#include "ops/autocast.h"
#include "ops/ops.h"

int ek_broadcast_shapes(const char *operation, const ek_shape *a, const ek_shape *b,
                        ek_shape *result)
{
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    ek_shape shape = {.ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        int in_a = i - (ndim - a->ndim), in_b = i - (ndim - b->ndim);
        int64_t size_a = in_a < 0 ? 1 : a->dims[in_a], size_b = in_b < 0 ? 1 : b->dims[in_b];
        if (size_a != size_b && size_a != 1 && size_b != 1)
            return EK_FAIL(EK_E_SHAPE,
                           "%s: shapes %s and %s do not broadcast (dimension %d: %lld and %lld)",
                           operation, EK_SHAPE_TEXT(a), EK_SHAPE_TEXT(b), i, (long long)size_a,
                           (long long)size_b);
        shape.dims[i] = size_a == 1 ? size_b : size_a;
    }
    *result = shape;
    return 0;
}

bool ek_broadcast_operands(const char *operation, ek_tensor **x, ek_tensor **y)
{
    if (!ek_given(operation, "x", *x) || !ek_given(operation, "y", *y))
        return false;
    if ((*x)->storage->dev != (*y)->storage->dev) {
        if (ek_is_cpu_scalar(*y))
            *y = ek_to_device(*y, (*x)->storage->dev->id);
        else if (ek_is_cpu_scalar(*x))
            *x = ek_to_device(*x, (*y)->storage->dev->id);
        if (!*x || !*y)
            return false;
    }
    ek_autocast_promote(x, y);
    if (!*x || !*y || !ek_alike(operation, *x, *y))
        return false;
    if (ek_same_shape(*x, *y))
        return true;
    ek_shape shape, shape_x = ek_tensor_shape(*x), shape_y = ek_tensor_shape(*y);
    if (ek_broadcast_shapes(operation, &shape_x, &shape_y, &shape) < 0)
        return false;
    if (!ek_shape_equal(&shape_x, &shape))
        *x = ek_expand(*x, shape);
    if (!ek_shape_equal(&shape_y, &shape))
        *y = ek_expand(*y, shape);
    return *x && *y;
}

/* ---- stack views ---- */

void ek_borrow_expanded(ek_tensor *view, const ek_tensor *x, const ek_shape *shape)
{
    ek_borrow(view, x);
    view->ndim = shape->ndim;
    for (int i = 0; i < shape->ndim; i++) {
        int in_x = i - (shape->ndim - x->ndim);
        view->shape[i] = shape->dims[i];
        view->stride[i] = in_x < 0 || x->shape[in_x] != shape->dims[i] ? 0 : x->stride[in_x];
    }
}

/* ---- results ---- */

ek_tensor *ek_result(const ek_tensor *x, const ek_tensor *y, const ek_tensor *z, ek_dtype dtype)
{
    const ek_tensor *operands[] = {x, y, z};
    ek_shape shape = ek_tensor_shape(x);
    for (int i = 0; i < 3; i++)
        if (operands[i] && ek_is_dense(operands[i]))
            return ek_tensor_new_strided(x->storage->dev, dtype, &shape, operands[i]->stride);
    for (int i = 0; i < 3; i++)
        if (operands[i] && !ek_repeats(operands[i]))
            return ek_tensor_like_dtype(operands[i], dtype);
    return ek_tensor_new(x->storage->dev, dtype, &shape, EK_CONTIGUOUS);
}

ek_tensor *ek_run_unary(ek_unary op, const ek_tensor *x, double a, double b)
{
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    return y && ek_kernels_of(x)->unary(x->storage->dev, op, y, x, a, b) >= 0 ? y : NULL;
}

ek_tensor *ek_run_binary(ek_binary op, const ek_tensor *x, const ek_tensor *y, double a)
{
    ek_tensor *z = ek_result(x, y, NULL, x->dtype);
    return z && ek_kernels_of(x)->binary(x->storage->dev, op, z, x, y, a) >= 0 ? z : NULL;
}
