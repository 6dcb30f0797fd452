/* loss.c: functions that all losses share; and losses of two tensors of one shape, element by
 * element: squared, absolute and Huber's error, divergences and likelihoods. Each error is an
 * operation that saves its operands only; the others are composed of operations, as in PyTorch. */
#include "ops/loss.h"
#include "ops/autocast.h"

/* ---- what losses share ---- */

ek_tensor *ek_loss_reduce(ek_tensor *loss, ek_reduction reduction)
{
    if (!loss || reduction == EK_NONE)
        return loss;
    if (reduction == EK_MEAN)
        return ek_mean(loss);
    ek_tensor *sum = ek_sum(loss);
    return reduction == EK_BATCH_MEAN && loss->ndim > 0 ? ek_div_scalar(sum, (double)loss->shape[0])
                                                        : sum;
}

bool ek_loss_check_reduction(const char *name, ek_reduction reduction)
{
    return ek_chosen(name, "reduction", (int)reduction, 3, "EK_MEAN, EK_SUM or EK_NONE");
}

bool ek_loss_check_pair(const char *name, const ek_tensor *x, const char *other, const ek_tensor *y)
{
    if (!ek_floating(name, "input", x) || !ek_given(name, other, y) || !ek_alike(name, x, y))
        return false;
    ek_shape shape = ek_tensor_shape(x);
    return ek_of_shape(name, other, y, &shape);
}

bool ek_loss_check_factor(const char *name, const ek_tensor *x, const char *factor_name,
                          const ek_tensor *factor)
{
    if (!factor)
        return ek_optional(factor);
    if (!ek_alike(name, x, factor))
        return false;
    ek_shape own = ek_tensor_shape(x), other = ek_tensor_shape(factor), both;
    if (ek_broadcast_shapes(name, &own, &other, &both) < 0)
        return false;
    if (ek_shape_equal(&own, &both))
        return true;
    return EK_FAIL(EK_E_SHAPE, "%s: %s of shape %s does not broadcast to the input's %s", name,
                   factor_name, EK_SHAPE_TEXT(&other), EK_SHAPE_TEXT(&own)) == 0;
}

/* ---- (x - y)^2, |x - y|, and Huber's square up to delta and line beyond ---- */

/* dx is the gradient of the first operand; the second operand's is -dx. */
static int loss_give_opposite(ek_node *node, ek_tensor *dx, ek_tensor **results)
{
    if (ek_node_needs(node, 0))
        results[0] = dx;
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(dx);
    return 0;
}

static ek_tensor *loss_difference(ek_node *node)
{
    return ek_sub(ek_node_saved(node, 0), ek_node_saved(node, 1));
}

static int squared_difference_backward(ek_node *node, ek_tensor *const *gradients,
                                       ek_tensor **results)
{
    ek_tensor *difference = loss_difference(node);
    return loss_give_opposite(node, ek_mul_scalar(ek_mul(difference, gradients[0]), 2), results);
}

static int absolute_difference_backward(ek_node *node, ek_tensor *const *gradients,
                                        ek_tensor **results)
{
    return loss_give_opposite(node, ek_sign_mul(gradients[0], loss_difference(node)), results);
}

/* The attribute is delta. */
static int huber_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const double delta = *(const double *)ek_node_attributes(node);
    ek_tensor *slope = ek_clamp(loss_difference(node), -delta, delta);
    return loss_give_opposite(node, ek_mul(slope, gradients[0]), results);
}

EK_OPERATION(squared_difference, "mse_loss", squared_difference_backward);
EK_OPERATION(absolute_difference, "l1_loss", absolute_difference_backward);
EK_OPERATION(huber, "huber_loss", huber_backward);

/* Of checked operands; delta is Huber's. */
static ek_tensor *loss_of_difference(ek_tensor *x, ek_tensor *y, ek_binary formula,
                                     const ek_operation *operation, double delta)
{
    return EK_RECORD(ek_run_binary(formula, x, y, delta), operation, EK_INPUTS(x, y),
                     EK_SAVED(x, y), EK_ATTRIBUTES(delta));
}

static ek_tensor *loss_checked_difference(const ek_loss_options *options, ek_binary formula,
                                          const ek_operation *operation)
{
    ek_tensor *x = options->input, *y = options->target;
    if (!ek_loss_check_pair(operation->name, x, "target", y) ||
        !ek_loss_check_reduction(operation->name, options->reduction))
        return NULL;
    return ek_loss_reduce(loss_of_difference(x, y, formula, operation, 0), options->reduction);
}

EK_PUBLIC_LOSS(mse_loss, ek_loss_options,
               loss_checked_difference(&options, EK_BINARY_SQUARED_DIFFERENCE,
                                       &squared_difference_operation))
EK_PUBLIC_LOSS(l1_loss, ek_loss_options,
               loss_checked_difference(&options, EK_BINARY_ABSOLUTE_DIFFERENCE,
                                       &absolute_difference_operation))

/* Returns Huber's loss divided by beta after its reduction. If beta is 0, returns the absolute
 * difference. */
static ek_tensor *loss_huber(const char *name, ek_tensor *x, ek_tensor *y, ek_reduction reduction,
                             double delta, bool divided)
{
    if (!ek_loss_check_pair(name, x, "target", y) || !ek_loss_check_reduction(name, reduction))
        return NULL;
    if (divided && delta == 0)
        return ek_loss_reduce(loss_of_difference(x, y, EK_BINARY_ABSOLUTE_DIFFERENCE,
                                                 &absolute_difference_operation, 0),
                              reduction);
    ek_tensor *loss = loss_of_difference(x, y, EK_BINARY_HUBER, &huber_operation, delta);
    loss = ek_loss_reduce(loss, reduction);
    return divided && delta != 1 ? ek_div_scalar(loss, delta) : loss;
}

