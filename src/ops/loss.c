/* loss.c: losses of two tensors of one shape: squared and absolute error, binary cross entropy.
 * Each has an elementwise operation that saves its operands only; the reduction follows. */
#include "ops/autocast.h"
#include "ops/ops.h"

/* mean, sum or nothing. */
static ek_tensor *reduce(ek_tensor *loss, ek_reduction reduction)
{
    if (reduction == EK_MEAN)
        return ek_mean(loss);
    return reduction == EK_SUM ? ek_sum(loss) : loss;
}

/* The operands of a loss are floating, alike and of one shape: broadcasting here is nearly always a
 * forgotten squeeze. */
static bool check_pair(const char *name, const ek_loss_options *options)
{
    const ek_tensor *x = options->input, *y = options->target;
    if (!ek_floating(name, "input", x) || !ek_given(name, "target", y) || !ek_alike(name, x, y))
        return false;
    ek_shape shape = ek_tensor_shape(x);
    if (!ek_of_shape(name, "target", y, &shape))
        return false;
    if (options->reduction != EK_MEAN && options->reduction != EK_SUM &&
        options->reduction != EK_NONE)
        return EK_FAIL(EK_E_INVALID, "%s: reduction must be EK_MEAN, EK_SUM or EK_NONE, got %d",
                       name, (int)options->reduction) == 0;
    if (options->ignore_index != 0 || options->label_smoothing != 0)
        return EK_FAIL(EK_E_INVALID,
                       "%s has no ignore_index and no label_smoothing: its targets are no "
                       "classes",
                       name) == 0;
    return true;
}

/* ---- (x - y)^2 and |x - y| ---- */

/* The gradient of the first operand; the second's is its negative. */
static int give_opposite(ek_node *node, ek_tensor *dx, ek_tensor **results)
{
    if (ek_node_needs(node, 0))
        results[0] = dx;
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(dx);
    return 0;
}

static int squared_difference_backward(ek_node *node, ek_tensor *const *gradients,
                                       ek_tensor **results)
{
    ek_tensor *difference = ek_sub(ek_node_saved(node, 0), ek_node_saved(node, 1));
    return give_opposite(node, ek_mul_scalar(ek_mul(difference, gradients[0]), 2), results);
}

static int absolute_difference_backward(ek_node *node, ek_tensor *const *gradients,
                                        ek_tensor **results)
{
    ek_tensor *difference = ek_sub(ek_node_saved(node, 0), ek_node_saved(node, 1));
    return give_opposite(node, ek_sign_mul(gradients[0], difference), results);
}

EK_OPERATION(squared_difference, "mse_loss", squared_difference_backward);
EK_OPERATION(absolute_difference, "l1_loss", absolute_difference_backward);

static ek_tensor *checked_difference_loss(const ek_loss_options *options, ek_binary op,
                                          const ek_operation *operation)
{
    if (!check_pair(operation->name, options))
        return NULL;
    if (options->weight || options->pos_weight)
        return EK_REFUSE(EK_E_INVALID, "%s takes no weight and no pos_weight", operation->name);
    ek_tensor *x = options->input, *y = options->target;
    ek_tensor *loss =
        EK_RECORD(ek_run_binary(op, x, y, 0), operation, EK_INPUTS(x, y), EK_SAVED(x, y));
    return reduce(loss, options->reduction);
}

static ek_tensor *difference_loss(ek_loss_options *options, ek_binary op,
                                  const ek_operation *operation)
{
    ek_scope scope = ek_scope_begin();
    ek_autocast_loss(options);
    return ek_scope_return(&scope, checked_difference_loss(options, op, operation));
}

ek_tensor *ek_f_mse_loss_with(ek_loss_options options)
{
    return difference_loss(&options, EK_BINARY_SQUARED_DIFFERENCE, &squared_difference_operation);
}

ek_tensor *ek_f_l1_loss_with(ek_loss_options options)
{
    return difference_loss(&options, EK_BINARY_ABSOLUTE_DIFFERENCE, &absolute_difference_operation);
}

