/* calls.c: the public calls on tensors. Each call checks its arguments, makes a work and submits
 * the work. Then it waits for the work, or returns the work if the caller asks for the work. */
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/thread.h"
#include "group/collective.h"
#include "group/rail.h"
#include "group/world.h"
#include "link/combine.h"

/* ---- what the calls have in common ---- */

/* The options of all kinds of calls. */
typedef struct calls_options {
    ek_process_group *group;
    ek_dist_work **work;
    ek_tensor *tensor;
    ek_tensor *const *list, *const *inputs;
    int rank; /* the source or the destination */
    int tag;
    ek_dist_op op;
} calls_options;

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

/* Submits the work. If `async` is NULL, waits for the work, else writes the work there. If rc, the
 * outcome of filling the work, is negative, frees the work (may be NULL) and returns rc. */
static int calls_finish(ek_dist_work *work, int rc, ek_dist_work **async)
{
    if (rc < 0)
        ek_dist_work_free(work);
    EK_TRY(rc);
    if (!async)
        return ek_dist_work_run(work);
    EK_TRY(ek_dist_work_submit(work));
    *async = work;
    return 0;
}

/* How a kind of call uses its tensors. */
typedef struct pattern {
    const ek_verb *verb;
    bool rooted;       /* there is a root; if the call has a list, the root alone has one */
    bool tensor_gives; /* the tensor is sent and the list receives; else the reverse */
    bool inputs;       /* `inputs` is sent and the list receives; there is no tensor */
    bool reduces;      /* the ranks' tensors are combined */
} pattern;

typedef struct calls_call {
    const calls_options *options;
    const pattern *how;
} calls_call;

static int calls_make(const calls_options *options, const pattern *how,
                      int (*run)(ek_process_group *group, void *user))
{
    calls_call call = {options, how};
    if (options->work)
        *options->work = NULL;
    return ek_group_call(ek_verb_name(how->verb->id), options->group, run, &call);
}

/* ---- one tensor on every rank ---- */

/* Checks a call, and makes the call if there are several ranks. */
static int calls_run_one(ek_process_group *group, void *user)
{
    const calls_options *call = ((const calls_call *)user)->options;
    const pattern *how = ((const calls_call *)user)->how;
    const char *what = ek_verb_name(how->verb->id);
    int root = -1;
    EK_TRY(calls_check_tensor(what, "tensor", call->tensor, true));
    if (how->reduces)
        EK_TRY(ek_combine_check(what, call->op, call->tensor->dtype));
    if (how->rooted)
        EK_TRY(root = ek_world_root(what, group, call->rank));
    if (group->size == 1)
        return 0;
    ek_dist_work *work = ek_dist_work_new(group, how->verb, 1);
    int rc = work ? ek_dist_work_one(work, call->tensor, how->reduces ? (int)call->op : -1, root)
                  : ek_error_pending();
    return calls_finish(work, rc, call->work);
}

int ek_dist_broadcast_with(ek_dist_broadcast_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .rank = options.src};
    return calls_make(&call, &(pattern){&ek_verb_broadcast, .rooted = true}, calls_run_one);
}

int ek_dist_all_reduce_with(ek_dist_all_reduce_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .op = options.op};
    return calls_make(&call, &(pattern){&ek_verb_all_reduce, .reduces = true}, calls_run_one);
}

int ek_dist_reduce_with(ek_dist_reduce_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .rank = options.dst,
                                .op = options.op};
    return calls_make(&call, &(pattern){&ek_verb_reduce, .rooted = true, .reduces = true},
                      calls_run_one);
}

/* ---- barriers ---- */

typedef struct calls_barrier {
    bool monitored, first_only;
    double seconds; /* the time-out, if monitored */
    ek_dist_work **async;
} calls_barrier;

static int calls_run_barrier(ek_process_group *group, void *user)
{
    const calls_barrier *call = user;
    if (call->monitored && !(call->seconds > 0))
        return EK_FAIL(EK_E_INVALID,
                       "monitored_barrier: a time-out of %g seconds; it must be positive",
                       call->seconds);
    if (group->size == 1)
        return 0;
    ek_dist_work *work = ek_dist_work_new(group, &ek_verb_barrier, 0);
    if (!work)
        return ek_error_pending();
    if (call->monitored)
        work->timeout = call->seconds;
    work->first_missing_only = call->first_only;
    return calls_finish(work, 0, call->async);
}

int ek_dist_barrier_with(ek_dist_barrier_options options)
{
    calls_barrier barrier = {.async = options.work};
    if (options.work)
        *options.work = NULL;
    return ek_group_call("barrier", options.group, calls_run_barrier, &barrier);
}

int ek_dist_monitored_barrier(double seconds, bool wait_all_ranks, ek_process_group *group)
{
    calls_barrier barrier = {true, !wait_all_ranks, seconds, NULL};
    return ek_group_call("barrier", group, calls_run_barrier, &barrier);
}

/* ---- messages ---- */

typedef struct calls_message {
    const calls_options *call;
    const ek_verb *verb;
    ek_dist_work *work; /* the submitted work */
} calls_message;

