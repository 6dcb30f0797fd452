/* recurrent.c: a step of recurrent networks, and padding of sequences. */
#include <stdlib.h>

#include "ops/autocast.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

int ek_recurrence_gates(ek_recurrence kind)
{
    return kind == EK_RECURRENCE_LSTM ? 4 : kind == EK_RECURRENCE_GRU ? 3 : 1;
}

/* Returns true if x has the dtype and device of `like`, `ndim` dimensions and these last sizes. */
static bool recurrent_is(const ek_tensor *x, const ek_tensor *like, int ndim, int64_t rows,
                         int64_t columns)
{
    return ek_check_alive("a recurrent network", "an operand", x) == 0 && ek_tensor_hold(x) >= 0 &&
           x->dtype == like->dtype && ek_tensor_dev(x) == ek_tensor_dev(like) && x->ndim == ndim &&
           x->shape[ndim > 1 ? ndim - 2 : 0] == rows &&
           (ndim == 1 || x->shape[ndim - 1] == columns);
}

bool ek_recurrent_fits(ek_recurrence kind, const ek_tensor *x, const ek_tensor *h,
                       const ek_tensor *c, const ek_recurrent_weights *w, int64_t input)
{
    if (!w->weight_ih || !w->weight_hh || w->weight_ih->ndim != 2) /* a module's may be absent */
        return false;
    const int64_t samples = x->shape[1], size = h->shape[h->ndim - 1],
                  rows = w->weight_ih->shape[0], hidden = rows / ek_recurrence_gates(kind);
    return ek_dtype_is_floating(x->dtype) && recurrent_is(h, x, h->ndim, samples, size) &&
           (c ? recurrent_is(c, x, h->ndim, samples, hidden) : kind != EK_RECURRENCE_LSTM) &&
           recurrent_is(w->weight_ih, x, 2, rows, input) &&
           recurrent_is(w->weight_hh, x, 2, rows, size) && !w->bias_ih == !w->bias_hh &&
           (!w->bias_ih ||
            (recurrent_is(w->bias_ih, x, 1, rows, 0) && recurrent_is(w->bias_hh, x, 1, rows, 0))) &&
           (w->weight_hr ? recurrent_is(w->weight_hr, x, 2, size, hidden) : size == hidden);
}

/* ---- a step after its product with weight_hh is one kernel. The gates, which its gradient needs,
 * are an output of the node, so that the gradient is differentiable with respect to them ---- */

/* Computes the gradients of x and of the previous c by differentiable operations. */
static int lstm_composed_gradient(ek_tensor *const *gradients, ek_tensor *gates, ek_tensor *before,
                                  ek_tensor *c, ek_tensor **results)
{
    const int64_t hidden = before->shape[1], sizes[] = {hidden, hidden, hidden, hidden};
    ek_tensor *of[4], *d[4], *dh = gradients[0], *dc = gradients[1], *t = ek_f_tanh(c);
    if (!t)
        return ek_error_pending();
    EK_TRY(ek_split_sizes(gates, sizes, 4, 1, of));
    ek_tensor *through_h = dh ? ek_tanh_gradient(ek_mul(dh, of[3]), t) : NULL,
              *all = dh && dc ? ek_add(dc, through_h)
                     : dh     ? through_h
                              : dc;
    if (!all && (dh || dc))
        return ek_error_pending();
    ek_tensor *zeros = all && dh ? NULL : ek_zeros_like(before);
    if (!(all && dh) && !zeros)
        return ek_error_pending();
    all = all ? all : zeros;
    d[0] = ek_mul(all, of[2]);
    d[1] = ek_mul(all, before);
    d[2] = ek_mul(all, of[0]);
    d[3] = dh ? ek_mul(dh, t) : zeros;
    if (!d[0] || !d[1] || !d[2] || !d[3])
        return ek_error_pending();
    if (gradients[2]) {
        ek_tensor *sum = ek_add(ek_cat(d, 4, 1), gradients[2]);
        if (!sum)
            return ek_error_pending();
        EK_TRY(ek_split_sizes(sum, sizes, 4, 1, d));
    }
    for (int k = 0; k < 4; k++) {
        d[k] = k == 2 ? ek_tanh_gradient(d[k], of[k]) : ek_sigmoid_gradient(d[k], of[k]);
        if (!d[k])
            return ek_error_pending();
    }
    results[0] = results[1] = ek_cat(d, 4, 1);
    results[2] = ek_mul(all, of[1]);
    return results[0] && results[2] ? 0 : ek_error_pending();
}

