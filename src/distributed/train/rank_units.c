/* rank_units.c: parameters that are sharded over ranks and gathered when they are used
 * (rank_sharding.h, Note [Units of ranks]).
 *
 * The memory of a rank's shards, as other ranks read it: bucket after bucket the rank's range, each
 * aligned to 64 bytes. Every rank can compute where the range of another one lies. Shards of the
 * host's devices lie there; those of GPUs are copied there. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "group/sum_schedule.h"
#include "link/combine.h"
#include "link/staging.h"
#include "nn/module_table.h"
#include "parallel/replica_copies.h"
#include "train/unit_reads.h"

enum { UNITS_PIECE = 1 << 20 }; /* bytes of gradients that a rank shows the others at most */

static ek_process_group *units_group(const ek_rank_sharding *self)
{
    return self->reducer->group;
}

/* ---- where shards lie ---- */

/* Returns the bytes of a rank's range of a bucket. */
size_t ek_rank_units_nbytes(const ek_rank_sharding *self, int bucket, int rank)
{
    const ek_sharding *s = &self->sharding;
    ek_interval range = ek_sharding_range(s, bucket, rank);
    return (size_t)(range.end - range.begin) * ek_dtype_size(s->buckets[bucket].dtype);
}

/* Returns where a rank's range of a bucket begins in the rank's memory, in bytes. */
size_t ek_rank_units_at(const ek_rank_sharding *self, int bucket, int rank)
{
    size_t at = 0;
    for (int b = 0; b < bucket; b++)
        at += (ek_rank_units_nbytes(self, b, rank) + EK_SLAB_ALIGNMENT - 1) / EK_SLAB_ALIGNMENT *
              EK_SLAB_ALIGNMENT;
    return at;
}

/* Returns where the slice of one of this rank's devices lies in the memory that is served. */
static char *units_slice_address(const ek_rank_sharding *self, int bucket,
                                 const ek_shard_slice *slice)
{
    const ek_sharding *s = &self->sharding;
    int rank = s->shards.ranks->rank;
    return self->served + ek_rank_units_at(self, bucket, rank) +
           (size_t)(slice->begin - ek_sharding_range(s, bucket, rank).begin) *
               ek_dtype_size(s->buckets[bucket].dtype);
}

/* Does `body` for each of this rank's slices that has elements. */
static int units_each_slice(const ek_rank_sharding *self,
                            int (*body)(const ek_rank_sharding *self, int bucket,
                                        const ek_shard_slice *slice))
{
    const ek_sharding *s = &self->sharding;
    for (int k = 0; k < s->bucket_count * s->devices; k++)
        if (s->slices[k].end > s->slices[k].begin)
            EK_TRY(body(self, k / s->devices, &s->slices[k]));
    return 0;
}

/* ---- reading other ranks' shards ---- */

static int units_pull_from_window(const ek_rank_sharding *self, int bucket, int rank, ek_dev *dev,
                                  char *to)
{
    return ek_dev_copy(dev, to, ek_dev_get(ek_cpu()),
                       ek_window_memory(self->window, rank) + ek_rank_units_at(self, bucket, rank),
                       ek_rank_units_nbytes(self, bucket, rank));
}

static int units_pull_by_messages(const ek_rank_sharding *self, int bucket, ek_storage *storage)
{
    const ek_sharding *s = &self->sharding;
    const size_t size = ek_dtype_size(s->buckets[bucket].dtype);
    ek_tensor *const *parts;
    int rc = ek_unit_reads_take(self->reads, bucket, &parts);
    EK_TRY(rc);
    for (int r = 0; r < s->shards.ranks->size && rc >= 0; r++)
        if (parts[r])
            rc = ek_dev_copy(storage->dev,
                             (char *)storage->data +
                                 (size_t)ek_sharding_range(s, bucket, r).begin * size,
                             ek_tensor_dev(parts[r]), ek_tensor_address(parts[r]),
                             ek_comm_nbytes(parts[r]));
    if (rc >= 0 && !ek_dev_is_host(storage->dev))
        rc = ek_dev_synchronize(storage->dev);
    ek_unit_reads_give(self->reads, bucket);
    return rc;
}

