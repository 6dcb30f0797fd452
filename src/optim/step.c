/* step.c: one update of all parameters.
 *
 * The road of a step, from the top down:
 *
 *     ek_step              here: the public call
 *     step_enter           enters shards, and marks the parameters that have a gradient
 *     ek_step_plan_make    plan.c: joins neighbours in memory to ranges, and allocates all memory
 *     step_agree           agrees with other ranks, if they have shards, that all can update
 *     step_update          updates all devices concurrently (ek_jobs_run)
 *     step_update_device   makes one call per dtype, group, phase and carried number
 *     step_call            calls the kernel with the algorithm's rule and numbers (algorithms.c)
 *     step_publish         shards->publish: parallel/sharding.c sends shards to all devices,
 *                          distributed/train/rank_sharding_step.c to all ranks */
#include <stdlib.h>
#include <string.h>

#include "core/scope_check.h"
#include "core/trace.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"
#include "kernels/kernels.h"
#include "optim/plan.h"

typedef struct step_shards {
    ek_shards *shards; /* borrowed; entered */
    bool takes_part;   /* true if a leaf of these shards takes part */
    bool agreed;       /* true if shards->agree has succeeded: `publish` must follow */
} step_shards;

typedef struct step {
    ek_optimizer *optimizer;
    ek_step_plan plan;
    step_shards *shards; /* the shards of all parameters, each once */
    int shards_count;
} step;

/* ---- who takes part ---- */

/* Returns the entry of the shards. The first call for these shards enters them. NULL with an error.
 */
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

static void step_leave(const step *this)
{
    for (int i = 0; i < this->shards_count; i++)
        if (this->shards[i].shards->leave)
            this->shards[i].shards->leave(this->shards[i].shards);
    free(this->shards);
}

/* Logs a warning if no parameter has a gradient and none is sharded. Steps that follow without a
 * gradient don't repeat the warning. */
static void step_warn(const step *this, bool any)
{
    ek_optimizer *optimizer = this->optimizer;
    const bool still = !any && this->shards_count == 0 && optimizer->slot_count > 0;
    if (still && !optimizer->warned)
        ek_log_line(
            EK_LOG_WARNING,
            "%s: no parameter has a gradient, so the step changes nothing; ek_backward of a "
            "loss that was computed from them comes before it",
            optimizer->algorithm->name);
    optimizer->warned = still;
}

/* Enters all shards, and marks the parameters that take part: those with a gradient. */
static int step_enter(step *this)
{
    ek_optimizer *optimizer = this->optimizer;
    bool any = false;
    this->shards = ek_calloc((size_t)optimizer->slot_count + 1, sizeof *this->shards);
    if (!this->shards)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_slot *slot = optimizer->slots[i];
        ek_shards *shards = ek_leaf_shards(slot->parameter);
        step_shards *entry = shards ? step_enter_shards(this, shards) : NULL;
        if (shards && !entry)
            return ek_error_pending();
        if (!shards && slot->parameter->storage->residence)
            return EK_FAIL(EK_E_STATE,
                           "%s: parameter %d is sharded over the devices of a wrapper that was "
                           "freed, and its module does not fit on %s; wrap the module again",
                           optimizer->algorithm->name, i, ek_tensor_dev(slot->parameter)->name);
        EK_TRY(ek_leaf_settle_gradient(slot->parameter));
        slot->takes_part = ek_leaf_has_gradient(slot->parameter);
        if (entry && slot->takes_part)
            entry->takes_part = shards->stepped[slot->parameter->shards_index] = true;
        if (slot->takes_part)
            EK_TRY(ek_slot_recut(optimizer, slot));
        any = any || slot->takes_part;
    }
    step_warn(this, any);
    for (int i = 0; i < this->shards_count; i++)
        if (this->shards[i].takes_part)
            EK_TRY(this->shards[i].shards->refresh(this->shards[i].shards));
    return 0;
}

/* ---- shards of several ranks ---- */

/* If parameters are sharded over ranks, tells the other ranks that this rank can't step. Returns
 * the status. */
static int step_tell(const ek_optimizer *optimizer, int status)
{
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_shards *shards = ek_leaf_shards(optimizer->slots[i]->parameter);
        if (shards && shards->agree)
            return shards->agree(shards, status);
    }
    return status;
}

/* Agrees with the other ranks. If the function returns 0, all ranks update. Else no rank does. */
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

static const char writer[] = "the optimizer's step"; /* named by errors about saved tensors */

