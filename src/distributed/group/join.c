/* join.c: joins of the ranks' tensors, and splits, which are the adjoints of joins
 * (differentiable.h). */
#include "group/differentiable.h"

#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "group/collective.h"
#include "group/rail.h"
#include "group/world.h"
#include "link/combine.h"
#include "link/staging.h"
#include "ops/ops.h"

/* ---- what the ranks join ---- */

/* The attributes of joins and splits in the graph. */
typedef struct join_plan {
    ek_process_group *group;
    bool wanted; /* the input needs a gradient */
    int dim;
    int64_t at[]; /* rank r has the range [at[r], at[r + 1]) along dim */
} join_plan;

static size_t join_plan_size(const ek_process_group *group)
{
    return sizeof(join_plan) + ((size_t)group->size + 1) * sizeof(int64_t);
}

/* Makes a plan, which the caller frees. */
static join_plan *join_plan_new(ek_process_group *group, int dim)
{
    join_plan *plan = ek_calloc(1, join_plan_size(group));
    if (!plan)
        return NULL;
    plan->group = group;
    plan->dim = dim;
    return plan;
}

/* What a rank's descriptor says about the rank's part. */
typedef struct join_part {
    ek_wire_shape shape;
    int32_t dim;
} join_part;
_Static_assert(sizeof(join_part) <= EK_DESCRIPTOR_PAYLOAD, "a descriptor has room for a part");

/* Returns EK_E_DTYPE or EK_E_SHAPE if two parts cannot be joined. */
static int join_compare(const ek_dist_work *work, const join_part *first, const join_part *part,
                        int rank)
{
    bool fits = part->shape.ndim == first->shape.ndim;
    for (int d = 0; d < first->shape.ndim && fits; d++)
        fits = d == first->dim || part->shape.shape[d] == first->shape.shape[d];
    if (fits && part->shape.dtype == first->shape.dtype && part->dim == first->dim)
        return 0;
    const int *ranks = work->group->ranks;
    char first_text[120], text[120];
    ek_wire_shape_text(&first->shape, first_text);
    ek_wire_shape_text(&part->shape, text);
    return EK_FAIL(part->shape.dtype != first->shape.dtype ? EK_E_DTYPE : EK_E_SHAPE,
                   "%s: rank %d has %s and joins along dimension %d, rank %d has %s and joins "
                   "along dimension %d; they may differ only in the size along that dimension",
                   ek_verb_name(work->verb->id), ranks[0], first_text, (int)first->dim, ranks[rank],
                   text, (int)part->dim);
}

/* Sets the bounds of the plan in work->user from all ranks' payloads. */
static int join_go_on(ek_dist_work *work)
{
    join_plan *plan = work->user;
    join_part first, part;
    memcpy(&first, ek_group_payload(work->group, 0), sizeof first);
    for (int r = 0; r < work->group->size; r++) {
        memcpy(&part, ek_group_payload(work->group, r), sizeof part);
        EK_TRY(join_compare(work, &first, &part, r));
        plan->at[r + 1] = plan->at[r] + part.shape.shape[plan->dim];
    }
    return 0;
}
const ek_verb ek_verb_join = {EK_VERB_JOIN, .go_on = join_go_on};
const ek_verb ek_verb_gather_value = {EK_VERB_GATHER_VALUE, .go_on = join_go_on};
const ek_verb ek_verb_presence = {EK_VERB_PRESENCE, .go_on = join_go_on};

static int join_agree(const ek_verb *verb, const ek_tensor *x, join_plan *plan)
{
    ek_dist_work *work = ek_dist_work_new(plan->group, verb, 0);
    if (!work)
        return ek_error_pending();
    join_part part;
    memset(&part, 0, sizeof part);
    part.shape = ek_wire_shape_of(x);
    part.dim = plan->dim;
    memcpy(work->descriptor.payload, &part, sizeof part);
    work->descriptor.nbytes = sizeof part;
    work->user = plan;
    return ek_dist_work_run(work);
}

/* ---- joins and splits ---- */

/* Returns the shape of the whole, or of a rank's part if rank >= 0. */
static ek_shape join_shape(const join_plan *plan, const ek_tensor *like, int rank)
{
    ek_shape shape = ek_tensor_shape(like);
    shape.dims[plan->dim] =
        rank < 0 ? plan->at[plan->group->size] : plan->at[rank + 1] - plan->at[rank];
    return shape;
}

