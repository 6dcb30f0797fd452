/* attention_second.c: derivatives of attention's gradients, written in other operations, for as
 * many rows of scores at a time as SECOND_ELEMENTS allows. With
 *
 *     s = scale q k' + mask,  p = softmax(s),  t = (dout v') z,  ds = p (t - sum(p t))
 *
 * where z is dropout's factor, dq = scale ds k, dk = scale ds' q and dv = (p z)' dout. For
 * gradients aq, ak, av that arrive at these, sum(aq dq) + sum(ak dk) + sum(av dv) = sum(ds u) +
 * sum(p w), with u = scale (aq k' + q ak') and w = (dout av') z. So
 *
 *     gt = p (u - sum(p u))
 *     gs = p (gp - sum(p gp)),  gp = u (t - sum(p t)) - sum(p u) t + w
 *     gq = scale (gs k + ds ak),  gk = scale (gs' q + ds' aq)
 *     gv = (gt z)' dout,          gdout = (gt z) v + (p z) av */
#include "ops/attention_second.h"

/* The most scores that are held at a time. */
enum { SECOND_ELEMENTS = 1 << 20 };

/* ---- operands ---- */

/* The adjoint: heads of a group are summed. */
static ek_tensor *attention_grouped(ek_tensor *x, int64_t groups)
{
    if (!x || x->shape[1] == groups)
        return x;
    ek_tensor *apart = ek_reshape(x, EK_SHAPE(x->shape[0], groups, x->shape[1] / groups,
                                              x->shape[2], x->shape[3]));
    return ek_sum_mask(apart, 1U << 2, 1U << 2);
}

/* The operands for some rows of queries; k, v, ak and av have keys for every head. Gradients that
 * didn't arrive are NULL. */
typedef struct attention_rows {
    ek_tensor *dout, *q, *k, *v, *mask, *aq, *ak, *av;
    ek_tensor *dropout; /* the factors z, or NULL */
    int64_t row;        /* the first row's position */
} attention_rows;

static ek_tensor *attention_dropped(const attention_rows *r, ek_tensor *x)
{
    return x && r->dropout ? ek_mul(x, r->dropout) : x;
}

static ek_tensor *attention_row_sum(ek_tensor *x)
{
    return x ? ek_sum_mask(x, 1U << 3, 0) : NULL;
}

static ek_tensor *attention_times(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_mul(x, y) : NULL;
}

/* Returns x - y. A NULL y counts as zero. If x is NULL, returns NULL. */
static ek_tensor *attention_minus(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_sub(x, y) : x;
}

/* x + y, where NULL counts as zero. */
static ek_tensor *attention_plus(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_add(x, y) : x ? x : y;
}

static ek_tensor *attention_scaled(ek_tensor *x, double scale)
{
    return x ? ek_mul_scalar(x, scale) : NULL;
}

/* Writes the gradients of dout, q, k and v. */
static int attention_second_rows(const attention_rows *r, const ek_attention_attributes *attributes,
                                 ek_tensor *results[4])
{
    const double scale = attributes->scale;
    ek_tensor *p = ek_attention_softmax(r->q, r->k, r->mask, attributes->causal, scale, r->row);
    ek_tensor *t =
        attention_dropped(r, ek_attention_product(r->dout, ek_attention_transposed(r->v)));
    ek_tensor *u =
        attention_scaled(attention_plus(ek_attention_product(r->aq, ek_attention_transposed(r->k)),
                                        ek_attention_product(r->q, ek_attention_transposed(r->ak))),
                         scale);
    ek_tensor *w =
        attention_dropped(r, ek_attention_product(r->dout, ek_attention_transposed(r->av)));
    ek_tensor *away = t ? ek_sub(t, attention_row_sum(attention_times(p, t))) : NULL;
    ek_tensor *ds = attention_times(p, away);
    ek_tensor *mean = attention_row_sum(attention_times(p, u));
    ek_tensor *gt = attention_dropped(r, attention_times(p, attention_minus(u, mean)));
    ek_tensor *gp =
        attention_plus(attention_minus(attention_times(u, away), attention_times(mean, t)), w);
    ek_tensor *gs =
        attention_times(p, attention_minus(gp, attention_row_sum(attention_times(p, gp))));
    if (ek_error_status() < 0)
        return ek_error_pending();
    results[0] = attention_plus(ek_attention_product(gt, r->v),
                                ek_attention_product(attention_dropped(r, p), r->av));
    results[1] = attention_scaled(attention_plus(ek_attention_product(gs, r->k),
                                                 ek_attention_product(ds, r->ak)),
                                  scale);
    results[2] = attention_scaled(
        attention_plus(ek_attention_product(ek_attention_transposed(gs), r->q),
                       ek_attention_product(r->aq ? ek_attention_transposed(ds) : NULL, r->aq)),
        scale);
    results[3] = ek_attention_product(ek_attention_transposed(gt), r->dout);
    return ek_error_status() < 0 ? ek_error_pending() : 0;
}

