/* sharding_cut.c: how leaves are cut into shards, and the memory of shards whose leaves are
 * gathered.
 *
 * A gathered bucket has a slice on each device: the device's shards lie there in the order of the
 * bucket, with the bucket's padding, and so do their gradients in a second block. So one copy
 * brings a device's range of a bucket to a gathered unit (gathering.h). Each block is a storage of
 * its own. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "parallel/sharding.h"

/* ---- cutting ---- */

ek_interval ek_sharding_range(const ek_sharding *s, int bucket, int rank)
{
    const ek_sharding_bucket *b = &s->buckets[bucket];
    return b->count == 0 ? (ek_interval){0}
                         : ek_slab_slice(b->count, b->unit,
                                         s->shards.ranks ? s->shards.ranks->size : 1, rank);
}

int64_t ek_sharding_device_begin(const ek_sharding *s, int bucket, int device)
{
    ek_interval own = ek_sharding_range(s, bucket, s->shards.ranks ? s->shards.ranks->rank : 0);
    return own.begin +
           ek_slab_cut(own.end - own.begin, s->buckets[bucket].unit, s->devices, device);
}

/* Returns where a device's range of the leaf's bucket begins, counted in elements of the leaf. */
static int64_t sharding_bound(const ek_sharding *s, int leaf, int device)
{
    int64_t count = ek_count(s->leaves[leaf]);
    int64_t bound = ek_sharding_device_begin(s, s->bucket_of[leaf], device) - s->at[leaf];
    return bound < 0 ? 0 : bound > count ? count : bound;
}

static void sharding_add(ek_sharding *s, int leaf, int device, int64_t begin, int64_t end)
{
    s->parts[s->shards.count] = (ek_sharding_part){.leaf = leaf, .device = device};
    ek_shards_add(&s->shards, leaf, begin, end, NULL);
}

/* Cuts every leaf. With ranks each leaf has a shard in this process, even if it is empty, so that
 * all ranks see gradients at equal leaves and count equal steps. */
void ek_sharding_cut(ek_sharding *s)
{
    for (int i = 0; i < s->shards.leaf_count; i++) {
        for (int d = 0; d < s->devices && s->leaves[i]; d++) {
            int64_t begin = sharding_bound(s, i, d), end = sharding_bound(s, i, d + 1);
            if (end > begin)
                sharding_add(s, i, d, begin, end);
        }
        int64_t begin = s->leaves[i] ? sharding_bound(s, i, 0) : 0;
        if (s->leaves[i] && s->shards.counts[i] == 0)
            sharding_add(s, i, 0, begin, begin);
    }
}

/* ---- slices ---- */

/* Returns a block of zeros, because padding must be finite; one reference. If `reader` isn't NULL,
 * `dev` is cpu, and the memory is pinned if the reader pins memory. */
static ek_tensor *slice_block(ek_dev *dev, ek_dev *reader, ek_dtype dtype, int64_t count,
                              ek_memory_category category)
{
    const size_t nbytes = (size_t)count * ek_dtype_size(dtype);
    const int64_t stride = 1;
    const ek_shape shape = EK_SHAPE(count);
    ek_memory_category before = ek_memory_set_category(category);
    ek_storage *storage = reader && reader->backend->pinned_alloc
                              ? ek_storage_new_pinned(reader, nbytes)
                              : ek_storage_new(dev, nbytes);
    ek_memory_set_category(before);
    bool zeroed = storage && ek_dev_zero(dev, storage->data, nbytes) >= 0;
    ek_tensor *block =
        zeroed ? ek_keep(ek_tensor_member(storage, dtype, &shape, &stride, 0)) : NULL;
    ek_object_release(storage);
    return block;
}

static int slice_make(const ek_sharding *s, int bucket, int d, bool trained)
{
    ek_shard_slice *slice = &s->slices[bucket * s->devices + d];
    ek_dev *dev = ek_sharding_dev(s, d), *reader = s->owner.host ? s->devs[d] : NULL;
    const ek_dtype dtype = s->buckets[bucket].dtype;
    slice->begin = ek_sharding_device_begin(s, bucket, d);
    slice->end = ek_sharding_device_begin(s, bucket, d + 1);
    const int64_t count = slice->end - slice->begin;
    slice->elements = slice_block(dev, reader, dtype, count, EK_MEMORY_PARAMETER);
    if (trained && slice->elements)
        slice->gradients = slice_block(dev, reader, dtype, count, EK_MEMORY_GRADIENT);
    return slice->elements && (slice->gradients || !trained) ? 0 : ek_error_pending();
}

/* Returns true if a leaf of the bucket gets a gradient. */
static bool slice_is_trained(const ek_sharding *s, int bucket)
{
    bool any = false;
    for (int i = 0; i < s->shards.leaf_count; i++)
        any = any || (s->leaves[i] && s->bucket_of[i] == bucket && s->leaves[i]->requires_grad);
    return any;
}

/* Returns a shard's elements or its gradient in its slice, in the scope. */
static ek_tensor *slice_view(const ek_sharding *s, int k, bool gradient)
{
    const ek_sharding_part *part = &s->parts[k];
    const ek_shard *shard = &s->shards.all[k];
    const int bucket = s->bucket_of[part->leaf];
    const ek_shard_slice *slice = &s->slices[bucket * s->devices + part->device];
    /* An empty shard's place may lie outside of the slice. */
    int64_t at = shard->end > shard->begin ? s->at[part->leaf] + shard->begin - slice->begin : 0;
    return ek_comm_flat(gradient ? slice->gradients : slice->elements, at,
                        at + shard->end - shard->begin);
}

int ek_slices_make(ek_sharding *s, ek_tensor **own, ek_tensor **buffers)
{
    s->slices = ek_calloc((size_t)(s->bucket_count * s->devices) + 1, sizeof *s->slices);
    if (!s->slices)
        return ek_error_pending();
    for (int b = 0; b < s->bucket_count; b++) {
        const bool trained = slice_is_trained(s, b);
        for (int d = 0; d < s->devices && s->buckets[b].unit > 0; d++)
            EK_TRY(slice_make(s, b, d, trained));
    }
    for (int k = 0; k < s->shards.count; k++) {
        bool trained = s->leaves[s->parts[k].leaf]->requires_grad;
        own[k] = ek_keep(slice_view(s, k, false));
        buffers[k] = own[k] && trained ? ek_keep(slice_view(s, k, true)) : NULL;
        if (!own[k] || (trained && !buffers[k]))
            return ek_error_pending();
    }
    return 0;
}

void ek_slices_drop_gradients(ek_sharding *s)
{
    for (int k = 0; k < s->shards.count; k++) {
        ek_tensor_set_grad(s->shards.all[k].tensor, NULL);
        ek_leaf_set_grad_buffer(s->shards.all[k].tensor, NULL);
    }
    for (int k = 0; k < s->bucket_count * s->devices; k++) {
        ek_object_release(s->slices[k].gradients);
        s->slices[k].gradients = NULL;
    }
}

void ek_slices_clear(ek_sharding *s)
{
    for (int k = 0; s->slices && k < s->bucket_count * s->devices; k++) {
        ek_object_release(s->slices[k].elements);
        ek_object_release(s->slices[k].gradients);
    }
    free(s->slices);
}
