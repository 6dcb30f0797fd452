/* attention.c: scaled dot-product attention.
 *
 * Forward and first gradients are kernels that hold a block of the scores at a time. The gradients
 * are an operation of (dout, q, k, v), whose derivatives are in attention_second.c.
 *
 * Attention is composed of matmul and softmax, which hold all scores, if the mask wants a gradient,
 * if probabilities are asked for, if a Mersenne Twister draws dropout (its numbers have a fixed
 * order), if a size is 0, or if the device's attention_composes is true. */
#include "ops/attention.h"

#include <math.h>

#include "kernels/stage.h"
#include "ops/attention_second.h"
#include "ops/autocast.h"

static ek_attention_params attention_params_of(const ek_attention_attributes *attributes)
{
    return (ek_attention_params){.scale = attributes->scale,
                                 .causal = attributes->causal,
                                 .dropout = attributes->drops ? &attributes->draw : NULL};
}

/* ---- masks ---- */

ek_tensor *ek_attention_bias(const char *operation, ek_tensor *mask, ek_dtype dtype, bool inverted)
{
    if (!mask)
        return NULL;
    if (ek_dtype_is_floating(mask->dtype))
        return ek_to_dtype(mask, dtype);
    if (mask->dtype != EK_BOOL && mask->dtype != EK_U8)
        return EK_REFUSE(EK_E_DTYPE, "%s: a mask is bool, u8 or floating, got %s", operation,
                         EK_TENSOR_TEXT(mask));
    ek_dev *dev = ek_tensor_dev(mask);
    const ek_shape scalar = ek_scalar_shape();
    ek_tensor *zero = ek_filled(dev, dtype, &scalar, 0);
    ek_tensor *away = ek_filled(dev, dtype, &scalar, -INFINITY);
    return inverted ? ek_where(mask, away, zero) : ek_where(mask, zero, away);
}

/* The causal mask of rows [row, row + rows). */
static ek_tensor *attention_causal_bias(ek_tensor *like, int64_t row, int64_t rows, int64_t keys)
{
    ek_device device = ek_tensor_device(like);
    ek_tensor *at = ek_affine(ek_arange(rows, EK_I64, device), 1, (double)row);
    ek_tensor *key = ek_arange(keys, EK_I64, device);
    return ek_attention_bias("attention", ek_ge(ek_unsqueeze(at, 1), key), like->dtype, false);
}

/* ---- a composition ---- */

ek_tensor *ek_attention_repeated(ek_tensor *k, int64_t heads)
{
    if (!k || k->shape[1] == heads)
        return k;
    const int64_t groups = k->shape[1];
    ek_tensor *wide = ek_expand(ek_unsqueeze(k, 2), EK_SHAPE(k->shape[0], groups, heads / groups,
                                                             k->shape[2], k->shape[3]));
    return ek_reshape(wide, EK_SHAPE(k->shape[0], heads, k->shape[2], k->shape[3]));
}

ek_tensor *ek_attention_softmax(ek_tensor *q, ek_tensor *k, ek_tensor *mask, bool causal,
                                double scale, int64_t row)
{
    ek_tensor *scores = ek_attention_product(ek_mul_scalar(q, scale), ek_attention_transposed(k));
    if (scores && causal)
        scores = ek_add(scores, attention_causal_bias(scores, row, q->shape[2], k->shape[2]));
    if (scores && mask)
        scores = ek_add(scores, ek_autocast_like(mask, scores));
    if (!scores || !mask || k->shape[2] == 0)
        return scores ? ek_f_softmax(scores, -1) : NULL;
    ek_tensor *most = ek_max_dim(ek_detach(scores), -1, true);
    ek_tensor *none = ek_number_like(scores, -INFINITY), *zero = ek_number_like(scores, 0);
    ek_tensor *alive = most && none ? ek_ne(most, none) : NULL;
    if (!alive || !zero)
        return NULL;
    ek_tensor *p = ek_f_softmax(ek_where(alive, scores, zero), -1);
    return p ? ek_where(alive, p, ek_number_like(p, 0)) : NULL;
}

