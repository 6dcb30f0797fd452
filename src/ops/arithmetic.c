/* arithmetic.c: x + y, x - y, x y, x / y, the larger and the smaller; x and y broadcast. */
#include "ops/ops.h"

/* ---- add, sub: z = x + alpha y ---- */

static int add_scaled_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    double alpha = *(const double *)ek_node_attributes(node);
    if (ek_node_needs(node, 0))
        results[0] = gradients[0];
    if (ek_node_needs(node, 1))
        results[1] = alpha == 1 ? gradients[0] : ek_mul_scalar(gradients[0], alpha);
    return 0;
}

static const ek_operation add_operation = {.name = "add", .backward = add_scaled_backward};
static const ek_operation sub_operation = {.name = "sub", .backward = add_scaled_backward};

static ek_tensor *add_scaled(const ek_operation *operation, ek_tensor *x, ek_tensor *y,
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
    return add_scaled(&add_operation, x, y, 1);
}

ek_tensor *ek_add_scaled(ek_tensor *x, ek_tensor *y, double alpha)
{
    if (x && !ek_holds("add_scaled", "alpha", x->dtype, alpha))
        return NULL;
    return add_scaled(&add_operation, x, y, alpha);
}

ek_tensor *ek_sub(ek_tensor *x, ek_tensor *y)
{
    return add_scaled(&sub_operation, x, y, -1);
}

/* ---- mul: saves a factor where the other's gradient will be asked for ---- */

int ek_mul_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    if (ek_node_needs(node, 0))
        results[0] = ek_mul(gradients[0], ek_node_saved(node, 1));
    if (ek_node_needs(node, 1))
        results[1] = ek_mul(gradients[0], ek_node_saved(node, 0));
    return 0;
}

static const ek_operation mul_operation = {.name = "mul", .backward = ek_mul_backward};

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

static const ek_operation div_operation = {.name = "div", .backward = div_backward};

ek_tensor *ek_div(ek_tensor *x, ek_tensor *y)
{
    if (!ek_floating("div", "x", x) || !ek_broadcast_operands("div", &x, &y))
        return NULL;
    ek_tensor *z = ek_run_binary(EK_BINARY_DIV, x, y, 0);
    return EK_RECORD(z, &div_operation, EK_INPUTS(x, y), EK_SAVED(y, ek_wants(y) ? z : NULL));
}

/* ---- maximum, minimum: the gradient goes to the winner, half to each where they tie ---- */

static int choice_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    bool larger = *(const bool *)ek_node_attributes(node);
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
        ek_tensor *lost = larger ? ek_lt(mine, other) : ek_gt(mine, other);
        results[i] = ek_where(lost, zero, won);
    }
    return 0;
}

static const ek_operation maximum_operation = {.name = "maximum", .backward = choice_backward};
static const ek_operation minimum_operation = {.name = "minimum", .backward = choice_backward};

ek_tensor *ek_maximum(ek_tensor *x, ek_tensor *y)
{
    if (!ek_broadcast_operands("maximum", &x, &y))
        return NULL;
    bool larger = true;
    ek_tensor *z = ek_run_binary(EK_BINARY_MAXIMUM, x, y, 0);
    return EK_RECORD(z, &maximum_operation, EK_INPUTS(x, y), EK_SAVED(x, y), EK_ATTRIBUTES(larger));
}

ek_tensor *ek_minimum(ek_tensor *x, ek_tensor *y)
{
    if (!ek_broadcast_operands("minimum", &x, &y))
        return NULL;
    bool larger = false;
    ek_tensor *z = ek_run_binary(EK_BINARY_MINIMUM, x, y, 0);
    return EK_RECORD(z, &minimum_operation, EK_INPUTS(x, y), EK_SAVED(x, y), EK_ATTRIBUTES(larger));
}
