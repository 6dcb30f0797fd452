/* recurrent_direction.c: all steps of one direction of a layer, as one node of the graph.
 *
 *     ek_recurrent_direction
 *         direction_compose   one node for each operation: under autocast, for an observer, where a
 *                             gradient is differentiated, in a second backward through gates
 *         direction_forward   one kernel, or a product and a kernel for each step
 *     direction_backward
 *         direction_steps_back    one kernel, or a kernel and a product for each step
 *         direction_parameters    each parameter's gradient, by one product over all steps
 *
 * The states of all steps lie in one tensor (L + 1, N, size). The state before step t is its row
 * t, and with `reverse` row t + 1. So the states before all steps are one matrix, by which the
 * gradient of weight_hh is one product. */
#include <stdatomic.h>
#include <stdlib.h>

#include "ops/autocast.h"
#include "ops/linear.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

/* Inputs of the node, which are saved first, and further saved tensors: h and c before and after
 * all steps, the gates, and h before its projection. */
enum { X, H, C, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, WEIGHT_HR, INPUTS };
enum { ALL_H = INPUTS, ALL_C, GATES, HIDDEN, SAVED };

typedef struct direction {
    ek_object object;
    ek_recurrence kind;
    bool reverse;
    ek_tensor *mask;  /* (L, N, 1), one reference; or NULL */
    atomic_bool used; /* a backward has overwritten the gates by their gradients */
} direction;

/* ---- composed of steps ---- */

static ek_tensor *direction_compose_steps(const direction *self, ek_tensor *const *in,
                                          ek_tensor **room, ek_recurrent_state *state)
{
    const ek_recurrent_weights weights = {in[WEIGHT_IH], in[WEIGHT_HH], in[BIAS_IH], in[BIAS_HH],
                                          in[WEIGHT_HR]};
    const int count = (int)in[X]->shape[0];
    ek_tensor **steps = room, **outputs = room + count;
    ek_tensor *products = ek_f_linear(in[X], weights.weight_ih, weights.bias_ih);
    if (!products || ek_split(products, 1, 0, steps, count) < 0)
        return NULL;
    for (int i = 0; i < count; i++) {
        const int t = self->reverse ? count - 1 - i : i;
        ek_tensor *mask = self->mask ? ek_select(self->mask, 0, t) : NULL;
        if ((self->mask && !mask) ||
            ek_recurrent_step(self->kind, ek_squeeze(steps[t], 0), &weights, mask, state) < 0)
            return NULL;
        outputs[t] = state->h;
    }
    return ek_stack(outputs, count, 0);
}

/* The ek_recomputed_function. */
static int direction_compose(ek_object *state, ek_tensor *const *in, int count, ek_tensor **outputs,
                             int output_count)
{
    (void)count, (void)output_count;
    ek_recurrent_state last = {in[H], in[C]};
    ek_tensor **room = ek_calloc((size_t)in[X]->shape[0] * 2, sizeof *room);
    if (!room)
        return ek_error_pending();
    outputs[0] = direction_compose_steps((const direction *)state, in, room, &last);
    outputs[1] = last.h;
    outputs[2] = last.c;
    free(room);
    return outputs[0] ? 0 : ek_error_pending();
}

/* ---- memory ---- */

static ek_tensor *direction_new(const ek_tensor *like, int64_t steps, int64_t columns)
{
    return ek_tensor_new(ek_tensor_dev(like), like->dtype,
                         &EK_SHAPE(steps, like->shape[like->ndim - 2], columns), EK_CONTIGUOUS);
}

static ek_tensor *direction_new_matrix(const ek_tensor *like, int64_t columns)
{
    ek_tensor *x = direction_new(like, 1, columns);
    return x ? ek_squeeze(x, 0) : NULL;
}

/* Returns row t of x (L, N, W), which is contiguous, as a matrix. If x has fewer rows, steps use
 * them in turn. */
static ek_tensor direction_at(const ek_tensor *x, int64_t t)
{
    const int64_t rows = x->shape[1], columns = x->shape[2];
    return (ek_tensor){.dtype = x->dtype,
                       .ndim = 2,
                       .shape = {rows, columns},
                       .stride = {columns, 1},
                       .offset = x->offset + t % x->shape[0] * rows * columns,
                       .storage = x->storage};
}

