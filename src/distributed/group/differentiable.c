/* differentiable.c: sums and means over ranks; and who records (differentiable.h). */
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
    int required = -1, off = -1;
    for (int r = group->size - 1; r >= 0; r--) {
        if (group->descriptors[r].gradient == EK_DESCRIPTOR_GRADIENT_REQUIRED)
            required = r;
        if (group->descriptors[r].gradient == EK_DESCRIPTOR_GRADIENT_OFF)
            off = r;
    }
    if (required >= 0 && off >= 0)
        return EK_FAIL(EK_E_STATE,
                       "%s: rank %d's tensor requires a gradient, but gradient mode is off on rank "
                       "%d; it must be on or off on all ranks",
                       ek_verb_name(work->verb->id), group->ranks[required], group->ranks[off]);
    work->result = required >= 0;
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

/* ---- sums and means ---- */

typedef struct sum_attributes {
    const ek_verb *verb; /* a sum is the adjoint of a sum, and a mean that of a mean */
    ek_process_group *group;
    bool wanted;
} sum_attributes;

static int sum_go_on(ek_dist_work *work)
{
    if (work->stage == 0)
        EK_TRY(ek_meeting_agree(work));
    return ek_verb_all_reduce.go_on(work);
}
static const ek_verb sum_verb = {.id = EK_VERB_SUM, .go_on = sum_go_on, .ready = ek_rail_ready};
static const ek_verb mean_verb = {.id = EK_VERB_MEAN, .go_on = sum_go_on, .ready = ek_rail_ready};

static ek_tensor *sum_run(const ek_verb *verb, ek_tensor *x, ek_process_group *group);

/* A call of all ranks, by the program or by backward. */
typedef struct sum_call {
    const ek_verb *verb;
    ek_tensor *x, *y;
} sum_call;

static int sum_run_call(ek_process_group *group, void *user)
{
    sum_call *call = user;
    const char *what = ek_verb_name(call->verb->id);
    EK_TRY(ek_check_given(what, "x", call->x));
    EK_TRY(ek_combine_check(what, call->verb == &mean_verb ? EK_DIST_AVG : EK_DIST_SUM,
                            call->x->dtype));
    EK_TRY(ek_check_meeting(what));
    call->y = group->size > 1 ? sum_run(call->verb, call->x, group) : ek_itself(call->x);
    return call->y ? 0 : ek_error_pending();
}

static int sum_run_backward(ek_process_group *group, void *user)
{
    sum_call *call = user;
    call->y = sum_run(call->verb, call->x, group);
    return call->y ? 0 : ek_error_pending();
}

static int sum_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const sum_attributes *attributes = ek_node_attributes(node);
    sum_call call = {attributes->verb, gradients[0], NULL};
    EK_TRY(ek_group_call(ek_verb_name(call.verb->id), attributes->group, sum_run_backward, &call));
    results[0] = attributes->wanted ? call.y : NULL;
    return 0;
}

static const ek_operation sum_operation = {.name = "dist_sum",
                                           .backward = sum_backward,
                                           .meets = true};
static const ek_operation mean_operation = {.name = "dist_mean",
                                            .backward = sum_backward,
                                            .meets = true};

/* Copies x to y, and returns the work that sums y over the ranks in place. */
static ek_dist_work *sum_work(const ek_verb *verb, const ek_tensor *x, ek_tensor *y,
                              ek_process_group *group)
{
    if (!y || ek_comm_copy(y, x) < 0)
        return NULL;
    ek_dist_work *work = ek_dist_work_of(group, verb, 1);
    if (!work)
        return NULL;
    work->descriptor.op = verb == &mean_verb ? EK_DIST_AVG : EK_DIST_SUM;
    ek_meeting_descriptor(work, x);
    bool described = ek_comm_nbytes(y) <= EK_DESCRIPTOR_PAYLOAD;
    if ((described || ek_dist_work_rail(work, y) >= 0) &&
        ek_dist_work_add(work, y, true, true) >= 0) {
        ek_dist_work_descriptor(work);
        if (ek_dist_work_sum(work) >= 0)
            return work;
    }
    ek_dist_work_free(work);
    return NULL;
}

static ek_tensor *sum_run(const ek_verb *verb, ek_tensor *x, ek_process_group *group)
{
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

static ek_tensor *sum_of_ranks(const ek_verb *verb, ek_tensor *x, ek_process_group *group)
{
    const char *what = ek_verb_name(verb->id);
    sum_call call = {verb, x, NULL};
    if (ek_group_call(what, group, sum_run_call, &call) < 0)
        return NULL;
    /* Without a result this rank is not in the group. */
    return call.y ? call.y : ek_given(what, "x", x) ? ek_itself(x) : NULL;
}

ek_tensor *ek_dist_sum(ek_tensor *x, ek_process_group *group)
{
    return sum_of_ranks(&sum_verb, x, group);
}

ek_tensor *ek_dist_mean(ek_tensor *x, ek_process_group *group)
{
    return sum_of_ranks(&mean_verb, x, group);
}
