/* lbfgs_state.c: the state of L-BFGS: where it lies, and its parts by PyTorch's names, for
 * checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/lbfgs.h"

enum { D, T, OLD_DIRS, OLD_STPS, RO, H_DIAG, PREV_FLAT_GRAD, PREV_LOSS, FUNC_EVALS, NAMES };
const char *const ek_lbfgs_state_names[] = {"d",          "t",      "old_dirs",       "old_stps",
                                            "ro",         "H_diag", "prev_flat_grad", "prev_loss",
                                            "func_evals", NULL};

static int lbfgs_name(const char *name)
{
    int i = 0;
    while (i < NAMES && strcmp(ek_lbfgs_state_names[i], name) != 0)
        i++;
    return i;
}

ek_lbfgs *ek_lbfgs_of(ek_optimizer *optimizer)
{
    if (!optimizer->memory)
        optimizer->memory = ek_calloc(1, sizeof(ek_lbfgs));
    return optimizer->memory;
}

void ek_lbfgs_free(void *memory)
{
    if (memory)
        ek_lbfgs_clear(memory);
    free(memory);
}

/* ---- where it lies ---- */

void ek_lbfgs_replace(ek_tensor **place, ek_tensor *tensor)
{
    ek_keep(tensor);
    ek_release(*place);
    *place = tensor;
}

static int lbfgs_bring(ek_tensor **place, const ek_tensor *there)
{
    if (!*place)
        return 0;
    ek_tensor *tensor = ek_to_dtype(ek_to_device(*place, ek_tensor_device(there)), there->dtype);
    if (!tensor)
        return ek_error_pending();
    ek_lbfgs_replace(place, tensor);
    return 0;
}

int ek_lbfgs_follow(ek_lbfgs *self, const ek_tensor *there)
{
    ek_scope scope = ek_scope_begin();
    int status = lbfgs_bring(&self->direction, there);
    if (status >= 0)
        status = lbfgs_bring(&self->gradient, there);
    for (int i = 0; i < self->count && status >= 0; i++) {
        status = lbfgs_bring(&self->pairs[i].y, there);
        if (status >= 0)
            status = lbfgs_bring(&self->pairs[i].s, there);
    }
    ek_scope_end(&scope);
    return status;
}

/* ---- reading ---- */

static ek_tensor *lbfgs_scalar(double number)
{
    return ek_full(number, ek_scalar_shape(), .dtype = EK_F64);
}

/* The history's y or s, (pairs, elements); NULL, without an error, if there is none. */
static ek_tensor *lbfgs_history(const ek_lbfgs *self, bool steps)
{
    ek_tensor **rows = self->count ? ek_calloc((size_t)self->count, sizeof *rows) : NULL;
    for (int i = 0; rows && i < self->count; i++)
        rows[i] = steps ? self->pairs[i].s : self->pairs[i].y;
    ek_tensor *history = rows ? ek_stack(rows, self->count, 0) : NULL;
    free(rows);
    return history;
}

static ek_tensor *lbfgs_ro(const ek_lbfgs *self)
{
    double *numbers = self->count ? ek_calloc((size_t)self->count, sizeof *numbers) : NULL;
    for (int i = 0; numbers && i < self->count; i++)
        numbers[i] = self->pairs[i].ro;
    ek_tensor *ro = numbers ? ek_from_data(numbers, EK_SHAPE(self->count), EK_F64) : NULL;
    free(numbers);
    return ro;
}

ek_tensor *ek_lbfgs_state(const ek_optimizer *optimizer, const char *name)
{
    const ek_lbfgs *self = optimizer->memory;
    const int state = lbfgs_name(name);
    /* As in PyTorch, evaluations are counted before the first iteration. */
    if (!self || (self->iterations == 0 && (state != FUNC_EVALS || self->evaluations == 0)))
        return NULL;
    switch (state) {
    case D:
        return self->direction;
    case T:
        return lbfgs_scalar(self->t);
    case OLD_DIRS:
        return lbfgs_history(self, false);
    case OLD_STPS:
        return lbfgs_history(self, true);
    case RO:
        return lbfgs_ro(self);
    case H_DIAG:
        return lbfgs_scalar(self->scale);
    case PREV_FLAT_GRAD:
        return self->gradient;
    case PREV_LOSS:
        return lbfgs_scalar(self->loss);
    case FUNC_EVALS:
        return lbfgs_scalar((double)self->evaluations);
    default:
        return NULL;
    }
}

/* ---- writing ---- */

/* Puts the states in the order of their names. The history may be missing, but only as a whole.
 * Before the first iteration there is no state but the count of evaluations, which may be missing.
 */
