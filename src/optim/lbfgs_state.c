/* lbfgs_state.c: the state of L-BFGS: its copies, and its parts by PyTorch's names, for
 * checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/lbfgs.h"

/* ---- vectors ---- */

int ek_lbfgs_replace(ek_tensor **place, ek_tensor *tensor)
{
    if (!tensor)
        return ek_error_pending();
    ek_keep(tensor);
    ek_release(*place);
    *place = tensor;
    return 0;
}

int ek_lbfgs_append(ek_lbfgs *self, ek_tensor *y, ek_tensor *s, double ro)
{
    const int count = self->y.count;
    if (!y || !s)
        return ek_error_pending();
    EK_TRY(ek_grow(&self->ro, &self->ro_room, count + 1));
    EK_TRY(ek_tensor_list_append(&self->y, y));
    ek_keep(y);
    EK_TRY(ek_tensor_list_append(&self->s, s));
    ek_keep(s);
    self->ro[count] = ro;
    return 0;
}

static void lbfgs_list_drop_first(ek_tensor_list *list)
{
    ek_release(list->tensors[0]);
    memmove(list->tensors, list->tensors + 1, (size_t)--list->count * sizeof *list->tensors);
}

void ek_lbfgs_drop_oldest(ek_lbfgs *self)
{
    lbfgs_list_drop_first(&self->y);
    lbfgs_list_drop_first(&self->s);
    memmove(self->ro, self->ro + 1, (size_t)self->y.count * sizeof *self->ro);
}

static void lbfgs_list_clear(ek_tensor_list *list)
{
    for (int i = 0; i < list->count; i++)
        ek_release(list->tensors[i]);
    ek_tensor_list_clear(list);
}

void ek_lbfgs_clear(void *memory)
{
    ek_lbfgs *self = memory;
    ek_release(self->direction);
    ek_release(self->gradient);
    lbfgs_list_clear(&self->y);
    lbfgs_list_clear(&self->s);
    free(self->ro);
    *self = (ek_lbfgs){0};
}

/* Returns `tensor`, or a copy in the scope, on the device and of the dtype of `there`. */
static ek_tensor *lbfgs_convert(ek_tensor *tensor, const ek_tensor *there)
{
    return ek_to_device(ek_to_dtype(tensor, there->dtype), ek_tensor_device(there));
}

int ek_lbfgs_copy(const ek_lbfgs *self, const ek_tensor *there, ek_lbfgs *copy)
{
    *copy = (ek_lbfgs){.iterations = self->iterations,
                       .evaluations = self->evaluations,
                       .loss = self->loss,
                       .t = self->t,
                       .scale = self->scale};
    if (!self->direction)
        return 0;
    ek_scope scope = ek_scope_begin();
    int status = ek_lbfgs_replace(&copy->direction, lbfgs_convert(self->direction, there));
    if (status >= 0)
        status = ek_lbfgs_replace(&copy->gradient, lbfgs_convert(self->gradient, there));
    for (int i = 0; i < self->y.count && status >= 0; i++)
        status = ek_lbfgs_append(copy, lbfgs_convert(self->y.tensors[i], there),
                                 lbfgs_convert(self->s.tensors[i], there), self->ro[i]);
    ek_scope_end(&scope);
    return status;
}

/* ---- states by name ---- */

/* The kinds of states. States of HISTORY and FACTORS are absent while the history is empty. */
typedef enum lbfgs_kind { VECTOR, NUMBER, HISTORY, FACTORS } lbfgs_kind;

static const struct lbfgs_row {
    const char *name;
    lbfgs_kind kind;
    size_t member; /* where the state lies in ek_lbfgs */
} lbfgs_rows[] = {{"d", VECTOR, offsetof(ek_lbfgs, direction)},
                  {"t", NUMBER, offsetof(ek_lbfgs, t)},
                  {"old_dirs", HISTORY, offsetof(ek_lbfgs, y)},
                  {"old_stps", HISTORY, offsetof(ek_lbfgs, s)},
                  {"ro", FACTORS, offsetof(ek_lbfgs, ro)},
                  {"H_diag", NUMBER, offsetof(ek_lbfgs, scale)},
                  {"prev_flat_grad", VECTOR, offsetof(ek_lbfgs, gradient)},
                  {"prev_loss", NUMBER, offsetof(ek_lbfgs, loss)},
                  {"func_evals", NUMBER, offsetof(ek_lbfgs, evaluations)}};
enum { Y = 2, S, RO, EVALUATIONS = 8, ROWS }; /* indices of rows */
_Static_assert(sizeof lbfgs_rows / sizeof *lbfgs_rows == ROWS, "indices of the last rows");

const char *ek_lbfgs_state_name(int index)
{
    return index < ROWS ? lbfgs_rows[index].name : NULL;
}

/* Returns the index of the row of this name, or ROWS. */
static int lbfgs_row_of(const char *name)
{
    int i = 0;
    while (i < ROWS && strcmp(lbfgs_rows[i].name, name) != 0)
        i++;
    return i;
}

/* Returns true if there is a state of this row. As in PyTorch, the count of evaluations may exist
 * before the first iteration. */
static bool lbfgs_has(const ek_lbfgs *self, int row)
{
    if (row == EVALUATIONS)
        return self->iterations > 0 || self->evaluations > 0;
    return row < ROWS && self->iterations > 0 && (lbfgs_rows[row].kind < HISTORY || self->y.count);
}