/* Computes the gradients of x, the product and the previous h by differentiable operations. */
static int gru_composed_gradient(ek_tensor *const *gradients, ek_tensor *gates, ek_tensor *before,
                                 ek_tensor **results)
{
    const int64_t hidden = before->shape[1], sizes[] = {hidden, hidden, hidden, hidden};
    ek_tensor *of[4], *from[4] = {NULL}; /* r, z, n and the n of product; their own gradients */
    ek_tensor *dh = gradients[0] ? gradients[0] : ek_zeros_like(before);
    EK_TRY(ek_split_sizes(gates, sizes, 4, 1, of));
    if (gradients[1])
        EK_TRY(ek_split_sizes(gradients[1], sizes, 4, 1, from));
    ek_tensor *through = ek_mul(dh, of[1]), *dn = ek_sub(dh, through);
    dn = ek_tanh_gradient(from[2] ? ek_add(dn, from[2]) : dn, of[2]);
    ek_tensor *dr = ek_mul(dn, of[3]), *dz = ek_mul(dh, ek_sub(before, of[2])),
              *dproduct_n = ek_mul(dn, of[0]);
    dr = ek_sigmoid_gradient(from[0] ? ek_add(dr, from[0]) : dr, of[0]);
    dz = ek_sigmoid_gradient(from[1] ? ek_add(dz, from[1]) : dz, of[1]);
    dproduct_n = from[3] ? ek_add(dproduct_n, from[3]) : dproduct_n;
    if (!dr || !dz || !dn || !dproduct_n)
        return ek_error_pending();
    results[0] = ek_cat(EK_ITEMS(ek_tensor *, dr, dz, dn), 3, 1);
    results[1] = ek_cat(EK_ITEMS(ek_tensor *, dr, dz, dproduct_n), 3, 1);
    results[2] = through;
    return results[0] && results[1] ? 0 : ek_error_pending();
}

static ek_tensor *recurrent_dense(ek_tensor *x)
{
    return x ? ek_contiguous(x, EK_CONTIGUOUS) : NULL;
}

static int lstm_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *gates = ek_node_saved(node, 0), *before = ek_node_saved(node, 1),
              *c = ek_node_saved(node, 2);
    if (!gates || !before || !c)
        return ek_error_pending();
    if (ek_grad_enabled() || gradients[2])
        return lstm_composed_gradient(gradients, gates, before, c, results);
    const ek_shape of_gates = ek_tensor_shape(gates), of_c = ek_tensor_shape(c);
    ek_dev *dev = ek_tensor_dev(c);
    ek_tensor *dh = recurrent_dense(gradients[0]), *dc = recurrent_dense(gradients[1]),
              *dx = ek_tensor_new(dev, c->dtype, &of_gates, EK_CONTIGUOUS),
              *dbefore = ek_tensor_new(dev, c->dtype, &of_c, EK_CONTIGUOUS);
    if ((gradients[0] && !dh) || (gradients[1] && !dc) || !dbefore)
        return ek_error_pending();
    results[0] = results[1] =
        EK_RUN(dx, recurrent_gradient, EK_CELL_LSTM, dbefore, dh, NULL, dc, gates, before, c);
    results[2] = dbefore;
    return results[0] ? 0 : ek_error_pending();
}

