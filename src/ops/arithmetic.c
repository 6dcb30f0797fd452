/* arithmetic.c: x + y, x - y, x * y, x / y, the larger and the smaller, comparisons, and choice by
 * a condition; x and y broadcast. */
#include "autograd/observer.h"
#include "ops/ops.h"

/* ---- add, sub: z = x + alpha y ---- */

int ek_add_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    double alpha = *(const double *)ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = gradients[0];
    if (ek_node_needs(node, 1))
        results[1] = alpha == 1 ? gradients[0] : ek_mul_scalar(gradients[0], alpha);
    return 0;
}

EK_OPERATION(add, "add", ek_add_backward);
EK_OPERATION(sub, "sub", ek_add_backward);

static ek_tensor *arithmetic_add_scaled(const ek_operation *operation, ek_tensor *x, ek_tensor *y,
                                        double alpha)
{
    if (!ek_broadcast_operands(operation->name, &x, &y))
        return NULL;
    ek_tensor *z = alpha == -1 ? ek_run_binary(EK_BINARY_SUB, x, y, 0)
                               : ek_run_binary(EK_BINARY_ADD, x, y, alpha);
    return EK_RECORD(z, operation, EK_INPUTS(x, y), EK_ATTRIBUTES(alpha));
}

ek_tensor *ek_add(ek_tensor *x, ek_tensor *y)
{
    return arithmetic_add_scaled(&add_operation, x, y, 1);
}

ek_tensor *ek_add_scaled(ek_tensor *x, ek_tensor *y, double alpha)
{
    if (x && !ek_holds("add_scaled", "alpha", x->dtype, alpha))
        return NULL;
    return arithmetic_add_scaled(&add_operation, x, y, alpha);
}

ek_tensor *ek_sub(ek_tensor *x, ek_tensor *y)
{
    if (!ek_no_bool("sub", "x", x))
        return NULL;
    return arithmetic_add_scaled(&sub_operation, x, y, -1);
}

/* ---- mul: a factor is saved if the other one wants a gradient ---- */

int ek_mul_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    if (ek_node_needs(node, 0))
        results[0] = ek_mul(gradients[0], ek_node_saved(node, 1));
    if (ek_node_needs(node, 1))
        results[1] = ek_mul(gradients[0], ek_node_saved(node, 0));
    return 0;
}

EK_OPERATION(mul, "mul", ek_mul_backward);

ek_tensor *ek_mul(ek_tensor *x, ek_tensor *y)
{
    if (!ek_broadcast_operands("mul", &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_MUL, x, y, 0);
    return EK_RECORD(z, &mul_operation, EK_INPUTS(x, y),
                     EK_SAVED(ek_wants(y) ? x : NULL, ek_wants(x) ? y : NULL));
}

/* ---- div: dx = g / y, dy = -g z / y ---- */

static int div_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *y = ek_node_saved(node, 0);
    if (ek_node_needs(node, 0))
        results[0] = ek_div(gradients[0], y);
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(ek_mul(gradients[0], ek_div(ek_node_saved(node, 1), y)));
    return 0;
}

EK_OPERATION(div, "div", div_backward);

ek_tensor *ek_div(ek_tensor *x, ek_tensor *y)
{
    if (!ek_floating("div", "x", x) || !ek_broadcast_operands("div", &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_DIV, x, y, 0);
    return EK_RECORD(z, &div_operation, EK_INPUTS(x, y), EK_SAVED(y, ek_wants(y) ? z : NULL));
}

/* ---- maximum, minimum: the chosen operand gets the gradient; equal operands get half each ---- */

static int choice_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_binary op = *(const ek_binary *)ek_node_attributes(node);
    ek_tensor *g = gradients[0];
    ek_tensor *operand[] = {ek_node_saved(node, 0), ek_node_saved(node, 1)};
    if (!operand[0] || !operand[1])
        return ek_error_pending();
    ek_tensor *zero = ek_number_like(g, 0);
    ek_tensor *won = ek_where(ek_eq(operand[0], operand[1]), ek_mul_scalar(g, 0.5), g);
    for (int i = 0; i < 2; i++) {
        if (!ek_node_needs(node, i))
            continue;
        ek_tensor *mine = operand[i], *other = operand[1 - i];
        ek_tensor *lost = op == EK_BINARY_MAXIMUM ? ek_lt(mine, other) : ek_gt(mine, other);
        results[i] = ek_where(lost, zero, won);
    }
    return 0;
}

EK_OPERATION(maximum, "maximum", choice_backward);
EK_OPERATION(minimum, "minimum", choice_backward);

static ek_tensor *arithmetic_choice(const ek_operation *operation, ek_binary op, ek_tensor *x,
                                    ek_tensor *y)
{
    if (!ek_broadcast_operands(operation->name, &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(op, x, y, 0);
    return EK_RECORD(z, operation, EK_INPUTS(x, y), EK_SAVED(x, y), EK_ATTRIBUTES(op));
}

ek_tensor *ek_maximum(ek_tensor *x, ek_tensor *y)
{
    return arithmetic_choice(&maximum_operation, EK_BINARY_MAXIMUM, x, y);
}

ek_tensor *ek_minimum(ek_tensor *x, ek_tensor *y)
{
    return arithmetic_choice(&minimum_operation, EK_BINARY_MINIMUM, x, y);
}

/* ---- comparisons, which carry no gradient ---- */

/* Compares without history: moving a scalar from cpu and expanding aren't recorded either. */
static ek_tensor *arithmetic_compare(const char *name, ek_compare op, ek_tensor *x, ek_tensor *y)
{
    bool before = ek_set_grad_enabled(false);
    bool fits = ek_broadcast_operands(name, &x, &y);
    ek_set_grad_enabled(before);
    if (!fits)
        return NULL;
    ek_tensor *z = ek_result(x, y, NULL, EK_BOOL);
    return z && ek_kernels_of(x)->compare(x->storage->dev, op, z, x, y) >= 0
               ? EK_OBSERVED(z, name, EK_INPUTS(x, y))
               : NULL;
}

#define COMPARISON(name, NAME)                                     \
    ek_tensor *ek_##name(ek_tensor *x, ek_tensor *y)               \
    {                                                              \
        return arithmetic_compare(#name, EK_COMPARE_##NAME, x, y); \
    }
COMPARISON(eq, EQ)
COMPARISON(ne, NE)
COMPARISON(lt, LT)
COMPARISON(le, LE)
COMPARISON(gt, GT)
COMPARISON(ge, GE)

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

EK_OPERATION(where, "where", where_backward);

ek_tensor *ek_where(ek_tensor *condition, ek_tensor *x, ek_tensor *y)
{
    if (!ek_is_mask("where", "the condition", condition) || !ek_broadcast_operands("where", &x, &y))
        return NULL;
    if (ek_is_cpu_scalar(condition))
        condition = ek_to_device(condition, x->storage->dev->id);
    if (condition && ek_is_cpu_scalar(x)) {
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
    return EK_RECORD(EK_RUN(z, where, condition, x, y), &where_operation, EK_INPUTS(x, y),
                     EK_SAVED(condition));
}