/* Returns dropout's factors for rows [row, row + rows) of batch element `batch`; -1: of all. */
static ek_tensor *attention_factors(const ek_tensor *q, int64_t keys, int64_t batch, int64_t row,
                                    int64_t rows, const ek_attention_attributes *attributes)
{
    if (!attributes->drops)
        return NULL;
    ek_draw draw = attributes->draw;
    if (batch >= 0) {
        const int64_t first = (batch * q->shape[1] * q->shape[2] + row) * keys;
        draw.first += first + first / draw.row * draw.gap;
        draw.row = rows * keys;
        draw.gap = (q->shape[2] - rows) * keys;
    }
    ek_tensor *ones = ek_ones(EK_SHAPE(batch >= 0 ? 1 : q->shape[0], q->shape[1], rows, keys),
                              q->dtype, ek_tensor_device(q));
    ek_tensor *factors = ones ? ek_tensor_like(ones) : NULL;
    return factors && ek_draw_run(&(ek_drawn){factors, ones, NULL}, &draw) >= 0 ? factors : NULL;
}

/* Returns the part of the mask for rows of a batch element. */
static ek_tensor *attention_mask_part(ek_tensor *mask, int64_t batch, int64_t row, int64_t rows)
{
    if (mask && mask->shape[0] > 1)
        mask = ek_narrow(mask, 0, batch, 1);
    return mask && mask->shape[2] > 1 ? ek_narrow(mask, 2, row, rows) : mask;
}

static ek_tensor *attention_part(ek_tensor *x, int64_t batch, int64_t row, int64_t rows)
{
    x = x ? ek_narrow(x, 0, batch, 1) : NULL;
    return x ? ek_narrow(x, 2, row, rows) : NULL;
}

/* Computes the gradients some rows at a time, without a graph, into tensors of zeros. */
static int attention_second_parts(const attention_rows *all, int64_t groups,
                                  const ek_attention_attributes *attributes, ek_tensor *results[4])
{
    const ek_tensor *q = all->q;
    const int64_t keys = all->k->shape[2], heads = q->shape[1], length = q->shape[2];
    const int64_t most =
        SECOND_ELEMENTS / (heads * keys) > 0 ? SECOND_ELEMENTS / (heads * keys) : 1;
    int rc = 0;
    for (int64_t batch = 0; batch < q->shape[0] && rc >= 0; batch++)
        for (int64_t row = 0; row < length && rc >= 0; row += most) {
            ek_scope scope = ek_scope_begin();
            const int64_t rows = length - row < most ? length - row : most;
            ek_tensor *parts[4] = {NULL};
            attention_rows r = {
                .dout = attention_part(all->dout, batch, row, rows),
                .q = attention_part(all->q, batch, row, rows),
                .k = ek_attention_repeated(attention_part(all->k, batch, 0, keys), heads),
                .v = ek_attention_repeated(attention_part(all->v, batch, 0, keys), heads),
                .mask = attention_mask_part(all->mask, batch, row, rows),
                .aq = attention_part(all->aq, batch, row, rows),
                .ak = ek_attention_repeated(attention_part(all->ak, batch, 0, keys), heads),
                .av = ek_attention_repeated(attention_part(all->av, batch, 0, keys), heads),
                .dropout = attention_factors(q, keys, batch, row, rows, attributes),
                .row = row};
            rc = ek_error_status() < 0 ? ek_error_pending()
                                       : attention_second_rows(&r, attributes, parts);
            for (int i = 0; i < 4 && rc >= 0; i++) {
                const bool of_keys = i >= 2;
                ek_tensor *part = of_keys ? attention_grouped(parts[i], groups) : parts[i];
                ek_tensor *into =
                    attention_part(results[i], batch, of_keys ? 0 : row, of_keys ? keys : rows);
                if (part && !ek_add_(into, part))
                    rc = ek_error_pending();
            }
            ek_scope_end(&scope);
        }
    return rc;
}

/* ---- the operation ---- */

/* The backward of attention's gradients. Inputs dout, q, k, v; saved dout, q, k, v, mask. */
int ek_attention_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_attention_attributes *attributes = ek_node_attributes(node);
    attention_rows all = {.dout = ek_node_saved(node, 0),
                          .q = ek_node_saved(node, 1),
                          .k = ek_node_saved(node, 2),
                          .v = ek_node_saved(node, 3),
                          .mask = ek_node_saved(node, 4),
                          .aq = gradients[0],
                          .ak = gradients[1],
                          .av = gradients[2]};
    if (!all.dout || !all.q || !all.k || !all.v)
        return ek_error_pending();
    const int64_t groups = all.k->shape[1], heads = all.q->shape[1];
    const int64_t scores = all.q->shape[0] * heads * all.q->shape[2] * all.k->shape[2];
    if (!ek_grad_enabled() && scores > SECOND_ELEMENTS) {
        ek_tensor *const inputs[] = {all.dout, all.q, all.k, all.v};
        for (int i = 0; i < 4; i++)
            if (!(results[i] = ek_zeros_like(inputs[i])))
                return ek_error_pending();
        return attention_second_parts(&all, groups, attributes, results);
    }
    all.dropout = attention_factors(all.q, all.k->shape[2], -1, 0, all.q->shape[2], attributes);
    all.k = ek_attention_repeated(all.k, heads);
    all.v = ek_attention_repeated(all.v, heads);
    all.ak = ek_attention_repeated(all.ak, heads);
    all.av = ek_attention_repeated(all.av, heads);
    if (ek_error_status() < 0)
        return ek_error_pending();
    EK_TRY(attention_second_rows(&all, attributes, results));
    for (int i = 2; i < 4; i++)
        results[i] = attention_grouped(results[i], groups);
    return 0;
}
