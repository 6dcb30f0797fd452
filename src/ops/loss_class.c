/* loss_class.c: losses of class targets: cross entropy of classes and of probabilities, negative
 * log likelihood, and the denominators of their means. An operation computes the loss per element
 * and saves its operands only; a reduction follows. */
#include "ops/autocast.h"
#include "ops/loss.h"

/* ---- class targets ----
 *
 * Per element i with target t, class weights w and smoothing e, cross entropy is
 *     loss = sum_c T_c (lse(x) - x_c),   T_c = (1 - e) w_t [c = t] + e / C w_c,
 * or 0 if t is ignored. Backward needs the logits, the target and lse: log-probabilities are
 * never stored. With W = sum_c T_c and p = softmax(x), the gradient E(g, x) = g (W p - T) is an
 * operation, too. If a is the gradient of E's result, E has the derivatives
 *     d/dg = sum_c a E(1, x)
 *     d/dx = g W p (a - sum_c a p) = W g softmax_gradient(a, p). */

typedef struct target_options {
    ek_tensor *target; /* i64 (N, d1, ...) */
    ek_tensor *weight; /* (C) or NULL; of the loss's dtype */
    ek_cross_entropy_params params;
    ek_dtype dtype; /* The loss's dtype: autocast computes f32 from 16 bits. */
} target_options;

/* ---- targets ---- */

/* Size of the class dimension. */
static int64_t loss_class_count(const ek_tensor *input)
{
    return input->shape[1];
}

/* x's shape without the classes. */
static ek_shape loss_shape_without_classes(const ek_tensor *x)
{
    ek_shape shape = {.ndim = x->ndim - 1};
    for (int i = 0; i < shape.ndim; i++)
        shape.dims[i] = x->shape[i == 0 ? 0 : i + 1];
    return shape;
}

/* Makes an i64 scalar. ek_filled takes a double, which doesn't hold every i64. */
static ek_tensor *loss_index_scalar(ek_dev *dev, int64_t index)
{
    const double number = (double)index;
    ek_shape scalar = ek_scalar_shape();
    if (number < 0x1p63 && (int64_t)number == index)
        return ek_filled(dev, EK_I64, &scalar, number);
    return ek_to_device(ek_from_data(&index, scalar, EK_I64), dev->id);
}

/* Returns a mask: true where the target counts, false where the target is ignored. */
static ek_tensor *loss_counted(ek_tensor *target, int64_t ignore_index)
{
    if (!target)
        return NULL;
    return ek_ne(target, loss_index_scalar(ek_tensor_dev(target), ignore_index));
}

/* Returns the target, with class 0 in place of the ignored index. */
static ek_tensor *loss_class_index(ek_tensor *target, ek_tensor *counts)
{
    return ek_mul(target, ek_to_dtype(counts, EK_I64));
}

/* Returns weight[t] for each element t of `index`, or 1 if `weight` is NULL. Targets that don't
 * count get 0. The result has `dtype`. */
static ek_tensor *loss_weight_per_element(ek_tensor *weight, ek_tensor *index, ek_tensor *counts,
                                          ek_dtype dtype)
{
    if (!index || !counts)
        return NULL;
    ek_tensor *counts_as_number = ek_to_dtype(counts, dtype);
    if (!weight)
        return counts_as_number;
    ek_tensor *flat = ek_reshape(index, EK_SHAPE(ek_count(index)));
    ek_tensor *picked = ek_reshape(ek_index_select(weight, 0, flat), ek_tensor_shape(index));
    return ek_mul(picked, counts_as_number);
}

/* Returns W of the formulas above, per element. */
static ek_tensor *loss_total_weight(const target_options *options, const ek_tensor *x)
{
    ek_tensor *counts = loss_counted(options->target, options->params.ignore_index);
    ek_tensor *index = loss_class_index(options->target, counts);
    ek_tensor *own = loss_weight_per_element(options->weight, index, counts, x->dtype);
    const double smoothing = options->params.label_smoothing;
    if (smoothing == 0)
        return own;
    ek_tensor *spread =
        options->weight ? ek_sum(options->weight) : ek_number_like(x, (double)loss_class_count(x));
    ek_tensor *per_class = ek_mul_scalar(spread, smoothing / (double)loss_class_count(x));
    return ek_add(ek_mul_scalar(own, 1 - smoothing),
                  ek_mul(ek_to_dtype(counts, x->dtype), per_class));
}

/* ---- cross entropy per element, and its gradient ---- */

/* Writes the gradient to `memory`, or to new memory if `memory` is NULL. */
static ek_tensor *loss_cross_entropy_gradient(ek_tensor *g, ek_tensor *x, ek_tensor *lse,
                                              const target_options *options, ek_tensor *memory);

