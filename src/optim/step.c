/* step.c: one update of all parameters, in as few kernel calls as their places in memory allow.
 *
 * The road of a step, from the top down:
 *
 *     ek_step                here: the public call
 *     step_prepare           all that can fail comes before the first update
 *     step_choose            parameters with a gradient take part; their shards are entered
 *     step_collect           lists their parts, in the order of memory, and gradients
 *     ek_optimizer_lay_out   parts.c: gives the parts state, laid out alike
 *     step_prepare_ranges    joins neighbours of equal phase to ranges, sorted by call
 *     step_agree             shards of several ranks: all of them have come so far
 *     step_update            updates all devices side by side (ek_jobs_run)
 *     step_update_device     one call per dtype, group and phase
 *     step_call              calls the kernel with the algorithm's rule and numbers (algorithms.c)
 *     shards->publish        parallel/sharding.c: sends shards to all devices;
 *                            distributed/train/rank_sharding_step.c: and to all ranks
 *
 * The phase is the count of updates if the formula depends on that count. */
#include <stdlib.h>
#include <string.h>

#include "core/lane.h"
#include "core/trace.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"
#include "kernels/kernels.h"
#include "optim/algorithm.h"

/* Parts [begin, end) of the step, which are neighbours in memory. */
typedef struct range {
    int begin, end;
    ek_dev *dev;
    ek_dtype dtype;
    int group;
    int64_t phase, step;
    double carried, next; /* the number that its parameters carry, and will carry after the call */
    bool done;
} range;

enum { PARAMETER, GRADIENT, STATE, OPERANDS = STATE + EK_STATES };

typedef struct step_shards {
    ek_shards *shards; /* borrowed; entered */
    bool takes_part;   /* true if one of their leaves takes part */
    bool agreed;       /* true if shards->agree has succeeded: `publish` must follow */
} step_shards;

typedef struct step {
    ek_optimizer *optimizer;
    ek_part **parts; /* the parts to step, in the order of the table */
    int part_count;
    range *ranges; /* sorted by device, then by call */
    int range_count;
    ek_tensor **operands[OPERANDS]; /* flat handles, by range */
    ek_dev_set devs;
    step_shards *shards; /* those of sharded parameters, each once */
    int shards_count;
} step;

/* ---- who takes part ---- */

/* The entry of the shards, which are entered with the first of their leaves. NULL with an error. */
static step_shards *step_enter_shards(step *this, ek_shards *shards)
{
    for (int i = 0; i < this->shards_count; i++)
        if (this->shards[i].shards == shards)
            return &this->shards[i];
    const int before = ek_error_status();
    if (shards->enter && shards->enter(shards) < 0) {
        ek_error_prefix(before, "%s", this->optimizer->algorithm->name);
        return NULL;
    }
    memset(shards->stepped, 0, (size_t)shards->leaf_count * sizeof *shards->stepped);
    step_shards *entry = &this->shards[this->shards_count++];
    entry->shards = shards;
    return entry;
}

static void step_leave_shards(const step *this)
{
    for (int i = 0; i < this->shards_count; i++)
        if (this->shards[i].shards->leave)
            this->shards[i].shards->leave(this->shards[i].shards);
}

/* Lets parameters with a gradient take part, sharded ones with all of their shards. */
static int step_choose(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    this->shards = ek_calloc((size_t)optimizer->slot_count + 1, sizeof *this->shards);
    if (!this->shards)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_slot *slot = optimizer->slots[i];
        ek_shards *shards = ek_leaf_shards(slot->parameter);
        step_shards *entry = shards ? step_enter_shards(this, shards) : NULL;
        if (shards && !entry)
            return ek_error_pending();
        EK_TRY(ek_leaf_settle_gradient(slot->parameter));
        slot->takes_part = ek_leaf_has_gradient(slot->parameter);
        if (entry && slot->takes_part)
            entry->takes_part = shards->stepped[slot->parameter->shards_index] = true;
        if (slot->takes_part)
            EK_TRY(ek_slot_recut(optimizer, slot));
    }
    return 0;
}

/* ---- gradients ---- */

