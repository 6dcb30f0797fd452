/* calls.c: the public calls on tensors. Each checks its arguments, makes a work of them, and waits
 * for it unless the caller does that. A call that is wrong on this rank is an error of all ranks,
 * since the others wait for it. */
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/thread.h"
#include "distributed/collective.h"
#include "distributed/combine.h"
#include "distributed/rail.h"
#include "distributed/world.h"

/* ---- what the calls have in common ---- */

static int calls_check_tensor(const char *what, const char *operand, const ek_tensor *tensor,
                              bool receives)
{
    EK_TRY(ek_check_given(what, operand, tensor));
    if (receives && ek_repeats(tensor))
        return EK_FAIL(EK_E_INVALID,
                       "%s: elements of %s repeat in memory (stride 0), so that nothing can be "
                       "received there",
                       what, operand);
    return 0;
}

/* Submits the work, and waits unless the caller has asked for the work. */
static int calls_finish(ek_dist_work *work, ek_dist_work **async)
{
    if (!async)
        return ek_dist_work_run(work);
    EK_TRY(ek_dist_work_submit(work));
    *async = work;
    return 0;
}

/* The error of a call that could not be submitted, which becomes all ranks'. Errors of submitted
 * works are theirs already. */
static int calls_refuse(const ek_process_group *group, ek_dist_work *work)
{
    ek_dist_work_free(work);
    return ek_world_outcome(group, ek_error_pending());
}

/* ---- one tensor on every rank ---- */

/* op: -1 for broadcast. root: rank in the group, or -1. */
static int calls_one(const ek_dist_call *call, ek_process_group *group, const ek_verb *verb, int op,
                     int root)
{
    bool sends = op >= 0 || root == group->rank;
    bool receives = op < 0 ? root != group->rank : root < 0 || root == group->rank;
    ek_dist_work *work = ek_dist_work_of(group, verb, 1);
    if (!work)
        return calls_refuse(group, NULL);
    work->card.root = root;
    work->card.op = op;
    if (ek_comm_nbytes(call->tensor) > EK_CARD_PAYLOAD && ek_dist_work_rail(work, call->tensor) < 0)
        return calls_refuse(group, work);
    if (ek_dist_work_add(work, call->tensor, sends, receives) < 0)
        return calls_refuse(group, work);
    ek_dist_work_card(work);
    if (op >= 0 && ek_dist_work_sum(work) < 0)
        return calls_refuse(group, work);
    if (op < 0 && work->rail)
        ek_rail_run_broadcast(work->rail, work->tensors[0].memory, root);
    return calls_finish(work, call->work);
}

/* Checks a call, and makes it if there are several ranks. `rooted`: it has a root. */
static int calls_tensor(const ek_dist_call *call, const ek_verb *verb, bool reduces, bool rooted)
{
    const char *what = ek_verb_name(verb->id);
    ek_process_group *group;
    if (call->work)
        *call->work = NULL;
    int part = ek_world_group(what, call->group, &group);
    if (part <= 0)
        return part;
    int root = -1;
    int rc = calls_check_tensor(what, "tensor", call->tensor, true);
    if (rc >= 0 && reduces)
        rc = ek_combine_check(what, call->op, call->tensor->dtype);
    if (rc >= 0 && rooted)
        rc = root = ek_world_root(what, group, call->rank);
    if (rc < 0)
        return ek_world_outcome(group, rc);
    return group->size > 1 ? calls_one(call, group, verb, reduces ? (int)call->op : -1, root) : 0;
}

int ek_dist_broadcast_with(ek_dist_call call)
{
    return calls_tensor(&call, &ek_verb_broadcast, false, true);
}

int ek_dist_all_reduce_with(ek_dist_call call)
{
    return calls_tensor(&call, &ek_verb_all_reduce, true, false);
}

int ek_dist_reduce_with(ek_dist_call call)
{
    return calls_tensor(&call, &ek_verb_reduce, true, true);
}

/* ---- barriers ---- */