static ek_tensor *attention_composed(const ek_attention_call *call, ek_tensor **weights)
{
    const int64_t heads = call->q->shape[1];
    ek_tensor *k = ek_attention_repeated(call->k, heads),
              *v = ek_attention_repeated(call->v, heads);
    if (!k || !v)
        return NULL;
    ek_tensor *p = ek_attention_softmax(call->q, k, call->mask, call->causal, call->scale, 0);
    if (p && call->dropout_p > 0)
        p = ek_f_dropout(p, call->dropout_p, true);
    if (weights)
        *weights = p;
    return ek_attention_product(p ? ek_autocast_like(p, v) : NULL, v);
}

/* ---- gradients ---- */

EK_OPERATION(attention_gradient, "attention_gradient", ek_attention_gradient_backward);

static ek_tensor *attention_new(const ek_tensor *x, int64_t width)
{
    const ek_tensor like = ek_heads_like(x, width);
    const ek_shape shape = ek_tensor_shape(&like);
    return ek_tensor_new_strided(ek_tensor_dev(x), x->dtype, &shape, like.stride);
}

static void attention_borrow_mask(ek_tensor *view, const ek_tensor *mask, const ek_tensor *q,
                                  const ek_tensor *k)
{
    ek_borrow_expanded(view, mask, &EK_SHAPE(q->shape[0], q->shape[1], q->shape[2], k->shape[2]));
}

/* Returns the queries (part 0), keys (1) or values (2) of `all` (B, L, 3 H E) as (B, H, L, E). */
static ek_tensor *attention_third(ek_tensor *all, int64_t heads, int part)
{
    const int64_t width = all->shape[2] / 3;
    ek_tensor *x = ek_narrow(all, 2, part * width, width);
    x = x ? ek_reshape(x, EK_SHAPE(all->shape[0], all->shape[1], heads, width / heads)) : NULL;
    return x ? ek_transpose(x, 1, 2) : NULL;
}

/* Returns three tensors (B, H, L, E) side by side, as (B, L, 3 H E). */
static ek_tensor *attention_joined(ek_tensor *const heads[3])
{
    ek_tensor *parts[3];
    for (int i = 0; i < 3; i++)
        if (!(parts[i] = ek_f_flatten(ek_transpose(heads[i], 1, 2), 2, 3)))
            return NULL;
    return ek_cat(parts, 3, 2);
}

bool ek_attention_split(ek_attention_call *call, ek_tensor *all, int64_t heads)
{
    ek_tensor **const of[] = {&call->q, &call->k, &call->v};
    if (all && (all->ndim != 3 || all->shape[2] % (3 * heads) != 0)) {
        const ek_shape shape = ek_tensor_shape(all);
        EK_FAIL(EK_E_SHAPE,
                "attention: queries, keys and values of shape %s; the shape has to be (batch, "
                "length, a multiple of 3 for each of the %lld heads)",
                EK_SHAPE_TEXT(&shape), (long long)heads);
        return false;
    }
    call->all = ek_thread_self()->observer ? NULL : all;
    for (int i = 0; i < 3 && all; i++)
        if (!(*of[i] = attention_third(all, heads, i)))
            return false;
    return all != NULL;
}