static int join_parts_go_on(ek_dist_work *work)
{
    if (work->stage == 0)
        EK_TRY(ek_meeting_agree(work));
    if (work->rail)
        return ek_rail_go_on(work);
    if (work->stage > 0)
        return 0;
    ek_process_group *group = work->group;
    char *parts = ek_tensor_address(work->tensors[0].memory);
    group->bounds[0] = 0;
    for (int r = 0; r < group->size; r++)
        group->bounds[r + 1] = group->bounds[r] + work->in[r].nbytes;
    int rc = group->bounds[group->size] <= EK_ROUNDS_MOST
                 ? ek_rounds_gather(&group->rounds, group, EK_ROUNDS_TAG, parts, group->bounds)
                 : group->communication->transport->all_gather(group->communicator, parts,
                                                               group->bounds, &work->request);
    return ek_dist_work_started(work, rc);
}
static const ek_verb join_parts_verb = {EK_VERB_JOIN_PARTS, join_parts_go_on,
                                        .ready = ek_rail_ready};

/* Returns a row-major view of the part of rank r in `parts`, which has the parts one after
 * another. */
static ek_tensor *join_part_of(const join_plan *plan, const ek_tensor *parts, int r)
{
    ek_shape shape = join_shape(plan, parts, r);
    int64_t strides[EK_MAX_DIMS], each = parts->shape[plan->dim]; /* elements per index along dim */
    each = each ? ek_count(parts) / each : 0;
    ek_strides_of(&shape, EK_CONTIGUOUS, strides);
    return ek_tensor_member(parts->storage, parts->dtype, &shape, strides,
                            parts->offset + each * plan->at[r]);
}

/* Makes memory for all parts: on the device if there is a rail, else on the host. */
static ek_tensor *join_memory(const join_plan *plan, const ek_dist_work *work, const ek_tensor *x)
{
    ek_dev *dev = ek_tensor_dev(x);
    ek_shape shape = join_shape(plan, x, -1);
    return work->rail || ek_dev_is_host(dev) ? ek_tensor_new(dev, x->dtype, &shape, EK_CONTIGUOUS)
                                             : ek_stage_memory(dev, x->dtype, &shape);
}

/* Adds the memory for all parts as the work's first tensor. Copies x, which is this rank's part, to
 * its place there: at once if there is a rail, else as the work's second tensor. */
static int join_fill(const join_plan *plan, ek_dist_work *work, ek_tensor *x, ek_tensor *parts)
{
    ek_tensor *mine = parts ? join_part_of(plan, parts, plan->group->rank) : NULL;
    if (!mine)
        return ek_error_pending();
    if (work->rail)
        EK_TRY(ek_comm_copy(mine, x));
    EK_TRY(ek_dist_work_add(work, parts, true, true));
    return work->rail ? 0 : ek_dist_work_add_from(work, x, mine);
}

/* Sets work->in to the ranks' parts, and work->out to this rank's part for all. */
static int join_set_lists(const join_plan *plan, ek_dist_work *work)
{
    const ek_tensor *parts = work->tensors[0].tensor;
    size_t along = (size_t)parts->shape[plan->dim];
    size_t each = along ? ek_comm_nbytes(parts) / along : 0; /* bytes per index along dim */
    char *address = ek_tensor_address(parts);
    work->descriptor.shape = ek_wire_shape_of(parts);
    EK_TRY(ek_dist_work_lists(work));
    for (int r = 0; r < plan->group->size; r++)
        work->in[r] = (ek_bytes){address + each * (size_t)plan->at[r],
                                 each * (size_t)(plan->at[r + 1] - plan->at[r])};
    for (int r = 0; r < plan->group->size; r++)
        work->out[r] = work->in[plan->group->rank];
    if (work->rail)
        ek_rail_run_pairs(work->rail, work, -1);
    return 0;
}

/* Makes the work that gathers the parts, one after another, in work->tensors[0].tensor. */
static ek_dist_work *join_work(const join_plan *plan, ek_tensor *x)
{
    ek_dist_work *work = ek_dist_work_new(plan->group, &join_parts_verb, 2);
    if (!work)
        return NULL;
    ek_meeting_descriptor(work, x);
    if (ek_dist_work_rail(work, x) >= 0 &&
        join_fill(plan, work, x, join_memory(plan, work, x)) >= 0 &&
        join_set_lists(plan, work) >= 0)
        return work;
    ek_dist_work_free(work);
    return NULL;
}

