/* loss_margin.c: losses with a margin between two scores, distances, cosines or classes. They are
 * composed of operations, as most are in PyTorch. At a kink the gradient is PyTorch's: the slope of
 * the line where PyTorch clamps (ek_clamp), 0 for losses between classes (ek_f_relu). */
#include <math.h>

#include "ops/autocast.h"
#include "ops/loss.h"

/* max(0, x), with the gradient 1 at 0 */
static ek_tensor *margin_clamp(ek_tensor *x)
{
    return ek_clamp(x, 0, (double)INFINITY);
}

/* Returns x where the target equals `number`, or with `equal` false where it differs; else 0. */
static ek_tensor *margin_where(ek_tensor *target, bool equal, double number, ek_tensor *x)
{
    if (!x)
        return NULL;
    ek_tensor *mask = equal ? ek_eq_scalar(target, number) : ek_ne_scalar(target, number);
    return ek_where(mask, x, ek_number_like(x, 0));
}

/* ---- scores ---- */

ek_tensor *ek_f_margin_ranking_loss_with(ek_margin_ranking_options options)
{
    const char *name = "margin_ranking_loss";
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input1), *y = ek_autocast_wide(options.input2);
    ek_tensor *target = ek_autocast_wide(options.target), *loss = NULL;
    if (ek_floating(name, "input1", x) && ek_given(name, "input2", y) &&
        ek_given(name, "target", target) && ek_alike(name, x, y) && ek_alike(name, x, target) &&
        ek_loss_check_reduction(name, options.reduction)) {
        loss = ek_mul(ek_neg(target), ek_sub(x, y));
        loss = margin_clamp(options.margin == 0 ? loss : ek_add_scalar(loss, options.margin));
    }
    return ek_loss_return(&scope, loss, options.reduction);
}

ek_tensor *ek_f_hinge_embedding_loss_with(ek_hinge_embedding_options options)
{
    const char *name = "hinge_embedding_loss";
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input), *target = ek_autocast_wide(options.target);
    ek_tensor *loss = NULL;
    if (ek_loss_check_pair(name, x, "target", target) &&
        ek_loss_check_reduction(name, options.reduction))
        loss =
            ek_add(margin_where(target, false, 1, margin_clamp(ek_affine(x, -1, options.margin))),
                   margin_where(target, false, -1, x));
    return ek_loss_return(&scope, loss, options.reduction);
}

/* ---- cosines ---- */

/* The products of two rows in sum. */
static ek_tensor *margin_dot(ek_tensor *x, ek_tensor *y)
{
    ek_tensor *product = ek_mul(x, y);
    return product ? ek_sum(product, EK_DIMS(-1)) : NULL;
}

/* Returns the cosines of rows. As in PyTorch, an epsilon is added to each squared norm. */
static ek_tensor *margin_cosine(ek_tensor *x, ek_tensor *y)
{
    ek_tensor *xx = ek_add_scalar(margin_dot(x, x), 1e-12);
    ek_tensor *yy = ek_add_scalar(margin_dot(y, y), 1e-12);
    return ek_div(margin_dot(x, y), ek_sqrt(ek_mul(xx, yy)));
}

static bool margin_check_cosine(const char *name, const ek_tensor *x, const ek_tensor *y,
                                const ek_tensor *target)
{
    if (!ek_floating(name, "input1", x) || !ek_given(name, "input2", y) ||
        !ek_given(name, "target", target) || !ek_alike(name, x, y) || !ek_alike(name, x, target))
        return false;
    if (x->ndim < 1 || x->ndim > 2)
        return EK_FAIL(EK_E_SHAPE, "%s: input1 has shape %s and must be (N, D) or (D)", name,
                       EK_SIZE_TEXT(x)) == 0;
    ek_shape shape = ek_tensor_shape(x);
    if (!ek_of_shape(name, "input2", y, &shape))
        return false;
    shape.ndim--;
    return ek_of_shape(name, "target", target, &shape);
}

