/* reducer.c: see reducer.h. */
#include "train/reducer.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/ops.h"
#include "group/world.h"
#include "nn/module_table.h"
#include "train/rank_sharding.h"

/* ---- the hook: Note [Unused parameters] ---- */

/* Moves the leaf's gradient to the leaf's place in the slab, if the gradient lies elsewhere. If the
 * leaf has no gradient, zeroes the place. Units have no slab. */
static int reducer_settle(const ek_reducer *reducer, ek_tensor *leaf)
{
    ek_tensor *buffer = leaf->grad_buffer;
    if (ek_reducer_has_units(reducer))
        return 0;
    if (!leaf->grad)
        return ek_dev_zero(ek_tensor_dev(buffer), ek_tensor_address(buffer),
                           ek_comm_nbytes(buffer));
    return leaf->grad == buffer ? 0 : ek_leaf_set_grad_buffer(leaf, buffer);
}

/* Notes that the leaf's gradient has come. The last leaf of a bucket makes the bucket ready. */
static int reducer_leaf_is_settled(ek_reducer *reducer, int leaf)
{
    for (int b = reducer->bucket_of[leaf]; b < reducer->bucket_count; b++) {
        ek_bucket *bucket = &reducer->buckets[b];
        if (leaf < bucket->first || leaf >= bucket->end)
            return 0;
        pthread_mutex_lock(&reducer->lock);
        bool last = --bucket->pending == 0;
        pthread_mutex_unlock(&reducer->lock);
        if (!last)
            continue;
        EK_TRY(ek_bucket_fetch(reducer, bucket));
        ek_reducer_ready(reducer, bucket);
    }
    return 0;
}

static int reducer_check(const ek_reducer *reducer)
{
    if (!reducer->group->communication)
        return EK_FAIL(EK_E_STATE, "the process group that gradients are averaged over was "
                                   "destroyed");
    if (reducer->pass != EK_PASS_NONE)
        return EK_FAIL(EK_E_STATE,
                       "a backward through this ek_distributed_data_parallel is under way on "
                       "another thread; ranks could not tell the two apart");
    for (int i = 0; i < reducer->count; i++) {
        const ek_bucket *bucket = &reducer->buckets[reducer->bucket_of[i]];
        const ek_tensor *leaf = reducer->leaves[i], *buffer = leaf->grad_buffer;
        bool there = bucket->range ? buffer && buffer->storage == bucket->range->storage
                                   : ek_rank_sharding_has(reducer->sharding, leaf);
        if (!there)
            return EK_FAIL(EK_E_STATE,
                           "parameter %d was moved, converted or sharded after "
                           "ek_distributed_data_parallel was made; wrap the module anew",
                           i);
    }
    return 0;
}

typedef struct reducer_call {
    ek_reducer *reducer;
    const int *leaves; /* for begin: the leaves that take part */
    int count;
    bool create_graph, meets;
    int status; /* for finish: the outcome of this rank's backward */
} reducer_call;

static const char reducer_name[] = "the reduction of gradients";

/* Drops the gradients of the leaves that took part in a failed backward, because they differ
 * between ranks. The pending error stays pending. */
static void reducer_drop(ek_reducer *reducer)
{
    ek_error_record error;
    ek_error_take(&error);
    for (int i = 0; i < reducer->count; i++) {
        if (reducer->taking_part[i] || ek_reducer_has_units(reducer))
            ek_tensor_set_grad(reducer->leaves[i], NULL);
        if (ek_reducer_has_units(reducer)) /* slices of the mean may have been added */
            ek_leaf_drop_shard_gradients(reducer->leaves[i]);
    }
    ek_error_clear();
    ek_error_raise(&error);
}

