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

static int leaf_missing(const char *function)
{
    int status = ek_error_status();
    return status < 0 ? status : EK_FAIL(EK_E_INVALID, "%s: tensor is NULL", function);
}

bool ek_tensor_requires_grad(const ek_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

bool ek_tensor_is_leaf(const ek_tensor *tensor)
{
    return tensor && !tensor->history;
}

int ek_tensor_set_requires_grad(ek_tensor *tensor, bool requires_grad)
{
    char text[200];
    if (!tensor)
        return leaf_missing("ek_tensor_set_requires_grad");
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
    return tensor ? tensor->grad : NULL;
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
    if (!tensor)
        return leaf_missing("ek_tensor_set_grad");
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
    if (!tensor) {
        leaf_missing("ek_detach");
        return NULL;
    }
    return ek_tensor_alias(tensor);
}

/* ---- flats ---- */

int ek_flat_init(ek_flat *flat, int count, int most)
{
    static atomic_uint_fast64_t ids;
    flat->id = atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed) + 1;
    flat->segments = ek_calloc((size_t)count + 1, sizeof *flat->segments);
    flat->shards = ek_calloc((size_t)most + 1, sizeof *flat->shards);
    flat->count = count;
    return flat->segments && flat->shards ? 0 : EK_E_NO_MEMORY;
}

void ek_flat_clear(ek_flat *flat)
{
    for (int i = 0; i < flat->shard_count; i++)
        ek_object_release(flat->shards[i].tensor);
    free(flat->shards);
    free(flat->segments);
    free(flat->stepped);
    ek_object_release(flat->owners);
}

void ek_flat_add_range(ek_flat *flat, int segment, int64_t begin, int64_t end, ek_tensor *tensor)
{
    ek_shards *own = &flat->segments[segment];
    ek_shard *added = &flat->shards[flat->shard_count++];
    *added = (ek_shard){begin, end, ek_object_retain(tensor)};
    if (own->count++ == 0)
        own->shards = added;
}

void ek_flat_add(ek_flat *flat, int segment, int64_t end, ek_tensor *tensor)
{
    const ek_shards *own = &flat->segments[segment];
    int64_t begin = own->count ? own->shards[own->count - 1].end : 0;
    ek_flat_add_range(flat, segment, begin, end, tensor);
}