/* Returns `count` rows of x, from `first` on, as one matrix. */
static ek_tensor direction_rows(const ek_tensor *x, int64_t first, int64_t count)
{
    ek_tensor view = direction_at(x, first);
    view.shape[0] *= count;
    return view;
}

/* Returns `count` columns of a matrix, from `first` on. */
static ek_tensor direction_columns(const ek_tensor *x, int64_t first, int64_t count)
{
    ek_tensor view = *x;
    view.offset += first * x->stride[1];
    view.shape[1] = count;
    return view;
}

/* Expands the mask of step t to the columns of `like`. */
static void direction_mask_at(ek_tensor *view, const direction *self, int64_t t,
                              const ek_tensor *like)
{
    const ek_tensor mask = direction_at(self->mask, t);
    ek_borrow_expanded(view, &mask, &EK_SHAPE(like->shape[0], like->shape[1]));
}

/* ---- forward ---- */

/* Describes all steps for the device's kernel. */
static ek_recurrent_steps direction_steps(const direction *self, ek_tensor *const *saved,
                                          ek_tensor *y)
{
    return (ek_recurrent_steps){.cell = (ek_recurrent_cell)self->kind,
                                .reverse = self->reverse,
                                .x = saved[X],
                                .input_weight = saved[WEIGHT_IH],
                                .input_bias = saved[BIAS_IH],
                                .weight = saved[WEIGHT_HH],
                                .bias = saved[BIAS_HH],
                                .h = saved[ALL_H],
                                .c = saved[ALL_C],
                                .gates = saved[GATES],
                                .y = y};
}

/* Copies the states after all steps. */
static int direction_copy_states(const direction *self, ek_tensor *const *saved, ek_tensor *y)
{
    const int64_t steps = y->shape[0];
    ek_tensor to = direction_rows(y, 0, steps);
    const ek_tensor from = direction_rows(saved[ALL_H], !self->reverse, steps);
    return ek_kernels_of(y)->copy(ek_tensor_dev(y), &to, &from);
}

/* Fills y, saved[ALL_H] and what follows that. If `keeps` is false, steps share the memory that
 * only backward would read. In single steps the gates overwrite the sums that they are computed
 * from, if there is memory for the gates of all steps. */
