/* slabs.c: the memory of a reducer's gradients, and how buckets are cut from it (reducer.h, Note
 * [Gradients are the buckets]). */
#include <stdlib.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "core/thread.h"
#include "parallel/replica_copies.h"
#include "train/reducer.h"

/* Gives a grad buffer to each leaf that has none, in a slab per device and dtype. */
static int slabs_make(ek_reducer *reducer)
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
static bool slabs_follows(const ek_reducer *reducer, int i)
{
    const ek_tensor *a = reducer->leaves[i]->grad_buffer, *b = reducer->leaves[i + 1]->grad_buffer;
    return a->storage == b->storage &&
           b->offset == a->offset + ek_slab_pitch(a->dtype, ek_count(a));
}

static const size_t slabs_first_nbytes = 1 << 20; /* bytes of the first and the last buckets */

/* Returns how many buckets share a leaf. */
static int slabs_pieces(size_t nbytes, bool whole)
{
    return whole || nbytes == 0 ? 1 : (int)((nbytes + EK_LEAF_PIECE - 1) / EK_LEAF_PIECE);
}

int ek_reducer_cut(const size_t *nbytes, int begin, int end, size_t cap, bool whole,
                   ek_bucket *buckets)
{
    size_t left = 0;
    int count = 0;
    for (int i = begin; i < end; i++)
        left += nbytes[i];
    size_t room = slabs_first_nbytes < cap ? slabs_first_nbytes : cap;
    while (end > begin) {
        const int pieces = slabs_pieces(nbytes[end - 1], whole);
        int first = end;
        size_t taken = 0;
        do
            taken += nbytes[--first];
        while (first > begin && taken + nbytes[first - 1] <= room && pieces == 1 &&
               slabs_pieces(nbytes[first - 1], whole) == 1);
        for (int k = 0; k < pieces; k++)
            buckets[count++] =
                (ek_bucket){.first = first, .end = end, .piece = k, .pieces = pieces};
        left -= taken;
        end = first;
        room = left / 2 < cap ? left / 2 : cap;
        room = room < slabs_first_nbytes ? slabs_first_nbytes : room;
        room = room < cap ? room : cap;
    }
    return count;
}

/* Cuts all leaves into buckets, slab by slab. */
static int slabs_cut_all(ek_reducer *reducer, size_t cap, bool whole)
{
    size_t *nbytes = ek_calloc((size_t)reducer->count + 1, sizeof *nbytes);
    if (!nbytes)
        return ek_error_pending();
    for (int i = 0; i < reducer->count; i++)
        nbytes[i] = ek_comm_nbytes(reducer->leaves[i]);
    for (int begin, end = reducer->count; end > 0; end = begin) {
        begin = end - 1;
        while (begin > 0 && slabs_follows(reducer, begin - 1))
            begin--;
        reducer->bucket_count += ek_reducer_cut(nbytes, begin, end, cap, whole,
                                                &reducer->buckets[reducer->bucket_count]);
    }
    free(nbytes);
    for (int b = reducer->bucket_count - 1; b >= 0; b--)
        for (int i = reducer->buckets[b].first; i < reducer->buckets[b].end; i++)
            reducer->bucket_of[i] = b;
    return 0;
}

/* Makes the bucket's range: its leaves and the padding between them, or its piece of a leaf. */
static int slabs_make_range(const ek_reducer *reducer, ek_bucket *bucket)
{
    const ek_tensor *first = reducer->leaves[bucket->first]->grad_buffer;
    const ek_tensor *last = reducer->leaves[bucket->end - 1]->grad_buffer;
    const int64_t count = last->offset + ek_count(last) - first->offset, stride = 1;
    const int64_t unit = ek_slab_pitch(first->dtype, 1);
    int64_t begin = ek_slab_cut(count, unit, bucket->pieces, bucket->piece);
    ek_shape shape = EK_SHAPE(ek_slab_cut(count, unit, bucket->pieces, bucket->piece + 1) - begin);
    ek_tensor *range =
        ek_tensor_member(first->storage, first->dtype, &shape, &stride, first->offset + begin);
    bucket->unit = -1;
    return range ? ek_bucket_open(bucket, range) : ek_error_pending();
}

/* Makes the buckets and their ranges. */
static int slabs_make_ranges(ek_reducer *reducer, size_t cap, bool whole)
{
    EK_TRY(slabs_cut_all(reducer, cap, whole));
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    for (int b = 0; b < reducer->bucket_count && rc >= 0; b++)
        rc = slabs_make_range(reducer, &reducer->buckets[b]);
    ek_scope_end(&scope);
    return rc;
}

/* ---- the window: Note [Ranks of one machine share the slabs] ---- */

static bool slabs_can_share(const ek_reducer *reducer)
{
    for (int b = 0; b < reducer->bucket_count; b++)
        if (!ek_tensor_dev(reducer->buckets[b].range)->backend->host_memory ||
            reducer->buckets[b].range->storage->pinned_by)
            return false;
    return !reducer->narrow;
}

/* Returns the bytes that a storage occupies in the window. */
static size_t slabs_room(const ek_storage *storage)
{
    return (storage->nbytes + EK_SLAB_ALIGNMENT - 1) / EK_SLAB_ALIGNMENT * EK_SLAB_ALIGNMENT;
}

/* Returns the first bucket in reducer->buckets that lies in the storage of this bucket. */
static const ek_bucket *slabs_first_of_storage(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const ek_bucket *first = reducer->buckets;
    while (first->range->storage != bucket->range->storage)
        first++;
    return first;
}

/* Moves the slabs into a window if the ranks can share memory. */
static int slabs_share(ek_reducer *reducer)
{
    size_t nbytes = 0;
    for (int b = 0; b < reducer->bucket_count; b++) {
        ek_bucket *bucket = &reducer->buckets[b];
        const ek_bucket *first = slabs_first_of_storage(reducer, bucket);
        bucket->storage_at = first == bucket ? nbytes : first->storage_at;
        if (first == bucket)
            nbytes += slabs_room(bucket->range->storage);
    }
    EK_TRY(ek_window_open(reducer->group, nbytes, slabs_can_share(reducer), &reducer->window));
    for (int b = 0; b < reducer->bucket_count && reducer->window; b++) {
        const ek_bucket *bucket = &reducer->buckets[b];
        if (slabs_first_of_storage(reducer, bucket) == bucket)
            ek_storage_move(bucket->range->storage, &reducer->window->object,
                            ek_window_memory(reducer->window, reducer->group->rank) +
                                bucket->storage_at);
    }
    return 0;
}

int ek_reducer_make_buckets(ek_reducer *reducer, size_t cap, bool whole)
{
    EK_TRY(slabs_make(reducer));
    EK_TRY(slabs_make_ranges(reducer, cap, whole));
    return slabs_share(reducer);
}