static int flat_check(const ek_tensor *leaf, const ek_flat *flat, int segment)
{
    const ek_shards *shards = &flat->segments[segment];
    char texts[2][200] = {"NULL"};
    int64_t covered = shards->count ? shards->shards[shards->count - 1].end : -1;
    ek_tensor_text(leaf, texts[1]);
    if (leaf->history)
        return EK_FAIL(EK_E_INVALID, "%s is the result of an operation; only leaves can be sharded",
                       texts[1]);
    if (!ek_is_dense(leaf))
        return EK_FAIL(EK_E_INVALID, "%s is a view with gaps and cannot be sharded", texts[1]);
    if (covered != ek_count(leaf) && !flat->owners)
        return EK_FAIL(EK_E_INVALID, "the %d shards of %s end at element %lld of %lld",
                       shards->count, texts[1], (long long)covered, (long long)ek_count(leaf));
    for (int i = 0; i < shards->count; i++) {
        const ek_shard *shard = &shards->shards[i];
        const ek_tensor *tensor = shard->tensor;
        if (tensor && tensor->ndim == 1 && tensor->shape[0] == shard->end - shard->begin &&
            ek_is_dense(tensor) && tensor->dtype == leaf->dtype && !tensor->history &&
            !tensor->flat)
            continue;
        return EK_FAIL(EK_E_INVALID,
                       "shard %d of %s is %s; it has to be a flat, whole leaf of %s for elements "
                       "%lld to %lld",
                       i, texts[1], tensor ? ek_tensor_text(tensor, texts[0]) : texts[0],
                       ek_dtype_name(leaf->dtype), (long long)shard->begin, (long long)shard->end);
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

/* This process's elements, flat, for its owners to join. NULL with an error. */
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

int ek_shards_gather(const ek_shard *shards, int count, ek_owners *owners, ek_tensor *whole)
{
    for (int i = 0; i < count && !owners; i++)
        EK_TRY(ek_shard_read(&shards[i], shards[i].tensor, whole));
    if (!owners)
        return 0;
    const ek_tensor *all = owners->join(owners, shards_own(shards, count, whole));
    if (!all)
        return ek_error_pending();
    if (ek_count(all) != ek_count(whole))
        return EK_FAIL(EK_E_STATE,
                       "the owners of a divided tensor have %lld elements together; it has %lld",
                       (long long)ek_count(all), (long long)ek_count(whole));
    return leaf_copy_elements(whole, 0, all, 0, ek_count(whole));
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

/* Memory for a shard's range of the whole gradient. If the shard has no gradient: its grad buffer,
 * or new memory, which becomes the gradient. Else a temporary through which the range is added. */
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

/* Adds a gradient of the leaf to those of the shards. Allocates all memory before a sum changes. */
static int leaf_shard_gradient(const ek_tensor *leaf, ek_tensor *gradient, const ek_shards *shards)
{
    ek_tensor **rooms = ek_calloc((size_t)shards->count, sizeof *rooms);
    if (!rooms)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    gradient = ek_gradient_in_order(gradient, leaf);
    bool made = gradient;
    for (int i = 0; i < shards->count && made; i++)
        made = (rooms[i] = leaf_shard_room(shards->shards[i].tensor));
    int status = made ? 0 : ek_error_pending();
    for (int i = 0; i < shards->count && status >= 0; i++)
        status = leaf_shard_add(&shards->shards[i], rooms[i], gradient);
    ek_scope_end(&scope);
    free(rooms);
    return status;
}

/* Gives zeros to the shards that have no gradient. */
static int leaf_fill_missing(const ek_shards *shards)
{
    for (int i = 0; i < shards->count; i++) {
        ek_tensor *tensor = shards->shards[i].tensor;
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
    if (!leaf->flat || !ek_leaf_has_gradient(leaf))
        return 0;
    if (!gradient)
        return leaf_fill_missing(ek_leaf_shards(leaf));
    EK_TRY(leaf_shard_gradient(leaf, gradient, ek_leaf_shards(leaf)));
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

void ek_leaf_drop_shard_gradients(ek_tensor *leaf)
{
    for (int i = 0; leaf->flat && i < ek_leaf_shard_count(leaf); i++)
        ek_tensor_set_grad(ek_leaf_shard(leaf, i).tensor, NULL);
}

/* Writes the shards' gradients, in the shards' order of memory, to parts[i].tensor. */
static int leaf_list_gradients(const ek_shards *shards, ek_shard *parts)
{
    for (int i = 0; i < shards->count; i++) {
        const ek_tensor *tensor = shards->shards[i].tensor;
        ek_tensor *gradient = ek_tensor_grad(tensor);
        parts[i] = shards->shards[i];
        parts[i].tensor = gradient ? ek_gradient_in_order(gradient, tensor) : NULL;
        if (gradient && !parts[i].tensor)
            return ek_error_pending();
    }
    return 0;
}

/* Joins the shards' gradients in `whole`, and adds the leaf's own if there is one. */
static int leaf_gather_gradient(ek_tensor *whole, const ek_tensor *leaf)
{
    const ek_shards *shards = ek_leaf_shards(leaf);
    const ek_tensor *beside = ek_tensor_grad(leaf);
    ek_owners *owners = ek_leaf_owners(leaf);
    ek_shard *parts = ek_calloc((size_t)shards->count, sizeof *parts);
    int rc = whole && parts ? leaf_list_gradients(shards, parts) : ek_error_pending();
    if (rc >= 0)
        rc = ek_shards_gather(parts, shards->count, owners, whole);
    else if (owners) /* they wait for this process */
        owners->join(owners, NULL);
    free(parts);
    EK_TRY(rc);
    return beside ? ek_kernels_of(whole)->binary(ek_tensor_dev(whole), EK_BINARY_ADD, whole, whole,
                                                 beside, 1)
                  : 0;
}

ek_tensor *ek_gather_grad(ek_tensor *parameter)
{
    if (!parameter)
        leaf_missing("ek_gather_grad");
    if (!parameter || !parameter->flat)
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

static int leaf_change_shards(ek_tensor *leaf, ek_flat *flat, int segment)
{
    bool divided = ek_leaf_owners(leaf); /* what other processes have is not to be had here */
    ek_tensor *gradient = divided ? ek_tensor_grad(leaf) : ek_gather_grad(leaf);
    if (!gradient && !divided && ek_leaf_has_gradient(leaf))
        return ek_error_pending();
    if (gradient && flat)
        EK_TRY(leaf_shard_gradient(leaf, gradient, &flat->segments[segment]));
    ek_object_retain(gradient);
    ek_leaf_drop_shard_gradients(leaf);
    ek_object_release(leaf->flat);
    leaf->flat = ek_object_retain(flat);
    leaf->segment = segment;
    ek_object_release(leaf->grad_buffer);
    leaf->grad_buffer = NULL;
    leaf_grad_replace(leaf, flat ? NULL : gradient);
    ek_object_release(gradient);
    return 0;
}

int ek_leaf_set_shards(ek_tensor *leaf, ek_flat *flat, int segment)
{
    if ((ek_object *)flat == leaf->flat)
        return 0;
    if (flat)
        EK_TRY(flat_check(leaf, flat, segment));
    ek_scope scope = ek_scope_begin();
    int status = leaf_change_shards(leaf, flat, segment);
    ek_scope_end(&scope);
    return status;
}
