/* step.c: one update of all parameters, in as few kernel calls as their places in memory allow.
 *
 * The rows of the segment table are the pieces of the parameters that have a gradient: a parameter
 * that is whole is one piece. A block of rows that join (layout.c) falls into spans of equal phase
 * (the count of updates, where the formula depends on it); each span is a flat range. Spans of one
 * device, dtype, group and phase are stepped by one call, which a GPU turns into few kernels; where
 * pieces lie on several devices, these step theirs side by side. Everything that can fail (checks,
 * state, copies of gradients in another order of memory, handles) comes before the first update. */
#include <stdlib.h>

#include "autograd/shards.h"
#include "core/trace.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

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

typedef struct step_group {
    ek_shard_group *group; /* entered */
    bool takes_part;       /* some of its parameters do */
} step_group;

typedef struct step {
    ek_optimizer *optimizer;
    ek_row *rows;
    int row_count;
    span *spans;
    int span_count;
    /* The devices of the spans, and for each the arguments of its calls. */
    ek_dev **devs;
    call_list *lists;
    int dev_count;
    step_group *groups; /* of the divided parameters, each once */
    int group_count;
} step;

/* ---- who takes part ---- */

/* The group's entry, which is entered with its first parameter; NULL with an error. */
static step_group *enter_group(step *this, ek_shard_group *group)
{
    for (int i = 0; i < this->group_count; i++)
        if (this->groups[i].group == group)
            return &this->groups[i];
    const int before = ek_error_status();
    if (group->enter && group->enter(group) < 0) {
        ek_error_prefix(before, "%s", this->optimizer->algorithm->name);
        return NULL;
    }
    step_group *entry = &this->groups[this->group_count++];
    entry->group = group;
    return entry;
}

static void leave_groups(const step *this)
{
    for (int i = 0; i < this->group_count; i++)
        if (this->groups[i].group->leave)
            this->groups[i].group->leave(this->groups[i].group);
}

/* Parameters with a gradient take part, divided ones with all of their pieces. */
static int choose_slots(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    this->groups = ek_calloc((size_t)optimizer->slot_count + 1, sizeof *this->groups);
    if (!this->groups)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_slot *slot = optimizer->slots[i];
        const ek_shards *shards = ek_leaf_shards(slot->parameter);
        step_group *group = shards ? enter_group(this, shards->group) : NULL;
        if (shards && !group)
            return ek_error_pending();
        EK_TRY(ek_leaf_settle_gradient(slot->parameter));
        slot->takes_part = ek_leaf_has_gradient(slot->parameter);
        if (group && slot->takes_part)
            group->takes_part = true;
        if (slot->takes_part && !ek_slot_is_current(slot))
            EK_TRY(ek_slot_divide(optimizer, slot));
    }
    return 0;
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

static ek_tensor *new_gradient(const ek_tensor *tensor)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *gradient = ek_tensor_like(tensor);
    ek_memory_set_category(before);
    return gradient;
}

/* The gradient of a piece for which none arrived, while others of its parameter have one. */
static ek_tensor *zero_gradient(ek_tensor *tensor)
{
    ek_tensor *zeros = tensor->grad_slot ? tensor->grad_slot : new_gradient(tensor);
    if (!zeros || ek_dev_zero(ek_tensor_dev(zeros), ek_tensor_address(zeros),
                              (size_t)ek_count(zeros) * ek_dtype_size(zeros->dtype)) < 0)
        return NULL;
    ek_tensor_written(zeros, "the optimizer's step");
    return ek_tensor_set_grad(tensor, zeros) < 0 ? NULL : zeros;
}

/* The gradient of what is stepped, in its order of memory. */
static int find_gradient(const ek_optimizer *optimizer, ek_row *row)
{
    ek_tensor *tensor = row->tensor, *gradient = ek_tensor_grad(tensor);
    if (!gradient)
        gradient = zero_gradient(tensor);
    if (!gradient)
        return ek_error_pending();
    EK_TRY(check_gradient(optimizer, tensor, gradient));
    if (!ek_same_layout(tensor, gradient)) {
        ek_tensor *copy = new_gradient(tensor);
        if (!copy)
            return ek_error_pending();
        EK_TRY(ek_kernels_of(copy)->copy(ek_tensor_dev(copy), copy, gradient));
        gradient = copy;
    }
    row->gradient = gradient;
    return 0;
}