/* Returns the joined tensor on `dev`, made from `parts`, which has the parts one after another. */
static ek_tensor *join_arrange(const join_plan *plan, ek_tensor *parts, ek_dev *dev)
{
    int64_t before = 1; /* elements of the dimensions before dim */
    ek_shape shape = ek_tensor_shape(parts);
    for (int d = 0; d < plan->dim; d++)
        before *= parts->shape[d];
    if (ek_tensor_dev(parts) != dev) {
        ek_tensor *there = ek_tensor_new(dev, parts->dtype, &shape, EK_CONTIGUOUS);
        if (!there || ek_stage_deliver(there, parts) < 0)
            return NULL;
        parts = there;
    }
    if (before == 1)
        return parts;
    ek_tensor *whole = ek_tensor_new(dev, parts->dtype, &shape, EK_CONTIGUOUS);
    for (int r = 0; r < plan->group->size && whole; r++) {
        ek_tensor *from = join_part_of(plan, parts, r);
        ek_tensor *to = ek_comm_part(whole, plan->dim, plan->at[r], plan->at[r + 1] - plan->at[r]);
        if (!from || !to || ek_comm_copy(to, from) < 0)
            return NULL;
    }
    return whole;
}

static const ek_operation join_operation, split_operation;

static ek_tensor *join_record(const join_plan *plan, ek_tensor *y, ek_tensor *x, int records,
                              const ek_operation *operation)
{
    join_plan *own = y ? join_plan_new(plan->group, plan->dim) : NULL;
    if (!own)
        return NULL;
    memcpy(own->at, plan->at, join_plan_size(plan->group) - sizeof *plan);
    ek_tensor *input = ek_meeting_input(x, records, &own->wanted);
    y = input ? EK_RECORD(y, operation, EK_INPUTS(input), .attributes = own,
                          .attributes_size = join_plan_size(plan->group))
              : NULL;
    free(own);
    return y;
}

/* Returns the join of the ranks' x. `how` is the plan. */
static ek_tensor *join_run(ek_process_group *group, ek_tensor *x, const void *how)
{
    const join_plan *plan = how;
    (void)group; /* the plan has the group */
    ek_dev *dev = ek_tensor_dev(x);
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = NULL;
    ek_dist_work *work = join_work(plan, x);
    ek_tensor *parts = work ? work->tensors[0].tensor : NULL; /* the scope has a reference */
    int records = work ? ek_dist_work_run(work) : 0;
    if (work && records >= 0)
        y = join_record(plan, join_arrange(plan, parts, dev), x, records, &join_operation);
    return ek_scope_return(&scope, y);
}

/* Adds to the work the parts of `whole` that this rank gives to each rank, and memory for a term of
 * each rank. */
static int split_fill(const join_plan *plan, const ek_tensor *whole, ek_dist_work *work)
{
    EK_TRY(ek_dist_work_lists(work));
    EK_TRY(ek_dist_work_terms(work));
    for (int r = 0; r < plan->group->size; r++) {
        ek_tensor *part =
            ek_comm_part(whole, plan->dim, plan->at[r], plan->at[r + 1] - plan->at[r]);
        if (!part || ek_dist_work_add(work, part, true, false) < 0)
            return ek_error_pending();
        const ek_tensor *memory = work->tensors[r + 1].memory;
        work->out[r] = (ek_bytes){ek_tensor_address(memory), ek_comm_nbytes(memory)};
    }
    if (work->rail)
        ek_rail_run_pairs(work->rail, work, EK_DIST_SUM);
    return 0;
}

static int split_go_on(ek_dist_work *work)
{
    const ek_process_group *group = work->group;
    if (work->stage == 0)
        EK_TRY(ek_meeting_agree(work));
    if (work->rail)
        return ek_rail_go_on(work);
    if (work->stage == 0) {
        int rc = group->communication->transport->all_to_all(group->communicator, work->out,
                                                             work->in, &work->request);
        return ek_dist_work_started(work, rc);
    }
    ek_dist_work_combine(work, EK_DIST_SUM);
    return 0;
}
static const ek_verb split_verb = {EK_VERB_SPLIT, split_go_on, .ready = ek_rail_ready};

