/* leaf.c: gradients of leaves, whole or in shards, and gradient mode. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "autograd/shards.h"
#include "kernels/kernels.h"

/* Bytes of the largest temporary through which a gradient is added to a shard's gradient. */
enum { TEMPORARY_BYTES = 10 << 20 };

static const char writer[] = "the division of a gradient"; /* named in errors about saved tensors */

bool ek_grad_enabled(void)
{
    return !(ek_thread_self()->modes.flags & EK_MODE_NO_GRAD);
}

bool ek_set_grad_enabled(bool enabled)
{
    unsigned *flags = &ek_thread_self()->modes.flags;
    bool before = !(*flags & EK_MODE_NO_GRAD);
    *flags = enabled ? *flags & ~(unsigned)EK_MODE_NO_GRAD : *flags | EK_MODE_NO_GRAD;
    return before;
}

static int leaf_check(const char *function, const ek_tensor *tensor)
{
    if (tensor)
        return ek_check_alive(function, "the tensor", tensor);
    int status = ek_error_status();
    return status < 0 ? status : EK_FAIL(EK_E_INVALID, "%s: tensor is NULL", function);
}

bool ek_tensor_requires_grad(const ek_tensor *tensor)
{
    return tensor && leaf_check("tensor_requires_grad", tensor) == 0 && tensor->requires_grad;
}

bool ek_tensor_is_leaf(const ek_tensor *tensor)
{
    return tensor && leaf_check("tensor_is_leaf", tensor) == 0 && !tensor->history;
}

int ek_tensor_set_requires_grad(ek_tensor *tensor, bool requires_grad)
{
    char text[200];
    EK_TRY(leaf_check("ek_tensor_set_requires_grad", tensor));
    if (tensor->history)
        return EK_FAIL(EK_E_AUTOGRAD,
                       "%s is the result of an operation; only leaves can be told whether they "
                       "require a gradient (ek_detach makes one)",
                       ek_tensor_text(tensor, text));
    if (requires_grad && !ek_dtype_is_floating(tensor->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s cannot require a gradient; f32, f64, bf16 and f16 can",
                       ek_tensor_text(tensor, text));
    tensor->requires_grad = requires_grad;
    for (int i = 0; i < ek_leaf_shard_count(tensor); i++)
        ek_leaf_shard(tensor, i).tensor->requires_grad = requires_grad;
    return 0;
}

ek_tensor *ek_tensor_grad(const ek_tensor *tensor)
{
    return tensor && leaf_check("tensor_grad", tensor) == 0 ? tensor->grad : NULL;
}

static int leaf_grad_check(const char *function, const ek_tensor *tensor, const ek_tensor *grad)
{
    char texts[2][200];
    if (ek_same_shape(tensor, grad) && tensor->dtype == grad->dtype &&
        ek_tensor_dev(tensor) == ek_tensor_dev(grad))
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: %s is no gradient for %s; shape, dtype and device must agree",
                   function, ek_tensor_text(grad, texts[0]), ek_tensor_text(tensor, texts[1]));
}

static void leaf_grad_replace(ek_tensor *tensor, ek_tensor *grad)
{
    ek_tensor *before = tensor->grad;
    tensor->grad = ek_keep(grad);
    ek_release(before);
}

int ek_tensor_set_grad(ek_tensor *tensor, ek_tensor *grad)
{
    EK_TRY(leaf_check("ek_tensor_set_grad", tensor));
    EK_TRY(ek_check_alive("ek_tensor_set_grad", "the gradient", grad));
    if (grad)
        EK_TRY(leaf_grad_check("ek_tensor_set_grad", tensor, grad));
    ek_leaf_drop_shard_gradients(tensor);
    leaf_grad_replace(tensor, grad);
    return 0;
}

int ek_leaf_set_grad_buffer(ek_tensor *leaf, ek_tensor *slot)
{
    ek_tensor *grad = leaf->grad;
    if (slot)
        EK_TRY(leaf_grad_check("ek_leaf_set_grad_buffer", leaf, slot));
    if (slot && grad && grad != slot) {
        EK_TRY(ek_kernels_of(slot)->copy(ek_tensor_dev(slot), slot, grad));
        ek_tensor_written(slot, "ek_leaf_set_grad_buffer");
    }
    if (grad && (slot || grad == leaf->grad_buffer))
        leaf_grad_replace(leaf, slot);
    ek_keep(slot);
    ek_release(leaf->grad_buffer);
    leaf->grad_buffer = slot;
    return 0;
}

