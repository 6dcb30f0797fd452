/* divided.c: see divided.h. */
#include "train/divided.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "group/sum.h"
#include "group/world.h"
#include "parallel/replica_copies.h"

static int64_t divided_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- places ---- */

static const ek_bucket *divided_bucket_of(const ek_divided *d, int leaf)
{
    return &d->reducer->buckets[d->reducer->bucket_of[leaf]];
}

/* Where the leaf begins in its bucket's range. */
static int64_t divided_at(const ek_divided *d, int leaf)
{
    return d->reducer->leaves[leaf]->grad_buffer->offset -
           divided_bucket_of(d, leaf)->range->offset;
}

/* This rank's slice of the bucket begins here; of the next rank, there it ends. */
static int64_t divided_slice(const ek_divided *d, const ek_bucket *bucket, int rank)
{
    return ek_sum_begin(ek_count(bucket->range), d->ranks->size, rank);
}

static ek_divided_part *divided_part(const ek_divided *d, const ek_shard *shard)
{
    return &d->parts[shard - d->flat.shards];
}

/* ---- releasing ---- */

static void divided_destroy(ek_object *object)
{
    ek_divided *d = (ek_divided *)object;
    for (int k = 0; d->parts && k < d->flat.shard_count; k++) {
        ek_object_release(d->parts[k].mean);
        ek_object_release(d->parts[k].sent);
        ek_object_release(d->parts[k].home);
    }
    ek_tensors_release(d->memory, d->reducer->bucket_count);
    ek_tensors_release(d->wholes, d->reducer->count);
    ek_tensors_release(d->copies, d->reducer->count);
    ek_flat_clear(&d->flat);
    ek_object_release(d->ranks);
    ek_object_release(d->reducer);
    free(d->parts);
    free(d->in_place);
    free(d->moves);
    free(d->runs);
    free(d);
}

/* ---- memory for parameters on their way ---- */

/* True if the bucket's parameters lie in the host's memory as their gradients lie in its range. */
static bool divided_is_in_place(const ek_divided *d, const ek_bucket *bucket)
{
    const ek_tensor *first = d->reducer->leaves[bucket->first];
    bool alike = bucket->memory == bucket->range;
    for (int i = bucket->first; i < bucket->end && alike; i++) {
        const ek_tensor *leaf = d->reducer->leaves[i];
        alike = leaf->storage == first->storage &&
                leaf->offset - first->offset == divided_at(d, i) && ek_is_dense(leaf);
    }
    return alike;
}

static int divided_make_memory(ek_divided *d, int b)
{
    ek_bucket *bucket = &d->reducer->buckets[b];
    const ek_tensor *first = d->reducer->leaves[bucket->first];
    EK_TRY(ek_bucket_stage(bucket));
    d->in_place[b] = divided_is_in_place(d, bucket);
    ek_tensor *memory = bucket->memory; /* nothing of the gradients is there between two passes */
    if (d->in_place[b])
        memory = ek_comm_flat(first, 0, ek_count(bucket->range));
    else if (memory == bucket->range)
        memory = ek_tensor_like_on(memory, memory->dtype, ek_dev_get(ek_cpu()));
    d->memory[b] = ek_object_retain(memory);
    for (int i = bucket->first; i < bucket->end && memory; i++) {
        const ek_tensor *leaf = d->reducer->leaves[i];
        int64_t at = divided_at(d, i);
        d->wholes[i] = ek_keep(ek_comm_flat(leaf, 0, ek_count(leaf)));
        d->copies[i] = ek_keep(ek_comm_flat(memory, at, at + ek_count(leaf)));
        if (!d->wholes[i] || !d->copies[i])
            return ek_error_pending();
    }
    return memory ? 0 : ek_error_pending();
}

/* ---- cutting ---- */

/* A shard that is yet to be made. */
typedef struct divided_cut {
    int leaf, device;
    int64_t begin, end; /* elements of the leaf */
    ek_dev *dev;
} divided_cut;