/* Settles the gradients of leaves that don't take part in this pass. */
static int reducer_settle_others(ek_reducer *reducer)
{
    for (int i = 0; i < reducer->count; i++) {
        if (reducer->taking_part[i])
            continue;
        EK_TRY(reducer_settle(reducer, reducer->leaves[i]));
        EK_TRY(reducer_leaf_is_settled(reducer, i));
    }
    return 0;
}

static int reducer_run_begin(ek_process_group *group, void *user)
{
    const reducer_call *call = user;
    ek_reducer *reducer = call->reducer;
    (void)group; /* the reducer has the group */
    EK_TRY(reducer_check(reducer));
    if (reducer->sharding)
        EK_TRY(ek_rank_sharding_begin(reducer->sharding, reducer->armed));
    if (!reducer->armed) {
        reducer->pass = EK_PASS_LOCAL;
        return 0;
    }
    reducer->meets = call->meets;
    memset(reducer->taking_part, 0, (size_t)reducer->count * sizeof(bool));
    for (int k = 0; k < call->count; k++)
        reducer->taking_part[call->leaves[k]] = true;
    if (call->create_graph) {
        reducer->pass = EK_PASS_GRAPH;
        return 0;
    }
    for (int b = 0; b < reducer->bucket_count; b++) {
        reducer->buckets[b].pending = reducer->buckets[b].end - reducer->buckets[b].first;
        reducer->buckets[b].ready = false;
    }
    memset(reducer->reports->present, 0, reducer->report_nbytes - sizeof *reducer->reports);
    EK_TRY(ek_reducer_pass_begin(reducer));
    reducer->pass = EK_PASS_REDUCED;
    reducer->stats.backwards++;
    int rc = reducer_settle_others(reducer);
    if (rc < 0) { /* backward will not call finish */
        rc = ek_reducer_pass_end(reducer, rc);
        if (ek_reducer_has_units(reducer))
            reducer_drop(reducer);
        reducer->pass = EK_PASS_NONE;
    }
    return rc;
}

static int reducer_begin(ek_grad_hook *hook, const int *leaves, int count, bool create_graph,
                         bool meets)
{
    ek_reducer *reducer = (ek_reducer *)hook;
    reducer_call call = {reducer, leaves, count, create_graph, meets, 0};
    return ek_group_call(reducer_name, reducer->group, reducer_run_begin, &call);
}

static int reducer_arrived(ek_grad_hook *hook, int leaf, bool some)
{
    ek_reducer *reducer = (ek_reducer *)hook;
    (void)some;
    if (reducer->pass != EK_PASS_REDUCED)
        return 0;
    EK_TRY(reducer_settle(reducer, reducer->leaves[leaf]));
    return reducer_leaf_is_settled(reducer, leaf);
}

/* Takes the gradients that any rank has. */
static int reducer_take(ek_reducer *reducer)
{
    for (int b = 0; b < reducer->bucket_count; b++)
        reducer->stats.nbytes += ek_bucket_nbytes(&reducer->buckets[b]);
    reducer->stats.buckets += (uint64_t)reducer->bucket_count;
    for (int i = 0; i < reducer->count; i++) {
        ek_tensor *leaf = reducer->leaves[i];
        if (!ek_reducer_is_present(reducer, i))
            continue;
        if (leaf->grad_buffer)
            ek_tensor_written(leaf->grad_buffer, reducer_name);
        if (reducer->sharding)
            EK_TRY(ek_rank_sharding_take(reducer->sharding, i));
        else if (!leaf->grad)
            EK_TRY(ek_tensor_set_grad(leaf, leaf->grad_buffer));
    }
    return 0;
}

/* ---- the end of a pass ---- */