ek_tensor *ek_detach(ek_tensor *tensor)
{
    return leaf_check("ek_detach", tensor) < 0 ? NULL : ek_tensor_alias(tensor);
}

/* ---- shards ---- */

int ek_shards_init(ek_shards *shards, int leaf_count, int most)
{
    static atomic_uint_fast64_t ids;
    size_t room = (size_t)leaf_count + 1;
    shards->id = atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed) + 1;
    shards->leaf_count = leaf_count;
    shards->all = ek_calloc((size_t)most + 1, sizeof *shards->all);
    shards->first = ek_calloc(room, sizeof *shards->first);
    shards->counts = ek_calloc(room, sizeof *shards->counts);
    shards->stepped = ek_calloc(room, sizeof *shards->stepped);
    return shards->all && shards->first && shards->counts && shards->stepped ? 0 : EK_E_NO_MEMORY;
}

void ek_shards_clear(ek_shards *shards)
{
    for (int i = 0; i < shards->count; i++)
        ek_object_release(shards->all[i].tensor);
    free(shards->all);
    free(shards->first);
    free(shards->counts);
    free(shards->stepped);
    ek_object_release(shards->ranks);
}

void ek_shards_add(ek_shards *shards, int leaf, int64_t begin, int64_t end, ek_tensor *tensor)
{
    if (shards->counts[leaf]++ == 0)
        shards->first[leaf] = shards->count;
    shards->all[shards->count++] = (ek_shard){begin, end, ek_object_retain(tensor)};
}

/* The first of the leaf's shards in `shards`. */
static const ek_shard *leaf_shards_of(const ek_shards *shards, int index)
{
    return &shards->all[shards->first[index]];
}

static int shards_check(const ek_shards *shards, int index, const ek_tensor *leaf)
{
    const ek_shard *own = leaf_shards_of(shards, index);
    const int count = shards->counts[index];
    char texts[2][200] = {"NULL"};
    int64_t covered = count ? own[count - 1].end : -1;
    ek_tensor_text(leaf, texts[1]);
    if (leaf->history)
        return EK_FAIL(EK_E_INVALID, "%s is the result of an operation; only leaves can be sharded",
                       texts[1]);
    if (!ek_is_dense(leaf))
        return EK_FAIL(EK_E_INVALID, "%s is a view with gaps and cannot be sharded", texts[1]);
    if (covered != ek_count(leaf) && !shards->ranks)
        return EK_FAIL(EK_E_INVALID, "the %d shards of %s end at element %lld of %lld", count,
                       texts[1], (long long)covered, (long long)ek_count(leaf));
    for (int i = 0; i < count; i++) {
        const ek_tensor *tensor = own[i].tensor;
        if (tensor && tensor->ndim == 1 && tensor->shape[0] == own[i].end - own[i].begin &&
            ek_is_dense(tensor) && tensor->dtype == leaf->dtype && !tensor->history &&
            !tensor->shards)
            continue;
        return EK_FAIL(EK_E_INVALID,
                       "shard %d of %s is %s; it has to be a flat, whole leaf of %s for elements "
                       "%lld to %lld",
                       i, texts[1], tensor ? ek_tensor_text(tensor, texts[0]) : texts[0],
                       ek_dtype_name(leaf->dtype), (long long)own[i].begin, (long long)own[i].end);
    }
    return 0;
}

/* ---- elements ---- */

/* Copies `count` elements between dense tensors. */
static int leaf_copy_elements(ek_tensor *to, int64_t to_begin, const ek_tensor *from,
                              int64_t from_begin, int64_t count)
{
    size_t size = ek_dtype_size(to->dtype);
    char *target = (char *)ek_tensor_address(to) + (size_t)to_begin * size;
    const char *source = (const char *)ek_tensor_address(from) + (size_t)from_begin * size;
    if (count == 0 || target == source)
        return 0;
    return ek_dev_copy(ek_tensor_dev(to), target, ek_tensor_dev(from), source,
                       (size_t)count * size);
}