static int collect_rows(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    EK_TRY(ek_optimizer_sort(optimizer));
    this->rows = ek_calloc((size_t)optimizer->piece_count + 1, sizeof *this->rows);
    if (!this->rows)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->piece_count; i++) {
        ek_slot_piece *piece = optimizer->table[i];
        if (!piece->slot->takes_part)
            continue;
        ek_row *row = &this->rows[this->row_count++];
        *row = (ek_row){.piece = piece, .tensor = ek_piece_tensor(piece)};
        EK_TRY(find_gradient(optimizer, row));
    }
    return 0;
}

/* Memory for the state, and in new pieces what they take over. */
static int prepare_state(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    EK_TRY(ek_optimizer_prepare_state(optimizer, this->rows, this->row_count));
    for (int i = 0; i < optimizer->slot_count && optimizer->changing; i++)
        EK_TRY(ek_slot_carry_state(optimizer->slots[i]));
    return 0;
}

/* Flat handles for rows [begin, end). */
static int prepare_span(span *call, const ek_row *rows, int begin, int end, int states)
{
    const ek_tensor *first = rows[begin].tensor, *last = rows[end - 1].tensor;
    int64_t count = last->offset - first->offset + ek_count(last);
    *call = (span){.begin = begin,
                   .end = end,
                   .parameter = ek_flat_range(first, count),
                   .gradient = ek_flat_range(rows[begin].gradient, count)};
    bool made = call->parameter && call->gradient;
    for (int s = 0; s < states; s++) {
        call->state[s] = ek_flat_range(ek_piece_state(rows[begin].piece, s), count);
        made = made && call->state[s];
    }
    return made ? 0 : ek_error_pending();
}

static int prepare_spans(step *this)
{
    const ek_optimizer *optimizer = this->optimizer;
    const ek_algorithm *algorithm = optimizer->algorithm;
    const ek_row *rows = this->rows;
    this->spans = ek_calloc((size_t)this->row_count + 1, sizeof *this->spans);
    if (!this->spans)
        return EK_E_NO_MEMORY;
    for (int begin = 0, end; begin < this->row_count; begin = end) {
        const ek_slot *slot = rows[begin].piece->slot;
        const ek_optimizer_options *options = &optimizer->groups[slot->group];
        int states = algorithm->state_count(options);
        int64_t phase = algorithm->phase(options, slot->step + 1);
        end = begin + 1;
        while (end < this->row_count && ek_rows_join(optimizer, &rows[end - 1], &rows[end]) &&
               ek_states_join(&rows[end - 1], &rows[end], states) &&
               algorithm->phase(options, rows[end].piece->slot->step + 1) == phase)
            end++;
        EK_TRY(prepare_span(&this->spans[this->span_count++], rows, begin, end, states));
    }
    return 0;
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

static int prepare_calls(step *this)
{
    size_t room = (size_t)this->span_count + 1;
    this->devs = ek_calloc(room, sizeof(ek_dev *));
    if (!this->devs)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < this->span_count; i++) {
        ek_dev *dev = ek_tensor_dev(this->spans[i].parameter);
        int d = 0;
        while (d < this->dev_count && this->devs[d] != dev)
            d++;
        if (d == this->dev_count)
            this->devs[this->dev_count++] = dev;
    }
    this->lists = ek_calloc((size_t)this->dev_count + 1, sizeof *this->lists);
    if (!this->lists)
        return EK_E_NO_MEMORY;
    for (int d = 0; d < this->dev_count; d++)
        EK_TRY(make_list(&this->lists[d], this->span_count));
    return 0;
}

static int prepare(step *this)
{
    EK_TRY(choose_slots(this));
    EK_TRY(collect_rows(this));
    for (int i = 0; i < this->group_count; i++)
        if (this->groups[i].takes_part)
            EK_TRY(this->groups[i].group->refresh(this->groups[i].group));
    EK_TRY(prepare_state(this));
    EK_TRY(prepare_spans(this));
    return prepare_calls(this);
}

/* ---- updates ---- */

static const char writer[] = "the optimizer's step"; /* for sentences about saved tensors */