static int calls_check_message(const calls_options *call, const ek_verb *verb,
                               const ek_process_group *group)
{
    const char *what = ek_verb_name(verb->id);
    bool sends = verb == &ek_verb_send;
    EK_TRY(calls_check_tensor(what, "tensor", call->tensor, !sends));
    if (sends || call->rank != EK_DIST_ANY)
        EK_TRY(ek_world_root(what, group, call->rank));
    if (call->rank == group->ranks[group->rank])
        return EK_FAIL(EK_E_INVALID, "%s: rank %d is this process itself", what, call->rank);
    if (call->tag < 0)
        return EK_FAIL(EK_E_INVALID, "%s: tag %d; tags are not negative", what, call->tag);
    if (group->size == 1)
        return EK_FAIL(EK_E_INVALID, "%s: %s has no other rank", what, group->name);
    return 0;
}

static int calls_start_message(ek_process_group *group, void *user)
{
    calls_message *message = user;
    const calls_options *call = message->call;
    bool sends = message->verb == &ek_verb_send;
    EK_TRY(calls_check_message(call, message->verb, group));
    ek_dist_work *work = ek_dist_work_new(group, message->verb, 1);
    if (!work)
        return ek_error_pending();
    work->peer = call->rank;
    work->tag = call->tag;
    int rc = ek_dist_work_add(work, call->tensor, sends, !sends);
    return calls_finish(work, rc, &message->work);
}

static int calls_send_or_receive(const calls_options *call, const ek_verb *verb)
{
    calls_message message = {call, verb, NULL};
    if (call->work)
        *call->work = NULL;
    EK_TRY(ek_group_call(ek_verb_name(verb->id), call->group, calls_start_message, &message));
    if (!call->work)
        return ek_dist_wait(message.work);
    *call->work = message.work;
    return 0;
}

int ek_dist_send_with(ek_dist_message_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .rank = options.rank,
                                .tag = options.tag};
    return calls_send_or_receive(&call, &ek_verb_send);
}

int ek_dist_recv_with(ek_dist_message_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .rank = options.rank,
                                .tag = options.tag};
    return calls_send_or_receive(&call, &ek_verb_recv);
}

/* ---- a tensor for each pair of ranks ---- */

/* Adds the tensor that this rank gives to rank `rank` of the group, or takes from that rank. If
 * `rank` is negative, adds the tensors for all ranks. If `several`, each rank has its own tensor.
 * Otherwise tensors[0] is for all ranks. */
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

/* Checks that a list is given if and only if this rank needs one, and checks the list's tensors. */
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

/* Adds the tensor of reduce_scatter, which receives the result, and memory for the ranks' terms. */
static int calls_add_terms(ek_dist_work *work, ek_tensor *tensor)
{
    EK_TRY(ek_dist_work_add(work, tensor, false, true));
    EK_TRY(ek_dist_work_terms(work));
    for (int r = 0; r < work->group->size; r++)
        work->takes[r] = ek_wire_shape_of(work->tensors[0].memory);
    return 0;
}

static int calls_fill(ek_dist_work *work, const calls_options *call, const pattern *how, int root)
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

static int calls_check_pattern(const calls_options *call, const pattern *how,
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

/* Makes a call in a group of one rank, which takes what it gives. */
static int calls_alone(const calls_options *call, const pattern *how)
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

static int calls_run_list(ek_process_group *group, void *user)
{
    const calls_options *call = ((const calls_call *)user)->options;
    const pattern *how = ((const calls_call *)user)->how;
    int root = -1, op = how->reduces ? (int)call->op : -1;
    if (how->rooted)
        EK_TRY(root = ek_world_root(ek_verb_name(how->verb->id), group, call->rank));
    EK_TRY(calls_check_pattern(call, how, group, root));
    if (group->size == 1)
        return calls_alone(call, how);
    ek_dist_work *work = ek_dist_work_new(group, how->verb, 2 * group->size + 1);
    if (!work)
        return ek_error_pending();
    work->descriptor.root = root;
    work->descriptor.op = op;
    int rc = calls_fill(work, call, how, root);
    if (rc >= 0 && work->rail)
        ek_rail_run_pairs(work->rail, work, op);
    return calls_finish(work, rc, call->work);
}

int ek_dist_all_gather_with(ek_dist_all_gather_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .list = options.list};
    return calls_make(&call, &(pattern){&ek_verb_all_gather, .tensor_gives = true}, calls_run_list);
}

int ek_dist_gather_with(ek_dist_gather_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .list = options.list,
                                .rank = options.dst};
    return calls_make(&call, &(pattern){&ek_verb_gather, .rooted = true, .tensor_gives = true},
                      calls_run_list);
}

int ek_dist_scatter_with(ek_dist_scatter_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .list = options.list,
                                .rank = options.src};
    return calls_make(&call, &(pattern){&ek_verb_scatter, .rooted = true}, calls_run_list);
}

int ek_dist_reduce_scatter_with(ek_dist_reduce_scatter_options options)
{
    const calls_options call = {options.group, options.work, options.tensor, .list = options.list,
                                .op = options.op};
    return calls_make(&call, &(pattern){&ek_verb_reduce_scatter, .reduces = true}, calls_run_list);
}

int ek_dist_all_to_all_with(ek_dist_all_to_all_options options)
{
    const calls_options call = {options.group, options.work, .list = options.list,
                                .inputs = options.inputs};
    return calls_make(&call, &(pattern){&ek_verb_all_to_all, .inputs = true}, calls_run_list);
}
