/* shards.c: gradients of divided leaves, whole and in pieces. */
#include "autograd/shards.h"

#include <stdlib.h>

#include "autograd/graph.h"
#include "kernels/kernels.h"

/* What is added to a piece's gradient travels in parts of this size. */
enum { TEMPORARY_BYTES = 10 << 20 };

static const char writer[] = "the division of a gradient";

/* ---- divisions ---- */

static void shards_destroy(ek_object *object)
{
    ek_shards *shards = (ek_shards *)object;
    for (int i = 0; i < shards->count; i++)
        ek_object_release(shards->shards[i].piece);
    ek_object_release(shards->group);
    free(shards);
}

ek_shards *ek_shards_new(ek_shard_group *group, int count)
{
    static atomic_uint_fast64_t serials;
    if (count < 1) {
        EK_FAIL(EK_E_INVALID, "a leaf cannot be divided into %d pieces; one is the least", count);
        return NULL;
    }
    ek_shards *shards = ek_calloc(1, sizeof *shards + (size_t)count * sizeof *shards->shards);
    if (!shards)
        return NULL;
    ek_object_init(&shards->object, shards_destroy);
    shards->serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
    shards->group = ek_object_retain(group);
    shards->count = count;
    return shards;
}

static int check_piece(const ek_tensor *leaf, int index, const ek_shard *shard)
{
    char texts[2][200];
    const ek_tensor *piece = shard->piece;
    if (!piece)
        return EK_FAIL(EK_E_INVALID, "piece %d of %s is NULL", index,
                       ek_tensor_text(leaf, texts[0]));
    bool is_flat =
        piece->ndim == 1 && piece->shape[0] == shard->end - shard->begin && ek_is_dense(piece);
    if (is_flat && piece->dtype == leaf->dtype && !piece->history && !piece->shards)
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "piece %d of %s is %s; it has to be a flat, whole leaf of %s for elements %lld "
                   "to %lld",
                   index, ek_tensor_text(leaf, texts[0]), ek_tensor_text(piece, texts[1]),
                   ek_dtype_name(leaf->dtype), (long long)shard->begin, (long long)shard->end);
}

static int check_shards(const ek_tensor *leaf, const ek_shards *shards)
{
    char text[200];
    int64_t covered = 0;
    if (leaf->history)
        return EK_FAIL(EK_E_INVALID, "%s is the result of an operation; only leaves can be divided",
                       ek_tensor_text(leaf, text));
    if (!ek_is_dense(leaf))
        return EK_FAIL(EK_E_INVALID, "%s is a view with gaps and cannot be divided",
                       ek_tensor_text(leaf, text));
    for (int i = 0; i < shards->count; i++) {
        const ek_shard *shard = &shards->shards[i];
        if (shard->begin != covered || shard->end < shard->begin)
            return EK_FAIL(EK_E_INVALID,
                           "piece %d of %s has elements %lld to %lld; the pieces before it end at "
                           "%lld",
                           i, ek_tensor_text(leaf, text), (long long)shard->begin,
                           (long long)shard->end, (long long)covered);
        EK_TRY(check_piece(leaf, i, shard));
        covered = shard->end;
    }
    if (covered != ek_count(leaf))
        return EK_FAIL(EK_E_INVALID, "the pieces of %s end at element %lld of %lld",
                       ek_tensor_text(leaf, text), (long long)covered, (long long)ek_count(leaf));
    return 0;
}

/* ---- from the whole to the pieces ---- */

/* A flat handle on `count` elements of dense memory, the first of which is `begin`. */
static ek_tensor *flat(const ek_tensor *tensor, int64_t begin, int64_t count)
{
    int64_t stride = 1;
    return ek_tensor_view(tensor, 1, &count, &stride, tensor->offset + begin);
}

/* `gradient` in the order of memory of `like`: itself, or a copy where it lies. */
static ek_tensor *in_order_of(ek_tensor *gradient, const ek_tensor *like)
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