static int gru_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *gates = ek_node_saved(node, 0), *before = ek_node_saved(node, 1);
    if (!gates || !before)
        return ek_error_pending();
    if (ek_grad_enabled() || gradients[1])
        return gru_composed_gradient(gradients, gates, before, results);
    const int64_t hidden = before->shape[1];
    ek_tensor *dh = recurrent_dense(gradients[0]), *dx = ek_tensor_like(gates),
              *dbefore = ek_tensor_like(before);
    if ((gradients[0] && !dh) || !dbefore ||
        !EK_RUN(dx, recurrent_gradient, EK_CELL_GRU, dbefore, dh, NULL, NULL, gates, before, NULL))
        return ek_error_pending();
    results[0] = ek_narrow(dx, 1, 0, 3 * hidden);
    results[1] = ek_cat(EK_ITEMS(ek_tensor *, ek_narrow(dx, 1, 0, 2 * hidden),
                                 ek_narrow(dx, 1, 3 * hidden, hidden)),
                        2, 1);
    results[2] = dbefore;
    return results[0] && results[1] ? 0 : ek_error_pending();
}

static int rnn_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_recurrent_cell *cell = ek_node_attributes(node);
    ek_tensor *h = ek_node_saved(node, 0);
    if (!h)
        return ek_error_pending();
    results[0] = results[1] = *cell == EK_CELL_RELU ? ek_relu_gradient(gradients[0], h, 0)
                                                    : ek_tanh_gradient(gradients[0], h);
    return results[0] ? 0 : ek_error_pending();
}

EK_OPERATION(lstm, "lstm", lstm_backward);
EK_OPERATION(gru, "gru", gru_backward);
EK_OPERATION(rnn, "rnn", rnn_backward);

static int recurrent_fused_step(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *w,
                                ek_recurrent_state *state)
{
    const ek_recurrent_cell cell = (ek_recurrent_cell)kind;
    const bool is_lstm = cell == EK_CELL_LSTM, is_gru = cell == EK_CELL_GRU;
    const ek_operation *operation = is_lstm  ? &lstm_operation
                                    : is_gru ? &gru_operation
                                             : &rnn_operation;
    ek_tensor *in[] = {x, ek_f_linear(state->h, w->weight_hh, w->bias_hh),
                       is_lstm  ? state->c
                       : is_gru ? state->h
                                : NULL};
    const int inputs = in[2] ? 3 : 2;
    if (!in[1])
        return ek_error_pending();
    const bool mixes = ek_autocast_mixes(in, inputs);
    for (int i = 0; i < inputs; i++) {
        in[i] = recurrent_dense(mixes ? ek_autocast_wide(in[i]) : in[i]);
        if (!in[i] || (i > 0 && !ek_alike(operation->name, in[0], in[i])))
            return ek_error_pending();
    }
    const int64_t samples = in[1]->shape[0], hidden = in[1]->shape[1] / ek_recurrence_gates(kind);
    const ek_shape of_state = EK_SHAPE(samples, hidden), of_gates = EK_SHAPE(samples, 4 * hidden);
    ek_dev *dev = ek_tensor_dev(in[1]);
    const ek_dtype dtype = in[1]->dtype;
    ek_tensor *out[3] = {ek_tensor_new(dev, dtype, &of_state, EK_CONTIGUOUS)}, *c = NULL,
              *gates = NULL;
    int outputs = 1;
    if (is_lstm)
        out[outputs++] = c = ek_tensor_new(dev, dtype, &of_state, EK_CONTIGUOUS);
    if (in[2])
        out[outputs++] = gates = ek_tensor_new(dev, dtype, &of_gates, EK_CONTIGUOUS);
    if ((is_lstm && !c) || (in[2] && !gates) ||
        !EK_RUN(out[0], recurrent_forward, cell, c, gates, in[0], in[1], in[2]))
        return ek_error_pending();
    const ek_record_options options = {.inputs = in,
                                       .input_count = inputs,
                                       .saved = in[2] ? (ek_tensor *const[]){gates, in[2], c} : out,
                                       .saved_count = is_lstm  ? 3
                                                      : is_gru ? 2
                                                               : 1,
                                       EK_ATTRIBUTES(cell)};
    EK_TRY(ek_record_outputs(out, outputs, operation, &options));
    state->h = w->weight_hr ? ek_f_linear(out[0], w->weight_hr, NULL) : out[0];
    state->c = c;
    return state->h ? 0 : ek_error_pending();
}