/* Saved q, k, v, or q, k, v in one tensor and two NULLs; mask, out, lse. */
static int attention_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_attention_attributes *attributes = ek_node_attributes(node);
    ek_tensor *dout = gradients[0], *mask = ek_node_saved(node, 3), view;
    ek_tensor *out = ek_node_saved(node, 4), *lse = ek_node_saved(node, 5);
    ek_tensor *all = attributes->heads ? ek_node_saved(node, 0) : NULL, *whole = NULL;
    if (!out || !lse || (attributes->heads && !all))
        return ek_error_pending();
    /* A GPU's attention has been planned for gradients with the strides of attention_new. */
    const bool in_place = all && !ek_grad_enabled() && ek_tensor_dev(all)->id.kind != EK_CUDA;
    if (in_place && !(whole = ek_tensor_like(all)))
        return ek_error_pending();
    ek_tensor *of[3], *outputs[3];
    for (int i = 0; i < 3; i++) {
        of[i] = all ? attention_third(all, attributes->heads, i) : ek_node_saved(node, i);
        outputs[i] = !of[i]  ? NULL
                     : whole ? attention_third(whole, attributes->heads, i)
                             : attention_new(of[i], of[i]->shape[3]);
        if (!outputs[i])
            return ek_error_pending();
    }
    ek_tensor *q = of[0], *k = of[1], *v = of[2];
    if (mask)
        attention_borrow_mask(&view, mask, q, k);
    const ek_attention_params params = attention_params_of(attributes);
    EK_TRY(ek_kernels_of(q)->attention_gradient(ek_tensor_dev(q), outputs[0], outputs[1],
                                                outputs[2], dout, q, k, v, mask ? &view : NULL, out,
                                                lse, &params));
    if (whole) {
        results[0] = whole;
        return 0;
    }
    EK_TRY(ek_record_outputs(outputs, 3, &attention_gradient_operation,
                             &(const ek_record_options){EK_INPUTS(dout, q, k, v),
                                                        EK_SAVED(dout, q, k, v, mask),
                                                        EK_ATTRIBUTES(*attributes)}));
    if (all)
        return (results[0] = attention_joined(outputs)) ? 0 : ek_error_pending();
    for (int i = 0; i < 3; i++)
        results[i] = ek_node_needs(node, i) ? outputs[i] : NULL;
    return 0;
}

EK_OPERATION(attention, "attention", attention_backward);

/* ---- attention of heads ---- */

/* Begins the generator's draw for dropout of the probabilities. Returns false if dropout needs the
 * probabilities as a tensor. */
static bool attention_draws(const ek_tensor *q, const ek_tensor *k, double p,
                            ek_attention_attributes *attributes)
{
    ek_tensor probabilities;
    ek_borrow(&probabilities, q);
    probabilities.shape[3] = k->shape[2];
    attributes->draw = (ek_draw){.kind = EK_DRAW_DROPOUT, .a = 1 - p, .b = 1 / (1 - p)};
    if (p == 0 || p == 1)
        return p == 0;
    /* The kernels number the probabilities of a part of a batch only in whole batch elements. */
    return ek_draw_begin(&attributes->draw, NULL, &probabilities) &&
           attributes->draw.row % (ek_count(&probabilities) / q->shape[0]) == 0;
}

/* Returns 1 if the attention kernels compute the call, 0 if not, negative on error. `mask` has the
 * scores' shape. The numbers of attributes->draw aren't read. */
static int attention_fits(const ek_attention_call *call, const ek_tensor *mask,
                          const ek_attention_attributes *attributes)
{
    const ek_tensor *q = call->q, *k = call->k, *v = call->v;
    const ek_attention_params params = attention_params_of(attributes);
    const bool gradient = ek_grad_enabled() && (ek_wants(q) || ek_wants(k) || ek_wants(v));
    if (ek_count(q) == 0 || ek_count(v) == 0 || (ek_grad_enabled() && ek_wants(call->mask)))
        return 0;
    const int composes =
        ek_kernels_of(q)->attention_composes(ek_tensor_dev(q), q, k, v, mask, &params, gradient);
    return composes < 0 ? composes : !composes;
}

