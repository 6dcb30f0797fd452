/* reduce.c: sums, means, extremes. */
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- sum: the gradient is repeated ---- */

typedef struct sum_attributes {
    ek_shape whole; /* the input's shape */
    ek_shape kept;  /* the same with size 1 if reduced */
} sum_attributes;

static int sum_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const sum_attributes *a = ek_node_attributes(node);
    ek_tensor *g = gradients[0];
    if (g->ndim != a->kept.ndim)
        g = ek_reshape(g, a->kept);
    results[0] = ek_expand(g, a->whole);
    return 0;
}

static const ek_operation sum_operation = {.name = "sum", .backward = sum_backward};

/* Drops dimensions of size 1, given by a mask, of a tensor nobody else has seen yet. */
static void drop_dimensions(ek_tensor *y, unsigned mask)
{
    int ndim = 0;
    for (int i = 0; i < y->ndim; i++) {
        if (mask >> i & 1)
            continue;
        y->shape[ndim] = y->shape[i];
        y->stride[ndim++] = y->stride[i];
    }
    y->ndim = ndim;
}

/* Sums over the dimensions of `reduced`, and drops those of `dropped`. */
static ek_tensor *sum(ek_tensor *x, unsigned reduced, unsigned dropped)
{
    sum_attributes attributes = {ek_tensor_shape(x), ek_tensor_shape(x)};
    for (int i = 0; i < x->ndim; i++)
        if (reduced >> i & 1)
            attributes.kept.dims[i] = 1;
    ek_dtype dtype = ek_dtype_is_floating(x->dtype) ? x->dtype : EK_I64;
    ek_tensor *y = ek_tensor_new(x->storage->dev, dtype, &attributes.kept, EK_CONTIGUOUS);
    if (!y || ek_kernels_of(x)->reduce(x->storage->dev, EK_REDUCE_SUM, y, x) < 0)
        return NULL;
    drop_dimensions(y, dropped);
    return EK_RECORD(y, &sum_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

int ek_reduced_dimensions(const char *operation, const ek_reduce_options *options)
{
    const ek_tensor *x = options->x;
    int mask = 0;
    if (!ek_given(operation, "x", x))
        return ek_error_pending();
    if (options->dim_count < 0 || options->dim_count > EK_MAX_DIMS)
        return EK_FAIL(EK_E_INVALID, "%s: dim_count is %d; it must lie between 0 and %d", operation,
                       options->dim_count, EK_MAX_DIMS);
    if (options->dim_count == 0)
        return (1 << x->ndim) - 1;
    for (int i = 0; i < options->dim_count; i++) {
        int dim = ek_dimension(operation, x, options->dims[i]);
        if (dim < 0)
            return dim;
        if (mask >> dim & 1)
            return EK_FAIL(EK_E_INVALID, "%s: dimension %d is named twice", operation, dim);
        mask |= 1 << dim;
    }
    return mask;
}

ek_tensor *ek_sum_with(ek_reduce_options options)
{
    int mask = ek_reduced_dimensions("sum", &options);
    if (mask < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.x);
    ek_tensor *y = x ? sum(x, (unsigned)mask, options.keepdim ? 0 : (unsigned)mask) : NULL;
    return ek_scope_return(&scope, y);
}

ek_tensor *ek_mean_with(ek_reduce_options options)
{
    int mask = ek_reduced_dimensions("mean", &options);
    if (mask < 0 || !ek_floating("mean", "x", options.x))
        return NULL;
    int64_t count = 1;
    for (int i = 0; i < options.x->ndim; i++)
        if (mask >> i & 1)
            count *= options.x->shape[i];
    return ek_div_scalar(sum(options.x, (unsigned)mask, options.keepdim ? 0 : (unsigned)mask),
                         (double)count);
}

ek_tensor *ek_sum_to(ek_tensor *x, ek_shape shape)
{
    if (!ek_given("sum_to", "x", x))
        return NULL;
    ek_shape own = ek_tensor_shape(x);
    if (ek_shape_equal(&own, &shape))
        return ek_itself(x);
    int lead = x->ndim - shape.ndim;
    unsigned reduced = 0;
    bool fits = lead >= 0 && shape.ndim >= 0;
    for (int i = 0; fits && i < x->ndim; i++) {
        int64_t size = i < lead ? 1 : shape.dims[i - lead];
        fits = size == 1 || size == x->shape[i];
        if (i < lead || size != x->shape[i])
            reduced |= 1u << i;
    }
    if (!fits) {
        char text[160], wanted[160];
        EK_FAIL(EK_E_SHAPE, "sum_to: %s does not broadcast to %s", ek_shape_text(&shape, wanted),
                ek_shape_text(&own, text));
        return NULL;
    }
    return sum(x, reduced, (1u << lead) - 1);
}

/* ---- extremes: elements are gathered, so that the gradient goes where they came from ---- */

/* Positions along dim, with size 1 there. */
static ek_tensor *positions(const char *operation, ek_reduce_kind kind, ek_tensor *x, int *dim)
{
    if (!ek_given(operation, "x", x) || (*dim = ek_dimension(operation, x, *dim)) < 0)
        return NULL;
    ek_shape shape = ek_tensor_shape(x);
    if (shape.dims[*dim] == 0) {
        EK_FAIL(EK_E_SHAPE, "%s: dimension %d has no elements", operation, *dim);
        return NULL;
    }
    shape.dims[*dim] = 1;
    ek_tensor *index = ek_tensor_new(x->storage->dev, EK_I64, &shape, EK_CONTIGUOUS);
    if (!index || ek_kernels_of(x)->arg_reduce(x->storage->dev, kind, index, x, *dim) < 0)
        return NULL;
    return index;
}

static ek_tensor *extreme(const char *operation, ek_reduce_kind kind, ek_tensor *x, int dim,
                          bool keepdim)
{
    ek_tensor *index = positions(operation, kind, x, &dim);
    if (!index)
        return NULL;
    ek_tensor *y = ek_gather_dim(x, dim, index);
    return keepdim || !y ? y : ek_squeeze(y, dim);
}

ek_tensor *ek_max_dim(ek_tensor *x, int dim, bool keepdim)
{
    return extreme("max_dim", EK_REDUCE_MAX, x, dim, keepdim);
}

ek_tensor *ek_min_dim(ek_tensor *x, int dim, bool keepdim)
{
    return extreme("min_dim", EK_REDUCE_MIN, x, dim, keepdim);
}

ek_tensor *ek_argmax(ek_tensor *x, int dim, bool keepdim)
{
    ek_tensor *index = positions("argmax", EK_REDUCE_MAX, x, &dim);
    if (index && !keepdim)
        drop_dimensions(index, 1u << dim);
    return index;
}
