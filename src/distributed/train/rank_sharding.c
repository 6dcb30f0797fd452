/* rank_sharding.c: see rank_sharding.h. */
#include "train/rank_sharding.h"

#include <stdlib.h>

#include "autograd/graph.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "group/sum.h"
#include "train/unit_reads.h"

void ek_rank_sharding_destroy(ek_object *object)
{
    ek_rank_sharding *self = (ek_rank_sharding *)object;
    ek_tensors_release(self->means, self->sharding.shards.count);
    if (self->memory) {
        ek_tensors_release(self->memory, self->reducer->bucket_count);
        ek_tensors_release(self->copies, self->reducer->count);
    }
    ek_unit_reads_free(self->reads);
    ek_object_release(self->window);
    ek_object_release(self->part);
    ek_sharding_clear(&self->sharding);
    ek_object_release(self->reducer);
    free(self->in_place);
    free(self->ranges);
    free(self);
}

ek_tensor *ek_rank_sharding_in(const ek_rank_sharding *self, int leaf, const ek_tensor *memory)
{
    const ek_tensor *like = self->sharding.leaves[leaf];
    ek_shape shape = ek_tensor_shape(like);
    return ek_tensor_member(memory->storage, memory->dtype, &shape, like->stride,
                            memory->offset + self->sharding.at[leaf]);
}

/* ---- memory for parameters on their way ---- */

/* Returns true if the bucket's parameters lie in the host's memory, at the offsets that their
 * gradients have in the bucket's range. */
static bool rank_sharding_is_in_place(const ek_rank_sharding *self, const ek_bucket *bucket)
{
    const ek_tensor *first = self->reducer->leaves[bucket->first];
    bool alike = bucket->memory == bucket->range;
    for (int i = bucket->first; i < bucket->end && alike; i++) {
        const ek_tensor *leaf = self->reducer->leaves[i];
        alike = leaf->storage == first->storage &&
                leaf->offset - first->offset == self->sharding.at[i] && ek_is_dense(leaf);
    }
    return alike;
}

static int rank_sharding_make_memory(ek_rank_sharding *self, int b)
{
    ek_bucket *bucket = &self->reducer->buckets[b];
    const ek_tensor *first = self->reducer->leaves[bucket->first];
    EK_TRY(ek_bucket_stage(bucket));
    self->in_place[b] = rank_sharding_is_in_place(self, bucket);
    ek_tensor *memory = bucket->memory; /* between two passes this memory has no gradients */
    if (self->in_place[b])
        memory = ek_comm_flat(first, 0, ek_count(bucket->range));
    else if (memory == bucket->range)
        memory = ek_tensor_like_on(memory, memory->dtype, ek_dev_get(ek_cpu()));
    self->memory[b] = ek_object_retain(memory);
    for (int i = bucket->first; i < bucket->end && memory; i++) {
        self->copies[i] = ek_keep(ek_rank_sharding_in(self, i, memory));
        if (!self->copies[i])
            return ek_error_pending();
    }
    return memory ? 0 : ek_error_pending();
}

/* ---- making ---- */

/* Lists bucket b of the reducer and the bucket's leaves in the sharding. */
static void rank_sharding_list(ek_sharding *s, const ek_reducer *reducer, int b)
{
    const ek_bucket *bucket = &reducer->buckets[b];
    s->buckets[b] = (ek_sharding_bucket){bucket->count, EK_SUM_UNIT, bucket->first, bucket->dtype};
    for (int i = bucket->first; i < bucket->end; i++) {
        s->leaves[i] = ek_object_retain(reducer->leaves[i]);
        s->bucket_of[i] = b;
        s->at[i] = reducer->leaves[i]->grad_buffer->offset - bucket->range->offset;
    }
}

/* Makes handles on the means of the shards' gradients. */
static int rank_sharding_make_means(ek_rank_sharding *self)
{
    const ek_sharding *s = &self->sharding;
    self->means = ek_calloc((size_t)s->shards.count + 1, sizeof(ek_tensor *));
    for (int k = 0; k < s->shards.count && self->means; k++) {
        const ek_shard *shard = &s->shards.all[k];
        int leaf = s->parts[k].leaf;
        int64_t at = shard->end > shard->begin ? s->at[leaf] + shard->begin : 0;
        self->means[k] = ek_keep(ek_comm_flat(self->reducer->buckets[s->bucket_of[leaf]].memory, at,
                                              at + shard->end - shard->begin));
        if (!self->means[k])
            return ek_error_pending();
    }
    return self->means ? 0 : ek_error_pending();
}