static int step_gradient_check(const ek_optimizer *optimizer, const ek_tensor *parameter,
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

/* Finds the part's gradient, in the shard's order of memory. */
static int part_find_gradient(const ek_optimizer *optimizer, ek_part *part)
{
    ek_tensor *tensor = part->shard.tensor, *gradient = ek_tensor_grad(tensor);
    EK_TRY(step_gradient_check(optimizer, tensor, gradient));
    part->gradient = ek_gradient_in_order(gradient, tensor);
    return part->gradient ? 0 : ek_error_pending();
}

static int step_collect(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    EK_TRY(ek_optimizer_sort(optimizer));
    this->parts = ek_calloc((size_t)optimizer->part_count + 1, sizeof(ek_part *));
    if (!this->parts)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->part_count; i++) {
        if (!optimizer->table[i]->slot->takes_part)
            continue;
        EK_TRY(part_find_gradient(optimizer, optimizer->table[i]));
        this->parts[this->part_count++] = optimizer->table[i];
    }
    return 0;
}

/* ---- ranges ---- */

/* The order of ranges by call; 0 if one call steps both. */
static int range_compare_calls(const range *a, const range *b)
{
    if (a->dev != b->dev)
        return ek_dev_compare(a->dev, b->dev);
    if (a->dtype != b->dtype)
        return (int)a->dtype - (int)b->dtype;
    if (a->group != b->group)
        return a->group - b->group;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    return (a->carried > b->carried) - (a->carried < b->carried);
}

static int range_compare(const void *x, const void *y)
{
    const range *a = x, *b = y;
    int order = range_compare_calls(a, b);
    return order ? order : a->begin - b->begin;
}

static unsigned range_states(const step *this, const range *r)
{
    return ek_states_of(this->optimizer->algorithm, &this->optimizer->groups[r->group]);
}

/* True if the slot's next step is of the range's phase. */
static bool range_takes(const step *this, const range *r, const ek_slot *slot)
{
    const ek_algorithm *algorithm = this->optimizer->algorithm;
    return slot->carried == r->carried &&
           (!algorithm->phase ||
            algorithm->phase(&this->optimizer->groups[r->group], slot->step + 1) == r->phase);
}

/* The longest range from `begin` of parts that join and are of one phase. */
static range step_range(const step *this, int begin)
{
    const ek_optimizer *optimizer = this->optimizer;
    const ek_slot *slot = this->parts[begin]->slot;
    const ek_tensor *tensor = this->parts[begin]->shard.tensor;
    const ek_optimizer_options *options = &optimizer->groups[slot->group];
    range r = {.begin = begin,
               .dev = ek_tensor_dev(tensor),
               .dtype = tensor->dtype,
               .group = slot->group,
               .step = slot->step + 1,
               .carried = slot->carried};
    const unsigned states = range_states(this, &r);
    if (optimizer->algorithm->phase)
        r.phase = optimizer->algorithm->phase(options, r.step);
    for (r.end = begin + 1; r.end < this->part_count; r.end++)
        if (!ek_parts_join(optimizer, this->parts[r.end - 1], this->parts[r.end], states) ||
            !range_takes(this, &r, this->parts[r.end]->slot))
            break;
    return r;
}

/* A flat handle on `count` elements from the first of `tensor`, which is dense. In the scope. */
static ek_tensor *range_handle(const ek_tensor *tensor, int64_t count)
{
    int64_t stride = 1;
    return ek_tensor_view(tensor, 1, &count, &stride, tensor->offset);
}

static int step_prepare_operands(step *this)
{
    int n = this->range_count;
    ek_tensor **handles = ek_calloc((size_t)n * OPERANDS + 1, sizeof *handles);
    if (!handles)
        return EK_E_NO_MEMORY;
    for (int k = 0; k < OPERANDS; k++)
        this->operands[k] = handles + (size_t)k * (size_t)n;
    for (int i = 0; i < n; i++) {
        const range *r = &this->ranges[i];
        const ek_part *first = this->parts[r->begin], *last = this->parts[r->end - 1];
        int64_t count =
            last->shard.tensor->offset - first->shard.tensor->offset + ek_count(last->shard.tensor);
        const ek_tensor *tensors[OPERANDS] = {first->shard.tensor, first->gradient};
        int operands = STATE;
        for (int s = 0; s < EK_STATES; s++)
            if (range_states(this, r) >> s & 1)
                tensors[operands++] = first->state[s];
        for (int k = 0; k < operands; k++)
            if (!(this->operands[k][i] = range_handle(tensors[k], count)))
                return ek_error_pending();
    }
    return 0;
}

