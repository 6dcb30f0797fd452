/* group_norm.c: normalisation with statistics per sample: layer, group and instance. */
#include "ops/ops.h"

static double or_default(double value, double otherwise)
{
    return value == 0 ? otherwise : value == EK_ZERO ? 0 : value;
}

/* (x - mean) / sqrt(var + eps) over the last dimension of x (N, G, M). */
static ek_tensor *normalised(ek_tensor *x, double eps)
{
    ek_tensor *centered = ek_sub(x, ek_mean(x, .dims = {2}, .dim_count = 1, .keepdim = true));
    ek_tensor *var = ek_mean(ek_square(centered), .dims = {2}, .dim_count = 1, .keepdim = true);
    return ek_mul(centered, ek_reciprocal(ek_sqrt(ek_add_scalar(var, eps))));
}

static ek_tensor *group_norm(const char *name, ek_tensor *x, int64_t groups, ek_tensor *weight,
                             ek_tensor *bias, double eps)
{
    (void)name;
    const ek_shape shape = ek_tensor_shape(x);
    int64_t n = shape.dims[0], m = ek_count(x) / (n * groups);
    ek_tensor *y = ek_reshape(normalised(ek_reshape(x, EK_SHAPE(n, groups, m)), eps), shape);
    if (weight)
        y = ek_mul(y, weight);
    if (bias)
        y = ek_add(y, bias);
    return y;
}

static ek_tensor *per_channel(ek_tensor *values, const ek_tensor *x)
{
    ek_shape shape = {.ndim = x->ndim - 1};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = i == 0 ? x->shape[1] : 1;
    return values ? ek_reshape(values, shape) : NULL;
}

ek_tensor *ek_f_layer_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    if (!ek_floating("layer_norm", "x", x))
        return NULL;
    ek_shape rows = {.ndim = normalized_ndim + 1, .dims = {1}};
    for (int i = 0; i < x->ndim - normalized_ndim; i++)
        rows.dims[0] *= x->shape[i];
    for (int i = 0; i < normalized_ndim; i++)
        rows.dims[i + 1] = x->shape[x->ndim - normalized_ndim + i];
    ek_tensor *y =
        group_norm("layer_norm", ek_reshape(x, rows), 1, weight, bias, or_default(eps, 1e-5));
    return ek_reshape(y, ek_tensor_shape(x));
}

ek_tensor *ek_f_group_norm(ek_tensor *x, int64_t groups, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    if (!ek_floating("group_norm", "x", x))
        return NULL;
    return group_norm("group_norm", x, groups, per_channel(weight, x), per_channel(bias, x),
                      or_default(eps, 1e-5));
}

ek_tensor *ek_f_instance_norm(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, double eps)
{
    if (!ek_floating("instance_norm", "x", x))
        return NULL;
    return group_norm("instance_norm", x, x->shape[1], per_channel(weight, x), per_channel(bias, x),
                      or_default(eps, 1e-5));
}