/* Saved x, lse, target, weight. The gradient takes x's memory if nothing else reads x. */
static int loss_cross_entropy_backward(ek_node *node, ek_tensor *const *gradients,
                                       ek_tensor **results)
{
    const target_options options = {.target = ek_node_saved(node, 2),
                                    .weight = ek_node_saved(node, 3),
                                    .params =
                                        *(const ek_cross_entropy_params *)ek_node_attributes(node)};
    ek_tensor *memory = ek_node_saved_memory(node, 0);
    results[0] = loss_cross_entropy_gradient(gradients[0], ek_node_saved(node, 0),
                                             ek_node_saved(node, 1), &options, memory);
    return 0;
}

/* Inputs g, x; saved g, x, lse, target, weight. */
static int loss_cross_entropy_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                                ek_tensor **results)
{
    const target_options options = {.target = ek_node_saved(node, 3),
                                    .weight = ek_node_saved(node, 4),
                                    .params =
                                        *(const ek_cross_entropy_params *)ek_node_attributes(node)};
    ek_tensor *g = ek_node_saved(node, 0), *saved = ek_node_saved(node, 1);
    ek_tensor *x = g && saved ? ek_to_dtype(saved, g->dtype) : NULL;
    ek_tensor *a = x ? ek_to_dtype(gradients[0], x->dtype) : NULL;
    if (!a || ek_error_status() < 0)
        return ek_error_pending();
    if (ek_node_needs(node, 0)) {
        ek_tensor *one = ek_expand(ek_number_like(x, 1), loss_shape_without_classes(x));
        ek_tensor *unit =
            loss_cross_entropy_gradient(one, x, ek_node_saved(node, 2), &options, NULL);
        results[0] = ek_sum(ek_mul(a, unit), EK_DIMS(1));
    }
    if (ek_node_needs(node, 1)) {
        ek_tensor *scale = ek_mul(g, loss_total_weight(&options, x));
        ek_tensor *dx =
            ek_mul(ek_unsqueeze(scale, 1), ek_softmax_gradient(a, ek_f_softmax(x, 1), 1));
        results[1] = dx ? ek_to_dtype(dx, saved->dtype) : NULL;
    }
    return 0;
}

EK_OPERATION(cross_entropy, "cross_entropy", loss_cross_entropy_backward);
EK_OPERATION(cross_entropy_gradient, "cross_entropy_gradient",
             loss_cross_entropy_gradient_backward);

static ek_tensor *loss_cross_entropy_gradient(ek_tensor *g, ek_tensor *x, ek_tensor *lse,
                                              const target_options *options, ek_tensor *memory)
{
    if (!g || !x || !lse || !options->target || ek_error_status() < 0)
        return NULL;
    ek_tensor *dx = memory ? memory : ek_result(x, NULL, NULL, x->dtype);
    dx = EK_RUN(dx, cross_entropy_gradient, g, lse, x, options->target, options->weight,
                &options->params);
    return EK_RECORD(dx, &cross_entropy_gradient_operation, EK_INPUTS(g, x),
                     EK_SAVED(g, x, lse, options->target, options->weight),
                     EK_ATTRIBUTES(options->params));
}

static ek_tensor *loss_cross_entropy(ek_tensor *x, const target_options *options)
{
    ek_shape shape = loss_shape_without_classes(x);
    ek_dev *dev = ek_tensor_dev(x);
    ek_tensor *loss = ek_tensor_new(dev, options->dtype, &shape, EK_CONTIGUOUS);
    /* Rounded to 16 bits, lse would spoil every probability of its element. */
    ek_dtype lse_dtype = ek_dtype_wide(x->dtype);
    ek_tensor *lse = ek_tensor_new(dev, lse_dtype, &shape, EK_CONTIGUOUS);
    if (!lse)
        return NULL;
    loss = EK_RUN(loss, cross_entropy_forward, lse, x, options->target, options->weight,
                  &options->params);
    return EK_RECORD(loss, &cross_entropy_operation, EK_INPUTS(x),
                     EK_SAVED(x, lse, options->target, options->weight),
                     EK_ATTRIBUTES(options->params));
}

/* ---- negative log likelihood per element: -weight[t] x[t] ---- */

static ek_tensor *loss_nll(ek_tensor *x, const target_options *options)
{
    ek_tensor *counts = loss_counted(options->target, options->params.ignore_index);
    ek_tensor *index = loss_class_index(options->target, counts);
    const int before = ek_error_status();
    ek_tensor *picked = ek_squeeze(ek_gather_dim(x, 1, ek_unsqueeze(index, 1)), 1);
    if (!picked)
        ek_error_prefix(before, "nll_loss: target");
    /* Ignored elements are replaced, not multiplied by 0, because their class 0 may be infinite. */
    ek_tensor *own = ek_where(counts, picked, ek_number_like(x, 0));
    return ek_mul(ek_neg(own), loss_weight_per_element(options->weight, index, counts, x->dtype));
}