static int reducer_run_finish(ek_process_group *group, void *user)
{
    const reducer_call *call = user;
    ek_reducer *reducer = call->reducer;
    (void)group; /* the reducer has the group */
    if (reducer->pass == EK_PASS_GRAPH && call->status >= 0)
        return ek_reducer_average_in_graph(reducer);
    /* The other ranks' backward may wait for this rank. The boundary tells them of an error. */
    if (reducer->pass != EK_PASS_REDUCED)
        return call->status;
    for (int i = 0; i < reducer->count && !ek_reducer_has_units(reducer); i++)
        if (reducer->leaves[i]->grad)
            ek_reducer_report_gradient(reducer, i);
    int rc = ek_reducer_pass_end(reducer, call->status);
    if (rc >= 0)
        rc = reducer_take(reducer);
    if (rc < 0)
        reducer_drop(reducer);
    return rc;
}

static int reducer_finish(ek_grad_hook *hook, int status)
{
    ek_reducer *reducer = (ek_reducer *)hook;
    reducer_call call = {.reducer = reducer, .status = status};
    int rc = ek_group_call(reducer_name, reducer->group, reducer_run_finish, &call);
    reducer->pass = EK_PASS_NONE;
    return rc < 0 ? rc : 0;
}

/* ---- lanes: Note [Lanes] ---- */

static int reducer_make_schedules(ek_reducer *reducer)
{
    const ek_process_group *group = reducer->group;
    for (int way = 0; way < EK_SUM_WAYS; way++)
        if (!(reducer->schedules[way] = ek_sum_schedule_new(group->size, group->rank,
                                                            ek_sum_block(group), (ek_sum_way)way)))
            return ek_error_pending();
    return 0;
}

/* Makes a lane with memory for the sums of any bucket. */
static int reducer_make_lane(ek_reducer *reducer, int number, size_t scratch)
{
    ek_reducer_lane *lane = &reducer->lanes[number];
    lane->number = number;
    lane->scratch = ek_calloc(scratch, 1);
    lane->wire = ek_calloc(reducer->narrow ? reducer->largest : 1, 1);
    lane->requests = ek_calloc(2 * (size_t)reducer->group->size, sizeof *lane->requests);
    if (reducer->bucket_count > 0 && reducer->buckets[0].unit >= 0)
        lane->blank = ek_calloc(reducer->largest, 1);
    return ek_error_status() >= 0 ? 0 : ek_error_pending();
}

/* Makes the lanes. */
static int reducer_make_room(ek_reducer *reducer)
{
    size_t scratch = 1;
    reducer->largest = 1;
    EK_TRY(reducer_make_schedules(reducer));
    for (int b = 0; b < reducer->bucket_count; b++) {
        const ek_bucket *bucket = &reducer->buckets[b];
        size_t nbytes = ek_bucket_nbytes(bucket);
        for (int way = 0; way < EK_SUM_WAYS; way++) {
            size_t needs =
                ek_sum_scratch_nbytes(reducer->schedules[way], bucket->dtype, bucket->count);
            scratch = needs > scratch ? needs : scratch;
        }
        reducer->largest = nbytes > reducer->largest ? nbytes : reducer->largest;
    }
    for (int i = 0; i < EK_LANES; i++)
        EK_TRY(reducer_make_lane(reducer, i, scratch));
    return 0;
}

/* ---- making and freeing ---- */

static void reducer_destroy(ek_object *object)
{
    ek_reducer *reducer = (ek_reducer *)object;
    for (int i = 0; i < reducer->count; i++)
        ek_object_release(reducer->leaves[i]);
    for (int b = 0; b < reducer->bucket_count; b++)
        ek_bucket_close(&reducer->buckets[b]);
    ek_object_release(reducer->window);
    pthread_mutex_destroy(&reducer->lock);
    free(reducer->leaves);
    free(reducer->buckets);
    free(reducer->bucket_of);
    free(reducer->taking_part);
    for (int i = 0; i < EK_LANES; i++) {
        free(reducer->lanes[i].scratch);
        free(reducer->lanes[i].wire);
        free(reducer->lanes[i].blank);
        free(reducer->lanes[i].requests);
    }
    for (int way = 0; way < EK_SUM_WAYS; way++)
        free(reducer->schedules[way]);
    free(reducer->reports);
    free(reducer);
}

