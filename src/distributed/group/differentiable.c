/* differentiable.c: see differentiable.h. Calls of functions of the ranks' tensors, who records,
 * and sums and means. */
#include "group/differentiable.h"

#include "comm/exchange.h"
#include "group/collective.h"
#include "group/rail.h"
#include "group/world.h"
#include "link/combine.h"
#include "ops/ops.h"

/* ---- who records (Note [All ranks record, or none]) ---- */

void ek_meeting_descriptor(ek_dist_work *work, const ek_tensor *x)
{
    work->descriptor.gradient = !ek_grad_enabled() ? EK_DESCRIPTOR_GRADIENT_OFF
                                : x->requires_grad ? EK_DESCRIPTOR_GRADIENT_REQUIRED
                                                   : EK_DESCRIPTOR_GRADIENT_NONE;
}

int ek_meeting_agree(ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    int required = group->agreed.required, off = group->agreed.off;
    work->result = required < group->size;
    if (work->result && off < group->size)
        return EK_FAIL(EK_E_STATE,
                       "%s: rank %d's tensor requires a gradient, but gradient mode is off on rank "
                       "%d; it must be on or off on all ranks",
                       ek_verb_name(work->verb->id), group->ranks[required], group->ranks[off]);
    return 0;
}

ek_tensor *ek_meeting_input(ek_tensor *x, int records, bool *wanted)
{
    *wanted = x->requires_grad;
    if (!records || x->requires_grad)
        return x;
    ek_tensor *leaf = ek_tensor_alias(x);
    if (leaf)
        leaf->requires_grad = true;
    return leaf;
}

/* ---- calls ---- */

typedef struct meeting_call {
    ek_tensor *(*run)(ek_process_group *group, ek_tensor *x, const void *how);
    ek_tensor *x, *y;
    const void *how;
} meeting_call;

static int meeting_run(ek_process_group *group, void *user)
{
    meeting_call *call = user;
    call->y = call->run(group, call->x, call->how);
    return call->y ? 0 : ek_error_pending();
}

ek_tensor *ek_meeting_call(const char *what, ek_process_group *group,
                           ek_tensor *(*run)(ek_process_group *group, ek_tensor *x,
                                             const void *how),
                           ek_tensor *x, const void *how)
{
    meeting_call call = {run, x, NULL, how};
    if (ek_group_call(what, group, meeting_run, &call) < 0)
        return NULL;
    /* The call has succeeded. If it has no result, this rank is not in the group. */
    return call.y ? call.y : ek_given(what, "x", x) ? ek_itself(x) : NULL;
}

/* ---- sums and means ---- */

typedef struct sum_attributes {
    const ek_verb *verb; /* EK_VERB_SUM or EK_VERB_MEAN; the adjoint has the same verb */
    ek_process_group *group;
    bool wanted;
} sum_attributes;

static int sum_go_on(ek_dist_work *work)
{
    if (work->stage == 0)
        EK_TRY(ek_meeting_agree(work));
    return ek_verb_all_reduce.go_on(work);
}
static const ek_verb sum_verb = {EK_VERB_SUM, sum_go_on, .ready = ek_dist_work_sum_ready};
static const ek_verb mean_verb = {EK_VERB_MEAN, sum_go_on, .ready = ek_dist_work_sum_ready};

static ek_tensor *sum_run(ek_process_group *group, ek_tensor *x, const void *how);

static int sum_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const sum_attributes *attributes = ek_node_attributes(node);
    ek_tensor *gradient = ek_meeting_call(ek_verb_name(attributes->verb->id), attributes->group,
                                          sum_run, gradients[0], attributes->verb);
    results[0] = attributes->wanted ? gradient : NULL;
    return gradient ? 0 : ek_error_pending();
}

static const ek_operation sum_operation = {.name = "dist_sum",
                                           .backward = sum_backward,
                                           .meets = true};
static const ek_operation mean_operation = {.name = "dist_mean",
                                            .backward = sum_backward,
                                            .meets = true};

/* Copies x to y, and returns the work that combines y over the ranks in place. */
static ek_dist_work *sum_work(const ek_verb *verb, const ek_tensor *x, ek_tensor *y,
                              ek_process_group *group)
{
    if (!y || ek_comm_copy(y, x) < 0)
        return NULL;
    ek_dist_work *work = ek_dist_work_new(group, verb, 1);
    if (!work)
        return NULL;
    ek_meeting_descriptor(work, x);
    if (ek_dist_work_one(work, y, verb == &mean_verb ? EK_DIST_AVG : EK_DIST_SUM, -1) >= 0)
        return work;
    ek_dist_work_free(work);
    return NULL;
}

/* Returns the sum or mean of the ranks' x. `how` is the verb. */
static ek_tensor *sum_run(ek_process_group *group, ek_tensor *x, const void *how)
{
    const ek_verb *verb = how;
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), x->dtype, &shape, EK_CONTIGUOUS);
    ek_dist_work *work = sum_work(verb, x, y, group);
    int records = work ? ek_dist_work_run(work) : -1;
    if (records < 0)
        return NULL;
    sum_attributes attributes = {.verb = verb, .group = group};
    ek_tensor *input = ek_meeting_input(x, records, &attributes.wanted);
    return input ? EK_RECORD(y, verb == &mean_verb ? &mean_operation : &sum_operation,
                             EK_INPUTS(input), EK_ATTRIBUTES(attributes))
                 : NULL;
}

static ek_tensor *sum_check_and_run(ek_process_group *group, ek_tensor *x, const void *how)
{
    const ek_verb *verb = how;
    const char *what = ek_verb_name(verb->id);
    if (ek_check_given(what, "x", x) < 0 ||
        ek_combine_check(what, verb == &mean_verb ? EK_DIST_AVG : EK_DIST_SUM, x->dtype) < 0 ||
        ek_check_meeting(what) < 0)
        return NULL;
    return group->size > 1 ? sum_run(group, x, verb) : ek_itself(x);
}

ek_tensor *ek_dist_sum(ek_tensor *x, ek_process_group *group)
{
    return ek_meeting_call("dist_sum", group, sum_check_and_run, x, &sum_verb);
}

ek_tensor *ek_dist_mean(ek_tensor *x, ek_process_group *group)
{
    return ek_meeting_call("dist_mean", group, sum_check_and_run, x, &mean_verb);
}