/* Member `pull` of the sharding's owner. */
static int units_pull(void *user, int bucket, ek_storage *storage)
{
    ek_rank_sharding *self = user;
    const ek_sharding *s = &self->sharding;
    const int ranks = s->shards.ranks->size;
    const size_t size = ek_dtype_size(s->buckets[bucket].dtype);
    int rc = 0;
    if (!units_group(self)->communication)
        return EK_FAIL(EK_E_STATE, "the process group over which the parameter is sharded was "
                                   "destroyed");
    for (int r = 0; r < ranks && rc >= 0 && self->window; r++)
        if (r != s->shards.ranks->rank && ek_rank_units_nbytes(self, bucket, r) > 0)
            rc = units_pull_from_window(self, bucket, r, storage->dev,
                                        (char *)storage->data +
                                            (size_t)ek_sharding_range(s, bucket, r).begin * size);
    return self->window ? rc : units_pull_by_messages(self, bucket, storage);
}

/* ---- serving this rank's shards ---- */

static int units_move_slice(const ek_rank_sharding *self, int bucket, const ek_shard_slice *slice)
{
    ek_tensor *elements = slice->elements;
    ek_object *owner = self->window ? &self->window->object : &self->part->storage->object;
    if (ek_dev_is_host(ek_tensor_dev(elements)))
        ek_storage_move(elements->storage, owner, units_slice_address(self, bucket, slice));
    return 0;
}

static int units_serve_slice(const ek_rank_sharding *self, int bucket, const ek_shard_slice *slice)
{
    ek_dev *dev = ek_tensor_dev(slice->elements);
    if (ek_dev_is_host(dev))
        return 0;
    EK_TRY(ek_dev_copy(ek_dev_get(ek_cpu()), units_slice_address(self, bucket, slice), dev,
                       ek_tensor_address(slice->elements), ek_comm_nbytes(slice->elements)));
    return ek_dev_synchronize(dev);
}

int ek_rank_units_serve(const ek_rank_sharding *self)
{
    return units_each_slice(self, units_serve_slice);
}

/* Makes the memory that other ranks read, of equal size on all ranks, and moves the shards there.
 */
static int units_open_memory(ek_rank_sharding *self)
{
    size_t nbytes = 0, slice = 0;
    ek_process_group *group = units_group(self);
    for (int r = 0; r < group->size; r++) {
        size_t needs = ek_rank_units_at(self, self->sharding.bucket_count, r);
        nbytes = needs > nbytes ? needs : nbytes;
    }
    for (int b = 0; b < self->sharding.bucket_count; b++)
        slice = ek_rank_units_nbytes(self, b, 0) > slice ? ek_rank_units_nbytes(self, b, 0) : slice;
    self->exchange = nbytes;
    self->piece =
        slice * (size_t)group->size < UNITS_PIECE ? slice * (size_t)group->size : UNITS_PIECE;
    bool alone = ek_sum_block(group) == group->size; /* the ranks of one machine alone */
    EK_TRY(ek_window_open(group, nbytes + 2 * self->piece, alone, &self->window));
    if (self->window) {
        self->served = ek_window_memory(self->window, group->rank);
    } else {
        ek_shape shape = EK_SHAPE((int64_t)nbytes);
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
        self->part = ek_object_retain(ek_stage_memory(self->sharding.devs[0], EK_U8, &shape));
        ek_memory_set_category(before);
        if (!self->part)
            return ek_error_pending();
        self->served = ek_tensor_address(self->part);
        ek_group_serve(group, &self->part->storage->object, self->served, nbytes);
        self->reads = ek_unit_reads_new(self);
        if (!self->reads)
            return ek_error_pending();
    }
    units_each_slice(self, units_move_slice);
    return ek_rank_units_serve(self);
}