static int reducer_allocate(ek_reducer *reducer, const ek_tensor_list *list)
{
    size_t leaves = (size_t)list->count + 1, buckets = 1;
    reducer->report_nbytes = sizeof(ek_pass_report) + (leaves + 63) / 64 * sizeof(uint64_t);
    reducer->leaves = ek_calloc(leaves, sizeof *reducer->leaves);
    for (int i = 0; i < list->count; i++) /* room for the pieces of large leaves */
        buckets += ek_comm_nbytes(list->tensors[i]) / EK_LEAF_PIECE + 1;
    reducer->buckets = ek_calloc(buckets, sizeof *reducer->buckets);
    reducer->bucket_of = ek_calloc(leaves, sizeof *reducer->bucket_of);
    reducer->taking_part = ek_calloc(leaves, sizeof *reducer->taking_part);
    reducer->reports =
        ek_calloc((size_t)ek_rounds_room(reducer->group->size), reducer->report_nbytes);
    if (!reducer->leaves || !reducer->buckets || !reducer->bucket_of || !reducer->taking_part ||
        !reducer->reports)
        return ek_error_pending();
    for (int i = 0; i < list->count; i++)
        if (list->tensors[i]->requires_grad)
            reducer->leaves[reducer->count++] = ek_object_retain(list->tensors[i]);
    return 0;
}

int ek_reducer_complete(ek_reducer *reducer)
{
    EK_TRY(reducer_make_room(reducer));
    for (int i = 0; i < reducer->count; i++)
        EK_TRY(ek_leaf_set_grad_hook(reducer->leaves[i], &reducer->hook, i));
    return 0;
}

/* Makes the reducer's group, slabs, buckets and window, and sets the leaves' hooks. With
 * EK_SHARD_PARAMETERS makes only the group. */
static int reducer_set_up(ek_reducer *reducer, ek_module *module, ek_process_group *group,
                          double bucket_cap_mb, ek_shard_policy shard)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, false, &list));
    reducer->group =
        ek_communication_new_group(group->communication, group->ranks, group->size, group->timeout);
    int rc = reducer->group ? reducer_allocate(reducer, &list) : ek_error_pending();
    ek_tensor_list_clear(&list);
    EK_TRY(rc);
    if (shard == EK_SHARD_PARAMETERS)
        return 0;
    EK_TRY(ek_reducer_make_buckets(reducer, (size_t)(bucket_cap_mb * (1 << 20)),
                                   shard == EK_SHARD_OPTIMIZER));
    return ek_reducer_complete(reducer);
}

int ek_reducer_new(ek_module *module, ek_process_group *group, double bucket_cap_mb, bool narrow,
                   ek_shard_policy shard, ek_reducer **made)
{
    ek_reducer *reducer = ek_calloc(1, sizeof *reducer);
    if (!reducer)
        return ek_error_pending();
    if (pthread_mutex_init(&reducer->lock, NULL) != 0) {
        free(reducer);
        return EK_FAIL(EK_E_NO_MEMORY, "no lock for the reduction of gradients can be had");
    }
    ek_object_init(&reducer->hook.object, reducer_destroy);
    reducer->hook.begin = reducer_begin;
    reducer->hook.arrived = reducer_arrived;
    reducer->hook.finish = reducer_finish;
    reducer->narrow = narrow;
    *made = reducer;
    return reducer_set_up(reducer, module, group, bucket_cap_mb, shard);
}

void ek_reducer_free(ek_reducer *reducer)
{
    if (!reducer)
        return;
    for (int i = 0; i < reducer->count; i++)
        if (reducer->leaves[i]->grad_hook == &reducer->hook)
            ek_leaf_set_grad_hook(reducer->leaves[i], NULL, 0);
    if (reducer->group)
        ek_communication_destroy_group(reducer->group);
    ek_object_release(reducer);
}
