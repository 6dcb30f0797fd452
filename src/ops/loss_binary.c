/* loss_binary.c: losses of binary targets: binary cross entropy of logits, of probabilities and of
 * several labels, and the soft margin. The elementwise operations save their operands only. */
#include <math.h>

#include "ops/autocast.h"
#include "ops/loss.h"

/* ---- binary cross entropy of sigmoid(x), positives weighted by v (1 without pos_weight) ----
 *
 *     loss  = (1 - t) softplus(x) + v t softplus(-x)
 *     d/dx  = (1 - t) sigmoid(x) - v t sigmoid(-x)
 *     d/dt  = v softplus(-x) - softplus(x),   d/dv = t softplus(-x)
 *
 * No term of the loss is negative: small losses keep their digits. */

static ek_tensor *loss_one_minus(ek_tensor *x)
{
    return ek_add_scalar(ek_neg(x), 1);
}

static ek_tensor *loss_softplus_of_negative(ek_tensor *x)
{
    return ek_log1p_exp(ek_neg(x));
}

/* s * pos_weight, or s if pos_weight is NULL. */
static ek_tensor *loss_weigh_positive(ek_tensor *s, ek_tensor *pos_weight)
{
    return pos_weight ? ek_mul(s, pos_weight) : s;
}

/* Inputs and saved x, target, pos_weight. */
static int bce_with_logits_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *g = gradients[0];
    ek_tensor *x = ek_node_saved(node, 0);
    ek_tensor *target = ek_node_saved(node, 1);
    ek_tensor *pos_weight = ek_node_saved(node, 2);
    if (!x || !target || ek_error_status() < 0)
        return ek_error_pending();
    if (ek_node_needs(node, 0) && pos_weight) {
        ek_tensor *positive =
            ek_mul(loss_weigh_positive(target, pos_weight), ek_f_sigmoid(ek_neg(x)));
        ek_tensor *negative = ek_mul(loss_one_minus(target), ek_f_sigmoid(x));
        results[0] = ek_mul(g, ek_sub(negative, positive));
    } else if (ek_node_needs(node, 0)) {
        results[0] = ek_mul(g, ek_sub(ek_f_sigmoid(x), target));
    }
    if (ek_node_needs(node, 1)) {
        ek_tensor *positive = loss_weigh_positive(loss_softplus_of_negative(x), pos_weight);
        results[1] = ek_mul(g, ek_sub(positive, ek_log1p_exp(x)));
    }
    if (ek_node_needs(node, 2))
        results[2] = ek_sum_to(ek_mul(g, ek_mul(target, loss_softplus_of_negative(x))),
                               ek_tensor_shape(pos_weight));
    return 0;
}

EK_OPERATION(bce_with_logits, "bce_with_logits", bce_with_logits_backward);

static ek_tensor *bce_with_logits(ek_tensor *x, ek_tensor *target, ek_tensor *pos_weight)
{
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *loss;
    if (pos_weight) {
        ek_tensor *positive = ek_mul(target, ek_mul(loss_softplus_of_negative(x), pos_weight));
        loss = ek_add(ek_mul(loss_one_minus(target), ek_log1p_exp(x)), positive);
    } else {
        loss = ek_run_binary(EK_BINARY_BCE_LOGITS, x, target, 0);
    }
    ek_set_grad_enabled(enabled);
    return EK_RECORD(loss, &bce_with_logits_operation, EK_INPUTS(x, target, pos_weight),
                     EK_SAVED(x, target, pos_weight));
}

static ek_tensor *loss_checked_bce_with_logits(const ek_bce_with_logits_options *options)
{
    const char *name = "bce_with_logits";
    ek_tensor *x = options->input, *pos_weight = ek_autocast_wide(options->pos_weight);
    if (!ek_loss_check_pair(name, x, "target", options->target) ||
        !ek_loss_check_reduction(name, options->reduction) ||
        !ek_loss_check_factor(name, x, "weight", options->weight) ||
        !ek_loss_check_factor(name, x, "pos_weight", pos_weight))
        return NULL;
    ek_tensor *loss = bce_with_logits(x, options->target, pos_weight);
    if (options->weight)
        loss = ek_mul(loss, options->weight);
    return ek_loss_reduce(loss, options->reduction);
}

EK_PUBLIC_WEIGHTED_LOSS(bce_with_logits, ek_bce_with_logits_options,
                        loss_checked_bce_with_logits(&options))