/* Checks the options that targets of classes and of probabilities share: the input's dimensions,
 * the weight per class, which has the loss's dtype, and others. */
static int loss_check_class_options(const char *name, const ek_cross_entropy_options *options,
                                    ek_dtype dtype)
{
    const ek_tensor *x = options->input, *weight = options->weight;
    if (!ek_optional(options->weight))
        return ek_error_pending();
    if (x->ndim < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: expected an input of 2 or more dimensions (N, C, ...), got %s", name,
                       EK_TENSOR_TEXT(x));
    if (loss_class_count(x) < 1)
        return EK_FAIL(EK_E_SHAPE, "%s: the input must have at least one class, got %s", name,
                       EK_TENSOR_TEXT(x));
    if (weight && (!(weight->dtype == dtype ? ek_same_device : ek_alike)(name, x, weight) ||
                   !ek_of_shape(name, "weight", weight, &EK_SHAPE(loss_class_count(x)))))
        return ek_error_pending();
    const double smoothing = options->label_smoothing;
    if (!(smoothing >= 0 && smoothing <= 1))
        return EK_FAIL(EK_E_INVALID, "%s: label_smoothing must be in [0, 1], got %g", name,
                       smoothing);
    return 0;
}

/* ---- cross entropy of probabilities ---- */

/* Per element -sum_c w_c ((1 - e) t_c + e / C) log_softmax(x)_c, and the mean of these. */
static ek_tensor *loss_of_probabilities(const ek_cross_entropy_options *options)
{
    const char *name = "cross_entropy";
    ek_tensor *x = options->input, *target = options->target;
    const double smoothing = options->label_smoothing;
    if (!ek_floating(name, "input", x) || loss_check_class_options(name, options, x->dtype) < 0)
        return NULL;
    ek_shape own = ek_tensor_shape(target), shape = ek_tensor_shape(x);
    if (!ek_shape_equal(&own, &shape))
        return EK_REFUSE(EK_E_SHAPE,
                         "%s: a target of dtype %s is probabilities and must have the input's "
                         "shape, %s, not %s; classes have dtype i64 or i32",
                         name, ek_dtype_name(target->dtype), EK_SIZE_TEXT(x), EK_SIZE_TEXT(target));
    if (!ek_alike(name, x, target))
        return NULL;
    if (options->ignore_index != -100)
        return EK_REFUSE(EK_E_INVALID,
                         "%s: ignore_index goes with targets that are classes; these "
                         "are probabilities",
                         name);
    if (smoothing != 0)
        target = ek_affine(target, 1 - smoothing, smoothing / (double)loss_class_count(x));
    ek_tensor *loss = ek_mul(ek_f_log_softmax(x, 1), target);
    if (options->weight) {
        shape = (ek_shape){.ndim = x->ndim - 1, .dims = {loss_class_count(x)}};
        for (int i = 1; i < shape.ndim; i++)
            shape.dims[i] = 1;
        loss = ek_mul(loss, ek_reshape(options->weight, shape));
    }
    loss = loss ? ek_neg(ek_sum(loss, EK_DIMS(1))) : NULL;
    return ek_loss_reduce(loss, options->reduction);
}

/* ---- the public operations ---- */

static int loss_check_classes(const char *name, const ek_cross_entropy_options *options,
                              target_options *targets)
{
    const ek_tensor *x = options->input;
    const ek_dtype dtype = !x || ek_autocast_widens(x) ? EK_F32 : x->dtype;
    ek_tensor *target = NULL;
    if (!ek_floating(name, "input", x) ||
        !(target = ek_as_index(name, "target", options->target)) ||
        !ek_same_device(name, x, target) || loss_check_class_options(name, options, dtype) < 0)
        return ek_error_pending();
    ek_shape shape = loss_shape_without_classes(x);
    if (!ek_of_shape(name, "target", target, &shape))
        return ek_error_pending();
    *targets = (target_options){target,
                                options->weight,
                                {.ignore_index = options->ignore_index,
                                 .label_smoothing = options->label_smoothing},
                                dtype};
    return 0;
}

static ek_tensor *loss_reduce_classes(ek_tensor *loss, const target_options *options,
                                      ek_reduction reduction)
{
    if (!loss || reduction == EK_NONE)
        return loss;
    /* A sum may be too large for f16. */
    const ek_dtype dtype = loss->dtype;
    loss = dtype == EK_F16 && reduction == EK_MEAN ? ek_to_dtype(loss, EK_F32) : loss;
    ek_tensor *sum = ek_sum(loss);
    if (!sum || reduction == EK_SUM)
        return sum;
    ek_tensor *mean = ek_div(sum, ek_target_weight(options->target, options->weight,
                                                   options->params.ignore_index, loss->dtype));
    return ek_to_dtype(mean, dtype);
}