static int calls_barrier(ek_process_group *given, double seconds, bool first_only,
                         ek_dist_work **async)
{
    ek_process_group *group;
    if (async)
        *async = NULL;
    int part = ek_world_group("barrier", given, &group);
    if (part <= 0 || group->size == 1)
        return part < 0 ? part : 0;
    ek_dist_work *work = ek_dist_work_new(group, &ek_verb_barrier);
    if (!work)
        return calls_refuse(group, NULL);
    if (seconds > 0)
        work->timeout = seconds;
    work->first_missing_only = first_only;
    return calls_finish(work, async);
}

int ek_dist_barrier_with(ek_dist_call call)
{
    return calls_barrier(call.group, 0, false, call.work);
}

int ek_dist_monitored_barrier(double seconds, bool wait_all_ranks, ek_process_group *group)
{
    if (!(seconds > 0))
        return ek_world_outcome(
            group,
            EK_FAIL(EK_E_INVALID,
                    "monitored_barrier: a time-out of %g seconds; it must be positive", seconds));
    return calls_barrier(group, seconds, !wait_all_ranks, NULL);
}

/* ---- messages ---- */

/* The group of a message, or NULL with *part as of ek_world_group. */
static ek_process_group *calls_check_message(const ek_dist_call *call, const ek_verb *verb,
                                             int *part)
{
    const char *what = ek_verb_name(verb->id);
    bool sends = verb == &ek_verb_send;
    ek_process_group *group;
    *part = ek_world_group(what, call->group, &group);
    if (*part <= 0)
        return NULL;
    int rc = calls_check_tensor(what, "tensor", call->tensor, !sends);
    if (rc >= 0 && (sends || call->rank != EK_DIST_ANY))
        rc = ek_world_root(what, group, call->rank);
    if (rc >= 0 && call->rank == group->ranks[group->rank])
        rc = EK_FAIL(EK_E_INVALID, "%s: rank %d is this process itself", what, call->rank);
    if (rc >= 0 && call->tag < 0)
        rc = EK_FAIL(EK_E_INVALID, "%s: tag %d; tags are not negative", what, call->tag);
    if (rc >= 0 && group->size == 1)
        rc = EK_FAIL(EK_E_INVALID, "%s: %s has no other rank", what, group->name);
    *part = rc < 0 ? ek_world_outcome(group, rc) : 1;
    return rc < 0 ? NULL : group;
}

static ek_dist_work *calls_message(const ek_dist_call *call, ek_process_group *group,
                                   const ek_verb *verb)
{
    bool sends = verb == &ek_verb_send;
    ek_dist_work *work = ek_dist_work_of(group, verb, 1);
    if (!work) {
        calls_refuse(group, NULL);
        return NULL;
    }
    work->peer = call->rank;
    work->tag = call->tag;
    if (ek_dist_work_add(work, call->tensor, sends, !sends) < 0) {
        calls_refuse(group, work);
        return NULL;
    }
    return ek_dist_work_submit(work) < 0 ? NULL : work;
}

static int calls_send_or_receive(const ek_dist_call *call, const ek_verb *verb)
{
    int part;
    if (call->work)
        *call->work = NULL;
    ek_process_group *group = calls_check_message(call, verb, &part);
    if (!group)
        return part;
    ek_dist_work *work = calls_message(call, group, verb);
    if (!work)
        return ek_error_pending();
    if (!call->work)
        return ek_dist_wait(work);
    *call->work = work;
    return 0;
}

static ek_dist_work *calls_start_message(const ek_dist_call *call, const ek_verb *verb)
{
    int part;
    ek_process_group *group = calls_check_message(call, verb, &part);
    return group ? calls_message(call, group, verb) : NULL;
}

int ek_dist_send_with(ek_dist_call call)
{
    return calls_send_or_receive(&call, &ek_verb_send);
}

int ek_dist_recv_with(ek_dist_call call)
{
    return calls_send_or_receive(&call, &ek_verb_recv);
}

ek_dist_work *ek_dist_isend_with(ek_dist_call call)
{
    return calls_start_message(&call, &ek_verb_send);
}