ek_tensor *ek_lbfgs_state(const ek_optimizer *optimizer, const char *name)
{
    const ek_lbfgs *self = optimizer->memory;
    const int row = lbfgs_row_of(name);
    if (!lbfgs_has(self, row))
        return NULL;
    const void *member = (const char *)self + lbfgs_rows[row].member;
    const ek_tensor_list *history = member;
    switch (lbfgs_rows[row].kind) {
    case VECTOR:
        return *(ek_tensor *const *)member;
    case NUMBER:
        return ek_full(*(const double *)member, ek_scalar_shape(), .dtype = EK_F64);
    case HISTORY:
        return ek_stack(history->tensors, history->count, 0);
    default:
        return ek_from_data(self->ro, EK_SHAPE(self->y.count), EK_F64);
    }
}

/* ---- writing ---- */

/* Puts the states in the order of rows. The history may be missing, but only as a whole. Before the
 * first iteration there is no state but the count of evaluations, which may be missing. */
static int lbfgs_sort(const ek_optimizer *optimizer, int64_t steps, const char *const *names,
                      ek_tensor *const *states, int count, ek_tensor **sorted)
{
    for (int i = 0; i < count; i++) {
        const int at = names[i] ? lbfgs_row_of(names[i]) : ROWS;
        if (at == ROWS)
            return EK_FAIL(EK_E_INVALID, "lbfgs: there is no state \"%.200s\"",
                           names[i] ? names[i] : "NULL");
        if (steps == 0 && at != EVALUATIONS)
            return EK_FAIL(EK_E_INVALID, "lbfgs: after 0 updates there is no state \"%s\"",
                           names[i]);
        EK_TRY(ek_state_take(optimizer->algorithm, names[i], states[i], &sorted[at]));
    }
    const bool history = sorted[Y] || sorted[S] || sorted[RO];
    for (int i = 0; i < ROWS && steps > 0; i++)
        if (!sorted[i] && (history || lbfgs_rows[i].kind < HISTORY))
            return EK_FAIL(EK_E_INVALID, "lbfgs: state \"%s\" is missing", lbfgs_rows[i].name);
    return 0;
}

/* Returns the state of a row on the parameters' device and in their dtype, in the scope. The state
 * must have the shape [pairs, N], or, if pairs < 0, [N], where N is the number of elements of all
 * parameters. */
static ek_tensor *lbfgs_read(const ek_optimizer *optimizer, ek_tensor *const *sorted, int row,
                             int64_t pairs)
{
    const int64_t count = ek_lbfgs_count(optimizer);
    const ek_shape wanted = pairs < 0 ? EK_SHAPE(count) : EK_SHAPE(pairs, count);
    const ek_shape shape = ek_tensor_shape(sorted[row]);
    char texts[2][200];
    if (!ek_shape_equal(&shape, &wanted) || !ek_dtype_is_floating(sorted[row]->dtype)) {
        EK_FAIL(EK_E_SHAPE, "lbfgs: state \"%s\" is %s; it has to be floating, of shape %s",
                lbfgs_rows[row].name, ek_tensor_text(sorted[row], texts[0]),
                ek_shape_text(&wanted, texts[1]));
        return NULL;
    }
    return lbfgs_convert(ek_detach(sorted[row]), optimizer->slots[0]->parameter);
}

static int lbfgs_fill_history(const ek_optimizer *optimizer, ek_tensor *const *sorted,
                              ek_lbfgs *self)
{
    const int64_t pairs = sorted[RO]->ndim == 1 ? sorted[RO]->shape[0] : -1;
    char text[200];
    if (pairs < 0 || pairs > INT32_MAX / 2)
        return EK_FAIL(EK_E_SHAPE, "lbfgs: state \"ro\" is %s; it has to be a vector",
                       ek_tensor_text(sorted[RO], text));
    ek_tensor *y = lbfgs_read(optimizer, sorted, Y, pairs),
              *s = lbfgs_read(optimizer, sorted, S, pairs);
    if (!y || !s)
        return ek_error_pending();
    for (int i = 0; i < (int)pairs; i++) {
        double ro;
        EK_TRY(ek_item(ek_select(sorted[RO], 0, i), &ro));
        EK_TRY(
            ek_lbfgs_append(self, ek_clone(ek_select(y, 0, i)), ek_clone(ek_select(s, 0, i)), ro));
    }
    return 0;
}

static int lbfgs_fill(const ek_optimizer *optimizer, ek_tensor *const *sorted, ek_lbfgs *self)
{
    for (int i = 0; i < ROWS; i++) {
        void *member = (char *)self + lbfgs_rows[i].member;
        if (sorted[i] && lbfgs_rows[i].kind == NUMBER)
            EK_TRY(ek_item(sorted[i], member));
        if (sorted[i] && lbfgs_rows[i].kind == VECTOR)
            EK_TRY(ek_lbfgs_replace(member, ek_clone(lbfgs_read(optimizer, sorted, i, -1))));
    }
    if (!(self->evaluations >= 0 && self->evaluations < 0x1p53))
        return EK_FAIL(EK_E_INVALID, "lbfgs: state \"func_evals\" is %g", self->evaluations);
    self->evaluations = floor(self->evaluations);
    return sorted[RO] ? lbfgs_fill_history(optimizer, sorted, self) : 0;
}

int ek_lbfgs_set_state(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                       ek_tensor *const *states, int count)
{
    ek_lbfgs *self = optimizer->memory, made = {.iterations = steps};
    ek_tensor *sorted[ROWS] = {NULL};
    EK_TRY(lbfgs_sort(optimizer, steps, names, states, count, sorted));
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    int status = lbfgs_fill(optimizer, sorted, &made);
    ek_memory_set_category(before);
    ek_lbfgs_clear(status < 0 ? &made : self);
    if (status >= 0)
        *self = made;
    return status < 0 ? status : 0;
}