ek_tensor *ek_attention(const char *operation, const ek_attention_call *call, ek_tensor **weights)
{
    ek_tensor *q = call->q, *k = call->k, *v = call->v, *mask = call->mask, view;
    ek_attention_attributes attributes = {.scale = call->scale,
                                          .causal = call->causal,
                                          .drops = call->dropout_p > 0};
    if (mask) { /* kernels need all four dimensions */
        ek_shape shape = ek_tensor_shape(mask), all, scores = ek_tensor_shape(q);
        scores.dims[3] = k->shape[2];
        if (ek_broadcast_shapes(operation, &shape, &scores, &all) < 0)
            return NULL;
        for (int i = 0; i < 4; i++)
            if (all.ndim != 4 || all.dims[i] != scores.dims[i])
                return EK_REFUSE(EK_E_SHAPE, "%s: a mask of shape %s doesn't broadcast to %s",
                                 operation, EK_SHAPE_TEXT(&shape), EK_SHAPE_TEXT(&scores));
        while (mask && mask->ndim < 4)
            mask = ek_unsqueeze(mask, 0);
        if (!mask)
            return NULL;
        attention_borrow_mask(&view, mask, q, k);
    }
    const int fits = weights ? 0 : attention_fits(call, mask ? &view : NULL, &attributes);
    if (fits < 0)
        return NULL;
    if (!fits || !attention_draws(q, k, call->dropout_p, &attributes)) {
        ek_attention_call composed = *call;
        composed.mask = mask;
        return attention_composed(&composed, weights);
    }
    const ek_shape rows = EK_SHAPE(q->shape[0], q->shape[1], q->shape[2]);
    ek_tensor *out = attention_new(q, v->shape[3]);
    ek_tensor *lse = ek_tensor_new(ek_tensor_dev(q), ek_dtype_wide(q->dtype), &rows, EK_CONTIGUOUS);
    if (!out || !lse)
        return NULL;
    const ek_attention_params params = attention_params_of(&attributes);
    out = EK_RUN(out, attention, lse, q, k, v, mask ? &view : NULL, &params);
    if (call->all) {
        attributes.heads = q->shape[1];
        return EK_RECORD(out, &attention_operation, EK_INPUTS(call->all),
                         EK_SAVED(call->all, NULL, NULL, mask, out, lse),
                         EK_ATTRIBUTES(attributes));
    }
    return EK_RECORD(out, &attention_operation, EK_INPUTS(q, k, v),
                     EK_SAVED(q, k, v, mask, out, lse), EK_ATTRIBUTES(attributes));
}

/* ---- the public operation ---- */

static const char attention_name[] = "scaled_dot_product_attention";

static bool attention_checks(const ek_attention_options *o)
{
    const char *const names[] = {"q", "k", "v"};
    const ek_tensor *const operands[] = {o->q, o->k, o->v};
    for (int i = 0; i < 3; i++) {
        if (!ek_floating(attention_name, names[i], operands[i]) ||
            !ek_alike(attention_name, o->q, operands[i]))
            return false;
        if (operands[i]->ndim < 2)
            return EK_REFUSE(EK_E_SHAPE, "%s: %s needs 2 dimensions or more, got %s",
                             attention_name, names[i], EK_TENSOR_TEXT(operands[i])) != NULL;
    }
    if (o->q->shape[o->q->ndim - 1] != o->k->shape[o->k->ndim - 1])
        return EK_REFUSE(EK_E_SHAPE, "%s: the last sizes of q and k differ: %s and %s",
                         attention_name, EK_TENSOR_TEXT(o->q), EK_TENSOR_TEXT(o->k)) != NULL;
    if (o->k->shape[o->k->ndim - 2] != o->v->shape[o->v->ndim - 2])
        return EK_REFUSE(EK_E_SHAPE, "%s: k and v differ in how many keys they have: %s and %s",
                         attention_name, EK_TENSOR_TEXT(o->k), EK_TENSOR_TEXT(o->v)) != NULL;
    if (!ek_optional(o->mask) || (o->mask && !ek_same_device(attention_name, o->q, o->mask)))
        return false;
    if (o->mask && o->is_causal)
        return EK_REFUSE(EK_E_INVALID, "%s: a mask and is_causal don't go together",
                         attention_name) != NULL;
    if (!(o->dropout_p >= 0 && o->dropout_p <= 1))
        return EK_REFUSE(EK_E_INVALID, "%s: dropout_p is %g; it must lie between 0 and 1",
                         attention_name, o->dropout_p) != NULL;
    return true;
}

/* Returns x's sizes without those of the last `last` dimensions. */
static ek_shape attention_lead(const ek_tensor *x, int last)
{
    ek_shape shape = ek_tensor_shape(x);
    shape.ndim = shape.ndim > last ? shape.ndim - last : 0;
    return shape;
}

/* Returns x with four dimensions. The dimensions before the last three are expanded to `lead`, then
 * joined to one dimension. The third last dimension is expanded to `heads`. */