/* ---- binary cross entropy of probabilities ----
 *
 *     loss = -t max(log(x), -100) - (1 - t) max(log(1 - x), -100)
 *     d/dx = s(x, t) = (x - t) / max(x (1 - x), 1e-12)
 *     d/dt = log(1 - x) - log(x)
 *
 * s is an operation. Its bound 1e-12 is a float in PyTorch, even for f64. With v = max(x (1 - x),
 * 1e-12) the derivatives of s are d/dx = 1 / v - s (1 - 2 x) / v, whose second term is 0 where v
 * equals the bound, and d/dt = -1 / v. */

static ek_tensor *bce_slope(ek_tensor *x, ek_tensor *target);

static int bce_slope_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *x = ek_node_saved(node, 0), *target = ek_node_saved(node, 1);
    ek_tensor *product = ek_mul(x, loss_one_minus(x));
    ek_tensor *scaled = ek_div(gradients[0], ek_clamp(product, (double)1e-12f, (double)INFINITY));
    if (ek_node_needs(node, 0)) {
        ek_tensor *bent = ek_mul(bce_slope(x, target), ek_affine(x, -2, 1));
        bent = ek_where(ek_ge_scalar(product, (double)1e-12f), bent, ek_number_like(x, 0));
        results[0] = ek_mul(scaled, loss_one_minus(bent));
    }
    if (ek_node_needs(node, 1))
        results[1] = ek_neg(scaled);
    return 0;
}

EK_OPERATION(bce_slope, "bce_slope", bce_slope_backward);

static ek_tensor *bce_slope(ek_tensor *x, ek_tensor *target)
{
    if (!x || !target)
        return NULL;
    return EK_RECORD(ek_run_binary(EK_BINARY_BCE_SLOPE, x, target, 0), &bce_slope_operation,
                     EK_INPUTS(x, target), EK_SAVED(x, target));
}

static int bce_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *x = ek_node_saved(node, 0), *target = ek_node_saved(node, 1);
    if (ek_node_needs(node, 0))
        results[0] = ek_mul(gradients[0], bce_slope(x, target));
    if (ek_node_needs(node, 1))
        results[1] = ek_mul(gradients[0], ek_sub(ek_log1p(ek_neg(x)), ek_log(x)));
    return 0;
}

EK_OPERATION(bce, "bce", bce_backward);

static ek_tensor *loss_checked_bce(const ek_bce_options *options)
{
    ek_tensor *x = options->input, *target = options->target;
    if (!ek_loss_check_pair("bce", x, "target", target) ||
        !ek_loss_check_reduction("bce", options->reduction) ||
        !ek_loss_check_factor("bce", x, "weight", options->weight))
        return NULL;
    ek_tensor *loss = EK_RECORD(ek_run_binary(EK_BINARY_BCE, x, target, 0), &bce_operation,
                                EK_INPUTS(x, target), EK_SAVED(x, target));
    if (options->weight)
        loss = ek_mul(loss, options->weight);
    return ek_loss_reduce(loss, options->reduction);
}

EK_PUBLIC_WEIGHTED_LOSS(bce, ek_bce_options, loss_checked_bce(&options))

/* ---- log(1 + e^(-t x)), and binary cross entropy of several labels ---- */

static ek_tensor *loss_soft_margin(const ek_loss_options *options)
{
    const char *name = "soft_margin_loss";
    if (!ek_loss_check_pair(name, options->input, "target", options->target) ||
        !ek_loss_check_reduction(name, options->reduction))
        return NULL;
    /* The gradient of log(sigmoid(t x)) is one kernel; the sign is changed afterwards. */
    ek_tensor *logarithm = ek_f_log_sigmoid(ek_mul(options->target, options->input));
    ek_tensor *sum = ek_loss_reduce(logarithm, options->reduction);
    return sum ? ek_neg(sum) : NULL;
}

EK_PUBLIC_LOSS(soft_margin_loss, ek_loss_options, loss_soft_margin(&options))

static ek_tensor *loss_multilabel_soft_margin(const ek_bce_options *options)
{
    const char *name = "multilabel_soft_margin_loss";
    ek_tensor *x = options->input;
    if (!ek_loss_check_pair(name, x, "target", options->target) ||
        !ek_loss_check_reduction(name, options->reduction) ||
        !ek_loss_check_factor(name, x, "weight", options->weight))
        return NULL;
    if (x->ndim == 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: the input must be (C) or (..., C), not a scalar", name);
    ek_tensor *loss = bce_with_logits(x, options->target, NULL);
    if (options->weight)
        loss = ek_mul(loss, options->weight);
    loss = loss ? ek_mean(loss, EK_DIMS(-1)) : NULL;
    return ek_loss_reduce(loss, options->reduction);
}

EK_PUBLIC_WEIGHTED_LOSS(multilabel_soft_margin_loss, ek_bce_options,
                        loss_multilabel_soft_margin(&options))
