/* reducer.c: see reducer.h. */
#include "train/reducer.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/object.h"
#include "core/slab.h"
#include "core/thread.h"
#include "evenkeel/ops.h"
#include "group/sum.h"
#include "group/world.h"
#include "nn/module_table.h"
#include "parallel/replica_copies.h"
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

static int reducer_leaf_is_settled(ek_reducer *reducer, int leaf)
{
    ek_bucket *bucket = &reducer->buckets[reducer->bucket_of[leaf]];
    pthread_mutex_lock(&reducer->lock);
    bool last = --bucket->pending == 0;
    pthread_mutex_unlock(&reducer->lock);
    if (!last)
        return 0;
    EK_TRY(ek_bucket_fetch(reducer, bucket));
    ek_reducer_ready(reducer, bucket);
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

/* ---- buckets: Note [Gradients are the buckets] ---- */

/* Gives a grad buffer to each leaf that has none, in a slab per device and dtype. */
static int reducer_make_slabs(ek_reducer *reducer)
{
    size_t count = (size_t)reducer->count;
    ek_tensor **chosen = ek_calloc(2 * count + 1, sizeof(ek_tensor *));
    if (!chosen)
        return ek_error_pending();
    ek_tensor **made = chosen + count;
    int rc = 0;
    for (int i = 0; i < reducer->count && rc >= 0; i++) {
        ek_dev *dev = ek_tensor_dev(reducer->leaves[i]);
        if (reducer->leaves[i]->grad_buffer)
            continue;
        for (int k = 0; k < reducer->count; k++) {
            ek_tensor *leaf = reducer->leaves[k];
            chosen[k] = !leaf->grad_buffer && ek_tensor_dev(leaf) == dev ? leaf : NULL;
        }
        rc = ek_copies_slabs_make(dev, NULL, chosen, reducer->count, EK_MEMORY_GRADIENT, made);
        for (int k = 0; k < reducer->count && rc >= 0; k++)
            if (made[k])
                rc = ek_leaf_set_grad_buffer(reducer->leaves[k], made[k]);
        for (int k = 0; k < reducer->count; k++) {
            ek_object_release(made[k]);
            made[k] = NULL;
        }
    }
    free(chosen);
    return rc;
}

/* Returns true if leaf i + 1 follows leaf i in one slab. */
static bool reducer_follows(const ek_reducer *reducer, int i)
{
    const ek_tensor *a = reducer->leaves[i]->grad_buffer, *b = reducer->leaves[i + 1]->grad_buffer;
    return a->storage == b->storage &&
           b->offset == a->offset + ek_slab_pitch(a->dtype, ek_count(a));
}

static const size_t reducer_first_nbytes = 1 << 20; /* bytes of the first and the last buckets */

int ek_reducer_cut(const size_t *nbytes, int begin, int end, size_t cap, ek_bucket *buckets)
{
    size_t left = 0;
    int count = 0;
    for (int i = begin; i < end; i++)
        left += nbytes[i];
    size_t room = reducer_first_nbytes < cap ? reducer_first_nbytes : cap;
    while (end > begin) {
        int first = end;
        size_t taken = 0;
        do
            taken += nbytes[--first];
        while (first > begin && taken + nbytes[first - 1] <= room);
        buckets[count++] = (ek_bucket){.first = first, .end = end};
        left -= taken;
        end = first;
        room = left / 2 < cap ? left / 2 : cap;
        room = room < reducer_first_nbytes ? reducer_first_nbytes : room;
        room = room < cap ? room : cap;
    }
    return count;
}

/* Cuts all leaves into buckets, slab by slab. */
static int reducer_cut_all(ek_reducer *reducer, size_t cap)
{
    size_t *nbytes = ek_calloc((size_t)reducer->count + 1, sizeof *nbytes);
    if (!nbytes)
        return ek_error_pending();
    for (int i = 0; i < reducer->count; i++)
        nbytes[i] = ek_comm_nbytes(reducer->leaves[i]);
    for (int begin, end = reducer->count; end > 0; end = begin) {
        begin = end - 1;
        while (begin > 0 && reducer_follows(reducer, begin - 1))
            begin--;
        reducer->bucket_count +=
            ek_reducer_cut(nbytes, begin, end, cap, &reducer->buckets[reducer->bucket_count]);
    }
    free(nbytes);
    for (int b = 0; b < reducer->bucket_count; b++)
        for (int i = reducer->buckets[b].first; i < reducer->buckets[b].end; i++)
            reducer->bucket_of[i] = b;
    return 0;
}

/* Makes the bucket's range: its leaves and the padding between them. */
static int reducer_make_range(const ek_reducer *reducer, ek_bucket *bucket)
{
    const ek_tensor *first = reducer->leaves[bucket->first]->grad_buffer;
    const ek_tensor *last = reducer->leaves[bucket->end - 1]->grad_buffer;
    ek_shape shape = EK_SHAPE(last->offset + ek_count(last) - first->offset);
    int64_t stride = 1;
    ek_tensor *range =
        ek_tensor_member(first->storage, first->dtype, &shape, &stride, first->offset);
    bucket->unit = -1;
    return range ? ek_bucket_open(bucket, range) : ek_error_pending();
}

/* Makes memory for the sums of the largest bucket. */
static int reducer_make_room(ek_reducer *reducer)
{
    size_t scratch = 1, largest = 1;
    for (int b = 0; b < reducer->bucket_count; b++) {
        const ek_bucket *bucket = &reducer->buckets[b];
        size_t needs = ek_sum_scratch_nbytes(bucket->dtype, bucket->count, reducer->group->size);
        scratch = needs > scratch ? needs : scratch;
        largest = ek_bucket_nbytes(bucket) > largest ? ek_bucket_nbytes(bucket) : largest;
    }
    reducer->scratch = ek_calloc(scratch, 1);
    reducer->wire = ek_calloc(reducer->narrow ? largest : 1, 1);
    reducer->largest = largest;
    if (reducer->bucket_count > 0 && reducer->buckets[0].unit >= 0)
        reducer->blank = ek_calloc(largest, 1);
    return reducer->scratch && reducer->wire && ek_error_status() >= 0 ? 0 : ek_error_pending();
}

static int reducer_make_buckets(ek_reducer *reducer, size_t cap)
{
    EK_TRY(reducer_cut_all(reducer, cap));
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    for (int b = 0; b < reducer->bucket_count && rc >= 0; b++)
        rc = reducer_make_range(reducer, &reducer->buckets[b]);
    ek_scope_end(&scope);
    return rc;
}

/* ---- the window: Note [Ranks of one machine share the slabs] ---- */

static bool reducer_can_share(const ek_reducer *reducer)
{
    for (int b = 0; b < reducer->bucket_count; b++)
        if (!ek_tensor_dev(reducer->buckets[b].range)->backend->host_memory ||
            reducer->buckets[b].range->storage->pinned_by)
            return false;
    return !reducer->narrow;
}

/* Returns the bytes that a storage occupies in the window. */
static size_t reducer_room(const ek_storage *storage)
{
    return (storage->nbytes + EK_SLAB_ALIGNMENT - 1) / EK_SLAB_ALIGNMENT * EK_SLAB_ALIGNMENT;
}

/* Returns the first bucket in reducer->buckets that lies in the storage of this bucket. */
static const ek_bucket *reducer_first_of_storage(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const ek_bucket *first = reducer->buckets;
    while (first->range->storage != bucket->range->storage)
        first++;
    return first;
}

/* Moves the slabs into a window if the ranks can share memory. */
static int reducer_share(ek_reducer *reducer)
{
    size_t nbytes = 0;
    for (int b = 0; b < reducer->bucket_count; b++) {
        ek_bucket *bucket = &reducer->buckets[b];
        const ek_bucket *first = reducer_first_of_storage(reducer, bucket);
        bucket->storage_at = first == bucket ? nbytes : first->storage_at;
        if (first == bucket)
            nbytes += reducer_room(bucket->range->storage);
    }
    EK_TRY(ek_window_open(reducer->group, nbytes, reducer_can_share(reducer), &reducer->window));
    for (int b = 0; b < reducer->bucket_count && reducer->window; b++) {
        const ek_bucket *bucket = &reducer->buckets[b];
        if (reducer_first_of_storage(reducer, bucket) == bucket)
            ek_storage_move(bucket->range->storage, &reducer->window->object,
                            ek_window_memory(reducer->window, reducer->group->rank) +
                                bucket->storage_at);
    }
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
    free(reducer->scratch);
    free(reducer->wire);
    free(reducer->blank);
    free(reducer->reports);
    free(reducer->out);
    free(reducer->in);
    free(reducer);
}

static int reducer_allocate(ek_reducer *reducer, const ek_tensor_list *list)
{
    size_t leaves = (size_t)list->count + 1, ranks = (size_t)reducer->group->size + 1;
    reducer->report_nbytes = sizeof(ek_pass_report) + (leaves + 63) / 64 * sizeof(uint64_t);
    reducer->leaves = ek_calloc(leaves, sizeof *reducer->leaves);
    reducer->buckets = ek_calloc(leaves, sizeof *reducer->buckets);
    reducer->bucket_of = ek_calloc(leaves, sizeof *reducer->bucket_of);
    reducer->taking_part = ek_calloc(leaves, sizeof *reducer->taking_part);
    reducer->reports =
        ek_calloc((size_t)ek_rounds_room(reducer->group->size), reducer->report_nbytes);
    reducer->out = ek_calloc(ranks, sizeof *reducer->out);
    reducer->in = ek_calloc(ranks, sizeof *reducer->in);
    if (!reducer->leaves || !reducer->buckets || !reducer->bucket_of || !reducer->taking_part ||
        !reducer->reports || !reducer->out || !reducer->in)
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

/* Makes the reducer's group, slabs, buckets and window, and sets the leaves' hooks. With `units`
 * makes only the group. */
static int reducer_set_up(ek_reducer *reducer, ek_module *module, ek_process_group *group,
                          double bucket_cap_mb, bool units)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, false, &list));
    reducer->group =
        ek_communication_new_group(group->communication, group->ranks, group->size, group->timeout);
    int rc = reducer->group ? reducer_allocate(reducer, &list) : ek_error_pending();
    ek_tensor_list_clear(&list);
    EK_TRY(rc);
    if (units)
        return 0;
    EK_TRY(reducer_make_slabs(reducer));
    EK_TRY(reducer_make_buckets(reducer, (size_t)(bucket_cap_mb * (1 << 20))));
    EK_TRY(reducer_share(reducer));
    return ek_reducer_complete(reducer);
}

int ek_reducer_new(ek_module *module, ek_process_group *group, double bucket_cap_mb, bool narrow,
                   bool units, ek_reducer **made)
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
    return reducer_set_up(reducer, module, group, bucket_cap_mb, units);
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