static ek_tensor *attention_four(ek_tensor *x, const ek_shape *lead, int64_t heads)
{
    ek_shape wanted = *lead;
    const int64_t tail[] = {heads, x->shape[x->ndim - 2], x->shape[x->ndim - 1]};
    for (int i = 0; i < 3; i++)
        wanted.dims[wanted.ndim++] = tail[i];
    const ek_shape own = ek_tensor_shape(x);
    if (!ek_shape_equal(&own, &wanted))
        x = ek_expand(x, wanted);
    return wanted.ndim == 4
               ? x
               : ek_reshape(x, EK_SHAPE(ek_shape_count(lead), tail[0], tail[1], tail[2]));
}

static ek_tensor *attention_checked(const ek_attention_options *o)
{
    ek_tensor *q = o->q, *k = o->k, *v = o->v;
    if (!attention_checks(o))
        return NULL;
    const int64_t q_heads = q->ndim > 2 ? q->shape[q->ndim - 3] : 1;
    const int64_t k_heads = k->ndim > 2 ? k->shape[k->ndim - 3] : 1;
    const int64_t v_heads = v->ndim > 2 ? v->shape[v->ndim - 3] : 1;
    const bool divides = k_heads > 0 && q_heads % k_heads == 0;
    if (o->enable_gqa && (k_heads != v_heads || !divides))
        return EK_REFUSE(EK_E_SHAPE,
                         "%s: the heads of k and v have to divide those of q, got %s, %s and %s",
                         attention_name, EK_TENSOR_TEXT(q), EK_TENSOR_TEXT(k), EK_TENSOR_TEXT(v));
    /* Without groups, the dimension of heads broadcasts like those before it. */
    const int last = o->enable_gqa ? 3 : 2;
    ek_shape lead = attention_lead(q, last);
    const ek_shape k_lead = attention_lead(k, last), v_lead = attention_lead(v, last);
    if (ek_broadcast_shapes(attention_name, &lead, &k_lead, &lead) < 0 ||
        ek_broadcast_shapes(attention_name, &lead, &v_lead, &lead) < 0)
        return NULL;
    int64_t heads = q_heads, groups = k_heads;
    if (!o->enable_gqa) {
        heads = groups = lead.ndim > 0 ? lead.dims[lead.ndim - 1] : 1;
        lead.ndim = lead.ndim > 0 ? lead.ndim - 1 : 0;
    }
    const int heads_ndim = q->ndim > 2 || k->ndim > 2 || v->ndim > 2;
    const double scale = o->scale == EK_UNSET ? 1 / sqrt((double)q->shape[q->ndim - 1]) : o->scale;
    ek_attention_call call = {.q = attention_four(q, &lead, heads),
                              .k = attention_four(k, &lead, groups),
                              .v = attention_four(v, &lead, groups),
                              .mask = ek_attention_bias(attention_name, o->mask, q->dtype, false),
                              .causal = o->is_causal,
                              .dropout_p = o->dropout_p,
                              .scale = scale};
    if (!call.q || !call.k || !call.v || (o->mask && !call.mask))
        return NULL;
    ek_shape shape = lead;
    if (heads_ndim)
        shape.dims[shape.ndim++] = heads;
    shape.dims[shape.ndim++] = q->shape[q->ndim - 2];
    if (call.mask && lead.ndim > 1) { /* the mask's leading dimensions are joined, too */
        ek_shape scores = shape;
        scores.dims[scores.ndim++] = k->shape[k->ndim - 2];
        call.mask = ek_reshape(ek_expand(call.mask, scores),
                               EK_SHAPE(ek_shape_count(&lead), heads, shape.dims[shape.ndim - 1],
                                        k->shape[k->ndim - 2]));
        if (!call.mask)
            return NULL;
    }
    shape.dims[shape.ndim++] = v->shape[v->ndim - 1];
    return ek_reshape(ek_attention(attention_name, &call, NULL), shape);
}

ek_tensor *ek_f_scaled_dot_product_attention_with(ek_attention_options options)
{
    ek_scope scope = ek_scope_begin();
    options.q = ek_autocast_narrow(options.q);
    options.k = ek_autocast_narrow(options.k);
    options.v = ek_autocast_narrow(options.v);
    return ek_scope_return(&scope, attention_checked(&options));
}