int ek_rank_units_drop_reads(const ek_rank_sharding *self)
{
    return self->reads ? ek_unit_reads_drop(self->reads) : 0;
}

/* ---- writes ---- */

/* Other ranks may still read what was there before, until they come to this call, too. */
int ek_rank_units_settle(ek_rank_sharding *self)
{
    ek_gathering *gathering = self->sharding.gathering;
    if (!ek_gathering_is_written(gathering))
        return 0;
    EK_TRY(ek_dist_barrier(.group = units_group(self)));
    EK_TRY(ek_gathering_settle(gathering));
    EK_TRY(ek_rank_units_serve(self));
    EK_TRY(ek_rank_units_drop_reads(self));
    EK_TRY(ek_dist_barrier(.group = units_group(self)));
    ek_gathering_shared(gathering);
    return ek_gathering_forget(gathering);
}

int ek_rank_units_published(ek_rank_sharding *self, int status)
{
    ek_sharding *s = &self->sharding;
    int read = ek_rank_units_drop_reads(self), rc = ek_gathering_forget(s->gathering);
    status = status < 0 ? status : read < 0 ? read : rc;
    ek_gathering_shared(s->gathering);
    for (int i = 0; i < s->shards.leaf_count; i++) {
        if (!s->leaves[i] || !s->shards.stepped[i])
            continue;
        s->owner.published(s->owner.user, i, status);
        ek_gathering_note(s->gathering, i);
    }
    return status;
}

/* Members `published` and `written` of the owner. */
static void units_note_published(void *user, int i, int status)
{
    const ek_rank_sharding *self = user;
    if (self->replicas)
        ek_replica_set_note(self->replicas, i, true, status);
    else
        ek_tensor_written(self->sharding.leaves[i], "the optimizer's step");
}

static void units_note_written(void *user, int i)
{
    const ek_rank_sharding *self = user;
    if (self->reads)
        ek_unit_reads_outdate(self->reads);
    if (self->replicas)
        ek_replica_set_note(self->replicas, i, false, 0);
}

/* ---- gradients ---- */

void ek_rank_units_deliver(const ek_rank_sharding *self, const ek_bucket *bucket,
                           const char *memory)
{
    const ek_sharding *s = &self->sharding;
    const size_t size = ek_dtype_size(bucket->dtype);
    if (bucket->mean) {
        int64_t begin = ek_sharding_range(s, bucket->unit, s->shards.ranks->rank).begin;
        memcpy(ek_tensor_address(bucket->mean), memory + (size_t)begin * size,
               ek_comm_nbytes(bucket->mean));
        return;
    }
    for (int k = 0; k < s->shards.count; k++) {
        const ek_shard *shard = &s->shards.all[k];
        const int leaf = s->parts[k].leaf;
        const int64_t count = shard->end - shard->begin;
        if (s->bucket_of[leaf] != bucket->unit || count == 0)
            continue;
        void *to = ek_tensor_address(shard->tensor->grad_buffer);
        const void *terms[] = {to, memory + (size_t)(s->at[leaf] + shard->begin) * size};
        if (shard->tensor->grad)
            ek_combine(EK_DIST_SUM, bucket->dtype, terms, 2, &to, 1, count);
        else
            memcpy(to, terms[1], (size_t)count * size);
    }
}

/* Adds a shard's part of a mean to the shard's gradient, or makes it the gradient. */
static int units_add_mean(const ek_rank_sharding *self, const ek_bucket *bucket, int k)
{
    const ek_sharding *s = &self->sharding;
    const ek_shard *shard = &s->shards.all[k];
    int64_t at = s->at[s->parts[k].leaf] + shard->begin -
                 ek_sharding_range(s, bucket->unit, s->shards.ranks->rank).begin;
    ek_tensor *buffer = shard->tensor->grad_buffer;
    ek_tensor *part = ek_comm_flat(bucket->mean, at, at + shard->end - shard->begin);
    if (part && shard->tensor->grad)
        return ek_add_(buffer, ek_to_device(part, ek_tensor_device(buffer))) ? 0
                                                                             : ek_error_pending();
    return part ? ek_comm_copy(buffer, part) : ek_error_pending();
}