int ek_shard_read(const ek_shard *shard, const ek_tensor *from, ek_tensor *whole)
{
    int64_t count = shard->end - shard->begin;
    size_t size = ek_dtype_size(whole->dtype);
    if (from)
        return leaf_copy_elements(whole, shard->begin, from, 0, count);
    return ek_dev_zero(ek_tensor_dev(whole),
                       (char *)ek_tensor_address(whole) + (size_t)shard->begin * size,
                       (size_t)count * size);
}

int ek_shard_write(const ek_shard *shard, ek_tensor *to, const ek_tensor *whole)
{
    return leaf_copy_elements(to, 0, whole, shard->begin, shard->end - shard->begin);
}

/* Returns this process's elements as one flat tensor, for the join of all ranks; NULL with an
 * error. */
static ek_tensor *shards_own(const ek_shard *shards, int count, const ek_tensor *whole)
{
    int64_t begin = shards[0].begin;
    ek_shape shape = EK_SHAPE(shards[count - 1].end - begin);
    ek_tensor *own = ek_tensor_new(ek_tensor_dev(whole), whole->dtype, &shape, EK_CONTIGUOUS);
    for (int i = 0; i < count && own; i++) {
        const ek_shard shard = {shards[i].begin - begin, shards[i].end - begin, NULL};
        if (ek_shard_read(&shard, shards[i].tensor, own) < 0)
            return NULL;
    }
    return own;
}

/* Copies the elements of all ranks to `whole`. ranges[2 * r] and ranges[2 * r + 1] get the begin
 * and the end of rank r's elements, and sizes[r] their number. */
static int shards_join(const ek_shard *shards, int count, ek_ranks *ranks, int64_t *ranges,
                       int64_t *sizes, ek_tensor *whole)
{
    const int64_t mine[] = {shards[0].begin, shards[count - 1].end};
    int64_t sum = 0, at = 0;
    ek_tensor *own = shards_own(shards, count, whole);
    if (!own)
        return ranks->agree(ranks, ek_error_pending());
    EK_TRY(ranks->gather(ranks, mine, 2, ranges));
    for (int r = 0; r < ranks->size; r++)
        sum += sizes[r] = ranges[2 * r + 1] - ranges[2 * r];
    const ek_tensor *all = ranks->join(ranks, own, 0, sizes);
    if (!all)
        return ek_error_pending();
    if (sum != ek_count(whole))
        return EK_FAIL(EK_E_STATE,
                       "the owners of a divided tensor have %lld elements together; it has %lld",
                       (long long)sum, (long long)ek_count(whole));
    for (int r = 0; r < ranks->size; at += sizes[r++])
        EK_TRY(leaf_copy_elements(whole, ranges[2 * r], all, at, sizes[r]));
    return 0;
}

int ek_shards_gather(const ek_shard *shards, int count, ek_ranks *ranks, int status,
                     ek_tensor *whole)
{
    for (int i = 0; i < count && !ranks && status >= 0; i++)
        status = ek_shard_read(&shards[i], shards[i].tensor, whole);
    if (!ranks)
        return status;
    EK_TRY(ek_ranks_check(ranks));
    const size_t size = (size_t)ranks->size;
    int64_t *ranges = status < 0 ? NULL : ek_calloc(3 * size, sizeof *ranges);
    if (!ranges)
        return ranks->agree(ranks, ek_error_pending());
    bool enabled = ek_set_grad_enabled(false);
    int rc = shards_join(shards, count, ranks, ranges, ranges + 2 * size, whole);
    ek_set_grad_enabled(enabled);
    free(ranges);
    return rc;
}

/* ---- from the whole to the shards ---- */

ek_tensor *ek_gradient_in_order(ek_tensor *gradient, const ek_tensor *like)
{
    if (ek_same_layout(gradient, like))
        return gradient;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *copy = ek_tensor_like(like);
    ek_memory_set_category(before);
    if (!copy || ek_kernels_of(copy)->copy(ek_tensor_dev(copy), copy, gradient) < 0)
        return NULL;
    return copy;
}

/* Returns memory for a shard's range of the whole gradient. If the shard has no gradient, the
 * memory is the shard's grad buffer, or new, and becomes the gradient. Otherwise it is a temporary,
 * from which the range is added to the gradient. */