/* ---- binary cross entropy of sigmoid(x), positives weighted by v (1 without pos_weight) ----
 *
 *     loss  = (1 - t) softplus(x) + v t softplus(-x)
 *     d/dx  = (1 - t) sigmoid(x) - v t sigmoid(-x)
 *     d/dt  = v softplus(-x) - softplus(x),   d/dv = t softplus(-x)
 *
 * No term of the loss is negative: small losses keep their digits. */

static ek_tensor *one_minus(ek_tensor *x)
{
    return ek_add_scalar(ek_neg(x), 1);
}

static ek_tensor *softplus_of_negative(ek_tensor *x)
{
    return ek_f_softplus(ek_neg(x));
}

/* v s, for s of the operands' shape. */
static ek_tensor *weigh_positive(ek_tensor *s, ek_tensor *pos_weight)
{
    return pos_weight ? ek_mul(s, pos_weight) : s;
}

/* Inputs and saved x, target, pos_weight. */
static int bce_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *g = gradients[0];
    ek_tensor *x = ek_node_saved(node, 0);
    ek_tensor *target = ek_node_saved(node, 1);
    ek_tensor *pos_weight = ek_node_saved(node, 2);
    if (!x || !target || ek_error_status() < 0)
        return ek_error_pending();
    if (ek_node_needs(node, 0) && pos_weight) {
        ek_tensor *positive = ek_mul(weigh_positive(target, pos_weight), ek_f_sigmoid(ek_neg(x)));
        ek_tensor *negative = ek_mul(one_minus(target), ek_f_sigmoid(x));
        results[0] = ek_mul(g, ek_sub(negative, positive));
    } else if (ek_node_needs(node, 0)) {
        results[0] = ek_mul(g, ek_sub(ek_f_sigmoid(x), target));
    }
    if (ek_node_needs(node, 1)) {
        ek_tensor *positive = weigh_positive(softplus_of_negative(x), pos_weight);
        results[1] = ek_mul(g, ek_sub(positive, ek_f_softplus(x)));
    }
    if (ek_node_needs(node, 2))
        results[2] = ek_sum_to(ek_mul(g, ek_mul(target, softplus_of_negative(x))),
                               ek_tensor_shape(pos_weight));
    return 0;
}

EK_OPERATION(bce, "bce_with_logits", bce_backward);

static ek_tensor *bce(ek_tensor *x, ek_tensor *target, ek_tensor *pos_weight)
{
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *positive = ek_mul(target, weigh_positive(softplus_of_negative(x), pos_weight));
    ek_tensor *loss = ek_add(ek_mul(one_minus(target), ek_f_softplus(x)), positive);
    ek_set_grad_enabled(enabled);
    return EK_RECORD(loss, &bce_operation, EK_INPUTS(x, target, pos_weight),
                     EK_SAVED(x, target, pos_weight));
}

/* `factor` broadcasts to the input's shape. */
static bool check_factor(const char *name, const ek_tensor *x, const ek_tensor *factor)
{
    if (!factor)
        return ek_optional(factor);
    if (!ek_alike("bce_with_logits", x, factor))
        return false;
    ek_shape own = ek_tensor_shape(x), other = ek_tensor_shape(factor), both;
    if (ek_broadcast_shapes("bce_with_logits", &own, &other, &both) < 0)
        return false;
    if (ek_shape_equal(&own, &both))
        return true;
    char text[160], other_text[160];
    return EK_FAIL(EK_E_SHAPE,
                   "bce_with_logits: %s of shape %s does not broadcast to the input's %s", name,
                   ek_shape_text(&other, other_text), ek_shape_text(&own, text)) == 0;
}

static ek_tensor *checked_bce(const ek_loss_options *options)
{
    ek_tensor *x = options->input;
    if (!check_pair("bce_with_logits", options) || !check_factor("weight", x, options->weight) ||
        !check_factor("pos_weight", x, options->pos_weight))
        return NULL;
    ek_tensor *loss = bce(x, options->target, options->pos_weight);
    if (options->weight)
        loss = ek_mul(loss, options->weight);
    return reduce(loss, options->reduction);
}

ek_tensor *ek_f_bce_with_logits_with(ek_loss_options options)
{
    ek_scope scope = ek_scope_begin();
    ek_autocast_loss(&options);
    return ek_scope_return(&scope, checked_bce(&options));
}
