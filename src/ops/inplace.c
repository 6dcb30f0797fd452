/* inplace.c: operations that write into their first operand. */
#include "ops/autocast.h"
#include "ops/ops.h"

/* Checks that x may be written. */
static bool inplace_writable(const char *operation, ek_tensor *x)
{
    if (!ek_given(operation, "x", x) || ek_check_in_place(operation, x) < 0)
        return false;
    if (!ek_repeats(x))
        return true;
    return EK_FAIL(EK_E_INVALID,
                   "%s: elements of x share memory (an expanded view); clone it first",
                   operation) == 0;
}

/* Returns y expanded to x's shape. If y shares x's memory and is saved or has another geometry, it
 * is copied first. */
static ek_tensor *inplace_operand(const char *operation, ek_tensor *x, ek_tensor *y, bool saved)
{
    if (!ek_given(operation, "y", y))
        return NULL;
    if (y->storage == x->storage && (saved || y->offset != x->offset || !ek_same_layout(x, y)) &&
        !(y = ek_clone(y)))
        return NULL;
    if (ek_same_shape(x, y))
        return y;
    ek_shape shape = ek_tensor_shape(x), own = ek_tensor_shape(y), both;
    if (ek_broadcast_shapes(operation, &shape, &own, &both) < 0)
        return NULL;
    if (!ek_shape_equal(&both, &shape)) {
        return EK_REFUSE(EK_E_SHAPE, "%s: y of shape %s does not broadcast to x's %s", operation,
                         EK_SHAPE_TEXT(&own), EK_SHAPE_TEXT(&shape));
    }
    return ek_expand(y, shape);
}

/* Calls inplace_operand for a y that must have x's device and dtype, after a scalar on cpu has been
 * moved, and autocast has cast y. */
static ek_tensor *inplace_like_operand(const char *operation, ek_tensor *x, ek_tensor *y,
                                       bool saved)
{
    if (y && ek_is_cpu_scalar(y))
        y = ek_to_device(y, x->storage->dev->id);
    y = ek_autocast_like(y, x);
    if (!ek_given(operation, "y", y) || !ek_alike(operation, x, y))
        return NULL;
    return inplace_operand(operation, x, y, saved);
}

/* ---- add_, add_scaled_ ---- */

EK_OPERATION(add, "add_", ek_add_backward);

ek_tensor *ek_add_scaled_(ek_tensor *x, ek_tensor *y, double alpha)
{
    if (!inplace_writable("add_", x) || !ek_holds("add_", "alpha", x->dtype, alpha) ||
        !(y = inplace_like_operand("add_", x, y, false)) ||
        ek_kernels_of(x)->binary(x->storage->dev, EK_BINARY_ADD, x, x, y, alpha) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &add_operation, EK_INPUTS(x, y), EK_ATTRIBUTES(alpha));
}

ek_tensor *ek_add_(ek_tensor *x, ek_tensor *y)
{
    return ek_add_scaled_(x, y, 1);
}

EK_OPERATION(sub, "sub_", ek_add_backward);

ek_tensor *ek_sub_(ek_tensor *x, ek_tensor *y)
{
    const double alpha = -1;
    if (!inplace_writable("sub_", x) || !(y = inplace_like_operand("sub_", x, y, false)) ||
        ek_kernels_of(x)->binary(x->storage->dev, EK_BINARY_SUB, x, x, y, 0) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &sub_operation, EK_INPUTS(x, y), EK_ATTRIBUTES(alpha));
}

ek_tensor *ek_addcmul_(ek_tensor *x, ek_tensor *y, ek_tensor *z, double value)
{
    if (!inplace_writable("addcmul_", x) || !ek_given("addcmul_", "y", y) ||
        !ek_given("addcmul_", "z", z))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *product = ek_mul(y, z);
    bool written = product && ek_add_scaled_(x, product, value);
    ek_scope_end(&scope);
    return written ? x : NULL;
}

/* ---- lerp_: from x towards y ---- */

EK_OPERATION(lerp, "lerp_", ek_lerp_backward);

ek_tensor *ek_lerp_(ek_tensor *x, ek_tensor *y, double weight)
{
    if (!inplace_writable("lerp_", x) || !ek_floating("lerp_", "x", x) ||
        !(y = inplace_like_operand("lerp_", x, y, false)) ||
        ek_kernels_of(x)->binary(x->storage->dev, EK_BINARY_LERP, x, x, y, weight) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &lerp_operation, EK_INPUTS(x, y), EK_ATTRIBUTES(weight));
}

/* ---- mul_: x is overwritten, so that a copy is saved if y wants a gradient ---- */

EK_OPERATION(mul, "mul_", ek_mul_backward);

ek_tensor *ek_mul_(ek_tensor *x, ek_tensor *y)
{
    if (!inplace_writable("mul_", x))
        return NULL;
    bool recorded = ek_records((ek_tensor *const[]){x, y}, 2);
    y = inplace_like_operand("mul_", x, y, recorded);
    if (!y)
        return NULL;
    ek_tensor *before = NULL;
    if (recorded && ek_wants(y) && !(before = ek_clone(x)))
        return NULL;
    if (ek_kernels_of(x)->binary(x->storage->dev, EK_BINARY_MUL, x, x, y, 0) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &mul_operation, EK_INPUTS(x, y),
                             EK_SAVED(before, ek_wants(x) ? y : NULL));
}