int ek_rank_units_take(const ek_rank_sharding *self, int leaf)
{
    const ek_reducer *reducer = self->reducer;
    const ek_bucket *bucket = &reducer->buckets[reducer->bucket_of[leaf]];
    const ek_shards *shards = &self->sharding.shards;
    const int i = reducer->leaves[leaf]->shards_index;
    bool enabled = ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    for (int k = shards->first[i]; k < shards->first[i] + shards->counts[i] && rc >= 0; k++) {
        ek_tensor *tensor = shards->all[k].tensor;
        if (bucket->mean && shards->all[k].end > shards->all[k].begin)
            rc = units_add_mean(self, bucket, k);
        if (rc >= 0) {
            ek_tensor_written(tensor->grad_buffer, "the reduction of gradients");
            rc = ek_tensor_set_grad(tensor, tensor->grad_buffer);
        }
    }
    if (rc >= 0 && bucket->mean) /* the next pass writes there */
        rc = ek_synchronize(ek_tensor_device(reducer->leaves[leaf]));
    ek_scope_end(&scope);
    ek_set_grad_enabled(enabled);
    return rc;
}

int ek_rank_units_begin(const ek_rank_sharding *self)
{
    const ek_shards *shards = &self->sharding.shards;
    for (int k = 0; k < shards->count; k++) {
        ek_tensor *tensor = shards->all[k].tensor;
        if (tensor->grad && tensor->grad != tensor->grad_buffer)
            EK_TRY(ek_leaf_set_grad_buffer(tensor, tensor->grad_buffer));
    }
    return 0;
}

/* Makes memory for the means of buckets whose shards lie on GPUs. */
static int units_make_means(const ek_rank_sharding *self)
{
    const ek_sharding *s = &self->sharding;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = 0;
    for (int b = 0; b < self->reducer->bucket_count && rc >= 0; b++) {
        ek_bucket *bucket = &self->reducer->buckets[b];
        bool host = true;
        for (int d = 0; d < s->devices; d++)
            host = host && ek_dev_is_host(ek_sharding_dev(s, d));
        ek_shape shape =
            EK_SHAPE((int64_t)(ek_rank_units_nbytes(self, bucket->unit, s->shards.ranks->rank) /
                               ek_dtype_size(bucket->dtype)));
        if (!host)
            bucket->mean = ek_object_retain(ek_stage_memory(s->devs[0], bucket->dtype, &shape));
        rc = host || bucket->mean ? 0 : ek_error_pending();
    }
    ek_memory_set_category(before);
    return rc;
}

/* Makes the reducer's buckets of the units, the last one first, and lists its leaves in their
 * order.
 */
static int units_make_buckets(const ek_rank_sharding *self)
{
    const ek_sharding *s = &self->sharding;
    ek_reducer *reducer = self->reducer;
    int count = 0;
    for (int u = s->bucket_count - 1; u >= 0; u--) {
        ek_bucket *bucket = &reducer->buckets[reducer->bucket_count];
        *bucket = (ek_bucket){.first = count,
                              .dtype = s->buckets[u].dtype,
                              .count = s->buckets[u].count,
                              .unit = u};
        for (int i = 0; i < s->shards.leaf_count; i++) {
            if (!s->leaves[i] || !s->leaves[i]->requires_grad || s->bucket_of[i] != u)
                continue;
            ek_object_release(reducer->leaves[count]);
            reducer->leaves[count] = ek_object_retain(s->leaves[i]);
            reducer->bucket_of[count++] = reducer->bucket_count;
        }
        bucket->end = count;
        reducer->bucket_count += count > bucket->first;
    }
    return count == reducer->count
               ? ek_reducer_complete(reducer)
               : EK_FAIL(EK_E_INVALID, "a parameter that requires a gradient can't be sharded: it "
                                       "is not dense, or no leaf of a floating dtype");
}

