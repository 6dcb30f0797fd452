/* recurrent.c: a step of recurrent networks, and padding of sequences. */
#include <stdlib.h>

#include "ops/autocast.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

int ek_recurrence_gates(ek_recurrence kind)
{
    return kind == EK_RECURRENCE_LSTM ? 4 : kind == EK_RECURRENCE_GRU ? 3 : 1;
}

/* ---- an LSTM's gates and state: one kernel. Gates are an output of the node, too, so that its
 * gradient is differentiable in them ---- */

/* The gradients of x and of c before, in differentiable operations. */
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
    return 0;
}

static ek_tensor *lstm_dense(ek_tensor *x)
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
    ek_tensor *dh = lstm_dense(gradients[0]), *dc = lstm_dense(gradients[1]),
              *dx = ek_tensor_new(dev, c->dtype, &of_gates, EK_CONTIGUOUS),
              *dbefore = ek_tensor_new(dev, c->dtype, &of_c, EK_CONTIGUOUS);
    if ((gradients[0] && !dh) || (gradients[1] && !dc) || !dbefore)
        return ek_error_pending();
    results[0] = results[1] = EK_RUN(dx, lstm_gradient, dbefore, dh, dc, gates, before, c);
    results[2] = dbefore;
    return results[0] ? 0 : ek_error_pending();
}

EK_OPERATION(lstm, "lstm", lstm_backward);

static int step_lstm(ek_tensor *x, const ek_recurrent_weights *w, ek_recurrent_state *state)
{
    ek_tensor *in[] = {x, ek_f_linear(state->h, w->weight_hh, w->bias_hh), state->c};
    if (!in[1])
        return ek_error_pending();
    const bool mixes = ek_autocast_mixes(in, 3);
    for (int i = 0; i < 3; i++) {
        in[i] = lstm_dense(mixes ? ek_autocast_wide(in[i]) : in[i]);
        if (!in[i] || (i > 0 && !ek_alike("lstm", in[0], in[i])))
            return ek_error_pending();
    }
    const ek_shape of_gates = ek_tensor_shape(in[0]), of_c = ek_tensor_shape(in[2]);
    ek_dev *dev = ek_tensor_dev(in[2]);
    const ek_dtype dtype = in[2]->dtype;
    ek_tensor *out[] = {ek_tensor_new(dev, dtype, &of_c, EK_CONTIGUOUS),
                        ek_tensor_new(dev, dtype, &of_c, EK_CONTIGUOUS),
                        ek_tensor_new(dev, dtype, &of_gates, EK_CONTIGUOUS)};
    if (!out[1] || !out[2] || !EK_RUN(out[0], lstm_forward, out[1], out[2], in[0], in[1], in[2]))
        return ek_error_pending();
    const ek_record_options options = {.inputs = in,
                                       .input_count = 3,
                                       EK_SAVED(out[2], in[2], out[1])};
    EK_TRY(ek_record_outputs(out, 3, &lstm_operation, &options));
    state->h = w->weight_hr ? ek_f_linear(out[0], w->weight_hr, NULL) : out[0];
    state->c = out[1];
    return state->h ? 0 : ek_error_pending();
}

/* ---- other networks ---- */

/* n = tanh(x_n + r h_n), h = (1 - z) n + z h. The bias of h_n is within the product with r. */
static int step_gru(ek_tensor *x, const ek_recurrent_weights *w, ek_recurrent_state *state)
{
    ek_tensor *from_x[2], *from_h[2], *r_and_z[2]; /* r and z; n */
    ek_tensor *product = ek_f_linear(state->h, w->weight_hh, w->bias_hh);
    if (!product)
        return ek_error_pending();
    const int64_t hidden = product->shape[1] / 3, sizes[] = {2 * hidden, hidden, hidden};
    EK_TRY(ek_split_sizes(product, sizes, 2, 1, from_h));
    EK_TRY(ek_split_sizes(x, sizes, 2, 1, from_x));
    ek_tensor *both = ek_f_sigmoid(ek_add(from_h[0], from_x[0]));
    if (!both)
        return ek_error_pending();
    EK_TRY(ek_split_sizes(both, &sizes[1], 2, 1, r_and_z));
    ek_tensor *n = ek_f_tanh(ek_add(from_x[1], ek_mul(r_and_z[0], from_h[1])));
    state->h = ek_add(ek_mul(ek_sub(state->h, n), r_and_z[1]), n);
    return state->h ? 0 : ek_error_pending();
}

static int step_rnn(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *w,
                    ek_recurrent_state *state)
{
    ek_tensor *sum = ek_add(ek_f_linear(state->h, w->weight_hh, w->bias_hh), x);
    state->h = kind == EK_RECURRENCE_RELU ? ek_f_relu(sum) : ek_f_tanh(sum);
    return state->h ? 0 : ek_error_pending();
}

int ek_recurrent_step(ek_recurrence kind, ek_tensor *x, const ek_recurrent_weights *weights,
                      ek_tensor *mask, ek_recurrent_state *state)
{
    ek_scope scope = ek_scope_begin();
    ek_recurrent_state next = *state;
    int status = kind == EK_RECURRENCE_LSTM  ? step_lstm(x, weights, &next)
                 : kind == EK_RECURRENCE_GRU ? step_gru(x, weights, &next)
                                             : step_rnn(kind, x, weights, &next);
    if (status >= 0 && mask) {
        next.h = ek_where(mask, next.h, state->h);
        next.c = next.c ? ek_where(mask, next.c, state->c) : NULL;
        if (!next.h || (state->c && !next.c))
            status = ek_error_pending();
    }
    if (status < 0) {
        ek_scope_end(&scope);
        return status;
    }
    /* Both leave the scope, all else that no graph holds is freed. */
    if (next.c)
        ek_object_retain(next.c);
    state->h = ek_scope_return(&scope, next.h);
    state->c = next.c ? ek_scope_adopt(next.c) : NULL;
    return state->h && (state->c || !next.c) ? 0 : ek_error_pending();
}

/* ---- padding ---- */

/* x (L, ...) and `value` up to length `longest`. */
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