static int step_prepare_ranges(step *this)
{
    this->ranges = ek_calloc((size_t)this->part_count + 1, sizeof *this->ranges);
    if (!this->ranges)
        return EK_E_NO_MEMORY;
    for (int begin = 0; begin < this->part_count; begin = this->ranges[this->range_count++].end)
        this->ranges[this->range_count] = step_range(this, begin);
    qsort(this->ranges, (size_t)this->range_count, sizeof *this->ranges, range_compare);
    for (int i = 0; i < this->range_count; i++)
        ek_dev_set_add(&this->devs, this->ranges[i].dev);
    return step_prepare_operands(this);
}

static int step_prepare(step *this)
{
    EK_TRY(step_choose(this));
    EK_TRY(step_collect(this));
    const bool still =
        this->part_count == 0 && this->shards_count == 0 && this->optimizer->slot_count > 0;
    if (still && !this->optimizer->warned)
        ek_log_line(
            EK_LOG_WARNING,
            "%s: no parameter has a gradient, so the step changes nothing; ek_backward of a "
            "loss that was computed from them comes before it",
            this->optimizer->algorithm->name);
    this->optimizer->warned = still;
    for (int i = 0; i < this->shards_count; i++)
        if (this->shards[i].takes_part)
            EK_TRY(this->shards[i].shards->refresh(this->shards[i].shards));
    EK_TRY(ek_optimizer_lay_out(this->optimizer, this->parts, this->part_count, NULL));
    return step_prepare_ranges(this);
}

/* ---- shards of several ranks ---- */

/* Tells the other ranks that this one can't step, if parameters are sharded over them. Returns the
 * status. */
static int step_tell(const ek_optimizer *optimizer, int status)
{
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_shards *shards = ek_leaf_shards(optimizer->slots[i]->parameter);
        if (shards && shards->agree)
            return shards->agree(shards, status);
    }
    return status;
}

/* After this all ranks update, or none does. */
static int step_agree(step *this)
{
    int status = 0;
    for (int i = 0; i < this->shards_count && status >= 0; i++) {
        step_shards *entry = &this->shards[i];
        if (!entry->takes_part || !entry->shards->agree)
            continue;
        status = entry->shards->agree(entry->shards, 0);
        entry->agreed = status >= 0;
    }
    for (int i = 0; i < this->shards_count && status < 0; i++)
        if (this->shards[i].agreed)
            this->shards[i].shards->publish(this->shards[i].shards, status);
    return status;
}

/* ---- updates ---- */

static const char writer[] = "the optimizer's step"; /* named in errors about saved tensors */

/* Steps ranges [begin, end) in one call. */
static int step_call(const step *this, int begin, int end)
{
    const range *r = &this->ranges[begin];
    ek_step_numbers numbers = {0};
    double carried = r->carried;
    const ek_step_rule rule = this->optimizer->algorithm->step(&this->optimizer->groups[r->group],
                                                               r->step, &carried, &numbers);
    ek_tensor *const *state[EK_STATES];
    for (int s = 0; s < EK_STATES; s++)
        state[s] = this->operands[STATE + s] + begin;
    ek_tensor *const *parameters = this->operands[PARAMETER] + begin;
    EK_TRY(ek_kernels_of(parameters[0])
               ->step_list(r->dev, rule, end - begin, parameters, this->operands[GRADIENT] + begin,
                           state, &numbers));
    for (int i = begin; i < end; i++) {
        this->ranges[i].next = carried;
        this->ranges[i].done = true;
    }
    return 0;
}