static ek_tensor *loss_checked_classes(const char *name, const ek_cross_entropy_options *options,
                                       ek_tensor *function(ek_tensor *, const target_options *))
{
    target_options targets = {.target = NULL};
    if (!ek_loss_check_reduction(name, options->reduction) ||
        loss_check_classes(name, options, &targets) < 0)
        return NULL;
    return loss_reduce_classes(function(options->input, &targets), &targets, options->reduction);
}

static ek_tensor *loss_checked_cross_entropy(const ek_cross_entropy_options *options)
{
    const ek_tensor *target = options->target;
    const bool classes = !target || !options->input || !ek_dtype_is_floating(target->dtype);
    if (classes)
        return loss_checked_classes("cross_entropy", options, loss_cross_entropy);
    ek_cross_entropy_options wide = *options;
    wide.input = ek_autocast_wide(options->input);
    wide.target = ek_autocast_wide(options->target);
    return ek_loss_check_reduction("cross_entropy", options->reduction)
               ? loss_of_probabilities(&wide)
               : NULL;
}

/* Cross entropy over classes in the last dimension; all dimensions before it are rows. */
static ek_tensor *loss_checked_token_cross_entropy(const ek_cross_entropy_options *options)
{
    const char *name = "token_cross_entropy";
    const ek_tensor *x = options->input, *target = options->target;
    if (!ek_floating(name, "input", x) || !ek_given(name, "target", target))
        return NULL;
    if (x->ndim == 0)
        return EK_REFUSE(EK_E_SHAPE, "%s: input must have a dimension of classes, got %s", name,
                         EK_TENSOR_TEXT(x));
    ek_shape shape = ek_tensor_shape(x);
    shape.ndim--;
    if (!ek_of_shape(name, "target", target, &shape))
        return NULL;
    ek_cross_entropy_options rows = *options;
    if (shape.ndim > 1) {
        rows.input = ek_f_flatten(options->input, 0, -2);
        rows.target = ek_f_flatten(options->target, 0, -1);
    }
    ek_tensor *loss = loss_checked_classes(name, &rows, loss_cross_entropy);
    return options->reduction == EK_NONE ? ek_reshape(loss, shape) : loss;
}

static ek_tensor *loss_checked_nll(const ek_nll_loss_options *options)
{
    const ek_cross_entropy_options classes = {.input = options->input,
                                              .target = options->target,
                                              .weight = options->weight,
                                              .reduction = options->reduction,
                                              .ignore_index = options->ignore_index};
    return loss_checked_classes("nll_loss", &classes, loss_nll);
}

EK_PUBLIC_WEIGHTED_LOSS(nll_loss, ek_nll_loss_options, loss_checked_nll(&options))

/* Under autocast the logits keep their 16 bits, and the kernels compute f32 from them. */
static ek_tensor *loss_public_cross_entropy(ek_cross_entropy_options options,
                                            ek_tensor *checked(const ek_cross_entropy_options *))
{
    ek_scope scope = ek_scope_begin();
    options.weight = ek_autocast_wide(options.weight);
    return ek_scope_return(&scope, checked(&options));
}

ek_tensor *ek_f_cross_entropy_with(ek_cross_entropy_options options)
{
    return loss_public_cross_entropy(options, loss_checked_cross_entropy);
}

ek_tensor *ek_f_token_cross_entropy_with(ek_cross_entropy_options options)
{
    return loss_public_cross_entropy(options, loss_checked_token_cross_entropy);
}

ek_tensor *ek_target_weight(ek_tensor *target, ek_tensor *weight, int64_t ignore_index,
                            ek_dtype dtype)
{
    const char *name = "target_weight";
    if (!(target = ek_as_index(name, "target", target)) || !ek_optional(weight) ||
        (weight && (!ek_floating(name, "weight", weight) || !ek_same_device(name, target, weight))))
        return NULL;
    if (!ek_dtype_is_floating(dtype))
        return EK_REFUSE(EK_E_DTYPE, "target_weight: dtype must be floating, got %s",
                         ek_dtype_name(dtype));
    if (weight && weight->ndim != 1) {
        return EK_REFUSE(EK_E_SHAPE, "target_weight: weight must have one dimension, got %s",
                         EK_TENSOR_TEXT(weight));
    }
    ek_shape scalar = ek_scalar_shape();
    ek_tensor *sum = ek_tensor_new(ek_tensor_dev(target), dtype, &scalar, EK_CONTIGUOUS);
    return EK_RUN(sum, target_weight, target, weight, ignore_index);
}
