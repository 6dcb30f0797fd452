/* step.c: one update of all parameters, in as few kernel calls as their places in memory allow.
 *
 * The rows of the segment table are the slots that have a gradient, by group and place in memory.
 * Rows that follow each other within one slab form a block, whose state is laid out like it: with a
 * slab of state for each kind. A block falls into spans of equal phase (the count of updates, where
 * the formula depends on it); each span is a flat range. Spans of one device, dtype, group and
 * phase are stepped by one call, which a GPU turns into few kernels. Everything that can fail
 * (checks, state, copies of gradients in another order of memory, handles) comes before the first
 * update. */
#include <stdlib.h>

#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

enum { MEMBER_ALIGNMENT = 64 }; /* of a slab's members, in bytes */

typedef struct row {
    ek_slot *slot;
    ek_tensor *gradient; /* in the parameter's order of memory; NULL: none, and no slot for one */
} row;

typedef struct span {
    int begin, end; /* rows */
    ek_tensor *parameter, *gradient, *state[EK_STATES];
    bool done;
} span;

/* Arguments of one call: arrays of as many as there are spans. */
typedef struct call_list {
    int count;
    ek_tensor **parameters, **gradients, **state[EK_STATES];
    bool *member; /* by span */
} call_list;

/* ---- places in memory ---- */

/* From the start of a slab's member to that of the next, in elements. */
static int64_t pitch_of(const ek_tensor *tensor)
{
    int64_t unit = MEMBER_ALIGNMENT / (int64_t)ek_dtype_size(tensor->dtype);
    return (ek_count(tensor) + unit - 1) / unit * unit;
}

static bool follows(const ek_tensor *a, const ek_tensor *b, int64_t pitch)
{
    return a->storage == b->storage && b->offset - a->offset == pitch;
}

/* May b be stepped by the call that steps a, as far as parameter and gradient go? Only a slab's
 * slot for gradients vouches for what lies between two members. */
static bool joins(const ek_optimizer *optimizer, const row *a, const row *b)
{
    const ek_tensor *p = a->slot->parameter, *q = b->slot->parameter;
    int64_t pitch = pitch_of(p);
    const ek_optimizer_options *options = &optimizer->groups[a->slot->group];
    return a->slot->group == b->slot->group && p->dtype == q->dtype && follows(p, q, pitch) &&
           a->gradient && a->gradient == p->grad_slot && b->gradient == q->grad_slot &&
           follows(a->gradient, b->gradient, pitch) &&
           (pitch == ek_count(p) || optimizer->algorithm->keeps_zeros(options));
}

static bool states_join(const ek_slot *a, const ek_slot *b, int state_count)
{
    int64_t pitch = pitch_of(a->parameter);
    for (int s = 0; s < state_count; s++)
        if (!a->state[s] || !b->state[s] || !follows(a->state[s], b->state[s], pitch))
            return false;
    return true;
}

static int compare_slots(const ek_slot *a, const ek_slot *b)
{
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    const ek_tensor *p = a->parameter, *q = b->parameter;
    if (p->storage != q->storage)
        return (uintptr_t)p->storage < (uintptr_t)q->storage ? -1 : 1;
    return (p->offset > q->offset) - (p->offset < q->offset);
}

/* By insertion: between steps the order hardly ever changes. */
static void sort_slots(ek_optimizer *optimizer)
{
    int *order = optimizer->order;
    for (int i = 1; i < optimizer->slot_count; i++) {
        int moved = order[i], at = i;
        for (; at > 0; at--) {
            if (compare_slots(&optimizer->slots[order[at - 1]], &optimizer->slots[moved]) <= 0)
                break;
            order[at] = order[at - 1];
        }
        order[at] = moved;
    }
}

ek_tensor *ek_flat_range(const ek_tensor *tensor, int64_t count)
{
    int64_t stride = 1;
    return ek_tensor_view(tensor, 1, &count, &stride, tensor->offset);
}

/* ---- before the first update ---- */

static int check_gradient(const ek_optimizer *optimizer, const ek_tensor *parameter,
                          const ek_tensor *gradient)
{
    char texts[2][200];
    if (parameter->dtype != EK_F32 && parameter->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "%s: a parameter has become %s; it has to be f32 or f64",
                       optimizer->algorithm->name, ek_tensor_text(parameter, texts[0]));
    if (ek_same_shape(parameter, gradient) && parameter->dtype == gradient->dtype &&
        ek_tensor_dev(parameter) == ek_tensor_dev(gradient))
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "%s: a parameter is %s and its gradient %s; shape, dtype and device must agree",
                   optimizer->algorithm->name, ek_tensor_text(parameter, texts[0]),
                   ek_tensor_text(gradient, texts[1]));
}