/* Where the leaf is cut for a device of this rank, in elements of the leaf. */
static int64_t divided_bound(const ek_divided *d, int leaf, int device)
{
    const ek_bucket *bucket = divided_bucket_of(d, leaf);
    int64_t begin = divided_slice(d, bucket, d->ranks->rank);
    int64_t length = divided_slice(d, bucket, d->ranks->rank + 1) - begin;
    int64_t at = begin + ek_sum_begin(length, d->devices, device) - divided_at(d, leaf);
    return divided_least(at < 0 ? 0 : at, ek_count(d->reducer->leaves[leaf]));
}

/* Lists the shards of a leaf, at least one. Returns how many there are. */
static int divided_cut_leaf(const ek_divided *d, int leaf, divided_cut *cuts)
{
    ek_dev *home = ek_tensor_dev(d->reducer->leaves[leaf]);
    int count = 0;
    for (int k = 0; k < d->devices; k++) {
        int64_t begin = divided_bound(d, leaf, k), end = divided_bound(d, leaf, k + 1);
        ek_dev *dev = d->devs[k] ? d->devs[k] : home;
        if (end > begin)
            cuts[count++] = (divided_cut){leaf, k, begin, end, dev};
    }
    int64_t begin = divided_bound(d, leaf, 0);
    if (count == 0)
        cuts[count++] = (divided_cut){leaf, 0, begin, begin, home};
    return count;
}

/* Makes the shard's handles and its gradient's buffer. A shard without elements lies where its
 * bucket begins: all of these are neighbours, and the optimizer takes them together. `own` and
 * `buffer` are the shard's memory on another device than the parameter's, or NULL. */
static int divided_add(ek_divided *d, const divided_cut *cut, ek_tensor *own, ek_tensor *buffer)
{
    int b = d->reducer->bucket_of[cut->leaf];
    const ek_bucket *bucket = &d->reducer->buckets[b];
    bool empty = cut->end == cut->begin;
    ek_tensor *leaf = d->reducer->leaves[empty ? bucket->first : cut->leaf];
    int64_t begin = empty ? 0 : cut->begin, end = begin + cut->end - cut->begin;
    int64_t at = empty ? 0 : divided_at(d, cut->leaf) + begin, to = at + end - begin;
    ek_divided_part *part = &d->parts[d->flat.shard_count];
    ek_tensor *home = ek_comm_flat(leaf, begin, end);
    part->mean = ek_keep(ek_comm_flat(bucket->memory, at, to));
    part->sent = ek_keep(ek_comm_flat(d->memory[b], at, to));
    part->home = own ? ek_keep(home) : NULL;
    part->leaf = cut->leaf;
    part->device = cut->device;
    part->seen = ek_tensor_version(d->reducer->leaves[cut->leaf]);
    if (!own)
        buffer = ek_comm_flat(bucket->range, at, to);
    ek_tensor *tensor = own ? own : home;
    ek_flat_add_range(&d->flat, cut->leaf, cut->begin, cut->end, tensor);
    if (!home || !part->mean || !part->sent || !buffer)
        return ek_error_pending();
    if (own)
        EK_TRY(ek_comm_copy(own, home));
    tensor->requires_grad = true;
    return ek_leaf_set_grad_buffer(tensor, buffer);
}

/* Makes memory for the shards on other devices than their parameters', in slabs per device. `room`
 * is for a list of the shards' shapes. */
