/* softmax.c: softmax and log-softmax along a dimension.
 *
 * With s = sum(dy y) along the dimension, the gradients from the output y are
 *     softmax      dx = y (dy - s)
 *     log-softmax  dx = dy - exp(y) sum(dy),
 * which are operations of (dy, y). y keeps its history, so that their derivatives with respect to y
 * reach the input. */
#include "ops/attributes.h"
#include "ops/autocast.h"
#include "ops/ops.h"

static ek_tensor *softmax_gradient(ek_tensor *dy, ek_tensor *y, ek_softmax_attributes attributes);

static ek_tensor *softmax_sum_along(ek_tensor *x, int dim)
{
    return ek_sum_mask(x, 1U << dim, 0);
}

EK_BACKWARD(softmax, ek_softmax_attributes, softmax_gradient(g, ek_node_saved(node, 0), *a))

/* Inputs dy, y. For softmax the map from dy to dx is symmetric, so it is its own adjoint. a is the
 * gradient that arrives. */
static int softmax_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    const ek_softmax_attributes *attributes = ek_node_attributes(node);
    const int dim = attributes->dim;
    ek_tensor *a = gradients[0];
    ek_tensor *dy = ek_node_saved(node, 0);
    ek_tensor *y = ek_node_saved(node, 1);
    if (attributes->logarithm) {
        ek_tensor *p = ek_exp(y);
        ek_tensor *ap = ek_mul(a, p);
        if (ek_node_needs(node, 0))
            results[0] = ek_sub(a, softmax_sum_along(ap, dim));
        if (ek_node_needs(node, 1))
            results[1] = ek_neg(ek_mul(ap, softmax_sum_along(dy, dim)));
        return 0;
    }
    if (ek_node_needs(node, 0))
        results[0] = softmax_gradient(a, y, *attributes);
    if (ek_node_needs(node, 1)) {
        /* d/dy of sum(a y dy) - sum(a y) sum(dy y) */
        ek_tensor *away = ek_sub(dy, softmax_sum_along(ek_mul(dy, y), dim));
        results[1] = ek_sub(ek_mul(a, away), ek_mul(dy, softmax_sum_along(ek_mul(a, y), dim)));
    }
    return 0;
}

EK_OPERATION(softmax, "softmax", softmax_backward);
EK_OPERATION(log_softmax, "log_softmax", softmax_backward);
EK_OPERATION(softmax_gradient, "softmax_gradient", softmax_gradient_backward);

static ek_tensor *softmax_gradient(ek_tensor *dy, ek_tensor *y, ek_softmax_attributes attributes)
{
    if (!dy || !y)
        return NULL;
    ek_tensor *dx = ek_result(y, dy, NULL, y->dtype);
    return EK_RECORD(EK_RUN(dx, softmax_gradient, dy, y, attributes.dim, attributes.logarithm),
                     &softmax_gradient_operation, EK_INPUTS(dy, y), EK_SAVED(dy, y),
                     EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_softmax_gradient(ek_tensor *dy, ek_tensor *y, int dim)
{
    return softmax_gradient(dy, y, (ek_softmax_attributes){.dim = dim});
}

static ek_tensor *softmax(ek_tensor *x, int dim, bool logarithm)
{
    if (ek_autocast_widens(x)) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *wide = ek_autocast_wide(x);
        return ek_scope_return(&scope, wide ? softmax(wide, dim, logarithm) : NULL);
    }
    const char *name = logarithm ? "log_softmax" : "softmax";
    if (!ek_floating(name, "x", x))
        return NULL;
    if (ek_is_scalar_dim(x, dim))
        return ek_scalar_of(softmax(ek_row_of(x), 0, logarithm));
    ek_softmax_attributes attributes = {.dim = ek_dimension(name, x, dim), .logarithm = logarithm};
    if (attributes.dim < 0)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    y = EK_RUN(y, softmax, x, attributes.dim, logarithm);
    return EK_RECORD(y, logarithm ? &log_softmax_operation : &softmax_operation, EK_INPUTS(x),
                     EK_SAVED(y), EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_f_softmax(ek_tensor *x, int dim)
{
    return softmax(x, dim, false);
}

ek_tensor *ek_f_log_softmax(ek_tensor *x, int dim)
{
    return softmax(x, dim, true);
}