/* Fills `rows` with the parameters that have a gradient; returns how many. */
static int collect_rows(ek_optimizer *optimizer, row *rows)
{
    int count = 0;
    sort_slots(optimizer);
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_slot *slot = &optimizer->slots[optimizer->order[i]];
        ek_tensor *parameter = slot->parameter, *gradient = ek_tensor_grad(parameter);
        if (!gradient)
            continue;
        EK_TRY(check_gradient(optimizer, parameter, gradient));
        if (!ek_same_layout(parameter, gradient)) {
            ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
            ek_tensor *copy = ek_tensor_like(parameter);
            ek_memory_set_category(before);
            if (!copy)
                return ek_error_pending();
            EK_TRY(ek_kernels_of(copy)->copy(ek_tensor_dev(copy), copy, gradient));
            gradient = copy;
        }
        rows[count++] = (row){slot, gradient};
    }
    return count;
}

/* One slab of state for the parameters of rows [begin, end): what state there was is carried over.
 */
static int lay_out_state(row *rows, int begin, int end, int s)
{
    int count = end - begin;
    ek_tensor **parameters = ek_calloc((size_t)count, sizeof *parameters);
    if (!parameters)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        parameters[i] = rows[begin + i].slot->parameter;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_slab *slab = ek_slab_new(ek_tensor_dev(parameters[0]), parameters, count);
    ek_memory_set_category(before);
    free(parameters);
    if (!slab)
        return ek_error_pending();
    int status = 0;
    bool grad_enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < count && status == 0; i++) {
        ek_tensor *old = rows[begin + i].slot->state[s];
        if (old && !ek_copy_(slab->members[i], old))
            status = ek_error_pending();
    }
    ek_set_grad_enabled(grad_enabled);
    for (int i = 0; i < count && status == 0; i++) {
        ek_tensor **state = &rows[begin + i].slot->state[s];
        if (*state)
            ek_tensor_rehome(*state, slab->members[i]);
        else
            *state = ek_object_retain(slab->members[i]);
    }
    ek_object_release(slab); /* members that became state keep the storage */
    return status;
}

/* True where the state of rows [begin, end) lies as their parameters do. */
static bool is_laid_out(const row *rows, int begin, int end, int s)
{
    for (int i = begin; i < end; i++) {
        const ek_tensor *parameter = rows[i].slot->parameter, *state = rows[i].slot->state[s];
        if (!state || state->dtype != parameter->dtype || !ek_same_layout(state, parameter) ||
            ek_tensor_dev(state) != ek_tensor_dev(parameter))
            return false;
        if (i > begin &&
            !follows(rows[i - 1].slot->state[s], state, pitch_of(rows[i - 1].slot->parameter)))
            return false;
    }
    return true;
}

static int prepare_state(const ek_optimizer *optimizer, row *rows, int count)
{
    for (int begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        while (end < count && joins(optimizer, &rows[end - 1], &rows[end]))
            end++;
        int states = optimizer->algorithm->state_count(&optimizer->groups[rows[begin].slot->group]);
        for (int s = 0; s < states; s++)
            if (!is_laid_out(rows, begin, end, s))
                EK_TRY(lay_out_state(rows, begin, end, s));
    }
    return 0;
}

int ek_optimizer_reserve_state(ek_optimizer *optimizer, const ek_slot *slot)
{
    int count = optimizer->slot_count, at = 0;
    row *rows = ek_calloc((size_t)count, sizeof *rows);
    if (!rows)
        return EK_E_NO_MEMORY;
    sort_slots(optimizer);
    for (int i = 0; i < count; i++) { /* as if all had gradients */
        ek_slot *s = &optimizer->slots[optimizer->order[i]];
        rows[i] = (row){s, s->parameter->grad_slot};
        at = s == slot ? i : at;
    }
    int begin = at, end = at + 1;
    while (begin > 0 && joins(optimizer, &rows[begin - 1], &rows[begin]))
        begin--;
    while (end < count && joins(optimizer, &rows[end - 1], &rows[end]))
        end++;
    int status = prepare_state(optimizer, rows + begin, end - begin);
    free(rows);
    return status;
}

/* Flat handles for rows [begin, end). */
static int prepare_span(span *call, const row *rows, int begin, int end, int states)
{
    const ek_slot *first = rows[begin].slot, *last = rows[end - 1].slot;
    int64_t count = last->parameter->offset - first->parameter->offset + ek_count(last->parameter);
    *call = (span){.begin = begin,
                   .end = end,
                   .parameter = ek_flat_range(first->parameter, count),
                   .gradient = ek_flat_range(rows[begin].gradient, count)};
    bool made = call->parameter && call->gradient;
    for (int s = 0; s < states; s++) {
        call->state[s] = ek_flat_range(first->state[s], count);
        made = made && call->state[s];
    }
    return made ? 0 : ek_error_pending();
}