static int divided_make_slabs(const ek_divided *d, const divided_cut *cuts, int count,
                              ek_tensor **room, ek_tensor **own, ek_tensor **buffers)
{
    for (int k = 0; k < d->devices; k++) {
        for (int i = 0; i < count; i++) {
            ek_tensor *leaf = d->reducer->leaves[cuts[i].leaf];
            room[i] = NULL;
            if (cuts[i].device != k || cuts[i].dev == ek_tensor_dev(leaf))
                continue;
            room[i] = ek_comm_flat(leaf, cuts[i].begin, cuts[i].end);
            if (!room[i])
                return ek_error_pending();
        }
        if (!d->devs[k])
            continue;
        EK_TRY(ek_copies_slabs_make(d->devs[k], room, count, EK_MEMORY_PARAMETER, own));
        EK_TRY(ek_copies_slabs_make(d->devs[k], room, count, EK_MEMORY_GRADIENT, buffers));
    }
    return 0;
}

static int divided_make_shards(ek_divided *d, divided_cut *cuts, size_t most)
{
    int count = 0;
    for (int i = 0; i < d->reducer->count; i++)
        count += divided_cut_leaf(d, i, cuts + count);
    ek_tensor **room = ek_calloc(3 * most, sizeof *room), **own = room + most,
              **buffers = own + most;
    int rc = room ? divided_make_slabs(d, cuts, count, room, own, buffers) : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++)
        rc = divided_add(d, &cuts[i], own[i], buffers[i]);
    for (int i = 0; room && i < count; i++) {
        ek_object_release(own[i]);
        ek_object_release(buffers[i]);
    }
    free(room);
    return rc;
}

static int divided_cut_all(ek_divided *d)
{
    /* Each bound between two devices, or ranks, may cut one leaf of a bucket. */
    size_t most =
        (size_t)d->reducer->count + (size_t)d->reducer->bucket_count * (size_t)(d->devices + 1) + 1;
    size_t leaves = (size_t)d->reducer->count + 1, buckets = (size_t)d->reducer->bucket_count + 1;
    EK_TRY(ek_flat_init(&d->flat, d->reducer->count, (int)most));
    d->flat.stepped = ek_calloc(leaves, sizeof *d->flat.stepped);
    d->parts = ek_calloc(most, sizeof *d->parts);
    d->moves = ek_calloc(most, sizeof *d->moves);
    d->runs = ek_calloc(leaves, sizeof *d->runs);
    d->wholes = ek_calloc(leaves, sizeof *d->wholes);
    d->copies = ek_calloc(leaves, sizeof *d->copies);
    d->memory = ek_calloc(buckets, sizeof *d->memory);
    d->in_place = ek_calloc(buckets, sizeof *d->in_place);
    divided_cut *cuts = ek_calloc(most, sizeof *cuts);
    bool made = d->flat.stepped && d->parts && d->moves && d->runs && d->wholes && d->copies &&
                d->memory && d->in_place && cuts;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = made ? 0 : ek_error_pending();
    for (int b = 0; b < d->reducer->bucket_count && rc >= 0; b++)
        rc = divided_make_memory(d, b);
    ek_memory_set_category(before);
    if (rc >= 0)
        rc = divided_make_shards(d, cuts, most);
    free(cuts);
    return rc;
}

/* ---- what the optimizer calls, but for divided_step.c ---- */

static int divided_enter(ek_flat *flat)
{
    ek_divided *d = (ek_divided *)flat;
    EK_TRY(ek_call_guard_enter(&d->guard, "the divided model"));
    memset(flat->stepped, 0, (size_t)flat->count * sizeof *flat->stepped);
    return 0;
}

static void divided_leave(ek_flat *flat)
{
    ek_call_guard_leave(&((ek_divided *)flat)->guard);
}

static int divided_refresh(ek_flat *flat)
{
    const ek_divided *d = (ek_divided *)flat;
    for (int k = 0; k < flat->shard_count; k++) {
        ek_divided_part *part = &d->parts[k];
        uint64_t now = ek_tensor_version(d->reducer->leaves[part->leaf]);
        if (part->home && part->seen != now)
            EK_TRY(ek_comm_copy(flat->shards[k].tensor, part->home));
        part->seen = now;
    }
    return 0;
}

/* ---- making ---- */

/* Makes the leaf a segment. Its grad buffer stays, and so does a gradient: it is this rank's own,
 * and the next pass averages it. */
