/* gradients.c: means over ranks of complete gradients: those of a module without a wrapper, and
 * those that a reducer has after a backward with create_graph. */
#include <stdlib.h>
#include <string.h>

#include "autograd/shards.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "evenkeel/ddp.h"
#include "group/collective.h"
#include "group/same.h"
#include "group/world.h"
#include "ops/ops.h"
#include "train/layout.h"
#include "train/reducer.h"

static const char gradients_call[] = "average_gradients";

typedef struct gradient_list {
    ek_module_layout layout; /* the module's parameters */
    bool *present;           /* per parameter: some rank has a gradient; owned */
    /* The parameters for which some rank has a gradient, and for each the tensor that becomes the
     * mean: this rank's gradient without its history (a copy if the gradient is sharded or its
     * elements repeat), or zeros if this rank has no gradient. In the scope. */
    ek_tensor **parameters, **means; /* one allocation; owned */
    int count;
} gradient_list;

/* ---- which gradients there are ---- */

/* Checks that all ranks' parameters are alike, and notes for which parameters any rank has a
 * gradient. If parameters differ, returns EK_E_STATE on all ranks. */
static int gradients_agree(gradient_list *list, ek_process_group *group)
{
    int64_t count = list->layout.count, *mine = ek_calloc(2 * (size_t)count + 1, sizeof *mine);
    if (!mine)
        return ek_error_pending();
    mine[0] = count;
    for (int64_t i = 0; i < count; i++) {
        mine[1 + i] = list->layout.items[i].digest;
        mine[1 + count + i] = ek_leaf_has_gradient(list->layout.items[i].tensor);
    }
    const int64_t *all = ek_group_lists(mine, 2 * count + 1, group);
    free(mine);
    list->present = all ? ek_calloc((size_t)count + 1, sizeof *list->present) : NULL;
    if (!list->present)
        return ek_error_pending();
    ek_difference found;
    bool same = ek_group_same(all, group->size, count + 1, &found);
    if (!same && found.index == 0)
        return ek_ranks_alike(
            EK_FAIL(EK_E_STATE,
                    "%s: the module has %lld parameters on rank %d, but %lld on rank %d; "
                    "it must be the same on all ranks",
                    gradients_call, (long long)found.first, group->ranks[0], (long long)found.other,
                    group->ranks[found.rank]));
    if (!same)
        return ek_ranks_alike(
            EK_FAIL(EK_E_STATE,
                    "%s: parameter %lld of the module has another path, dtype or shape on "
                    "rank %d than on rank %d; it must be the same on all ranks",
                    gradients_call, (long long)found.index - 1, group->ranks[found.rank],
                    group->ranks[0]));
    for (int r = 0; r < group->size; r++, all = ek_group_next_list(all))
        for (int64_t i = 0; i < count; i++)
            list->present[i] |= all[2 + count + i] != 0;
    return 0;
}

/* ---- memory for the means ---- */

/* Returns zeros in the parameter's grad buffer, or in new memory if the parameter has no grad
 * buffer or is sharded. */
static ek_tensor *gradient_zeros(const ek_tensor *parameter)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *zeros = parameter->grad_buffer && !parameter->shards
                           ? ek_itself(parameter->grad_buffer)
                           : ek_tensor_like(parameter);
    ek_memory_set_category(before);
    return ek_fill_(zeros, 0);
}

/* Returns the parameter's gradient, whole and without history, in memory that can be written. */
static ek_tensor *gradient_own(ek_tensor *parameter)
{
    ek_tensor *grad = ek_gather_grad(parameter);
    if (grad && ek_repeats(grad))
        return ek_contiguous(grad, EK_CONTIGUOUS);
    return grad && grad->history ? ek_detach(grad) : grad;
}

/* Lists the parameters for which some rank has a gradient. For each lists in list->means what this
 * rank adds to the mean: its gradient, or zeros if this rank has no gradient. */
static int gradients_prepare(gradient_list *list)
{
    size_t room = (size_t)list->layout.count + 1;
    list->parameters = ek_calloc(2 * room, sizeof *list->parameters);
    if (!list->parameters)
        return ek_error_pending();
    list->means = list->parameters + room;
    for (int i = 0; i < list->layout.count; i++) {
        ek_tensor *parameter = list->layout.items[i].tensor, *mean;
        if (!list->present[i])
            continue;
        mean =
            ek_leaf_has_gradient(parameter) ? gradient_own(parameter) : gradient_zeros(parameter);
        if (!mean)
            return ek_error_pending();
        list->parameters[list->count] = parameter;
        list->means[list->count++] = mean;
    }
    return 0;
}

/* ---- buckets ---- */

/* Some of the means, which travel as one tensor. */
typedef struct gradient_bucket {
    ek_pack pack;
    ek_dist_work *work;
} gradient_bucket;

static int bucket_begin(gradient_bucket *bucket, ek_tensor *const *means, int count,
                        ek_process_group *group)
{
    EK_TRY(ek_pack_open(&bucket->pack, means[0]->dtype, means, count));
    EK_TRY(ek_pack_fill(&bucket->pack));
    return ek_dist_all_reduce(bucket->pack.memory, .op = EK_DIST_AVG, .group = group,
                              .work = &bucket->work);
}

/* If the bucket's call was started, waits for the call and copies the means to their tensors. Frees
 * the bucket's memory in any case. */