static ek_dist_work *split_work(const join_plan *plan, const ek_tensor *whole, ek_tensor *y)
{
    ek_dist_work *work = ek_dist_work_new(plan->group, &split_verb, plan->group->size + 1);
    if (!work)
        return NULL;
    work->descriptor.shape = ek_wire_shape_of(whole);
    ek_meeting_descriptor(work, whole);
    if (ek_dist_work_rail(work, whole) >= 0 && ek_dist_work_add(work, y, false, true) >= 0 &&
        split_fill(plan, whole, work) >= 0)
        return work;
    ek_dist_work_free(work);
    return NULL;
}

/* Returns this rank's part of the sum of all ranks' `whole`. `how` is the plan. */
static ek_tensor *split_run(ek_process_group *group, ek_tensor *whole, const void *how)
{
    const join_plan *plan = how;
    (void)group; /* the plan has the group */
    ek_shape shape = join_shape(plan, whole, plan->group->rank);
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(whole), whole->dtype, &shape, EK_CONTIGUOUS);
    ek_dist_work *work = y ? split_work(plan, whole, y) : NULL;
    int records = work ? ek_dist_work_run(work) : 0;
    y = work && records >= 0 ? join_record(plan, y, whole, records, &split_operation) : NULL;
    return ek_scope_return(&scope, y);
}

/* Makes the call of a node's backward, which runs `run` with the node's plan. */
static int join_take_back(ek_node *node, ek_verb_id verb, ek_tensor *gradient, ek_tensor **result,
                          ek_tensor *(*run)(ek_process_group *group, ek_tensor *gradient,
                                            const void *how))
{
    const join_plan *plan = ek_node_attributes(node);
    ek_tensor *made = ek_meeting_call(ek_verb_name(verb), plan->group, run, gradient, plan);
    *result = plan->wanted ? made : NULL;
    return made ? 0 : ek_error_pending();
}

static int join_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return join_take_back(node, EK_VERB_SPLIT, gradients[0], &results[0], split_run);
}

static int split_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return join_take_back(node, EK_VERB_JOIN_PARTS, gradients[0], &results[0], join_run);
}

static const ek_operation join_operation = {.name = "dist_join",
                                            .backward = join_backward,
                                            .meets = true};
static const ek_operation split_operation = {.name = "gradient of dist_join",
                                             .backward = split_backward,
                                             .meets = true};

/* ---- calls ---- */

/* Sets the plan's bounds from sizes that all ranks know. */
static int join_take_sizes(const ek_tensor *x, const int64_t *sizes, join_plan *plan)
{
    int rank = plan->group->rank;
    if (x->shape[plan->dim] != sizes[rank])
        return EK_FAIL(EK_E_SHAPE, "%s: the size is %lld along dimension %d, but it was to be %lld",
                       ek_verb_name(EK_VERB_JOIN), (long long)x->shape[plan->dim], plan->dim,
                       (long long)sizes[rank]);
    for (int r = 0; r < plan->group->size; r++)
        plan->at[r + 1] = plan->at[r] + sizes[r];
    return 0;
}

ek_tensor *ek_join(const ek_verb *verb, ek_tensor *x, int dim, const int64_t *sizes,
                   ek_process_group *group)
{
    const char *what = ek_verb_name(verb->id);
    join_plan *plan = NULL;
    if (ek_given(what, "x", x) && (dim = ek_dimension(what, x, dim)) >= 0 &&
        ek_check_meeting(what) >= 0)
        plan = join_plan_new(group, dim);
    if (!plan)
        return NULL;
    int rc = 0;
    if (sizes)
        rc = join_take_sizes(x, sizes, plan);
    else if (group->size > 1)
        rc = join_agree(verb, x, plan);
    ek_tensor *y = rc < 0 ? NULL : group->size == 1 ? ek_itself(x) : join_run(group, x, plan);
    free(plan);
    return y;
}

typedef struct join_how {
    int dim;
    const int64_t *sizes;
} join_how;

static ek_tensor *join_run_call(ek_process_group *group, ek_tensor *x, const void *user)
{
    const join_how *how = user;
    return ek_join(&ek_verb_join, x, how->dim, how->sizes, group);
}

ek_tensor *ek_join_call(ek_tensor *x, int dim, const int64_t *sizes, ek_process_group *group)
{
    join_how how = {dim, sizes};
    return ek_meeting_call(ek_verb_name(EK_VERB_JOIN), group, join_run_call, x, &how);
}

ek_tensor *ek_dist_join(ek_tensor *x, int dim, ek_process_group *group)
{
    return ek_join_call(x, dim, NULL, group);
}