static int divided_attach(ek_divided *d, int leaf, ek_flat *flat)
{
    ek_tensor *tensor = d->reducer->leaves[leaf];
    ek_tensor *buffer = ek_object_retain(tensor->grad_buffer);
    ek_tensor *gradient = ek_object_retain(tensor->grad);
    int rc = ek_tensor_set_grad(tensor, NULL);
    if (rc >= 0)
        rc = ek_leaf_set_shards(tensor, flat, leaf);
    if (rc >= 0)
        rc = ek_leaf_set_grad_buffer(tensor, buffer);
    if (rc >= 0)
        rc = ek_tensor_set_grad(tensor, gradient);
    ek_object_release(gradient);
    ek_object_release(buffer);
    return rc;
}

ek_divided *ek_divided_new(ek_reducer *reducer, ek_ranks *ranks, ek_dev *const *devs, int devices)
{
    ek_divided *d = ek_calloc(1, sizeof *d);
    if (!d)
        return NULL;
    ek_object_init(&d->flat.object, divided_destroy);
    d->flat.enter = divided_enter;
    d->flat.leave = divided_leave;
    d->flat.refresh = divided_refresh;
    d->flat.agree = ek_divided_agree;
    d->flat.publish = ek_divided_publish;
    d->reducer = ek_object_retain(reducer);
    d->ranks = ek_object_retain(ranks);
    d->devices = devices > 0 ? devices : 1;
    for (int k = 0; k < devices; k++)
        d->devs[k] = devs[k];
    ek_scope scope = ek_scope_begin();
    int rc = divided_cut_all(d);
    ek_scope_end(&scope);
    d->flat.owners = rc >= 0 ? ek_ranks_owners(ranks) : NULL;
    if (!d->flat.owners)
        rc = ek_error_pending();
    reducer->divided = d;
    for (int i = 0; i < reducer->count && rc >= 0; i++)
        rc = divided_attach(d, i, &d->flat);
    if (rc >= 0)
        return d;
    ek_divided_end(d);
    return NULL;
}

void ek_divided_end(ek_divided *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->reducer->count; i++)
        if (d->reducer->leaves[i]->flat == &d->flat.object)
            divided_attach(d, i, NULL);
    d->reducer->divided = NULL;
    ek_object_release(d);
}

/* ---- passes ---- */

static bool divided_has_gradient(const ek_divided *d, int leaf)
{
    return ek_tensor_grad(d->flat.segments[leaf].shards[0].tensor);
}

/* What this rank has of the mean of a bucket's gradients, on cpu. */
static ek_tensor *divided_own_mean(const ek_divided *d, const ek_bucket *bucket)
{
    int64_t begin = divided_slice(d, bucket, d->ranks->rank);
    int64_t end = divided_slice(d, bucket, d->ranks->rank + 1);
    ek_tensor *own = ek_zeros(EK_SHAPE(end - begin), bucket->range->dtype, .device = ek_cpu());
    for (int i = bucket->first; i < bucket->end && own; i++) {
        const ek_shards *shards = &d->flat.segments[i];
        for (int k = 0; k < shards->count && divided_has_gradient(d, i); k++) {
            const ek_shard *shard = &shards->shards[k];
            ek_tensor *gradient = ek_tensor_grad(shard->tensor);
            if (!gradient || ek_count(gradient) == 0)
                continue;
            int64_t at = divided_at(d, i) - begin;
            ek_tensor *to = ek_comm_flat(own, at + shard->begin, at + shard->end);
            if (!to || ek_comm_copy(to, gradient) < 0 ||
                ek_synchronize(ek_tensor_dev(gradient)->id) < 0)
                return NULL;
        }
    }
    return own;
}