static int copy_elements(ek_tensor *to, int64_t to_begin, const ek_tensor *from, int64_t from_begin,
                         int64_t count)
{
    size_t size = ek_dtype_size(to->dtype);
    return ek_dev_copy(ek_tensor_dev(to), (char *)ek_tensor_address(to) + (size_t)to_begin * size,
                       ek_tensor_dev(from),
                       (const char *)ek_tensor_address(from) + (size_t)from_begin * size,
                       (size_t)count * size);
}

/* Where a piece's part of the whole gradient goes: new or kept memory that is filled, or a
 * temporary through which it is added. */
typedef struct arrival {
    ek_tensor *filled, *temporary; /* NULL: the other */
} arrival;

static int prepare(arrival *to, ek_tensor *piece)
{
    int64_t limit = TEMPORARY_BYTES / (int64_t)ek_dtype_size(piece->dtype), count = ek_count(piece);
    bool adds = ek_tensor_grad(piece);
    if (!adds && (piece->grad_slot || piece->grad)) {
        to->filled = piece->grad_slot ? piece->grad_slot : piece->grad;
        return 0;
    }
    ek_shape shape = EK_SHAPE(adds && count > limit ? limit : count);
    ek_memory_category before =
        ek_memory_set_category(adds ? EK_MEMORY_COMMUNICATION : EK_MEMORY_GRADIENT);
    ek_tensor *made = ek_tensor_new(ek_tensor_dev(piece), piece->dtype, &shape, EK_CONTIGUOUS);
    ek_memory_set_category(before);
    *(adds ? &to->temporary : &to->filled) = made;
    return made ? 0 : ek_error_pending();
}

static int add(ek_tensor *sum, ek_tensor *temporary, const ek_tensor *gradient, int64_t begin)
{
    int64_t count = ek_count(sum), room = ek_count(temporary);
    for (int64_t at = 0; at < count; at += room) {
        int64_t part = count - at < room ? count - at : room;
        int64_t stride = sum->stride[0];
        ek_tensor *x = ek_tensor_view(sum, 1, &part, &stride, sum->offset + at * stride);
        ek_tensor *y = flat(temporary, 0, part);
        if (!x || !y)
            return ek_error_pending();
        EK_TRY(copy_elements(y, 0, gradient, begin + at, part));
        EK_TRY(ek_kernels_of(x)->binary(ek_tensor_dev(x), EK_BINARY_ADD, x, x, y, 1));
    }
    return 0;
}

static int arrive(const arrival *to, const ek_shard *shard, const ek_tensor *gradient)
{
    ek_tensor *piece = shard->piece;
    if (to->temporary) {
        EK_TRY(add(piece->grad, to->temporary, gradient, shard->begin));
        ek_tensor_written(piece->grad, writer);
        return 0;
    }
    EK_TRY(copy_elements(to->filled, 0, gradient, shard->begin, shard->end - shard->begin));
    ek_tensor_written(to->filled, writer);
    return ek_tensor_set_grad(piece, to->filled);
}

/* Adds a gradient of the leaf to those of the pieces. All memory is there before the first sum
 * changes. */
static int divide(const ek_tensor *leaf, ek_tensor *gradient, const ek_shards *shards)
{
    arrival *arrivals = ek_calloc((size_t)shards->count, sizeof *arrivals);
    if (!arrivals)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    gradient = in_order_of(gradient, leaf);
    int status = gradient ? 0 : ek_error_pending();
    for (int i = 0; i < shards->count && status >= 0; i++)
        status = prepare(&arrivals[i], shards->shards[i].piece);
    for (int i = 0; i < shards->count && status >= 0; i++)
        status = arrive(&arrivals[i], &shards->shards[i], gradient);
    ek_scope_end(&scope);
    free(arrivals);
    return status;
}

static void drop_whole(ek_tensor *leaf)
{
    ek_tensor *grad = leaf->grad;
    leaf->grad = ek_object_retain(leaf->grad_slot);
    leaf->grad_absent = leaf->grad != NULL;
    ek_object_release(grad);
}