static ek_tensor *leaf_shard_room(const ek_tensor *tensor)
{
    int64_t limit = TEMPORARY_BYTES / (int64_t)ek_dtype_size(tensor->dtype),
            count = ek_count(tensor);
    bool adds = ek_tensor_grad(tensor);
    if (!adds && tensor->grad_buffer)
        return tensor->grad_buffer;
    ek_shape shape = EK_SHAPE(adds && count > limit ? limit : count);
    ek_memory_category before =
        ek_memory_set_category(adds ? EK_MEMORY_COMMUNICATION : EK_MEMORY_GRADIENT);
    ek_tensor *room = ek_tensor_new(ek_tensor_dev(tensor), tensor->dtype, &shape, EK_CONTIGUOUS);
    ek_memory_set_category(before);
    return room;
}

/* Gives the shard its range of the leaf's gradient, through memory from leaf_shard_room. */
static int leaf_shard_add(const ek_shard *shard, ek_tensor *room, const ek_tensor *gradient)
{
    ek_tensor *sum = ek_tensor_grad(shard->tensor);
    int64_t step = ek_count(room), stride = 1;
    if (!sum) {
        EK_TRY(ek_shard_write(shard, room, gradient));
        ek_tensor_written(room, writer);
        return ek_tensor_set_grad(shard->tensor, room);
    }
    for (int64_t at = shard->begin; at < shard->end; at += step) {
        int64_t count = shard->end - at < step ? shard->end - at : step;
        int64_t offset = (at - shard->begin) * sum->stride[0];
        ek_tensor *x = ek_tensor_view(sum, 1, &count, sum->stride, sum->offset + offset);
        ek_tensor *y = ek_tensor_view(room, 1, &count, &stride, room->offset);
        if (!x || !y)
            return ek_error_pending();
        EK_TRY(leaf_copy_elements(y, 0, gradient, at, count));
        EK_TRY(ek_kernels_of(x)->binary(ek_tensor_dev(x), EK_BINARY_ADD, x, x, y, 1));
    }
    ek_tensor_written(sum, writer);
    return 0;
}

/* Adds a gradient of the leaf to those of its shards. Allocates all memory before it changes a
 * gradient. */
static int leaf_shard_gradient(const ek_tensor *leaf, ek_tensor *gradient, const ek_shard *shards,
                               int count)
{
    ek_tensor **rooms = ek_calloc((size_t)count + 1, sizeof *rooms);
    if (!rooms)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    gradient = ek_gradient_in_order(gradient, leaf);
    bool made = gradient;
    for (int i = 0; i < count && made; i++)
        made = (rooms[i] = leaf_shard_room(shards[i].tensor));
    int status = made ? 0 : ek_error_pending();
    for (int i = 0; i < count && status >= 0; i++)
        status = leaf_shard_add(&shards[i], rooms[i], gradient);
    ek_scope_end(&scope);
    free(rooms);
    return status;
}

/* Gives zeros to the shards that have no gradient. */
static int leaf_fill_missing(const ek_tensor *leaf)
{
    for (int i = 0; i < ek_leaf_shard_count(leaf); i++) {
        ek_tensor *tensor = ek_leaf_shard(leaf, i).tensor;
        if (ek_tensor_grad(tensor))
            continue;
        ek_tensor *zeros = leaf_shard_room(tensor);
        if (!zeros)
            return ek_error_pending();
        EK_TRY(ek_dev_zero(ek_tensor_dev(zeros), ek_tensor_address(zeros),
                           (size_t)ek_count(zeros) * ek_dtype_size(zeros->dtype)));
        ek_tensor_written(zeros, writer);
        EK_TRY(ek_tensor_set_grad(tensor, zeros));
    }
    return 0;
}

int ek_leaf_settle_gradient(ek_tensor *leaf)
{
    ek_tensor *gradient = ek_tensor_grad(leaf);
    if (!leaf->shards || !ek_leaf_has_gradient(leaf))
        return 0;
    if (!gradient)
        return leaf_fill_missing(leaf);
    EK_TRY(leaf_shard_gradient(leaf, gradient,
                               leaf_shards_of(ek_leaf_shards(leaf), leaf->shards_index),
                               ek_leaf_shard_count(leaf)));
    leaf_grad_replace(leaf, NULL);
    return 0;
}