/* `mean` is the leaf's: it is added to the leaf's own gradient, or becomes it. */
static int divided_give_back(const ek_divided *d, int leaf, ek_tensor *mean)
{
    ek_tensor *tensor = d->reducer->leaves[leaf], *own = ek_tensor_grad(tensor);
    if (!own) {
        EK_TRY(ek_comm_copy(tensor->grad_buffer, mean));
        ek_tensor_written(tensor->grad_buffer, "a divided gradient that became whole");
        return ek_tensor_set_grad(tensor, tensor->grad_buffer);
    }
    ek_tensor *sum = ek_add(own, ek_to_device(mean, ek_tensor_device(own)));
    return sum ? ek_tensor_set_grad(tensor, sum) : ek_error_pending();
}

/* Gives all ranks the whole mean of the bucket's gradients. */
static int divided_collect(const ek_divided *d, const ek_bucket *bucket)
{
    ek_tensor *own = divided_own_mean(d, bucket);
    if (!own)
        return ek_error_pending();
    int64_t *sizes = ek_calloc((size_t)d->ranks->size, sizeof *sizes);
    for (int r = 0; r < d->ranks->size && sizes; r++)
        sizes[r] = divided_slice(d, bucket, r + 1) - divided_slice(d, bucket, r);
    ek_tensor *all = sizes ? d->ranks->join(d->ranks, own, 0, sizes) : NULL;
    free(sizes);
    if (!all)
        return ek_error_pending();
    for (int i = bucket->first; i < bucket->end; i++) {
        const ek_tensor *leaf = d->reducer->leaves[i];
        ek_shape shape = ek_tensor_shape(leaf);
        if (!divided_has_gradient(d, i))
            continue;
        ek_tensor *mean = ek_tensor_member(all->storage, all->dtype, &shape, leaf->stride,
                                           all->offset + divided_at(d, i));
        if (!mean)
            return ek_error_pending();
        EK_TRY(divided_give_back(d, i, mean));
    }
    return 0;
}

/* Moves the gradients of the leaf's shards out of its grad buffer. */
static int divided_set_aside(const ek_divided *d, int leaf)
{
    const ek_shards *shards = &d->flat.segments[leaf];
    const ek_storage *buffer = d->reducer->leaves[leaf]->grad_buffer->storage;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    int rc = 0;
    for (int k = 0; k < shards->count && rc >= 0; k++) {
        ek_tensor *tensor = shards->shards[k].tensor, *gradient = ek_tensor_grad(tensor);
        if (!gradient || gradient->storage != buffer)
            continue;
        ek_tensor *copy = ek_clone(gradient);
        rc = copy ? ek_tensor_set_grad(tensor, copy) : ek_error_pending();
    }
    ek_memory_set_category(before);
    return rc;
}

int ek_divided_begin(ek_divided *d, bool reduced)
{
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = 0;
    for (int b = 0; b < d->reducer->bucket_count && rc >= 0; b++) {
        const ek_bucket *bucket = &d->reducer->buckets[b];
        bool any = false;
        for (int i = bucket->first; i < bucket->end; i++)
            any = any || divided_has_gradient(d, i);
        if (any && reduced)
            rc = divided_collect(d, bucket);
        for (int i = bucket->first; i < bucket->end && !reduced && rc >= 0; i++)
            rc = divided_set_aside(d, i);
    }
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    return rc;
}

int ek_divided_take(ek_divided *d, int leaf)
{
    const ek_shards *shards = &d->flat.segments[leaf];
    EK_TRY(ek_tensor_set_grad(d->reducer->leaves[leaf], NULL));
    for (int k = 0; k < shards->count; k++) {
        ek_tensor *tensor = shards->shards[k].tensor, *buffer = tensor->grad_buffer;
        const ek_tensor *mean = divided_part(d, &shards->shards[k])->mean;
        if (mean->storage != buffer->storage)
            EK_TRY(ek_comm_copy(buffer, mean));
        ek_tensor_written(buffer, "the reduction of gradients");
        EK_TRY(ek_tensor_set_grad(tensor, buffer));
    }
    return 0;
}