ek_dist_work *ek_dist_irecv_with(ek_dist_call call)
{
    return calls_start_message(&call, &ek_verb_recv);
}

/* ---- a tensor for each pair of ranks ---- */

/* Adds tensors to the work, as what this rank gives to, or takes from, rank `rank` of the group;
 * all of them if `rank` is negative. `several`: a tensor per rank, else the same one for all. */
static int calls_add_pairs(ek_dist_work *work, ek_tensor *const *tensors, bool several, int rank,
                           bool gives)
{
    ek_dist_work_tensor *one = NULL;
    for (int r = 0; r < work->group->size; r++) {
        if (rank >= 0 && r != rank)
            continue;
        if (several || !one) {
            EK_TRY(ek_dist_work_add(work, several ? tensors[r] : tensors[0], gives, !gives));
            one = &work->tensors[work->count - 1];
        }
        ek_bytes bytes = {ek_tensor_address(one->memory), ek_comm_nbytes(one->memory)};
        (gives ? work->out : work->in)[r] = bytes;
        (gives ? work->gives : work->takes)[r] = ek_wire_shape_of(one->memory);
    }
    return 0;
}

/* Checks that a list is given, if this rank needs one, and is not, if it doesn't. */
static int calls_check_list(const char *what, const char *operand, ek_tensor *const *list, int size,
                            bool needed, bool receives)
{
    if (!needed && list)
        return EK_FAIL(EK_E_INVALID, "%s: %s is given, but only the root has one", what, operand);
    if (!needed)
        return 0;
    if (!list)
        return EK_FAIL(EK_E_INVALID, "%s: %s is NULL; it has a tensor for each of %d ranks", what,
                       operand, size);
    for (int r = 0; r < size; r++)
        EK_TRY(calls_check_tensor(what, operand, list[r], receives));
    return 0;
}

/* How a call's tensor and list become what ranks give to each other. */
typedef struct pattern {
    const ek_verb *verb;
    bool rooted;       /* only the root has a list */
    bool tensor_gives; /* the tensor goes out and the list comes in; else the reverse */
    bool inputs;       /* `inputs` goes out, instead of the tensor */
    bool reduces;
} pattern;

/* The tensor of reduce_scatter is written at the end; what comes in lies in memory of its own. */
static int calls_add_terms(ek_dist_work *work, ek_tensor *tensor)
{
    EK_TRY(ek_dist_work_add(work, tensor, false, true));
    int ranks = work->group->size;
    const ek_tensor *memory = work->tensors[0].memory;
    size_t nbytes = (ek_comm_nbytes(memory) + 63) / 64 * 64,
           pointers = (size_t)ranks * sizeof(void *);
    pointers = (pointers + 63) / 64 * 64;
    char *room = ek_calloc(pointers + (work->rail ? 0 : nbytes * (size_t)ranks), 1);
    if (!room)
        return ek_error_pending();
    work->user = work->room = room;
    char *terms = room + pointers;
    if (work->rail) {
        EK_TRY(ek_rail_run_room(work->rail, nbytes * (size_t)ranks + 1));
        terms = ek_tensor_address(work->rail->scratch);
    }
    for (int r = 0; r < ranks; r++) {
        work->in[r] = (ek_bytes){terms + nbytes * (size_t)r, ek_comm_nbytes(memory)};
        work->takes[r] = ek_wire_shape_of(memory);
    }
    return 0;
}

static int calls_fill(ek_dist_work *work, const ek_dist_list_call *call, const pattern *how,
                      int root)
{
    bool listed = !how->rooted || root == work->group->rank;
    const ek_tensor *first = how->inputs ? call->inputs[0] : call->tensor;
    EK_TRY(ek_dist_work_rail(work, first));
    EK_TRY(ek_dist_work_pairs(work));
    if (how->reduces) {
        EK_TRY(calls_add_terms(work, call->tensor));
        return calls_add_pairs(work, call->list, true, -1, true);
    }
    if (how->inputs)
        EK_TRY(calls_add_pairs(work, call->inputs, true, -1, true));
    else
        EK_TRY(calls_add_pairs(work, &call->tensor, false, root, how->tensor_gives));
    return listed ? calls_add_pairs(work, call->list, true, -1, !how->tensor_gives && !how->inputs)
                  : 0;
}