static int direction_forward(const direction *self, ek_tensor *const *in, bool keeps,
                             ek_tensor **saved, ek_tensor *y)
{
    const ek_tensor *x = in[X];
    const bool lstm = self->kind == EK_RECURRENCE_LSTM, gru = self->kind == EK_RECURRENCE_GRU;
    const int64_t steps = x->shape[0], rows = in[WEIGHT_IH]->shape[0], size = in[H]->shape[1],
                  hidden = rows / ek_recurrence_gates(self->kind);
    ek_dev *dev = ek_tensor_dev(x);
    const ek_kernels *kernels = ek_kernels_of(x);
    saved[ALL_H] = direction_new(x, steps + 1, size);
    saved[ALL_C] = lstm ? direction_new(x, keeps ? steps + 1 : 2, hidden) : NULL;
    saved[GATES] = (lstm || gru) && keeps ? direction_new(x, steps, 4 * hidden) : NULL;
    saved[HIDDEN] = in[WEIGHT_HR] ? direction_new(x, keeps ? steps : 1, hidden) : NULL;
    if (ek_error_status() < 0)
        return ek_error_pending();

    ek_tensor to = direction_at(saved[ALL_H], self->reverse ? steps : 0);
    EK_TRY(kernels->copy(dev, &to, in[H]));
    if (lstm) {
        to = direction_at(saved[ALL_C], self->reverse ? steps : 0);
        EK_TRY(kernels->copy(dev, &to, in[C]));
    }
    if (!self->mask && !saved[HIDDEN]) {
        const ek_recurrent_steps call = direction_steps(self, saved, y);
        const int rc = kernels->recurrent_steps(dev, &call);
        if (rc != 0)
            return rc < 0 ? rc : 0;
    }
    if ((lstm || gru) && !keeps)
        saved[GATES] = direction_new(x, lstm ? steps : 1, 4 * hidden);
    ek_tensor *sums = lstm || (gru && keeps) ? saved[GATES] : direction_new(x, steps, rows);
    if (ek_error_status() < 0)
        return ek_error_pending();
    const ek_tensor x_rows = direction_rows(x, 0, steps), sum_rows = direction_rows(sums, 0, steps);
    to = direction_columns(&sum_rows, 0, rows);
    EK_TRY(kernels->linear(dev, &to, &x_rows, in[WEIGHT_IH], in[BIAS_IH], false));
    ek_tensor *product = direction_new_matrix(x, rows),
              *new_h = self->mask ? direction_new_matrix(x, size) : NULL,
              *new_c = self->mask && lstm ? direction_new_matrix(x, hidden) : NULL;
    if (ek_error_status() < 0)
        return ek_error_pending();
    for (int64_t i = 0; i < steps; i++) {
        const int64_t t = self->reverse ? steps - 1 - i : i, before = t + self->reverse,
                      after = t + !self->reverse;
        ek_tensor h = direction_at(saved[ALL_H], before),
                  next_h = direction_at(saved[ALL_H], after), in_t = direction_at(sums, t), c,
                  next_c, gates, unprojected, mask;
        if (lstm) {
            c = direction_at(saved[ALL_C], before);
            next_c = direction_at(saved[ALL_C], after);
        }
        if (saved[GATES])
            gates = direction_at(saved[GATES], t);
        if (saved[HIDDEN])
            unprojected = direction_at(saved[HIDDEN], t);
        ek_tensor *to_h = new_h ? new_h : &next_h;
        EK_TRY(kernels->linear(dev, product, &h, in[WEIGHT_HH], in[BIAS_HH], false));
        EK_TRY(kernels->recurrent_forward(dev, saved[HIDDEN] ? &unprojected : to_h,
                                          (ek_recurrent_cell)self->kind,
                                          new_c  ? new_c
                                          : lstm ? &next_c
                                                 : NULL,
                                          saved[GATES] ? &gates : NULL, &in_t, product,
                                          lstm  ? &c
                                          : gru ? &h
                                                : NULL));
        if (saved[HIDDEN])
            EK_TRY(kernels->linear(dev, to_h, &unprojected, in[WEIGHT_HR], NULL, false));
        if (!self->mask)
            continue;
        direction_mask_at(&mask, self, t, &h);
        EK_TRY(kernels->where(dev, &next_h, &mask, new_h, &h));
        if (lstm) {
            direction_mask_at(&mask, self, t, &c);
            EK_TRY(kernels->where(dev, &next_c, &mask, new_c, &c));
        }
    }
    return direction_copy_states(self, saved, y);
}

/* Makes outputs of the last states, which are copies. */
static int direction_outputs(const direction *self, ek_tensor *const *saved, int64_t steps,
                             ek_tensor **outputs)
{
    ek_tensor *states[] = {saved[ALL_H], saved[ALL_C]};
    for (int i = 0; i < 2; i++) {
        if (!states[i])
            continue;
        const ek_tensor last = direction_at(states[i], self->reverse ? 0 : steps);
        outputs[i + 1] = direction_new_matrix(&last, last.shape[1]);
        if (!outputs[i + 1] ||
            ek_kernels_of(&last)->copy(ek_tensor_dev(&last), outputs[i + 1], &last) < 0)
            return ek_error_pending();
    }
    return 0;
}

/* ---- backward ---- */

/* Writes a + b, where NULL counts as zeros. */
static int direction_sum(ek_tensor *out, const ek_tensor *a, const ek_tensor *b)
{
    ek_dev *dev = ek_tensor_dev(out);
    const ek_kernels *kernels = ek_kernels_of(out);
    if (a && b)
        return kernels->binary(dev, EK_BINARY_ADD, out, a, b, 1);
    return a || b ? kernels->copy(dev, out, a ? a : b) : kernels->fill(dev, out, 0);
}

/* out = x y, or out += x y with `adds`. */
static int direction_product(ek_tensor *out, const ek_tensor *x, const ek_tensor *y, bool adds)
{
    ek_tensor to = ek_batch_of_matrix(out, false), a = ek_batch_of_matrix(x, false),
              b = ek_batch_of_matrix(y, false);
    return ek_kernels_of(out)->matmul(ek_tensor_dev(out), &to, &a, &b, NULL, adds);
}