/* Makes all calls of one device. Ranges of other devices belong to other threads. */
static int step_update_device(void *user, int index)
{
    const step *this = user;
    const range *ranges = this->ranges;
    int rc = 0;
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", this->optimizer->algorithm->name,
                  this->devs.devs[index]);
    for (int begin = 0, end; begin < this->range_count && rc >= 0; begin = end) {
        end = begin + 1;
        while (end < this->range_count && range_compare_calls(&ranges[begin], &ranges[end]) == 0)
            end++;
        if (ranges[begin].dev == this->devs.devs[index])
            rc = step_call(this, begin, end);
    }
    ek_span_end(&timed);
    return rc;
}

/* Notes that the part was written. The first part of a parameter counts the step. */
static void part_note_update(const ek_part *part, double carried)
{
    ek_slot *slot = part->slot;
    ek_tensor_written(part->shard.tensor, writer);
    for (int s = 0; s < EK_STATES; s++)
        if (part->state[s])
            ek_tensor_written(part->state[s], writer);
    if (!slot->takes_part)
        return;
    slot->takes_part = false;
    slot->step++;
    slot->carried = carried;
    if (slot->parameter != part->shard.tensor)
        ek_tensor_written(slot->parameter, writer);
}

/* Updates all devices. If one fails, shards that were stepped on the others are published
 * nevertheless, so that all copies stay equal. */
static int step_update(step *this)
{
    int status = ek_jobs_run(this->devs.devs, this->devs.count, step_update_device, this, NULL);
    bool stepped = false;
    for (int i = 0; i < this->range_count; i++) {
        const range *r = &this->ranges[i];
        stepped = stepped || r->done;
        for (int k = r->begin; k < r->end && r->done; k++)
            part_note_update(this->parts[k], r->next);
    }
    for (int i = 0; i < this->shards_count; i++) {
        const step_shards *entry = &this->shards[i];
        bool publishes = entry->shards->agree ? entry->agreed : entry->takes_part && stepped;
        int published = publishes ? entry->shards->publish(entry->shards, status) : 0;
        status = status < 0 ? status : published;
    }
    return status;
}

static ek_dev *step_first_dev(const ek_optimizer *optimizer)
{
    return optimizer->slot_count ? ek_tensor_dev(optimizer->slots[0]->parameter) : NULL;
}

int ek_optimizer_check_step(const ek_optimizer *optimizer, const char *what)
{
    return optimizer->algorithm->vector
               ? EK_FAIL(EK_E_INVALID,
                         "%s%s evaluates the loss several times in a step; call ek_step_closure",
                         what, optimizer->algorithm->name)
               : 0;
}

int ek_step(ek_optimizer *optimizer)
{
    EK_TRY(ek_optimizer_check(optimizer));
    EK_TRY(ek_fork_check());
    EK_TRY(ek_optimizer_check_step(optimizer, ""));
    step this = {.optimizer = optimizer};
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", optimizer->algorithm->name,
                  step_first_dev(optimizer));
    ek_scope scope = ek_scope_begin();
    int status = step_prepare(&this);
    status = status < 0 ? step_tell(optimizer, status) : step_agree(&this);
    if (status < 0)
        ek_optimizer_forget_unused_state(optimizer);
    else
        status = step_update(&this);
    step_leave_shards(&this);
    free(this.operands[0]);
    free(this.ranges);
    free(this.parts);
    free(this.shards);
    ek_scope_end(&scope);
    ek_span_end(&timed);
    return status < 0 ? status : 0;
}

/* One evaluation, and a step. */
static int step_evaluated(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(true);
    int status = closure(loss, user);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    if (before == 0)
        status = ek_error_outcome(status);
    return status < 0 ? status : ek_step(optimizer);
}

static int step_vector(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    ek_span timed;
    EK_TRY(ek_fork_check());
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", optimizer->algorithm->name,
                  step_first_dev(optimizer));
    int status = optimizer->algorithm->vector->minimise(optimizer, closure, user, loss);
    ek_span_end(&timed);
    return status;
}

int ek_step_closure(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    double first = 0;
    EK_TRY(ek_optimizer_check(optimizer));
    if (!closure)
        return EK_FAIL(EK_E_INVALID, "%s: the closure is NULL", optimizer->algorithm->name);
    int status = optimizer->algorithm->vector ? step_vector(optimizer, closure, user, &first)
                                              : step_evaluated(optimizer, closure, user, &first);
    if (status >= 0 && loss)
        *loss = first;
    return status;
}
