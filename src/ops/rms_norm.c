/* rms_norm.c: normalisation by the root of the mean square, by the kernels of the other norms with
 * no means. With r = 1 / sqrt(mean(x^2) + eps), xhat = x r and u = w dy, the gradients are
 *
 *     dx = r (u - xhat mean(u xhat)),   dw = sum(dy xhat)
 *
 * If they are to be differentiated, they are made of operations instead. */
#include <float.h>

#include "evenkeel/attention.h"
#include "ops/autocast.h"
#include "ops/norm.h"
#include "ops/ops.h"

/* Writes y and r (R, 1) of x (R, M). */
static int rms_apply(ek_tensor *y, ek_tensor *r, const ek_tensor *x, const ek_tensor *w, double eps)
{
    const ek_kernels *kernels = ek_kernels_of(x);
    ek_dev *dev = ek_tensor_dev(x);
    ek_norm_args args = {.x = x, .weight = w};
    int done = kernels->norm_rows(dev, y, NULL, r, &args, eps);
    if (done != 0)
        return done;
    EK_TRY(kernels->reduce(dev, EK_REDUCE_SUM_SQUARES, r, x));
    EK_TRY(kernels->unary(dev, EK_UNARY_AFFINE, r, r, 1 / (double)x->shape[1], eps));
    EK_TRY(kernels->unary(dev, EK_UNARY_POW, r, r, -0.5, 0));
    args.invstd = r;
    return kernels->norm_line(dev, y, &args);
}

/* The gradients as operations. */
static int rms_differentiable(ek_tensor *dy, ek_tensor *x, ek_tensor *w, double eps,
                              ek_tensor *results[2])
{
    const ek_dtype dtype = ek_norm_dtype(x);
    ek_tensor *wide = ek_to_dtype(x, dtype), *slope = ek_to_dtype(dy, dtype);
    if (!wide || !slope)
        return ek_error_pending();
    ek_tensor *r =
        ek_pow_scalar(ek_add_scalar(ek_mean(ek_square(wide), EK_DIMS(1), .keepdim = true), eps),
                      -0.5);
    ek_tensor *xhat = ek_mul(wide, r), *u = w ? ek_mul(slope, w) : slope;
    ek_tensor *along = ek_mean(ek_mul(u, xhat), EK_DIMS(1), .keepdim = true);
    ek_tensor *dx = ek_mul(ek_sub(u, ek_mul(xhat, along)), r);
    results[0] = dx ? ek_to_dtype(dx, x->dtype) : NULL;
    results[1] = w ? ek_sum(ek_mul(slope, xhat), EK_DIMS(0)) : NULL;
    return results[0] ? 0 : ek_error_pending();
}

/* Inputs x (R, M) and w (M) or NULL; saved x, w, r. */
static int rms_norm_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const double eps = *(const double *)ek_node_attributes(node);
    ek_tensor *dy = gradients[0], *x = ek_node_saved(node, 0), *w = ek_node_saved(node, 1);
    ek_tensor *r = ek_node_saved(node, 2);
    if (!x || !r)
        return ek_error_pending();
    if (ek_grad_enabled())
        return rms_differentiable(dy, x, w, eps, results);
    ek_dev *dev = ek_tensor_dev(x);
    const bool slope = w && ek_node_needs(node, 1);
    ek_tensor *to = slope ? ek_node_destination(node, 1) : NULL;
    ek_norm_sums sums = {.dweight = to};
    if (slope) {
        sums.dweight = to ? to : ek_tensor_like(w);
        sums.dbias = ek_tensor_like(w);
    }
    ek_tensor *dx = results[0] = ek_result(x, dy, NULL, x->dtype);
    results[1] = sums.dweight;
    if (!dx || (slope && (!sums.dweight || !sums.dbias)))
        return ek_error_pending();
    ek_norm_args args = {.x = x, .invstd = r, .weight = w, .dy = dy, .count = (double)x->shape[1]};
    int done = ek_kernels_of(x)->norm_rows_gradient(dev, dx, &sums, &args);
    if (done != 0)
        return done;
    sums.sum = ek_tensor_like(r);
    args.sum_xhat = sums.sum_xhat = ek_tensor_like(r);
    EK_TRY(ek_error_status());
    EK_TRY(ek_kernels_of(x)->norm_reduce(dev, &sums, &args));
    return ek_kernels_of(x)->norm_line(dev, dx, &args);
}

EK_OPERATION(rms_norm, "rms_norm", rms_norm_backward);

static ek_tensor *rms_norm(ek_tensor *x, ek_tensor *w, double eps)
{
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    ek_tensor *r =
        ek_tensor_new(ek_tensor_dev(x), ek_norm_dtype(x), &EK_SHAPE(x->shape[0], 1), EK_CONTIGUOUS);
    if (!y || !r || rms_apply(y, r, x, w, eps) < 0)
        return NULL;
    return EK_RECORD(y, &rms_norm_operation, EK_INPUTS(x, w), EK_SAVED(x, w, r),
                     EK_ATTRIBUTES(eps));
}

static double rms_epsilon(ek_dtype dtype)
{
    return dtype == EK_F64   ? DBL_EPSILON
           : dtype == EK_F32 ? FLT_EPSILON
           : dtype == EK_F16 ? 0x1p-10
                             : 0x1p-7;
}

static ek_tensor *rms_norm_checked(ek_tensor *x, int ndim, ek_tensor *weight, double eps)
{
    if (!ek_floating("rms_norm", "x", x) || !ek_optional(weight))
        return NULL;
    if (ndim < 1 || ndim > x->ndim)
        return EK_REFUSE(EK_E_SHAPE, "rms_norm: cannot normalise over the last %d dimensions of %s",
                         ndim, EK_TENSOR_TEXT(x));
    eps = eps == EK_UNSET ? rms_epsilon(x->dtype) : eps;
    if (!(eps >= 0))
        return EK_REFUSE(EK_E_INVALID, "rms_norm: eps must not be negative, got %g", eps);
    const ek_shape shape = ek_tensor_shape(x);
    ek_shape last = {.ndim = ndim};
    int64_t size = 1;
    for (int i = 0; i < ndim; i++)
        size *= last.dims[i] = shape.dims[x->ndim - ndim + i];
    if (weight && (!ek_of_dtype("rms_norm", "weight", weight, ek_norm_dtype(x)) ||
                   !ek_same_device("rms_norm", x, weight) ||
                   !ek_of_shape("rms_norm", "weight", weight, &last)))
        return NULL;
    if (ek_count(x) == 0) {
        ek_tensor *y = ek_clone(x);
        return weight && y ? ek_mul(y, ek_to_dtype(weight, x->dtype)) : y;
    }
    ek_tensor *rows = ek_reshape(x, EK_SHAPE(ek_count(x) / size, size));
    ek_tensor *w = weight ? ek_reshape(weight, EK_SHAPE(size)) : NULL;
    return rows && (w || !weight) ? ek_reshape(rms_norm(rows, w, eps), shape) : NULL;
}

ek_tensor *ek_f_rms_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight, double eps)
{
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope,
                           rms_norm_checked(ek_autocast_wide(x), normalized_ndim, weight, eps));
}