/* Splits a state's gradient by the mask of step t: `own`, which may be `gradient`, gets the
 * gradient of samples with this step, `past` that of other samples, whose state passes the step
 * unchanged. */
static int direction_split_gradient(const direction *self, int64_t t, const ek_tensor *gradient,
                                    const ek_tensor *zero, ek_tensor *own, ek_tensor *past)
{
    ek_dev *dev = ek_tensor_dev(own);
    ek_tensor mask, zeros;
    direction_mask_at(&mask, self, t, own);
    ek_borrow_expanded(&zeros, zero, &EK_SHAPE(own->shape[0], own->shape[1]));
    EK_TRY(ek_kernels_of(own)->where(dev, past, &mask, &zeros, gradient));
    return ek_kernels_of(own)->where(dev, own, &mask, gradient, &zeros);
}

/* Returns rows [first, first + count) of x. */
static ek_tensor direction_part(const ek_tensor *x, int64_t first, int64_t count)
{
    ek_tensor view = *x;
    view.offset += first * x->stride[0];
    view.shape[0] = count;
    return view;
}

/* Columns of dx, and rows of weight_hh of whose product they are the gradient. */
typedef struct direction_range {
    int64_t column, row, count;
} direction_range;

/* A GRU has two ranges, because the n of its product has a gradient of its own. Returns how many
 * there are. */
static int direction_ranges(const direction *self, int64_t rows, direction_range *ranges)
{
    const int64_t hidden = rows / ek_recurrence_gates(self->kind);
    if (self->kind != EK_RECURRENCE_GRU) {
        ranges[0] = (direction_range){0, 0, rows};
        return 1;
    }
    ranges[0] = (direction_range){0, 0, 2 * hidden};
    ranges[1] = (direction_range){3 * hidden, 2 * hidden, hidden};
    return 2;
}

/* The gradients of all steps. With a mask, `own_h` and `own_c` are the gradients of h and c after a
 * step for the samples that have the step, and `past` is for those that don't. */
typedef struct direction_back {
    ek_tensor *dx; /* Sums of gates, in place of the gates (L, N, 4 H) where there are any. */
    ek_tensor *dprojected; /* Projected h (L, N, size); NULL: h isn't projected. */
    ek_tensor *h, *c;      /* States before a step. */
    ek_tensor *x;          /* NULL: not wanted, or computed with the steps. */
    ek_tensor *own_h, *own_c;
    ek_tensor *past, *dhidden; /* `dhidden` is for h before its projection. */
    ek_tensor *zero;
} direction_back;

static int direction_back_memory(const direction *self, ek_tensor *const *saved,
                                 direction_back *back)
{
    const ek_tensor *x = saved[X];
    const int64_t steps = x->shape[0], rows = saved[WEIGHT_IH]->shape[0], size = saved[H]->shape[1],
                  hidden = rows / ek_recurrence_gates(self->kind);
    const bool lstm = self->kind == EK_RECURRENCE_LSTM;
    back->dx = saved[GATES] ? saved[GATES] : direction_new(x, steps, rows);
    back->h = direction_new_matrix(x, size);
    back->c = lstm ? direction_new_matrix(x, hidden) : NULL;
    if (saved[HIDDEN]) {
        back->dprojected = direction_new(x, steps, size);
        back->dhidden = direction_new_matrix(x, hidden);
    }
    if (self->mask) {
        back->own_h = saved[HIDDEN] ? NULL : direction_new_matrix(x, size);
        back->own_c = lstm ? direction_new_matrix(x, hidden) : NULL;
        back->past = direction_new_matrix(x, hidden);
        back->zero = ek_number_like(x, 0);
    }
    return ek_error_status() < 0 ? ek_error_pending() : 0;
}

/* Computes the gradients of step t, and those of the states before the step. `dy`, `dh` and `dc`
 * are the gradients of the step's output and of the states after the step; they may be NULL, or
 * back->h and back->c. If `wants_h` is false, the state before has no gradient. */