static int calls_check_pattern(const ek_dist_list_call *call, const pattern *how,
                               const ek_process_group *group, int root)
{
    const char *what = ek_verb_name(how->verb->id);
    bool listed = !how->rooted || root == group->rank;
    bool list_receives = how->tensor_gives || how->inputs;
    if (how->inputs)
        EK_TRY(calls_check_list(what, "inputs", call->inputs, group->size, true, false));
    else
        EK_TRY(calls_check_tensor(what, "tensor", call->tensor, !how->tensor_gives));
    EK_TRY(calls_check_list(what, "list", call->list, group->size, listed, list_receives));
    if (how->reduces)
        EK_TRY(ek_combine_check(what, call->op, call->tensor->dtype));
    return 0;
}

/* With one rank, what it gives is what it gets. */
static int calls_alone(const ek_dist_list_call *call, const pattern *how)
{
    ek_tensor *given = how->inputs         ? call->inputs[0]
                       : how->tensor_gives ? call->tensor
                                           : call->list[0];
    ek_tensor *taken = how->tensor_gives || how->inputs ? call->list[0] : call->tensor;
    ek_wire_shape gives = ek_wire_shape_of(given), takes = ek_wire_shape_of(taken);
    char given_text[120], taken_text[120];
    ek_wire_shape_text(&gives, given_text);
    ek_wire_shape_text(&takes, taken_text);
    if (memcmp(&gives, &takes, sizeof gives) != 0)
        return EK_FAIL(gives.dtype != takes.dtype ? EK_E_DTYPE : EK_E_SHAPE,
                       "%s: %s is given, but %s awaited", ek_verb_name(how->verb->id), given_text,
                       taken_text);
    EK_TRY(ek_comm_copy(taken, given));
    ek_tensor_written(taken, ek_verb_name(how->verb->id));
    return 0;
}

static int calls_pairs(const ek_dist_list_call *call, const pattern *how)
{
    const char *what = ek_verb_name(how->verb->id);
    ek_process_group *group;
    if (call->work)
        *call->work = NULL;
    int part = ek_world_group(what, call->group, &group);
    if (part <= 0)
        return part;
    int root = how->rooted ? ek_world_root(what, group, call->rank) : -1;
    int rc = how->rooted && root < 0 ? root : calls_check_pattern(call, how, group, root);
    if (rc >= 0 && group->size == 1)
        return calls_alone(call, how);
    ek_dist_work *work = rc >= 0 ? ek_dist_work_of(group, how->verb, 2 * group->size + 1) : NULL;
    if (!work)
        return calls_refuse(group, NULL);
    work->card.root = root;
    work->card.op = how->reduces ? (int)call->op : -1;
    if (calls_fill(work, call, how, root) < 0)
        return calls_refuse(group, work);
    if (work->rail)
        ek_rail_run_pairs(work->rail, work, how->reduces ? (int)call->op : -1);
    return calls_finish(work, call->work);
}

int ek_dist_all_gather_with(ek_dist_list_call call)
{
    return calls_pairs(&call, &(pattern){&ek_verb_all_gather, .tensor_gives = true});
}

int ek_dist_gather_with(ek_dist_list_call call)
{
    return calls_pairs(&call, &(pattern){&ek_verb_gather, .rooted = true, .tensor_gives = true});
}

int ek_dist_scatter_with(ek_dist_list_call call)
{
    return calls_pairs(&call, &(pattern){&ek_verb_scatter, .rooted = true});
}

int ek_dist_reduce_scatter_with(ek_dist_list_call call)
{
    return calls_pairs(&call, &(pattern){&ek_verb_reduce_scatter, .reduces = true});
}

int ek_dist_all_to_all_with(ek_dist_list_call call)
{
    return calls_pairs(&call, &(pattern){&ek_verb_all_to_all, .inputs = true});
}