/* Returns how many spans there are. */
static int prepare_spans(const ek_optimizer *optimizer, const row *rows, int count, span *spans)
{
    const ek_algorithm *algorithm = optimizer->algorithm;
    int span_count = 0;
    for (int begin = 0, end; begin < count; begin = end) {
        const ek_optimizer_options *options = &optimizer->groups[rows[begin].slot->group];
        int states = algorithm->state_count(options);
        int64_t phase = algorithm->phase(options, rows[begin].slot->step + 1);
        end = begin + 1;
        while (end < count && joins(optimizer, &rows[end - 1], &rows[end]) &&
               states_join(rows[end - 1].slot, rows[end].slot, states) &&
               algorithm->phase(options, rows[end].slot->step + 1) == phase)
            end++;
        EK_TRY(prepare_span(&spans[span_count++], rows, begin, end, states));
    }
    return span_count;
}

static void free_list(call_list *list)
{
    free(list->parameters);
    free(list->gradients);
    free(list->member);
    for (int s = 0; s < EK_STATES; s++)
        free(list->state[s]);
}

static int make_list(call_list *list, int spans)
{
    size_t n = (size_t)spans + 1;
    list->parameters = ek_calloc(n, sizeof *list->parameters);
    list->gradients = ek_calloc(n, sizeof *list->gradients);
    list->member = ek_calloc(n, sizeof *list->member);
    bool made = list->parameters && list->gradients && list->member;
    for (int s = 0; s < EK_STATES; s++) {
        list->state[s] = ek_calloc(n, sizeof *list->state[s]);
        made = made && list->state[s];
    }
    return made ? 0 : EK_E_NO_MEMORY;
}

/* ---- updates ---- */

static const char writer[] = "the optimizer's step"; /* for sentences about saved tensors */

/* May one call step both? Those without elements need none. */
static bool share_call(const ek_optimizer *optimizer, const row *rows, const span *a, const span *b)
{
    const ek_slot *p = rows[a->begin].slot, *q = rows[b->begin].slot;
    const ek_optimizer_options *options = &optimizer->groups[p->group];
    const ek_algorithm *algorithm = optimizer->algorithm;
    return p->group == q->group && a->parameter->dtype == b->parameter->dtype &&
           ek_tensor_dev(a->parameter) == ek_tensor_dev(b->parameter) &&
           algorithm->phase(options, p->step + 1) == algorithm->phase(options, q->step + 1);
}

static void add_to_list(call_list *list, const span *added)
{
    int at = list->count++;
    list->parameters[at] = added->parameter;
    list->gradients[at] = added->gradient;
    for (int s = 0; s < EK_STATES; s++)
        list->state[s][at] = added->state[s];
}

static void note_step(const row *rows, span *stepped)
{
    for (int i = stepped->begin; i < stepped->end; i++) {
        ek_slot *slot = rows[i].slot;
        slot->step++;
        ek_tensor_written(slot->parameter, writer);
        for (int s = 0; s < EK_STATES && slot->state[s]; s++)
            ek_tensor_written(slot->state[s], writer);
    }
    stepped->done = true;
}

/* Steps spans[first] and what later ones can share its call. */
static int run_call(const ek_optimizer *optimizer, const row *rows, span *spans, int span_count,
                    int first, call_list *list)
{
    const ek_slot *slot = rows[spans[first].begin].slot;
    const ek_optimizer_options *options = &optimizer->groups[slot->group];
    bool *member = list->member;
    list->count = 0;
    for (int i = first; i < span_count; i++) {
        member[i] = !spans[i].done && share_call(optimizer, rows, &spans[first], &spans[i]);
        if (member[i] && ek_count(spans[i].parameter) > 0)
            add_to_list(list, &spans[i]);
    }
    if (list->count > 0) {
        ek_tensor *const *state[EK_STATES];
        for (int s = 0; s < EK_STATES; s++)
            state[s] = spans[first].state[s] ? list->state[s] : NULL;
        EK_TRY(optimizer->algorithm->update(options, slot->step + 1, list->count, list->parameters,
                                            list->gradients, state));
    }
    for (int i = first; i < span_count; i++)
        if (member[i])
            note_step(rows, &spans[i]);
    return 0;
}

int ek_step(ek_optimizer *optimizer)
{
    if (!optimizer)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "the optimizer is NULL");
    ek_scope scope = ek_scope_begin();
    row *rows = ek_calloc((size_t)optimizer->slot_count, sizeof *rows);
    span *spans = ek_calloc((size_t)optimizer->slot_count, sizeof *spans);
    call_list list = {.count = 0};
    int status = rows && spans ? make_list(&list, optimizer->slot_count) : EK_E_NO_MEMORY;
    if (status >= 0)
        status = collect_rows(optimizer, rows);
    int count = status;
    if (count > 0)
        status = prepare_state(optimizer, rows, count);
    if (status >= 0)
        status = prepare_spans(optimizer, rows, count, spans);
    int span_count = status;
    for (int i = 0; i < span_count && status >= 0; i++)
        if (!spans[i].done)
            status = run_call(optimizer, rows, spans, span_count, i, &list);
    free(rows);
    free(spans);
    free_list(&list);
    ek_scope_end(&scope);
    return status < 0 ? status : 0;
}