static int direction_step_back(const direction *self, ek_tensor *const *saved, int64_t t,
                               const direction_back *back, const ek_tensor *dy, const ek_tensor *dh,
                               const ek_tensor *dc, bool wants_h)
{
    const bool lstm = self->kind == EK_RECURRENCE_LSTM, gru = self->kind == EK_RECURRENCE_GRU;
    const int64_t before = t + self->reverse, after = t + !self->reverse;
    ek_dev *dev = ek_tensor_dev(back->dx);
    const ek_kernels *kernels = ek_kernels_of(back->dx);
    const ek_tensor h = direction_at(saved[ALL_H], before),
                    next_h = direction_at(saved[ALL_H], after),
                    c = lstm ? direction_at(saved[ALL_C], before) : h,
                    next_c = lstm ? direction_at(saved[ALL_C], after) : h,
                    gates = saved[GATES] ? direction_at(saved[GATES], t) : next_h;
    ek_tensor dx = direction_at(back->dx, t), own;
    ek_tensor *passed_h = back->h, *passed_c = back->c;
    if (self->mask || back->dprojected) {
        own = back->dprojected ? direction_at(back->dprojected, t) : *back->own_h;
        EK_TRY(direction_sum(&own, dy, dh));
        if (self->mask)
            EK_TRY(direction_split_gradient(self, t, &own, back->zero, &own, passed_h));
        if (self->mask && lstm) {
            EK_TRY(direction_sum(back->own_c, dc, NULL));
            EK_TRY(
                direction_split_gradient(self, t, back->own_c, back->zero, back->own_c, passed_c));
            dc = back->own_c;
        }
        if (back->dprojected)
            EK_TRY(direction_product(back->dhidden, &own, saved[WEIGHT_HR], false));
        dy = back->dprojected ? back->dhidden : &own;
        dh = NULL;
    }
    ek_tensor *passed = lstm  ? passed_c
                        : gru ? passed_h
                              : NULL,
              *dbefore = self->mask && passed ? back->past : passed;
    EK_TRY(kernels->recurrent_gradient(dev, &dx, (ek_recurrent_cell)self->kind, dbefore, dy, dh, dc,
                                       &gates,
                                       lstm  ? &c
                                       : gru ? &h
                                             : NULL,
                                       lstm ? &next_c : NULL));
    if (dbefore != passed)
        EK_TRY(direction_sum(passed, passed, dbefore));
    direction_range ranges[2];
    const int count = direction_ranges(self, saved[WEIGHT_HH]->shape[0], ranges);
    for (int i = 0; i < count && wants_h; i++) {
        const ek_tensor d = direction_columns(&dx, ranges[i].column, ranges[i].count),
                        w = direction_part(saved[WEIGHT_HH], ranges[i].row, ranges[i].count);
        EK_TRY(direction_product(passed_h, &d, &w, gru || self->mask));
    }
    return 0;
}

/* Computes the gradients of weight_hh and its bias. Where x and the product are added, both biases
 * have one gradient. */
static int direction_product_parameters(const direction *self, const ek_tensor *sums,
                                        const ek_tensor *h, ek_tensor *const *results)
{
    ek_tensor *dw = results[WEIGHT_HH], *db = results[BIAS_HH], dw_part, db_part;
    const bool copies = db && results[BIAS_IH] && self->kind != EK_RECURRENCE_GRU;
    direction_range ranges[2];
    const int count = direction_ranges(self, dw ? dw->shape[0] : db ? db->shape[0] : 0, ranges);
    for (int i = 0; i < count; i++) {
        const direction_range r = ranges[i];
        const ek_tensor part = direction_columns(sums, r.column, r.count);
        if (dw)
            dw_part = direction_part(dw, r.row, r.count);
        if (db)
            db_part = direction_part(db, r.row, r.count);
        EK_TRY(ek_linear_run_gradients(dw ? &dw_part : NULL, db && !copies ? &db_part : NULL, h,
                                       &part));
    }
    return copies ? ek_kernels_of(db)->copy(ek_tensor_dev(db), db, results[BIAS_IH]) : 0;
}

