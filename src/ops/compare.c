/* compare.c: comparisons, which carry no gradient, and choice by a condition. */
#include "ops/ops.h"

/* Moves the scalar operand that is on cpu, if one is, and shows both in one shape: without history.
 */
static ek_tensor *compare(const char *name, ek_compare op, ek_tensor *x, ek_tensor *y)
{
    bool before = ek_set_grad_enabled(false);
    bool fits = ek_broadcast_operands(name, &x, &y);
    ek_set_grad_enabled(before);
    if (!fits)
        return NULL;
    ek_tensor *z = ek_result(x, y, NULL, EK_U8);
    if (!z || ek_kernels_of(x)->compare(x->storage->dev, op, z, x, y) < 0)
        return NULL;
    return z;
}

ek_tensor *ek_eq(ek_tensor *x, ek_tensor *y)
{
    return compare("eq", EK_COMPARE_EQ, x, y);
}

ek_tensor *ek_ne(ek_tensor *x, ek_tensor *y)
{
    return compare("ne", EK_COMPARE_NE, x, y);
}

ek_tensor *ek_lt(ek_tensor *x, ek_tensor *y)
{
    return compare("lt", EK_COMPARE_LT, x, y);
}

ek_tensor *ek_le(ek_tensor *x, ek_tensor *y)
{
    return compare("le", EK_COMPARE_LE, x, y);
}

ek_tensor *ek_gt(ek_tensor *x, ek_tensor *y)
{
    return compare("gt", EK_COMPARE_GT, x, y);
}

ek_tensor *ek_ge(ek_tensor *x, ek_tensor *y)
{
    return compare("ge", EK_COMPARE_GE, x, y);
}

/* ---- where: dx = condition ? g : 0, dy = condition ? 0 : g ---- */

static int where_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *condition = ek_node_saved(node, 0), *g = gradients[0];
    ek_tensor *zero = ek_number_like(g, 0);
    if (ek_node_needs(node, 0))
        results[0] = ek_where(condition, g, zero);
    if (ek_node_needs(node, 1))
        results[1] = ek_where(condition, zero, g);
    return 0;
}

static const ek_operation where_operation = {.name = "where", .backward = where_backward};

ek_tensor *ek_where(ek_tensor *condition, ek_tensor *x, ek_tensor *y)
{
    if (!ek_of_dtype("where", "the condition", condition, EK_U8) ||
        !ek_broadcast_operands("where", &x, &y))
        return NULL;
    if (condition->ndim == 0 && condition->storage->dev->id.kind == EK_CPU)
        condition = ek_to_device(condition, x->storage->dev->id);
    if (condition && x->ndim == 0 && x->storage->dev->id.kind == EK_CPU) {
        x = ek_to_device(x, condition->storage->dev->id);
        y = ek_to_device(y, condition->storage->dev->id);
    }
    if (!condition || !x || !y || !ek_same_device("where", condition, x))
        return NULL;
    ek_shape shape, of_condition = ek_tensor_shape(condition), of_x = ek_tensor_shape(x);
    if (ek_broadcast_shapes("where", &of_condition, &of_x, &shape) < 0)
        return NULL;
    if (!ek_shape_equal(&of_condition, &shape))
        condition = ek_expand(condition, shape);
    if (!ek_shape_equal(&of_x, &shape)) {
        x = ek_expand(x, shape);
        y = ek_expand(y, shape);
    }
    if (!condition || !x || !y)
        return NULL;
    ek_tensor *z = ek_result(x, y, condition, x->dtype);
    if (!z || ek_kernels_of(x)->where(x->storage->dev, z, condition, x, y) < 0)
        return NULL;
    return EK_RECORD(z, &where_operation, EK_INPUTS(x, y), EK_SAVED(condition));
}