static int rank_sharding_make(ek_rank_sharding *self, ek_dev *const *devs, int devices)
{
    ek_dev *own[] = {NULL};
    const ek_reducer *reducer = self->reducer;
    size_t leaves = (size_t)reducer->count + 1, buckets = (size_t)reducer->bucket_count + 1;
    EK_TRY(ek_sharding_init(&self->sharding, reducer->count, reducer->bucket_count,
                            devices > 0 ? devs : own, devices > 0 ? devices : 1));
    self->ranges = ek_calloc(leaves, sizeof *self->ranges);
    self->copies = ek_calloc(leaves, sizeof(ek_tensor *));
    self->memory = ek_calloc(buckets, sizeof(ek_tensor *));
    self->in_place = ek_calloc(buckets, sizeof *self->in_place);
    bool made = self->ranges && self->copies && self->memory && self->in_place;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = made ? 0 : ek_error_pending();
    for (int b = 0; b < reducer->bucket_count && rc >= 0; b++) {
        rank_sharding_list(&self->sharding, reducer, b);
        rc = rank_sharding_make_memory(self, b);
    }
    ek_memory_set_category(before);
    EK_TRY(rc);
    ek_tensor *const *targets[] = {self->copies};
    EK_TRY(ek_sharding_make(&self->sharding, targets, 1));
    self->sharding.shards.agree = ek_rank_sharding_agree;
    self->sharding.shards.publish = ek_rank_sharding_publish;
    return rank_sharding_make_means(self);
}

ek_rank_sharding *ek_rank_sharding_new(ek_reducer *reducer, ek_ranks *ranks, ek_dev *const *devs,
                                       int devices, ek_dev *host)
{
    ek_rank_sharding *self = ek_calloc(1, sizeof *self);
    if (!self)
        return NULL;
    ek_object_init(&self->sharding.shards.object, ek_rank_sharding_destroy);
    self->sharding.shards.ranks = ek_object_retain(ranks);
    self->sharding.owner.guard = &self->guard;
    self->sharding.owner.host = host;
    self->reducer = ek_object_retain(reducer);
    ek_scope scope = ek_scope_begin();
    int rc = rank_sharding_make(self, devs, devices);
    ek_scope_end(&scope);
    reducer->sharding = self;
    if (rc >= 0)
        return self;
    ek_rank_sharding_end(self, true);
    return NULL;
}

void ek_rank_sharding_end(ek_rank_sharding *self, bool whole)
{
    if (!self)
        return;
    self->reducer->sharding = NULL;
    if (self->replicas)
        ek_replica_set_gather(self->replicas, NULL);
    ek_object_retain(self);
    ek_sharding_end(&self->sharding, whole);
    /* Leaves that stay gathered keep the sharding, and the reducer keeps the leaves. */
    if (self->sharding.gathering) {
        const int pending = ek_error_status();
        if (ek_rank_units_drop_reads(self) < 0 && pending == 0)
            ek_error_clear();
        ek_object_release(self->reducer);
        self->reducer = NULL;
    }
    ek_object_release(self);
}

/* ---- passes ---- */

static bool rank_sharding_has_gradient(const ek_rank_sharding *self, int leaf)
{
    return ek_tensor_grad(ek_leaf_shard(self->reducer->leaves[leaf], 0).tensor);
}

/* Returns this rank's slice of the mean of a bucket's gradients, on cpu. */
static ek_tensor *rank_sharding_own_mean(const ek_rank_sharding *self, int b)
{
    const ek_bucket *bucket = &self->reducer->buckets[b];
    const ek_sharding *s = &self->sharding;
    ek_interval range = ek_sharding_range(s, b, s->shards.ranks->rank);
    ek_shape shape = EK_SHAPE(range.end - range.begin);
    ek_tensor *own = ek_zeros(shape, bucket->range->dtype, .device = ek_cpu());
    for (int k = 0; k < s->shards.count && own; k++) {
        const ek_shard *shard = &s->shards.all[k];
        ek_tensor *gradient = ek_tensor_grad(shard->tensor);
        if (s->bucket_of[s->parts[k].leaf] != b || !gradient || ek_count(gradient) == 0)
            continue;
        int64_t at = s->at[s->parts[k].leaf] - range.begin;
        ek_tensor *to = ek_comm_flat(own, at + shard->begin, at + shard->end);
        if (!to || ek_comm_copy(to, gradient) < 0 ||
            ek_synchronize(ek_tensor_dev(gradient)->id) < 0)
            return NULL;
    }
    return own;
}

/* Adds the leaf's mean to the leaf's own gradient. If the leaf has no gradient, makes the mean the
 * gradient. */