/* Computes the gradients of the parameters and of x from those of the sums of gates. */
static int direction_parameters(ek_node *node, const direction *self, ek_tensor *const *saved,
                                const direction_back *back, ek_tensor **results)
{
    const ek_tensor *x = saved[X];
    const int64_t steps = x->shape[0];
    const ek_tensor sums = direction_rows(back->dx, 0, steps),
                    dx = direction_columns(&sums, 0, saved[WEIGHT_IH]->shape[0]),
                    x_rows = direction_rows(x, 0, steps),
                    h_rows = direction_rows(saved[ALL_H], self->reverse, steps);
    for (int i = WEIGHT_IH; i < INPUTS; i++)
        if (ek_node_needs(node, i) && !(results[i] = ek_node_destination(node, i))) {
            const ek_shape shape = ek_tensor_shape(saved[i]);
            results[i] = ek_tensor_new(ek_tensor_dev(x), x->dtype, &shape, EK_CONTIGUOUS);
            if (!results[i])
                return ek_error_pending();
        }
    const ek_recurrent_steps call = direction_steps(self, saved, NULL);
    const ek_recurrent_parameters gradients = {{results[WEIGHT_IH], results[WEIGHT_HH]},
                                               {results[BIAS_IH], results[BIAS_HH]}};
    const int rc = ek_kernels_of(x)->recurrent_parameters_gradient(ek_tensor_dev(x), &call,
                                                                   back->dx, &gradients);
    if (rc < 0)
        return rc;
    if (rc == 0) {
        EK_TRY(ek_linear_run_gradients(results[WEIGHT_IH], results[BIAS_IH], &x_rows, &dx));
        EK_TRY(direction_product_parameters(self, &sums, &h_rows, results));
    }
    if (results[WEIGHT_HR]) {
        const ek_tensor hidden = direction_rows(saved[HIDDEN], 0, steps),
                        dh = direction_rows(back->dprojected, 0, steps);
        EK_TRY(ek_linear_run_gradients(results[WEIGHT_HR], NULL, &hidden, &dh));
    }
    if (!back->x)
        return 0;
    ek_tensor to = direction_rows(back->x, 0, steps);
    return direction_product(&to, &dx, saved[WEIGHT_IH], false);
}

/* Computes dx of all steps and the gradients of the first states, from those of y, h and c, which
 * may be NULL. */
static int direction_steps_back(const direction *self, ek_tensor *const *saved,
                                direction_back *back, ek_tensor *const *given, bool wants_h)
{
    const int64_t steps = saved[X]->shape[0];
    const ek_tensor *dh = given[1], *dc = given[2], *dy_all = given[0];
    if (!self->mask && !back->dprojected) {
        const ek_recurrent_steps call = direction_steps(self, saved, NULL);
        const ek_recurrent_steps_back call_back = {back->dx, given[0], dh,      dc,
                                                   back->h,  back->c,  back->x, wants_h};
        const int rc = ek_kernels_of(back->dx)->recurrent_steps_gradient(ek_tensor_dev(back->dx),
                                                                         &call, &call_back);
        if (rc > 0)
            back->x = NULL;
        if (rc != 0)
            return rc < 0 ? rc : 0;
    }
    if (dy_all && !(dy_all = ek_contiguous(given[0], EK_CONTIGUOUS)))
        return ek_error_pending();
    for (int64_t i = 0; i < steps; i++) {
        const int64_t t = self->reverse ? i : steps - 1 - i;
        const ek_tensor dy = dy_all ? direction_at(dy_all, t) : (ek_tensor){0};
        EK_TRY(direction_step_back(self, saved, t, back, dy_all ? &dy : NULL, dh, dc,
                                   wants_h || i < steps - 1));
        dh = back->h;
        dc = back->c;
    }
    return 0;
}

static int direction_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    direction *self = (direction *)((const ek_recomputed *)ek_node_attributes(node))->state;
    ek_tensor *saved[SAVED], *given[3];
    const bool gated = self->kind == EK_RECURRENCE_LSTM || self->kind == EK_RECURRENCE_GRU;
    if (ek_grad_enabled() || (gated && atomic_exchange(&self->used, true)))
        return ek_recomputed_backward(node, gradients, results);
    for (int i = 0; i < SAVED; i++)
        saved[i] = ek_node_saved(node, i);
    for (int i = 0; i < 3; i++)
        given[i] = !gradients[i] || (i == 0 && gradients[0]->stride[2] == 1)
                       ? gradients[i]
                       : ek_contiguous(gradients[i], EK_CONTIGUOUS);
    direction_back back = {.dx = NULL};
    if (ek_error_status() < 0)
        return ek_error_pending();
    EK_TRY(direction_back_memory(self, saved, &back));
    if (ek_node_needs(node, X) && !(results[X] = back.x = ek_tensor_like(saved[X])))
        return ek_error_pending();
    EK_TRY(direction_steps_back(self, saved, &back, given, ek_node_needs(node, H)));
    results[H] = ek_node_needs(node, H) ? back.h : NULL;
    results[C] = back.c;
    return direction_parameters(node, self, saved, &back, results);
}