/* May one call step both? Those without elements need none. */
static bool share_call(const step *this, const span *a, const span *b)
{
    const ek_slot *p = this->rows[a->begin].piece->slot, *q = this->rows[b->begin].piece->slot;
    const ek_optimizer_options *options = &this->optimizer->groups[p->group];
    const ek_algorithm *algorithm = this->optimizer->algorithm;
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

/* Steps spans[first] and what later ones can share its call. */
static int run_call(const step *this, int first, call_list *list)
{
    span *spans = this->spans;
    const ek_slot *slot = this->rows[spans[first].begin].piece->slot;
    bool *member = list->member;
    list->count = 0;
    for (int i = first; i < this->span_count; i++) {
        member[i] = share_call(this, &spans[first], &spans[i]) && !spans[i].done;
        if (member[i] && ek_count(spans[i].parameter) > 0)
            add_to_list(list, &spans[i]);
    }
    if (list->count > 0) {
        ek_tensor *const *state[EK_STATES];
        for (int s = 0; s < EK_STATES; s++)
            state[s] = spans[first].state[s] ? list->state[s] : NULL;
        EK_TRY(this->optimizer->algorithm->update(&this->optimizer->groups[slot->group],
                                                  slot->step + 1, list->count, list->parameters,
                                                  list->gradients, state));
    }
    for (int i = first; i < this->span_count; i++)
        if (member[i])
            spans[i].done = true;
    return 0;
}

/* All spans of one device; other devices' are theirs to read and write. */
static int update_device(void *user, int index)
{
    const step *this = user;
    int rc = 0;
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", this->optimizer->algorithm->name,
                  this->devs[index]);
    for (int i = 0; i < this->span_count && rc >= 0; i++)
        if (ek_tensor_dev(this->spans[i].parameter) == this->devs[index] && !this->spans[i].done)
            rc = run_call(this, i, &this->lists[index]);
    ek_span_end(&timed);
    return rc;
}

static void note_piece(const ek_row *row)
{
    ek_slot *slot = row->piece->slot;
    ek_tensor_written(row->tensor, writer);
    for (int s = 0; s < EK_STATES && row->piece->state[s]; s++)
        ek_tensor_written(row->piece->state[s], writer);
    if (!slot->takes_part)
        return;
    slot->takes_part = false;
    slot->step++;
    if (slot->parameter != row->tensor)
        ek_tensor_written(slot->parameter, writer);
}

/* Each parameter counts its step once. Returns whether anything was stepped. */
static bool note_updates(const step *this)
{
    bool stepped = false;
    for (int i = 0; i < this->span_count; i++) {
        stepped = stepped || this->spans[i].done;
        for (int r = this->spans[i].begin; r < this->spans[i].end && this->spans[i].done; r++)
            note_piece(&this->rows[r]);
    }
    return stepped;
}

/* If one device fails, the others' results are shown nevertheless: all copies stay equal. */
static int update(step *this)
{
    int status = ek_gang_run(this->devs, this->dev_count, update_device, this, NULL);
    if (!note_updates(this))
        return status;
    for (int i = 0; i < this->group_count; i++) {
        ek_shard_group *group = this->groups[i].group;
        int published = this->groups[i].takes_part ? group->publish(group) : 0;
        status = status < 0 ? status : published;
    }
    return status;
}

static void free_step(step *this)
{
    leave_groups(this);
    for (int d = 0; d < this->dev_count && this->lists; d++)
        free_list(&this->lists[d]);
    free(this->lists);
    free(this->devs);
    free(this->spans);
    free(this->rows);
    free(this->groups);
}

static ek_dev *first_dev(const ek_optimizer *optimizer)
{
    return optimizer->slot_count ? ek_tensor_dev(optimizer->slots[0]->parameter) : NULL;
}

int ek_step(ek_optimizer *optimizer)
{
    if (!optimizer)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "the optimizer is NULL");
    EK_TRY(ek_fork_check());
    step this = {.optimizer = optimizer};
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", optimizer->algorithm->name,
                  first_dev(optimizer));
    ek_scope scope = ek_scope_begin();
    int status = prepare(&this);
    ek_optimizer_end_change(optimizer, status >= 0);
    if (status >= 0)
        status = update(&this);
    free_step(&this);
    ek_scope_end(&scope);
    ek_span_end(&timed);
    return status < 0 ? status : 0;
}