static int rank_sharding_give_back(const ek_rank_sharding *self, int leaf, ek_tensor *mean)
{
    ek_tensor *tensor = self->reducer->leaves[leaf], *own = ek_tensor_grad(tensor);
    if (!own) {
        EK_TRY(ek_comm_copy(tensor->grad_buffer, mean));
        ek_tensor_written(tensor->grad_buffer, "a sharded gradient that became whole");
        return ek_tensor_set_grad(tensor, tensor->grad_buffer);
    }
    ek_tensor *sum = ek_add(own, ek_to_device(mean, ek_tensor_device(own)));
    return sum ? ek_tensor_set_grad(tensor, sum) : ek_error_pending();
}

/* Copies the slices of a bucket that all ranks have to `all`. */
static int rank_sharding_join(const ek_rank_sharding *self, int b, ek_tensor *own, ek_tensor *all)
{
    ek_ranks *ranks = self->sharding.shards.ranks;
    ek_tensor **slices = ek_calloc((size_t)ranks->size, sizeof(ek_tensor *));
    for (int r = 0; r < ranks->size && slices; r++) {
        ek_interval range = ek_sharding_range(&self->sharding, b, r);
        slices[r] = ek_comm_flat(all, range.begin, range.end);
    }
    int rc = slices ? ek_dist_all_gather(own, slices, .group = self->reducer->group)
                    : ek_error_pending();
    free(slices);
    return rc;
}

/* Brings the whole mean of a bucket's gradients to all ranks, and adds it to the leaves' own
 * gradients. */
static int rank_sharding_collect(const ek_rank_sharding *self, int b)
{
    const ek_bucket *bucket = &self->reducer->buckets[b];
    ek_tensor *own = rank_sharding_own_mean(self, b);
    if (!own)
        return ek_error_pending();
    ek_tensor *all = ek_zeros(EK_SHAPE(bucket->count), own->dtype, .device = ek_cpu());
    if (!all || rank_sharding_join(self, b, own, all) < 0)
        return ek_error_pending();
    for (int i = bucket->first; i < bucket->end; i++) {
        if (!rank_sharding_has_gradient(self, i))
            continue;
        ek_tensor *mean = ek_rank_sharding_in(self, i, all);
        if (!mean)
            return ek_error_pending();
        EK_TRY(rank_sharding_give_back(self, i, mean));
    }
    return 0;
}

/* Moves those gradients of the leaf's shards that lie in the leaf's grad buffer to new memory. */
static int rank_sharding_set_aside(const ek_tensor *leaf)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    int rc = 0;
    for (int k = 0; k < ek_leaf_shard_count(leaf) && rc >= 0; k++) {
        ek_tensor *tensor = ek_leaf_shard(leaf, k).tensor, *gradient = ek_tensor_grad(tensor);
        if (!gradient || gradient->storage != leaf->grad_buffer->storage)
            continue;
        ek_tensor *copy = ek_clone(gradient);
        rc = copy ? ek_tensor_set_grad(tensor, copy) : ek_error_pending();
    }
    ek_memory_set_category(before);
    return rc;
}

int ek_rank_sharding_begin(ek_rank_sharding *self, bool reduced)
{
    if (self->sharding.gathering)
        return ek_rank_units_begin(self);
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = 0;
    for (int b = 0; b < self->reducer->bucket_count && rc >= 0; b++) {
        const ek_bucket *bucket = &self->reducer->buckets[b];
        bool any = false;
        for (int i = bucket->first; i < bucket->end; i++)
            any = any || rank_sharding_has_gradient(self, i);
        if (any && reduced)
            rc = rank_sharding_collect(self, b);
        for (int i = bucket->first; i < bucket->end && !reduced && rc >= 0; i++)
            rc = rank_sharding_set_aside(self->reducer->leaves[i]);
    }
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    return rc;
}

int ek_rank_sharding_take(ek_rank_sharding *self, int leaf)
{
    const ek_shards *shards = &self->sharding.shards;
    if (self->sharding.gathering)
        return ek_rank_units_take(self, leaf);
    EK_TRY(ek_tensor_set_grad(self->reducer->leaves[leaf], NULL));
    for (int k = shards->first[leaf]; k < shards->first[leaf] + shards->counts[leaf]; k++) {
        ek_tensor *tensor = shards->all[k].tensor, *buffer = tensor->grad_buffer;
        if (self->means[k]->storage != buffer->storage)
            EK_TRY(ek_comm_copy(buffer, self->means[k]));
        ek_tensor_written(buffer, "the reduction of gradients");
        EK_TRY(ek_tensor_set_grad(tensor, buffer));
    }
    return 0;
}