/* ---- making ---- */

/* Lists the parameters in buckets: those of a unit, of one dtype, that require a gradient, and
 * those that don't. */
static int units_list(ek_rank_sharding *self, ek_module *module, const ek_tensor_list *list,
                      ek_dev *const *devs, int devices)
{
    ek_sharding *s = &self->sharding;
    int *units = ek_calloc((size_t)list->count + 1, sizeof *units);
    int count =
        units ? ek_units_assign(module, list->tensors, list->count, units) : ek_error_pending();
    int rc =
        count < 0 ? count : ek_sharding_init(s, list->count, 2 * count * EK_DTYPES, devs, devices);
    /* Gradients need no place of their own, but keep their values. */
    for (int i = 0; i < list->count && rc >= 0; i++) {
        ek_tensor *gradient = ek_object_retain(ek_tensor_grad(list->tensors[i]));
        rc = ek_leaf_set_grad_buffer(list->tensors[i], NULL);
        ek_leaf_set_own_gradient(list->tensors[i], gradient);
        ek_object_release(gradient);
    }
    for (int i = 0; i < list->count && rc >= 0; i++)
        if (ek_sharding_can_have(list->tensors[i]))
            ek_sharding_list(s, i, 2 * units[i] + list->tensors[i]->requires_grad, EK_SUM_UNIT,
                             list->tensors[i]);
    free(units);
    return rc;
}

static int units_make(ek_rank_sharding *self, ek_module *module, ek_replica_set *replicas,
                      ek_dev *const *devs, int devices)
{
    ek_sharding *s = &self->sharding;
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, false, &list));
    int rc = units_list(self, module, &list, devs, devices);
    ek_tensor_list_clear(&list);
    EK_TRY(rc);
    if (replicas) /* parameters that it has sharded stay readable */
        ek_replica_set_release_sharding(replicas);
    EK_TRY(ek_sharding_make(s, NULL, 0));
    s->shards.agree = ek_rank_sharding_agree;
    s->shards.publish = ek_rank_sharding_publish;
    s->gathering = ek_gathering_new(s);
    if (!s->gathering)
        return ek_error_pending();
    EK_TRY(units_open_memory(self));
    EK_TRY(units_make_buckets(self));
    EK_TRY(units_make_means(self));
    return ek_gathering_bind(s->gathering);
}

ek_rank_sharding *ek_rank_units_new(ek_reducer *reducer, ek_ranks *ranks, ek_module *module,
                                    ek_replica_set *replicas, ek_dev *const *devs, int devices,
                                    ek_dev *host)
{
    ek_rank_sharding *self = ek_calloc(1, sizeof *self);
    if (!self)
        return NULL;
    ek_object_init(&self->sharding.shards.object, ek_rank_sharding_destroy);
    self->sharding.shards.ranks = ek_object_retain(ranks);
    self->sharding.owner = (ek_sharding_owner){.user = self,
                                               .guard = &self->guard,
                                               .host = host,
                                               .published = units_note_published,
                                               .written = units_note_written,
                                               .pull = units_pull};
    self->reducer = ek_object_retain(reducer);
    reducer->sharding = self;
    ek_scope scope = ek_scope_begin();
    int rc = units_make(self, module, replicas, devs, devices);
    ek_scope_end(&scope);
    if (rc >= 0 && replicas) {
        self->replicas = replicas;
        rc = ek_replica_set_gather(replicas, &self->sharding);
    }
    if (rc >= 0)
        return self;
    ek_rank_sharding_end(self, false);
    return NULL;
}