ek_tensor *ek_f_smooth_l1_loss_with(ek_smooth_l1_options options)
{
    const double beta = options.beta;
    if (!(beta >= 0))
        return EK_REFUSE(EK_E_INVALID, "smooth_l1_loss: beta is %g; it must be 0 or above", beta);
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = loss_huber("smooth_l1_loss", ek_autocast_wide(options.input),
                                 ek_autocast_wide(options.target), options.reduction, beta, true);
    return ek_scope_return(&scope, loss);
}

ek_tensor *ek_f_huber_loss_with(ek_huber_options options)
{
    const double delta = options.delta;
    if (!(delta > 0))
        return EK_REFUSE(EK_E_INVALID, "huber_loss: delta is %g; it must be above 0", delta);
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = loss_huber("huber_loss", ek_autocast_wide(options.input),
                                 ek_autocast_wide(options.target), options.reduction, delta, false);
    return ek_scope_return(&scope, loss);
}

/* ---- divergences and likelihoods ---- */

/* t log(t), 0 for 0 */
static ek_tensor *loss_entropy(ek_tensor *t)
{
    if (!t)
        return NULL;
    return ek_mul(t, ek_log(ek_where(ek_eq_scalar(t, 0), ek_number_like(t, 1), t)));
}

ek_tensor *ek_f_kl_div_with(ek_kl_div_options options)
{
    const char *name = "kl_div";
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input), *t = ek_autocast_wide(options.target);
    ek_tensor *loss = NULL;
    if (ek_loss_check_pair(name, x, "target", t) &&
        ek_chosen(name, "reduction", (int)options.reduction, 4,
                  "EK_MEAN, EK_SUM, EK_NONE or EK_BATCH_MEAN"))
        loss = options.log_target ? ek_mul(ek_exp(t), ek_sub(t, x))
                                  : ek_sub(loss_entropy(t), ek_mul(t, x));
    return ek_loss_return(&scope, loss, options.reduction);
}

/* Stirling's approximation of log(t!), t log(t) - t + log(2 pi t) / 2; 0 for t up to 1. */
static ek_tensor *loss_stirling(ek_tensor *t)
{
    ek_tensor *small = ek_le_scalar(t, 1);
    ek_tensor *safe = small ? ek_where(small, ek_number_like(t, 1), t) : NULL;
    ek_tensor *half = ek_mul_scalar(ek_log(ek_mul_scalar(safe, 6.283185307179586)), 0.5);
    ek_tensor *term = ek_add(ek_sub(ek_mul(safe, ek_log(safe)), safe), half);
    return term ? ek_where(small, ek_number_like(t, 0), term) : NULL;
}

ek_tensor *ek_f_poisson_nll_loss_with(ek_poisson_nll_options options)
{
    const char *name = "poisson_nll_loss";
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input), *t = ek_autocast_wide(options.target);
    ek_tensor *loss = NULL;
    if (ek_loss_check_pair(name, x, "target", t) &&
        ek_loss_check_reduction(name, options.reduction)) {
        loss = options.log_input ? ek_sub(ek_exp(x), ek_mul(t, x))
                                 : ek_sub(x, ek_mul(t, ek_log(ek_add_scalar(x, options.eps))));
        if (options.full)
            loss = ek_add(loss, loss_stirling(t));
    }
    return ek_loss_return(&scope, loss, options.reduction);
}

/* Returns the variances in the input's shape, or with size 1 in the last dimension, which `var` may
 * lack. */
static ek_tensor *loss_variance(const char *name, const ek_tensor *x, ek_tensor *var)
{
    if (!ek_given(name, "var", var) || !ek_alike(name, x, var))
        return NULL;
    ek_shape shape = ek_tensor_shape(x), own = ek_tensor_shape(var);
    if (ek_shape_equal(&own, &shape))
        return var;
    if (shape.ndim > 0) {
        shape.dims[shape.ndim - 1] = 1;
        if (ek_shape_equal(&own, &shape))
            return var;
        shape.ndim--;
        if (ek_shape_equal(&own, &shape))
            return ek_unsqueeze(var, -1);
    }
    return EK_REFUSE(EK_E_SHAPE,
                     "%s: var has shape %s; it must have the input's, %s, or that with 1 in "
                     "place of the last size or without it",
                     name, EK_SHAPE_TEXT(&own), EK_SIZE_TEXT(x));
}

ek_tensor *ek_f_gaussian_nll_loss_with(ek_gaussian_nll_options options)
{
    const char *name = "gaussian_nll_loss";
    const double eps = options.eps;
    if (!(eps > 0))
        return EK_REFUSE(EK_E_INVALID, "%s: eps is %g; it must be above 0", name, eps);
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input), *t = ek_autocast_wide(options.target);
    ek_tensor *var = ek_autocast_wide(options.var), *loss = NULL;
    if (ek_loss_check_pair(name, x, "target", t) &&
        ek_loss_check_reduction(name, options.reduction) && (var = loss_variance(name, x, var))) {
        var = ek_raise_value(var, eps);
        loss = ek_add(ek_log(var), ek_div(ek_square(ek_sub(x, t)), var));
        loss = ek_affine(loss, 0.5, options.full ? 0.9189385332046727 : 0); /* log(2 pi) / 2 */
    }
    return ek_loss_return(&scope, loss, options.reduction);
}