static int bucket_end(gradient_bucket *bucket)
{
    int rc = 0;
    if (bucket->work) {
        rc = ek_dist_wait(bucket->work);
        if (rc >= 0)
            rc = ek_pack_deliver(&bucket->pack, gradients_call);
    }
    ek_pack_close(&bucket->pack);
    *bucket = (gradient_bucket){0};
    return rc;
}

/* Averages means[0 .. ends[buckets - 1]). One bucket travels while the next one is filled. */
static int buckets_average(ek_tensor **means, const int *ends, int buckets, ek_process_group *group)
{
    gradient_bucket two[2] = {0};
    int rc = 0;
    for (int b = 0; b <= buckets; b++) {
        int begin = b ? ends[b - 1] : 0;
        if (b < buckets && rc >= 0)
            rc = bucket_begin(&two[b % 2], means + begin, ends[b] - begin, group);
        int ended = bucket_end(&two[(b + 1) % 2]);
        rc = rc < 0 ? rc : ended;
    }
    return rc;
}

/* ---- the call ---- */

static int gradients_average(const gradient_list *list, ek_process_group *group)
{
    size_t room = (size_t)list->count + 1;
    ek_tensor **sorted = ek_calloc(room, sizeof *sorted);
    int *order = ek_calloc(2 * room, sizeof *order), *ends = order + room;
    int buckets = sorted && order ? ek_buckets(EK_BUCKETS_OF_REDUCE, list->means, list->count,
                                               EK_COMM_BUFFER_BYTES, order, ends)
                                  : ek_error_pending();
    for (int i = 0; i < list->count && buckets >= 0; i++)
        sorted[i] = list->means[order[i]];
    int rc = buckets < 0 ? buckets : buckets_average(sorted, ends, buckets, group);
    free(sorted);
    free(order);
    return rc;
}

/* Makes each mean the gradient of its parameter, unless the mean is the gradient already. */
static int gradients_set(const gradient_list *list)
{
    for (int i = 0; i < list->count; i++)
        if (ek_tensor_grad(list->parameters[i]) != list->means[i])
            EK_TRY(ek_tensor_set_grad(list->parameters[i], list->means[i]));
    return 0;
}

static int gradients_run(ek_module *module, gradient_list *list, ek_process_group *group)
{
    EK_TRY(ek_layout_read(&list->layout, module, false));
    EK_TRY(ek_check_meeting(gradients_call));
    if (group->size == 1)
        return 0;
    EK_TRY(gradients_agree(list, group));
    EK_TRY(gradients_prepare(list));
    EK_TRY(gradients_average(list, group));
    return gradients_set(list);
}

static int gradients_run_call(ek_process_group *group, void *user)
{
    ek_module *module = user;
    gradient_list list = {0};
    if (!module)
        return EK_FAIL(EK_E_INVALID, "%s: module is NULL", gradients_call);
    bool enabled = ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    int rc = gradients_run(module, &list, group);
    ek_scope_end(&scope);
    ek_set_grad_enabled(enabled);
    ek_layout_clear(&list.layout);
    free(list.present);
    free(list.parameters);
    return rc;
}

int ek_dist_average_gradients(ek_module *module, ek_process_group *group)
{
    return ek_group_call(gradients_call, group, gradients_run_call, module);
}

/* ---- gradients with a history ---- */

/* Replaces the gradients of the bucket's leaves by means that have a history. present[leaf] tells
 * whether some rank has a gradient of the leaf. The gradients travel as one tensor. `parts` has
 * room for a tensor per leaf. */
static int gradients_average_bucket(const ek_reducer *reducer, const ek_bucket *bucket,
                                    const unsigned char *present, ek_tensor **parts)
{
    int count = 0;
    int64_t at = 0;
    for (int i = bucket->first; i < bucket->end; i++) {
        ek_tensor *leaf = reducer->leaves[i];
        if (!present[i])
            continue;
        ek_tensor *own = leaf->grad ? leaf->grad : ek_fill_(ek_tensor_like(leaf), 0);
        parts[count++] = ek_reshape(own, EK_SHAPE(ek_count(leaf)));
    }
    ek_tensor *mean = count ? ek_dist_mean(ek_cat(parts, count, 0), reducer->group) : NULL;
    for (int i = bucket->first; i < bucket->end && mean; i++) {
        ek_tensor *leaf = reducer->leaves[i];
        if (!present[i])
            continue;
        ek_tensor *part = ek_narrow(mean, 0, at, ek_count(leaf));
        part = ek_reshape(part, ek_tensor_shape(leaf));
        if (!part)
            return ek_error_pending();
        ek_leaf_set_own_gradient(leaf, part);
        at += ek_count(leaf);
    }
    return mean || !count ? 0 : ek_error_pending();
}

int ek_reducer_average_in_graph(const ek_reducer *reducer)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor **parts = ek_calloc((size_t)reducer->count + 1, sizeof *parts);
    ek_tensor *mine = parts ? ek_zeros(EK_SHAPE(reducer->count), EK_U8, .device = ek_cpu()) : NULL;
    unsigned char *present = mine ? ek_tensor_address(mine) : NULL;
    for (int i = 0; i < reducer->count && mine; i++)
        present[i] = reducer->leaves[i]->grad != NULL;
    int rc = mine ? ek_dist_all_reduce(mine, .op = EK_DIST_MAX, .group = reducer->group)
                  : ek_error_pending();
    for (int b = 0; b < reducer->bucket_count && rc >= 0; b++)
        if (reducer->buckets[b].piece == 0) /* a leaf travels whole */
            rc = gradients_average_bucket(reducer, &reducer->buckets[b], present, parts);
    ek_scope_end(&scope);
    free(parts);
    return rc;
}
