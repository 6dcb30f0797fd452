/* gradients.c: the mean of a module's gradients over ranks, without a wrapper. */
#include <stdlib.h>
#include <string.h>

#include "autograd/shards.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "core/digest.h"
#include "evenkeel/ddp.h"
#include "group/collective.h"
#include "group/same.h"
#include "group/world.h"
#include "ops/ops.h"
#include "train/pack.h"

static const char gradients_call[] = "average_gradients";

/* ---- the parameters ---- */

typedef struct gradient_item {
    ek_tensor *parameter; /* the module's */
    ek_tensor *mean;      /* dense memory that becomes the mean: the gradient itself if it is
                             whole; in the scope */
    int64_t digest;       /* of path, dtype and shape */
    bool present;         /* some rank has a gradient */
} gradient_item;

typedef struct gradient_list {
    gradient_item *items;
    int count, room;
} gradient_list;

static int gradient_visit(const char *path, ek_tensor *parameter, void *user)
{
    gradient_list *list = user;
    EK_TRY(ek_grow(&list->items, &list->room, list->count + 1));
    int32_t dtype = (int32_t)parameter->dtype;
    uint64_t digest = ek_digest_text(EK_DIGEST, path);
    digest = ek_digest_bytes(digest, &dtype, sizeof dtype);
    digest = ek_digest_bytes(digest, parameter->shape, (size_t)parameter->ndim * sizeof(int64_t));
    list->items[list->count++] = (gradient_item){.parameter = parameter,
                                                 .digest = (int64_t)digest,
                                                 .present = ek_leaf_has_gradient(parameter)};
    return 0;
}

/* ---- which gradients there are ---- */

/* Compares all ranks' parameters with rank 0's, and notes which have a gradient on any rank. */
static int gradients_agree(gradient_list *list, ek_process_group *group)
{
    int64_t count = list->count, *mine = ek_calloc(2 * (size_t)count + 1, sizeof *mine);
    if (!mine)
        return ek_error_pending();
    mine[0] = count;
    for (int64_t i = 0; i < count; i++) {
        mine[1 + i] = list->items[i].digest;
        mine[1 + count + i] = list->items[i].present;
    }
    const int64_t *all = ek_group_lists(mine, 2 * count + 1, group);
    free(mine);
    if (!all)
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
            list->items[i].present |= all[2 + count + i] != 0;
    return 0;
}

/* ---- memory for the means ---- */

/* Zeros in the parameter's slot, or in memory of their own. */
static ek_tensor *gradient_zeros(const ek_tensor *parameter)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *zeros = parameter->grad_buffer && !parameter->shards
                           ? ek_itself(parameter->grad_buffer)
                           : ek_tensor_like(parameter);
    ek_memory_set_category(before);
    return ek_fill_(zeros, 0);
}

/* Memory of the parameter's gradient that can be written and has no history. */
static ek_tensor *gradient_own(ek_tensor *parameter)
{
    ek_tensor *grad = ek_gather_grad(parameter);
    if (grad && ek_repeats(grad))
        return ek_contiguous(grad, EK_CONTIGUOUS);
    return grad && grad->history ? ek_detach(grad) : grad;
}

/* Drops the parameters that have no gradient on any rank, and finds memory for the others'. */
static int gradients_prepare(gradient_list *list)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        gradient_item item = list->items[i];
        if (!item.present)
            continue;
        item.mean = ek_leaf_has_gradient(item.parameter) ? gradient_own(item.parameter)
                                                         : gradient_zeros(item.parameter);
        if (!item.mean)
            return ek_error_pending();
        list->items[kept++] = item;
    }
    list->count = kept;
    return 0;
}

/* ---- buckets ---- */

/* Gradients that travel as one tensor. */
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

/* If the bucket's call was started, waits for it. Frees the bucket in any case. */
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

/* Averages means[0 .. ends[buckets - 1]): one bucket travels while the next is filled. */
static int buckets_average(ek_tensor **means, const int *ends, int buckets, ek_process_group *group)
{
    gradient_bucket before = {0};
    int rc = 0;
    for (int b = 0; b < buckets && rc >= 0; b++) {
        int begin = b ? ends[b - 1] : 0;
        gradient_bucket next = {0};
        rc = bucket_begin(&next, means + begin, ends[b] - begin, group);
        int ended = bucket_end(&before);
        rc = rc < 0 ? rc : ended;
        before = next;
    }
    int ended = bucket_end(&before);
    return rc < 0 ? rc : ended;
}

/* ---- the call ---- */

static int gradients_average(const gradient_list *list, ek_process_group *group)
{
    size_t room = (size_t)list->count + 1;
    ek_tensor **means = ek_calloc(2 * room, sizeof *means), **sorted = means + room;
    int *order = ek_calloc(2 * room, sizeof *order), *ends = order + room;
    for (int i = 0; i < list->count && means; i++)
        means[i] = list->items[i].mean;
    int buckets = means && order ? ek_buckets(EK_BUCKETS_OF_REDUCE, means, list->count,
                                              EK_COMM_BUFFER_BYTES, order, ends)
                                 : ek_error_pending();
    for (int i = 0; i < list->count && buckets >= 0; i++)
        sorted[i] = means[order[i]];
    int rc = buckets < 0 ? buckets : buckets_average(sorted, ends, buckets, group);
    free(means);
    free(order);
    return rc;
}

/* Makes the means the gradients of parameters that had none, or have theirs in shards. */
static int gradients_set(const gradient_list *list)
{
    for (int i = 0; i < list->count; i++) {
        const gradient_item *item = &list->items[i];
        if (ek_tensor_grad(item->parameter) != item->mean)
            EK_TRY(ek_tensor_set_grad(item->parameter, item->mean));
    }
    return 0;
}

static int gradients_run(ek_module *module, gradient_list *list, ek_process_group *group)
{
    EK_TRY(ek_module_parameters(module, gradient_visit, list));
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
    free(list.items);
    return rc;
}

int ek_dist_average_gradients(ek_module *module, ek_process_group *group)
{
    return ek_group_call(gradients_call, group, gradients_run_call, module);
}