ek_tensor *ek_f_cosine_embedding_loss_with(ek_cosine_embedding_options options)
{
    const char *name = "cosine_embedding_loss";
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input1), *y = ek_autocast_wide(options.input2);
    ek_tensor *target = ek_autocast_wide(options.target), *loss = NULL;
    if (margin_check_cosine(name, x, y, target) &&
        ek_loss_check_reduction(name, options.reduction)) {
        ek_tensor *cosine = margin_cosine(x, y);
        loss = ek_add(margin_where(target, true, 1, ek_affine(cosine, -1, 1)),
                      margin_where(target, true, -1,
                                   margin_clamp(ek_add_scalar(cosine, -options.margin))));
    }
    return ek_loss_return(&scope, loss, options.reduction);
}

/* ---- distances ---- */

static ek_tensor *margin_distance(ek_tensor *x, ek_tensor *y, double p, double eps)
{
    ek_tensor *difference = ek_add_scalar(ek_sub(x, y), eps);
    return difference ? ek_norm(difference, EK_DIMS(-1), .p = p) : NULL;
}

static bool margin_check_triplet(const char *name, const ek_tensor *const *x)
{
    static const char *const names[] = {"anchor", "positive", "negative"};
    for (int i = 0; i < 3; i++)
        if (!ek_floating(name, names[i], x[i]) || !ek_alike(name, x[0], x[i]))
            return false;
    if (x[0]->ndim > 0 && x[1]->ndim == x[0]->ndim && x[2]->ndim == x[0]->ndim)
        return true;
    return EK_FAIL(EK_E_SHAPE,
                   "%s: anchor, positive and negative have %d, %d and %d dimensions; they must "
                   "have equally many, at least one",
                   name, x[0]->ndim, x[1]->ndim, x[2]->ndim) == 0;
}

ek_tensor *ek_f_triplet_margin_loss_with(ek_triplet_margin_options options)
{
    const char *name = "triplet_margin_loss";
    const double p = options.p, eps = options.eps;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x[] = {ek_autocast_wide(options.anchor), ek_autocast_wide(options.positive),
                      ek_autocast_wide(options.negative)};
    ek_tensor *loss = NULL;
    if (margin_check_triplet(name, (const ek_tensor *const *)x) &&
        ek_loss_check_reduction(name, options.reduction)) {
        ek_tensor *near = margin_distance(x[0], x[1], p, eps);
        ek_tensor *far = margin_distance(x[0], x[2], p, eps);
        if (options.swap)
            far = ek_minimum(far, margin_distance(x[1], x[2], p, eps));
        loss = margin_clamp(ek_add_scalar(ek_sub(near, far), options.margin));
    }
    return ek_loss_return(&scope, loss, options.reduction);
}

/* ---- classes ---- */

/* *x becomes the input as (N, C), and *target the target as i64; both get N = 1 if the input is a
 * single sample. The target has the input's shape with `per_class`, else a class per sample. */
static bool margin_check_classes(const char *name, ek_tensor **x, ek_tensor **target,
                                 bool per_class)
{
    if (!ek_floating(name, "input", *x) || !(*target = ek_as_index(name, "target", *target)) ||
        !ek_same_device(name, *x, *target))
        return false;
    ek_shape shape = ek_tensor_shape(*x);
    if (shape.ndim < 1 || shape.ndim > 2 || shape.dims[shape.ndim - 1] < 1)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: input has shape %s and must be (N, C) or (C), of at least one class",
                       name, EK_SIZE_TEXT(*x)) == 0;
    const bool single = shape.ndim == 1;
    shape.ndim -= per_class ? 0 : 1;
    if (!ek_of_shape(name, "target", *target, &shape))
        return false;
    if (single) {
        *x = ek_unsqueeze(*x, 0);
        *target = ek_unsqueeze(*target, 0);
    }
    return *x && *target;
}

/* Removes the dimension of samples from the loss if the input has none. */
static ek_tensor *margin_of_samples(ek_tensor *loss, const ek_tensor *input)
{
    return loss && input->ndim == 1 ? ek_squeeze(loss, 0) : loss;
}

