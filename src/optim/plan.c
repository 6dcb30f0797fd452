/* plan.c: plans a step (plan.h).
 *
 * The road of a plan:
 *
 *     plan_collect           lists the parts that take part, in the order of memory, and gradients
 *     ek_optimizer_lay_out   parts.c: gives the parts state, laid out alike
 *     plan_list_ranges       joins neighbours of equal phase to ranges, and sorts them by call
 *     plan_list_operands     lists the tensors of each range */
#include "optim/plan.h"

#include <stdlib.h>

#include "evenkeel/autograd.h"

/* ---- gradients ---- */

static int plan_gradient_check(const ek_optimizer *optimizer, const ek_tensor *parameter,
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

/* Finds and checks the part's gradient, in the shard's order of memory. */
static int part_find_gradient(const ek_optimizer *optimizer, ek_part *part)
{
    ek_tensor *tensor = part->shard.tensor, *gradient = ek_tensor_grad(tensor);
    EK_TRY(plan_gradient_check(optimizer, tensor, gradient));
    part->gradient = ek_gradient_in_order(gradient, tensor);
    return part->gradient ? 0 : ek_error_pending();
}

static int plan_collect(ek_step_plan *plan)
{
    ek_optimizer *optimizer = plan->optimizer;
    EK_TRY(ek_optimizer_sort(optimizer));
    plan->parts = ek_calloc((size_t)optimizer->part_count + 1, sizeof(ek_part *));
    if (!plan->parts)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < optimizer->part_count; i++) {
        if (!optimizer->table[i]->slot->takes_part)
            continue;
        EK_TRY(part_find_gradient(optimizer, optimizer->table[i]));
        plan->parts[plan->part_count++] = optimizer->table[i];
    }
    return 0;
}

/* ---- ranges ---- */

/* Returns the order of ranges by call, or 0 if one call can step both. */
static int range_compare_calls(const ek_step_range *a, const ek_step_range *b)
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
    const ek_step_range *a = x, *b = y;
    int order = range_compare_calls(a, b);
    return order ? order : a->begin - b->begin;
}

static unsigned range_states(const ek_step_plan *plan, const ek_step_range *r)
{
    return ek_states_of(plan->optimizer->algorithm, &plan->optimizer->groups[r->group]);
}

/* Returns true if the slot's next step has the range's phase and carried number. */
static bool range_takes(const ek_step_plan *plan, const ek_step_range *r, const ek_slot *slot)
{
    const ek_algorithm *algorithm = plan->optimizer->algorithm;
    return slot->carried == r->carried &&
           (!algorithm->phase ||
            algorithm->phase(&plan->optimizer->groups[r->group], slot->step + 1) == r->phase);
}

/* Returns the longest range from part `begin` whose parts are neighbours of one phase and carried
 * number. */
static ek_step_range plan_range(const ek_step_plan *plan, int begin)
{
    const ek_optimizer *optimizer = plan->optimizer;
    const ek_slot *slot = plan->parts[begin]->slot;
    const ek_tensor *tensor = plan->parts[begin]->shard.tensor;
    const ek_optimizer_options *options = &optimizer->groups[slot->group];
    ek_step_range r = {.begin = begin,
                       .dev = ek_tensor_dev(tensor),
                       .dtype = tensor->dtype,
                       .group = slot->group,
                       .step = slot->step + 1,
                       .carried = slot->carried};
    const unsigned states = range_states(plan, &r);
    if (optimizer->algorithm->phase)
        r.phase = optimizer->algorithm->phase(options, r.step);
    for (r.end = begin + 1; r.end < plan->part_count; r.end++)
        if (!ek_parts_join(optimizer, plan->parts[r.end - 1], plan->parts[r.end], states) ||
            !range_takes(plan, &r, plan->parts[r.end]->slot))
            break;
    return r;
}

/* Returns the operand of a range. `first` is the operand of the range's first part, and the result
 * if the range has one part. Else the result is a flat handle, in the scope, on the `count`
 * elements that begin with those of `first`. */
static ek_tensor *range_operand(const ek_step_range *r, ek_tensor *first, int64_t count)
{
    int64_t stride = 1;
    return r->end - r->begin == 1 ? first
                                  : ek_tensor_view(first, 1, &count, &stride, first->offset);
}

static int plan_list_operands(ek_step_plan *plan)
{
    int n = plan->range_count;
    ek_tensor **handles = ek_calloc((size_t)n * EK_STEP_OPERANDS + 1, sizeof *handles);
    if (!handles)
        return EK_E_NO_MEMORY;
    for (int k = 0; k < EK_STEP_OPERANDS; k++)
        plan->operands[k] = handles + (size_t)k * (size_t)n;
    for (int i = 0; i < n; i++) {
        const ek_step_range *r = &plan->ranges[i];
        const ek_part *first = plan->parts[r->begin], *last = plan->parts[r->end - 1];
        int64_t count =
            last->shard.tensor->offset - first->shard.tensor->offset + ek_count(last->shard.tensor);
        ek_tensor *tensors[EK_STEP_OPERANDS] = {first->shard.tensor, first->gradient};
        int operands = EK_STEP_STATE;
        for (int s = 0; s < EK_STATES; s++)
            if (range_states(plan, r) >> s & 1)
                tensors[operands++] = first->state[s];
        for (int k = 0; k < operands; k++)
            if (!(plan->operands[k][i] = range_operand(r, tensors[k], count)))
                return ek_error_pending();
    }
    return 0;
}

static int plan_list_ranges(ek_step_plan *plan)
{
    plan->ranges = ek_calloc((size_t)plan->part_count + 1, sizeof *plan->ranges);
    if (!plan->ranges)
        return EK_E_NO_MEMORY;
    for (int begin = 0; begin < plan->part_count; begin = plan->ranges[plan->range_count++].end)
        plan->ranges[plan->range_count] = plan_range(plan, begin);
    qsort(plan->ranges, (size_t)plan->range_count, sizeof *plan->ranges, range_compare);
    for (int i = 0; i < plan->range_count; i++)
        ek_dev_set_add(&plan->devs, plan->ranges[i].dev);
    return 0;
}

int ek_step_plan_make(ek_step_plan *plan, ek_optimizer *optimizer)
{
    plan->optimizer = optimizer;
    EK_TRY(plan_collect(plan));
    EK_TRY(ek_optimizer_lay_out(optimizer, plan->parts, plan->part_count, NULL));
    EK_TRY(plan_list_ranges(plan));
    return plan_list_operands(plan);
}

void ek_step_plan_clear(ek_step_plan *plan)
{
    free(plan->operands[0]);
    free(plan->ranges);
    free(plan->parts);
}

int ek_step_plan_call_end(const ek_step_plan *plan, int begin)
{
    int end = begin + 1;
    while (end < plan->range_count &&
           range_compare_calls(&plan->ranges[begin], &plan->ranges[end]) == 0)
        end++;
    return end;
}