/* ---- div_: dx = g / y, dy = -g x / y / y ---- */

static int div_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *before = ek_node_saved(node, 0), *y = ek_node_saved(node, 1);
    ek_tensor *scaled = ek_div(gradients[0], y);
    if (ek_node_needs(node, 0))
        results[0] = scaled;
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(ek_mul(scaled, ek_div(before, y)));
    return 0;
}

EK_OPERATION(div, "div_", div_backward);

ek_tensor *ek_div_(ek_tensor *x, ek_tensor *y)
{
    if (!inplace_writable("div_", x) || !ek_floating("div_", "x", x))
        return NULL;
    bool recorded = ek_records((ek_tensor *const[]){x, y}, 2);
    y = inplace_like_operand("div_", x, y, recorded);
    if (!y)
        return NULL;
    ek_tensor *before = NULL;
    if (recorded && ek_wants(y) && !(before = ek_clone(x)))
        return NULL;
    if (ek_kernels_of(x)->binary(x->storage->dev, EK_BINARY_DIV, x, x, y, 0) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &div_operation, EK_INPUTS(x, y), EK_SAVED(before, y));
}

/* ---- clamp_ ---- */

typedef struct clamp_bounds {
    double low, high;
} clamp_bounds;

EK_BACKWARD(clamp, clamp_bounds,
            ek_relu_gradient(g,
                             ek_run_unary(EK_UNARY_INSIDE, ek_node_saved(node, 0), a->low, a->high),
                             0))
EK_OPERATION(clamp, "clamp_", clamp_backward);

ek_tensor *ek_clamp_(ek_tensor *x, double low, double high)
{
    const clamp_bounds bounds = {low, high};
    ek_tensor *before = NULL;
    if (!inplace_writable("clamp_", x) || !ek_holds_low("clamp_", "low", x->dtype, low) ||
        !ek_holds_high("clamp_", "high", x->dtype, high))
        return NULL;
    if (ek_records(&x, 1) && !(before = ek_clone(x)))
        return NULL;
    if (ek_kernels_of(x)->unary(x->storage->dev, EK_UNARY_CLAMP, x, x, low, high) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &clamp_operation, EK_INPUTS(x), EK_SAVED(before),
                             EK_ATTRIBUTES(bounds));
}

/* ---- mul_scalar_ ---- */

EK_BACKWARD(scale, double, ek_mul_scalar(g, *a))
EK_OPERATION(mul_scalar, "mul_scalar_", scale_backward);

ek_tensor *ek_mul_scalar_(ek_tensor *x, double c)
{
    if (!inplace_writable("mul_scalar_", x) || !ek_no_bool("mul_scalar_", "x", x) ||
        !ek_holds("mul_scalar_", "c", x->dtype, c) ||
        ek_kernels_of(x)->unary(x->storage->dev, EK_UNARY_AFFINE, x, x, c, 0) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &mul_scalar_operation, EK_INPUTS(x), EK_ATTRIBUTES(c));
}

/* ---- fill_, copy_: the gradient of x's former elements is 0 ---- */

EK_BACKWARD(fill, void, ek_zeros_like(g))
EK_OPERATION(fill, "fill_", fill_backward);

ek_tensor *ek_fill_(ek_tensor *x, double value)
{
    if (!inplace_writable("fill_", x) || !ek_holds("fill_", "the value", x->dtype, value) ||
        ek_kernels_of(x)->fill(x->storage->dev, x, value) < 0)
        return NULL;
    return EK_RECORD_WRITTEN(x, &fill_operation, EK_INPUTS(x));
}

typedef struct copy_attributes {
    ek_device device; /* y's device */
    ek_dtype dtype;
} copy_attributes;

static int copy_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const copy_attributes *a = ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = ek_zeros_like(gradients[0]);
    if (ek_node_needs(node, 1))
        results[1] = ek_to_dtype(ek_to_device(gradients[0], a->device), a->dtype);
    return 0;
}

EK_OPERATION(copy, "copy_", copy_backward);

ek_tensor *ek_copy_(ek_tensor *x, ek_tensor *y)
{
    if (!inplace_writable("copy_", x) || !ek_given("copy_", "y", y))
        return NULL;
    if (x == y)
        return x;
    /* y is moved before it is expanded, while it is smaller. */
    if (y->storage->dev != x->storage->dev && !ek_same_shape(x, y))
        y = ek_to_device(y, x->storage->dev->id);
    if (!y || !(y = inplace_operand("copy_", x, y, false)) || ek_transfer(x, y) < 0)
        return NULL;
    ek_tensor_written(x, "copy_");
    if (!ek_dtype_is_floating(x->dtype))
        return x;
    copy_attributes attributes = {y->storage->dev->id, y->dtype};
    return ek_record_in_place(x, &copy_operation,
                              &(ek_record_options){EK_INPUTS(x, y), EK_ATTRIBUTES(attributes)});
}