int ek_recurrent_step(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *weights,
                      ek_tensor *mask, ek_recurrent_state *state)
{
    ek_scope scope = ek_scope_begin();
    ek_recurrent_state next = *state;
    int status = recurrent_fused_step(kind, x, weights, &next);
    if (status >= 0 && mask) {
        next.h = ek_where(mask, next.h, state->h);
        next.c = next.c ? ek_where(mask, next.c, state->c) : NULL;
        if (!next.h || (state->c && !next.c))
            status = ek_error_pending();
    }
    return ek_recurrent_return(&scope, status, (ek_tensor *[3]){NULL, next.h, next.c}, state);
}

int ek_recurrent_return(ek_scope *scope, int rc, ek_tensor *outputs[3], ek_recurrent_state *state)
{
    for (int i = 0; i < 3; i++)
        outputs[i] = rc < 0 ? NULL : ek_keep(outputs[i]);
    ek_scope_end(scope);
    for (int i = 0; i < 3; i++)
        rc = outputs[i] && !ek_scope_adopt(outputs[i]) ? ek_error_pending() : rc;
    if (rc >= 0)
        *state = (ek_recurrent_state){outputs[1], outputs[2]};
    return rc;
}

/* ---- padding ---- */

/* Pads x (L, ...) with `value` to length `longest`. */
static ek_tensor *padded_to(ek_tensor *x, int64_t longest, double value)
{
    ek_shape missing = ek_tensor_shape(x);
    missing.dims[0] = longest - missing.dims[0];
    if (missing.dims[0] == 0)
        return x;
    ek_tensor *rest = ek_filled(ek_tensor_dev(x), x->dtype, &missing, value);
    return rest ? ek_cat(EK_ITEMS(ek_tensor *, x, rest), 2, 0) : NULL;
}

ek_tensor *ek_pad_sequence(ek_tensor *const *tensors, int count, bool batch_first, double value)
{
    if (!tensors || count < 1)
        return EK_REFUSE(EK_E_INVALID, "pad_sequence: no tensors");
    int64_t longest = 0;
    for (int i = 0; i < count; i++) {
        const ek_tensor *x = tensors[i];
        if (!ek_given("pad_sequence", "a tensor", x) || !ek_alike("pad_sequence", tensors[0], x) ||
            !ek_holds("pad_sequence", "value", x->dtype, value))
            return NULL;
        bool fits = x->ndim >= 1 && x->ndim == tensors[0]->ndim;
        for (int d = 1; fits && d < x->ndim; d++)
            fits = x->shape[d] == tensors[0]->shape[d];
        if (!fits)
            return EK_REFUSE(EK_E_SHAPE,
                             "pad_sequence: tensor %d is %s and tensor 0 is %s; they may differ in "
                             "dimension 0 alone",
                             i, EK_SIZE_TEXT(x), EK_SIZE_TEXT(tensors[0]));
        longest = x->shape[0] > longest ? x->shape[0] : longest;
    }
    ek_tensor **rows = ek_calloc((size_t)count, sizeof *rows), *y = NULL;
    if (!rows)
        return NULL;
    ek_scope scope = ek_scope_begin();
    bool made = true;
    for (int i = 0; i < count && made; i++)
        made = (rows[i] = padded_to(tensors[i], longest, value)) != NULL;
    if (made)
        y = ek_stack(rows, count, batch_first ? 0 : 1);
    free(rows);
    return ek_scope_return(&scope, y);
}