/* ---- from the shards to the whole ---- */

bool ek_leaf_has_gradient(const ek_tensor *leaf)
{
    bool any = ek_tensor_grad(leaf);
    for (int i = 0; i < ek_leaf_shard_count(leaf) && !any; i++)
        any = ek_tensor_grad(ek_leaf_shard(leaf, i).tensor);
    return any;
}

void ek_leaf_set_own_gradient(ek_tensor *leaf, ek_tensor *gradient)
{
    leaf_grad_replace(leaf, gradient);
}

void ek_leaf_drop_shard_gradients(ek_tensor *leaf)
{
    for (int i = 0; leaf->shards && i < ek_leaf_shard_count(leaf); i++)
        ek_tensor_set_grad(ek_leaf_shard(leaf, i).tensor, NULL);
}

/* Lists the leaf's shards with their gradients, in the shards' order of memory, as tensors. */
static int leaf_list_gradients(const ek_tensor *leaf, ek_shard *list)
{
    for (int i = 0; i < ek_leaf_shard_count(leaf); i++) {
        list[i] = ek_leaf_shard(leaf, i);
        ek_tensor *gradient = ek_tensor_grad(list[i].tensor);
        if (gradient && !(gradient = ek_gradient_in_order(gradient, list[i].tensor)))
            return ek_error_pending();
        list[i].tensor = gradient;
    }
    return 0;
}

/* Joins the shards' gradients in `whole`, and adds the gradient of the leaf if it has one. */
static int leaf_gather_gradient(ek_tensor *whole, const ek_tensor *leaf)
{
    const int count = ek_leaf_shard_count(leaf);
    const ek_tensor *beside = ek_tensor_grad(leaf);
    ek_shard *list = ek_calloc((size_t)count + 1, sizeof *list);
    int rc = whole && list ? leaf_list_gradients(leaf, list) : ek_error_pending();
    rc = ek_shards_gather(list, count, ek_leaf_ranks(leaf), rc, whole);
    free(list);
    EK_TRY(rc);
    return beside ? ek_kernels_of(whole)->binary(ek_tensor_dev(whole), EK_BINARY_ADD, whole, whole,
                                                 beside, 1)
                  : 0;
}

ek_tensor *ek_gather_grad(ek_tensor *parameter)
{
    if (leaf_check("ek_gather_grad", parameter) < 0)
        return NULL;
    if (!parameter->shards)
        return ek_tensor_grad(parameter);
    if (!ek_leaf_has_gradient(parameter))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *whole = ek_tensor_like(parameter);
    ek_memory_set_category(before);
    bool made = leaf_gather_gradient(whole, parameter) >= 0;
    return ek_scope_return(&scope, made ? whole : NULL);
}

/* ---- changes ---- */

static int leaf_change_shards(ek_tensor *leaf, ek_shards *shards, int index)
{
    /* The gradients of other ranks' shards are not in this process, and are not joined. */
    bool elsewhere = ek_leaf_ranks(leaf);
    ek_tensor *gradient = elsewhere ? ek_tensor_grad(leaf) : ek_gather_grad(leaf);
    if (!gradient && !elsewhere && ek_leaf_has_gradient(leaf))
        return ek_error_pending();
    if (gradient && shards)
        EK_TRY(leaf_shard_gradient(leaf, gradient, leaf_shards_of(shards, index),
                                   shards->counts[index]));
    ek_object_retain(gradient);
    ek_leaf_drop_shard_gradients(leaf);
    ek_object_release(leaf->shards);
    leaf->shards = ek_object_retain(shards);
    leaf->shards_index = index;
    ek_object_release(leaf->grad_buffer);
    leaf->grad_buffer = NULL;
    leaf_grad_replace(leaf, shards ? NULL : gradient);
    ek_object_release(gradient);
    return 0;
}

int ek_leaf_set_shards(ek_tensor *leaf, ek_shards *shards, int index)
{
    if ((ek_object *)shards == leaf->shards)
        return 0;
    if (shards)
        EK_TRY(shards_check(shards, index, leaf));
    ek_scope scope = ek_scope_begin();
    int status = leaf_change_shards(leaf, shards, index);
    ek_scope_end(&scope);
    return status;
}
