/* ranks.c: makes process groups usable for other folders (core/ranks.h). */
#include "core/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "evenkeel/autograd.h"
#include "group/collective.h"
#include "group/differentiable.h"
#include "group/world.h"

typedef struct process_ranks {
    ek_ranks ranks;
    ek_process_group *group;
} process_ranks;

static ek_process_group *ranks_group(ek_ranks *ranks)
{
    return ((process_ranks *)ranks)->group;
}

/* Returns the group, or NULL with an error if the group was destroyed. */
static ek_process_group *ranks_group_there(ek_ranks *ranks)
{
    ek_process_group *group = ranks_group(ranks);
    if (group && group->communication)
        return group;
    return EK_FAIL_NULL(EK_E_STATE, "the process group whose ranks meet here was destroyed");
}

static ek_tensor *ranks_join(ek_ranks *ranks, ek_tensor *x, int dim, const int64_t *sizes)
{
    ek_process_group *group = ranks_group_there(ranks);
    return group ? ek_join_call(x, dim, sizes, group) : NULL;
}

static ek_tensor *ranks_sum(ek_ranks *ranks, ek_tensor *x)
{
    ek_process_group *group = ranks_group_there(ranks);
    return group ? ek_dist_sum(x, group) : NULL;
}

/* ---- counts: they are payloads of descriptors ---- */

/* Copies the numbers of all ranks to work->user. */
static int ranks_counts_go_on(ek_dist_work *work)
{
    char *all = work->user;
    for (int r = 0; r < work->group->size; r++)
        memcpy(all + (size_t)r * work->descriptor.nbytes, ek_group_payload(work->group, r),
               work->descriptor.nbytes);
    return 0;
}
static const ek_verb counts_verb = {EK_VERB_COUNTS, .go_on = ranks_counts_go_on};
_Static_assert(EK_RANKS_COUNTS * sizeof(int64_t) <= EK_DESCRIPTOR_PAYLOAD,
               "a descriptor has room for them");

typedef struct ranks_counts {
    const int64_t *mine;
    int count;
    int64_t *all;
} ranks_counts;

static int ranks_run_gather(ek_process_group *group, void *user)
{
    const ranks_counts *call = user;
    const char *what = ek_verb_name(EK_VERB_COUNTS);
    if (call->count < 0 || call->count > EK_RANKS_COUNTS)
        return EK_FAIL(EK_E_INVALID, "%s: %d of them; at most %d", what, call->count,
                       EK_RANKS_COUNTS);
    EK_TRY(ek_check_meeting(what));
    ek_dist_work *work = ek_dist_work_new(group, &counts_verb, 0);
    if (!work)
        return ek_error_pending();
    work->descriptor.shape = (ek_wire_shape){EK_I64, 1, {call->count}};
    work->descriptor.nbytes = (uint32_t)((size_t)call->count * sizeof *call->mine);
    memcpy(work->descriptor.payload, call->mine, work->descriptor.nbytes);
    work->user = call->all;
    return ek_dist_work_run(work);
}

static int ranks_gather(ek_ranks *ranks, const int64_t *mine, int count, int64_t *all)
{
    ek_process_group *group = ranks_group_there(ranks);
    ranks_counts call = {mine, count, all};
    return group ? ek_group_call(ek_verb_name(EK_VERB_COUNTS), group, ranks_run_gather, &call)
                 : ek_error_pending();
}

static int ranks_agree(ek_ranks *ranks, int rc)
{
    ek_process_group *group = rc < 0 ? ranks_group(ranks) : ranks_group_there(ranks);
    if (rc >= 0 && group)
        return ek_dist_barrier(.group = group);
    return ek_world_outcome(group, ek_error_pending());
}

/* ---- waits ---- */

static uint64_t ranks_waits(ek_ranks *ranks, ek_ranks_wait *of)
{
    const ek_process_group *group = ranks_group(ranks);
    ek_communication *communication = group ? group->communication : NULL;
    if (!communication)
        return 0;
    pthread_mutex_lock(&communication->lock);
    for (int r = 0; r < group->size; r++)
        of[r] = communication->waits.of[group->ranks[r]];
    uint64_t exposed = communication->waits.exposed;
    pthread_mutex_unlock(&communication->lock);
    return exposed;
}

/* ---- the object ---- */

static void ranks_destroy(ek_object *object)
{
    free(object);
}

/* Takes the group away from its view, because the group will be freed. */
static void ranks_forget(ek_process_group *group)
{
    if (group->view)
        ((process_ranks *)group->view)->group = NULL;
    ek_object_release(group->view);
    group->view = NULL;
}

ek_ranks *ek_process_group_ranks(ek_process_group *group)
{
    group = group ? group : ek_dist_world();
    if (!group || group->size == 1 || group->rank < 0)
        return NULL;
    if (group->view)
        return ek_object_retain(group->view);
    process_ranks *made = ek_calloc(1, sizeof *made);
    if (!made)
        return NULL;
    ek_object_init(&made->ranks.object, ranks_destroy);
    made->ranks.rank = group->rank;
    made->ranks.size = group->size;
    made->ranks.host = group->communication->hosts[group->ranks[group->rank]];
    made->ranks.join = ranks_join;
    made->ranks.sum = ranks_sum;
    made->ranks.gather = ranks_gather;
    made->ranks.agree = ranks_agree;
    made->ranks.waits = ranks_waits;
    made->group = group;
    group->view = &made->ranks;
    group->forget_view = ranks_forget;
    return ek_object_retain(group->view);
}