/* x at the classes in `index`, (N, k). */
static ek_tensor *margin_pick(const char *name, ek_tensor *x, ek_tensor *index)
{
    const int before = ek_error_status();
    ek_tensor *picked = ek_gather_dim(x, 1, index);
    if (!picked)
        ek_error_prefix(before, name);
    return picked;
}

/* Returns the loss per sample of checked operands; weight may be NULL. */
static ek_tensor *margin_of_classes(ek_tensor *x, ek_tensor *target, ek_tensor *weight, double p,
                                    double margin)
{
    ek_tensor *index = ek_unsqueeze(target, 1);
    ek_tensor *own = margin_pick("multi_margin_loss: target", x, index);
    ek_tensor *short_of = ek_f_relu(ek_add_scalar(ek_sub(x, own), margin));
    short_of = p == 2 ? ek_square(short_of) : short_of;
    ek_tensor *others = ek_scatter_fill(short_of, 1, index, 0);
    others = others ? ek_sum(others, EK_DIMS(1)) : NULL;
    others = ek_div_scalar(others, (double)x->shape[1]);
    return weight && others ? ek_mul(others, ek_index_select(weight, 0, target)) : others;
}

ek_tensor *ek_f_multi_margin_loss_with(ek_multi_margin_options options)
{
    const char *name = "multi_margin_loss";
    const double p = options.p;
    if (p != 1 && p != 2)
        return EK_REFUSE(EK_E_INVALID, "%s: p is %g and must be 1 or 2", name, p);
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_autocast_wide(options.input), *target = options.target;
    ek_tensor *weight = ek_autocast_wide(options.weight), *loss = NULL;
    if (margin_check_classes(name, &x, &target, false) &&
        ek_loss_check_reduction(name, options.reduction) && ek_optional(weight) &&
        (!weight || (ek_alike(name, x, weight) &&
                     ek_of_shape(name, "weight", weight, &EK_SHAPE(x->shape[1])))))
        loss = margin_of_samples(margin_of_classes(x, target, weight, p, options.margin),
                                 options.input);
    return ek_loss_return(&scope, loss, options.reduction);
}

/* Returns marks (N, C) i64: 1 for the classes that a sample lists before its first -1, else 0. */
static ek_tensor *margin_listed(ek_tensor *target)
{
    ek_tensor *listed = ek_ne_scalar(target, -1);
    return listed ? ek_cumprod(ek_to_dtype(listed, EK_I64), 1) : NULL;
}

/* Returns the loss per sample: the sum over all pairs of a listed and an unlisted class, divided by
 * the number of classes. */
static ek_tensor *margin_of_labels(ek_tensor *x, ek_tensor *target)
{
    ek_tensor *listed = margin_listed(target), *index = ek_mul(target, listed);
    ek_tensor *own = margin_pick("multilabel_margin_loss: target", x, index);
    ek_tensor *counts = ek_to_dtype(listed, x->dtype);
    ek_tensor *among = counts ? ek_scatter_add_dim(counts, 1, index, ek_tensor_shape(x)) : NULL;
    ek_tensor *others = ek_to_dtype(ek_eq_scalar(among, 0), x->dtype);
    ek_tensor *pairs = ek_sub(ek_unsqueeze(x, 1), ek_unsqueeze(own, 2));
    pairs = ek_f_relu(ek_add_scalar(pairs, 1));
    pairs = ek_mul(pairs, ek_mul(ek_unsqueeze(counts, 2), ek_unsqueeze(others, 1)));
    return pairs ? ek_div_scalar(ek_sum(pairs, EK_DIMS(1, 2)), (double)x->shape[1]) : NULL;
}

static ek_tensor *margin_multilabel(const ek_loss_options *options)
{
    const char *name = "multilabel_margin_loss";
    ek_tensor *x = options->input, *target = options->target;
    if (!margin_check_classes(name, &x, &target, true) ||
        !ek_loss_check_reduction(name, options->reduction))
        return NULL;
    ek_tensor *loss = margin_of_samples(margin_of_labels(x, target), options->input);
    return ek_loss_reduce(loss, options->reduction);
}

EK_PUBLIC_LOSS(multilabel_margin_loss, ek_loss_options, margin_multilabel(&options))