/* Steps ranges [begin, end) in one call. */
static int step_call(const step *this, int begin, int end)
{
    const ek_step_plan *plan = &this->plan;
    const ek_step_range *r = &plan->ranges[begin];
    ek_step_numbers numbers = {0};
    double carried = r->carried;
    const ek_step_rule rule = this->optimizer->algorithm->step(&this->optimizer->groups[r->group],
                                                               r->step, &carried, &numbers);
    ek_tensor *const *operands[EK_STEP_OPERANDS];
    for (int k = 0; k < EK_STEP_OPERANDS; k++)
        operands[k] = plan->operands[k] + begin;
    EK_TRY(ek_kernels_of(operands[EK_STEP_PARAMETER][0])
               ->step_list(r->dev, rule, end - begin, operands[EK_STEP_PARAMETER],
                           operands[EK_STEP_GRADIENT], operands + EK_STEP_STATE, &numbers));
    for (int i = begin; i < end; i++) {
        plan->ranges[i].next = carried;
        plan->ranges[i].done = true;
    }
    return 0;
}

/* Makes all calls of one device. Ranges of other devices belong to other threads. */
static int step_update_device(void *user, int index)
{
    const step *this = user;
    const ek_step_plan *plan = &this->plan;
    int rc = 0;
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", this->optimizer->algorithm->name,
                  plan->devs.devs[index]);
    for (int begin = 0, end; begin < plan->range_count && rc >= 0; begin = end) {
        end = ek_step_plan_call_end(plan, begin);
        if (plan->ranges[begin].dev == plan->devs.devs[index])
            rc = step_call(this, begin, end);
    }
    ek_span_end(&timed);
    return rc;
}

/* Notes that the part was written. At the first part of a parameter, counts the parameter's step.
 */
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

/* Gives parameters memory of their own. The thread that steps calls it before it takes their
 * addresses. */
static int step_unshare_parameters(const ek_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        EK_TRY(ek_tensor_unshare(optimizer->slots[i]->parameter));
    return 0;
}

/* Updates all devices. Writes whether any device was updated. */
static int step_update(step *this, bool *any)
{
    const ek_step_plan *plan = &this->plan;
    int status = ek_jobs_run(plan->devs.devs, plan->devs.count, step_update_device, this, NULL);
    *any = false;
    for (int i = 0; i < plan->range_count; i++) {
        const ek_step_range *r = &plan->ranges[i];
        *any = *any || r->done;
        for (int k = r->begin; k < r->end && r->done; k++)
            part_note_update(plan->parts[k], r->next);
    }
    return status;
}

/* Publishes the shards that were stepped, even if a device has failed, so that all copies stay
 * equal. */
static int step_publish(const step *this, int status, bool any)
{
    for (int i = 0; i < this->shards_count; i++) {
        const step_shards *entry = &this->shards[i];
        bool publishes = entry->shards->agree ? entry->agreed : entry->takes_part && any;
        int published = publishes ? entry->shards->publish(entry->shards, status) : 0;
        status = status < 0 ? status : published;
    }
    return status;
}

static ek_dev *step_first_dev(const ek_optimizer *optimizer)
{
    return optimizer->slot_count ? ek_tensor_dev(optimizer->slots[0]->parameter) : NULL;
}

int ek_optimizer_check_step(const ek_optimizer *optimizer, const char *what, double max_norm)
{
    if (!(max_norm >= 0))
        return EK_FAIL(EK_E_INVALID, "%smax_norm has to be 0 (no limit) or more, not %g", what,
                       max_norm);
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
    EK_TRY(ek_optimizer_check_step(optimizer, "", 0));
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        ek_scope_check_growth(optimizer->algorithm->name);
    step this = {.optimizer = optimizer};
    ek_span timed;
    ek_span_begin(&timed, EK_SPAN_COMPUTE, "step of", optimizer->algorithm->name,
                  step_first_dev(optimizer));
    ek_scope scope = ek_scope_begin();
    bool any;
    int status = step_enter(&this);
    if (status >= 0)
        status = step_unshare_parameters(optimizer);
    if (status >= 0)
        status = ek_step_plan_make(&this.plan, optimizer);
    status = status < 0 ? step_tell(optimizer, status) : step_agree(&this);
    if (status < 0) {
        ek_optimizer_forget_unused_state(optimizer);
    } else {
        status = step_update(&this, &any);
        status = step_publish(&this, status, any);
    }
    step_leave(&this);
    ek_step_plan_clear(&this.plan);
    ek_scope_end(&scope);
    ek_span_end(&timed);
    return status < 0 ? status : 0;
}

int ek_closure_evaluate(ek_closure *closure, void *user, double *loss)
{
    const int before = ek_error_status();
    bool enabled = ek_set_grad_enabled(true);
    int status = closure(loss, user);
    ek_set_grad_enabled(enabled);
    return before == 0 ? ek_error_outcome(status) : status;
}

/* Evaluates the closure once, and steps. */
static int step_evaluated(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    ek_scope scope = ek_scope_begin();
    int status = ek_closure_evaluate(closure, user, loss);
    ek_scope_end(&scope);
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