int ek_leaf_settle_gradient(ek_tensor *leaf)
{
    ek_tensor *gradient = leaf->shards ? ek_tensor_grad(leaf) : NULL;
    if (!gradient)
        return 0;
    EK_TRY(divide(leaf, gradient, ek_leaf_shards(leaf)));
    drop_whole(leaf);
    return 0;
}

/* ---- from the pieces to the whole ---- */

static bool pieces_have_gradient(const ek_shards *shards)
{
    for (int i = 0; i < shards->count; i++)
        if (ek_tensor_grad(shards->shards[i].piece))
            return true;
    return false;
}

bool ek_leaf_has_gradient(const ek_tensor *leaf)
{
    return ek_tensor_grad(leaf) || (leaf->shards && pieces_have_gradient(ek_leaf_shards(leaf)));
}

void ek_leaf_drop_piece_gradients(ek_tensor *leaf)
{
    const ek_shards *shards = ek_leaf_shards(leaf);
    for (int i = 0; shards && i < shards->count; i++)
        ek_tensor_set_grad(shards->shards[i].piece, NULL);
}

static int gather_piece(ek_tensor *whole, const ek_shard *shard)
{
    ek_tensor *gradient = ek_tensor_grad(shard->piece);
    int64_t count = shard->end - shard->begin;
    size_t size = ek_dtype_size(whole->dtype);
    if (!gradient)
        return ek_dev_zero(ek_tensor_dev(whole),
                           (char *)ek_tensor_address(whole) + (size_t)shard->begin * size,
                           (size_t)count * size);
    gradient = in_order_of(gradient, shard->piece);
    return gradient ? copy_elements(whole, shard->begin, gradient, 0, count) : ek_error_pending();
}

static int gather(ek_tensor *whole, const ek_tensor *leaf)
{
    const ek_shards *shards = ek_leaf_shards(leaf);
    const ek_tensor *beside = ek_tensor_grad(leaf);
    for (int i = 0; i < shards->count; i++)
        EK_TRY(gather_piece(whole, &shards->shards[i]));
    return beside ? ek_kernels_of(whole)->binary(ek_tensor_dev(whole), EK_BINARY_ADD, whole, whole,
                                                 beside, 1)
                  : 0;
}

ek_tensor *ek_gather_grad(ek_tensor *parameter)
{
    if (!parameter && ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "ek_gather_grad: tensor is NULL");
    if (!parameter || !parameter->shards)
        return ek_tensor_grad(parameter);
    if (!ek_leaf_has_gradient(parameter))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_tensor *whole = ek_tensor_like(parameter);
    ek_memory_set_category(before);
    bool made = whole && gather(whole, parameter) >= 0;
    return ek_scope_return(&scope, made ? whole : NULL);
}

/* ---- changes ---- */

static int change(ek_tensor *leaf, ek_shards *shards)
{
    ek_tensor *gradient = ek_gather_grad(leaf);
    if (!gradient && ek_leaf_has_gradient(leaf))
        return ek_error_pending();
    if (gradient && shards)
        EK_TRY(divide(leaf, gradient, shards));
    ek_object_retain(gradient);
    ek_leaf_drop_piece_gradients(leaf);
    ek_object_release(leaf->shards);
    leaf->shards = ek_object_retain(shards);
    ek_object_release(leaf->grad);
    ek_object_release(leaf->grad_slot);
    leaf->grad_slot = NULL;
    leaf->grad_absent = false;
    leaf->grad = shards ? NULL : gradient;
    if (shards)
        ek_object_release(gradient);
    return 0;
}

int ek_leaf_set_shards(ek_tensor *leaf, ek_shards *shards)
{
    if ((ek_object *)shards == leaf->shards)
        return 0;
    if (shards)
        EK_TRY(check_shards(leaf, shards));
    ek_scope scope = ek_scope_begin();
    int status = change(leaf, shards);
    ek_scope_end(&scope);
    return status;
}