/* ---- the operation ---- */

static void direction_destroy(ek_object *object)
{
    ek_release(((direction *)object)->mask);
    free(object);
}

static const ek_operation direction_operation = {.name = "recurrent",
                                                 .backward = direction_backward,
                                                 .destroy = ek_recomputed_destroy};
static const ek_operation direction_gradient_operation = {.name = "recurrent_gradient",
                                                          .backward = ek_recomputed_backward,
                                                          .destroy = ek_recomputed_destroy};

/* Fills the outputs: those of all steps, and the last h and c. */
static int direction_run(direction *self, ek_tensor **in, ek_tensor **outputs)
{
    ek_tensor *saved[SAVED];
    for (int i = 0; i < INPUTS; i++)
        saved[i] = in[i];
    const bool keeps = ek_records(in, INPUTS);
    outputs[0] = direction_new(in[X], in[X]->shape[0], in[H]->shape[1]);
    if (!outputs[0])
        return ek_error_pending();
    EK_TRY(direction_forward(self, in, keeps, saved, outputs[0]));
    EK_TRY(direction_outputs(self, saved, in[X]->shape[0], outputs));
    if (!keeps)
        return 0;
    const ek_recomputed recomputed = {&direction_gradient_operation, direction_compose,
                                      ek_object_retain(&self->object),
                                      ek_thread_self()->modes.flags};
    return ek_record_outputs(outputs, 3, &direction_operation,
                             &(const ek_record_options){.inputs = in,
                                                        .input_count = INPUTS,
                                                        .saved = saved,
                                                        .saved_count = SAVED,
                                                        EK_ATTRIBUTES(recomputed)});
}

/* Returns true if each operation of a step is a node. If an operand doesn't fit, this is true, too,
 * because these operations have the sentences of the error. */
static bool direction_composes(ek_recurrence kind, ek_tensor *const *in)
{
    const ek_tensor *x = in[X];
    if (ek_thread_self()->observer || ek_count(x) == 0 ||
        (ek_autocast_dtype() != EK_F32 && ek_dtype_wide(x->dtype) == EK_F32))
        return true;
    return !ek_recurrent_fits(kind, x, in[H], in[C],
                              &(const ek_recurrent_weights){in[WEIGHT_IH], in[WEIGHT_HH],
                                                            in[BIAS_IH], in[BIAS_HH],
                                                            in[WEIGHT_HR]},
                              x->shape[2]);
}

ek_tensor *ek_recurrent_direction(ek_recurrence kind, bool reverse, ek_tensor *x,
                                  const ek_recurrent_weights *w, ek_tensor *mask,
                                  ek_recurrent_state *state)
{
    ek_tensor *in[INPUTS] = {x,          state->h,   state->c,    w->weight_ih, w->weight_hh,
                             w->bias_ih, w->bias_hh, w->weight_hr},
              *outputs[3] = {NULL};
    ek_scope scope = ek_scope_begin();
    direction *self = ek_calloc(1, sizeof *self);
    int rc = self ? 0 : ek_error_pending();
    if (self) {
        ek_object_init(&self->object, direction_destroy);
        self->kind = kind;
        self->reverse = reverse;
        self->mask = mask ? ek_keep(mask) : NULL;
    }
    const bool composes = direction_composes(kind, in);
    if (rc >= 0 && !composes && !(in[X] = ek_contiguous(x, EK_CONTIGUOUS)))
        rc = ek_error_pending();
    if (rc >= 0)
        rc = composes ? direction_compose(&self->object, in, INPUTS, outputs, 3)
                      : direction_run(self, in, outputs);
    ek_object_release(self);
    return ek_recurrent_return(&scope, rc, outputs, state) < 0 ? NULL : outputs[0];
}