static int lbfgs_sort(const char *const *names, ek_tensor *const *states, int count, int64_t steps,
                      ek_tensor **sorted)
{
    for (int i = 0; i < count; i++) {
        const int at = names[i] ? lbfgs_name(names[i]) : NAMES;
        if (at == NAMES)
            return EK_FAIL(EK_E_INVALID, "lbfgs: there is no state \"%.200s\"",
                           names[i] ? names[i] : "NULL");
        if (steps == 0 && at != FUNC_EVALS)
            return EK_FAIL(EK_E_INVALID, "lbfgs: after 0 updates there is no state \"%s\"",
                           names[i]);
        if (!states[i])
            return ek_error_status() < 0
                       ? ek_error_pending()
                       : EK_FAIL(EK_E_INVALID, "lbfgs: state \"%s\" is NULL", names[i]);
        if (sorted[at])
            return EK_FAIL(EK_E_INVALID, "lbfgs: state \"%s\" is given twice", names[i]);
        sorted[at] = states[i];
    }
    const bool history = sorted[OLD_DIRS] || sorted[OLD_STPS] || sorted[RO];
    for (int i = 0; i < NAMES && steps > 0; i++)
        if (!sorted[i] && (history || (i != OLD_DIRS && i != OLD_STPS && i != RO)))
            return EK_FAIL(EK_E_INVALID, "lbfgs: state \"%s\" is missing", ek_lbfgs_state_names[i]);
    return 0;
}

/* A copy of state `name` as a vector of the parameters, or as `rows` of them (rows < 0: no rows).
 * In the scope. */
static ek_tensor *lbfgs_convert(const ek_optimizer *optimizer, ek_tensor *const *sorted, int name,
                                int64_t rows)
{
    const ek_tensor *first = optimizer->slots[0]->parameter;
    const int64_t count = ek_lbfgs_count(optimizer);
    const ek_shape wanted = rows < 0 ? EK_SHAPE(count) : EK_SHAPE(rows, count);
    const ek_shape shape = ek_tensor_shape(sorted[name]);
    char texts[2][200];
    if (!ek_shape_equal(&shape, &wanted) || !ek_dtype_is_floating(sorted[name]->dtype)) {
        EK_FAIL(EK_E_SHAPE, "lbfgs: state \"%s\" is %s; it has to be floating, of shape %s",
                ek_lbfgs_state_names[name], ek_tensor_text(sorted[name], texts[0]),
                ek_shape_text(&wanted, texts[1]));
        return NULL;
    }
    return ek_clone(
        ek_to_device(ek_to_dtype(ek_detach(sorted[name]), first->dtype), ek_tensor_device(first)));
}

static int lbfgs_fill_history(const ek_optimizer *optimizer, ek_tensor *const *sorted,
                              ek_lbfgs *self)
{
    const int64_t rows = sorted[RO]->ndim == 1 ? sorted[RO]->shape[0] : -1;
    char text[200];
    if (rows < 0 || rows > INT32_MAX / 2)
        return EK_FAIL(EK_E_SHAPE, "lbfgs: state \"ro\" is %s; it has to be a vector",
                       ek_tensor_text(sorted[RO], text));
    ek_tensor *y = lbfgs_convert(optimizer, sorted, OLD_DIRS, rows),
              *s = lbfgs_convert(optimizer, sorted, OLD_STPS, rows);
    if (!y || !s)
        return ek_error_pending();
    EK_TRY(ek_grow(&self->pairs, &self->room, (int)rows + 1));
    for (int i = 0; i < (int)rows; i++) {
        ek_lbfgs_pair pair = {.y = ek_clone(ek_select(y, 0, i)), .s = ek_clone(ek_select(s, 0, i))};
        if (!pair.y || !pair.s)
            return ek_error_pending();
        EK_TRY(ek_item(ek_select(sorted[RO], 0, i), &pair.ro));
        ek_keep(pair.y);
        ek_keep(pair.s);
        self->pairs[self->count++] = pair;
    }
    return 0;
}

static int lbfgs_fill(const ek_optimizer *optimizer, ek_tensor *const *sorted, ek_lbfgs *self)
{
    double evaluations = 0;
    if (sorted[FUNC_EVALS])
        EK_TRY(ek_item(sorted[FUNC_EVALS], &evaluations));
    if (!(evaluations >= 0 && evaluations < 0x1p53))
        return EK_FAIL(EK_E_INVALID, "lbfgs: state \"func_evals\" is %g", evaluations);
    self->evaluations = (int64_t)evaluations;
    if (self->iterations == 0)
        return 0;
    EK_TRY(ek_item(sorted[T], &self->t));
    EK_TRY(ek_item(sorted[H_DIAG], &self->scale));
    EK_TRY(ek_item(sorted[PREV_LOSS], &self->loss));
    ek_tensor *direction = lbfgs_convert(optimizer, sorted, D, -1),
              *gradient = lbfgs_convert(optimizer, sorted, PREV_FLAT_GRAD, -1);
    if (!direction || !gradient)
        return ek_error_pending();
    self->direction = ek_keep(direction);
    self->gradient = ek_keep(gradient);
    return sorted[RO] ? lbfgs_fill_history(optimizer, sorted, self) : 0;
}

int ek_lbfgs_set_state(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                       ek_tensor *const *states, int count)
{
    ek_lbfgs *self = ek_lbfgs_of(optimizer), made = {.iterations = steps};
    ek_tensor *sorted[NAMES] = {NULL};
    if (!self)
        return EK_E_NO_MEMORY;
    EK_TRY(lbfgs_sort(names, states, count, steps, sorted));
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    int status = lbfgs_fill(optimizer, sorted, &made);
    ek_memory_set_category(before);
    ek_lbfgs_clear(status < 0 ? &made : self);
    if (status >= 0)
        *self = made;
    return status < 0 ? status : 0;
}
