/* replica_record.c: the nodes of a forward that return the replicas' gradients to the module: one
 * per bucket, in reverse order of registration, so that the first gradients are reduced while
 * backward computes the next ones. */
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "comm/exchange.h"
#include "core/lane.h"
#include "parallel/replica_copies.h"

/* Bytes of gradients in the first bucket, which is small, so that reduction starts early. Others
 * have ek_lane_bucket. */
enum { FIRST_BUCKET_BYTES = 1 << 20 };

/* A forward while its nodes are recorded, and the open bucket. */
typedef struct recording {
    const ek_replica_set *set;
    int devices;
    ek_dev *devs[EK_MAX_DEVICES]; /* the replicas' devices */
    ek_tensor *const *handles;    /* handles from set_make_handles */
    bool sharded; /* true: sharded parameters are recorded, whose gradients go to the owners */
    int *indices, count; /* the bucket's entries, in descending order */
    ek_tensor **like, **out, **inputs;
    ek_comm_slice *slices;
} recording;

static bool recording_has(const recording *r, int i, ek_dtype dtype)
{
    const ek_tensor *source = r->set->sources[i];
    return source->requires_grad && source->dtype == dtype &&
           ek_sharding_has(r->set->sharding, i) == r->sharded;
}

/* Returns the device in whose range shard `index` of parameter i is. */
static ek_dev *recording_dev(const recording *r, int i, int index)
{
    const ek_sharding *s = r->set->sharding;
    return r->set->devs[s->parts[s->shards.first[i] + index].device];
}

/* Adds shard `index` of parameter i, which is tensor k of the bucket. */
static void recording_add_shard(recording *r, int k, int i, int index, int *count)
{
    const ek_shard shard = ek_leaf_shard(r->set->sources[i], index);
    shard.tensor->requires_grad = true; /* like the parameter */
    r->slices[*count] = (ek_comm_slice){k, shard.begin, shard.end, ek_tensor_dev(shard.tensor),
                                        recording_dev(r, i, index)};
    r->inputs[(*count)++] = shard.tensor;
}

/* Records the bucket, in order of memory. The order of sums is that of Note [Order of terms]
 * (comm/collectives.h), with the module's device as the root. */
static int recording_end_bucket(recording *r)
{
    const ek_replica_set *set = r->set;
    int n = r->count, inputs = 0;
    r->count = 0;
    for (int k = 0; k < n; k++) {
        int i = r->indices[n - 1 - k];
        ek_tensor *source = set->sources[i];
        r->like[k] = source;
        for (int j = 0; r->sharded && j < ek_leaf_shard_count(source); j++)
            recording_add_shard(r, k, i, j, &inputs);
        if (!r->sharded)
            r->inputs[inputs++] = source;
        for (int d = 0; d < r->devices; d++)
            r->out[d * n + k] = r->handles[d * set->count + i];
    }
    const ek_comm_slice *slices = r->sharded ? r->slices : NULL;
    ek_placement placement = {r->devs, r->devices, r->like, n, slices, inputs, set->devs[0]};
    return n > 0 ? ek_comm_record_all_gather(&placement, r->inputs, r->out) : 0;
}

/* Records the entries of one dtype in buckets, from the last entry to the first. A bucket has one
 * owner, on whose thread it is reduced; a parameter with several owners is a separate bucket. */
static int recording_add_dtype(recording *r, ek_dtype dtype)
{
    const size_t most = ek_lane_bucket(r->set->devs[0]);
    size_t nbytes = 0, limit = most < FIRST_BUCKET_BYTES ? most : FIRST_BUCKET_BYTES;
    const ek_dev *owner = NULL;
    for (int i = r->set->count - 1; i >= 0; i--) {
        const ek_tensor *source = r->set->sources[i];
        if (!recording_has(r, i, dtype))
            continue;
        const ek_dev *own = r->set->devs[0];
        if (r->sharded)
            own = ek_leaf_shard_count(source) == 1 ? recording_dev(r, i, 0) : NULL;
        if (r->count && (nbytes >= limit || !own || own != owner)) {
            EK_TRY(recording_end_bucket(r));
            limit = most;
            nbytes = 0;
        }
        owner = own;
        r->indices[r->count++] = i;
        nbytes += ek_comm_nbytes(source);
    }
    return recording_end_bucket(r);
}

/* ---- nodes of an earlier forward ---- */

void ek_replica_set_forget_nodes(ek_replica_set *set)
{
    int count = set->recorded ? set->recorded_ranks.count * set->count : 0;
    for (int k = 0; k < count; k++)
        ek_object_release(set->recorded[k].node);
    free(set->recorded);
    set->recorded = NULL;
}

/* Keeps the handles' nodes, unless a source has a history, which the next forward may lack. */
static int record_keep_nodes(ek_replica_set *set, const ek_rank_list *ranks,
                             ek_tensor *const *handles)
{
    int count = ranks->count * set->count;
    ek_replica_set_forget_nodes(set);
    for (int i = 0; i < set->count; i++)
        if (set->sources[i]->history)
            return 0;
    set->recorded = ek_calloc((size_t)count + 1, sizeof *set->recorded);
    if (!set->recorded)
        return ek_error_pending();
    set->recorded_ranks = *ranks;
    for (int k = 0; k < count; k++)
        if (handles[k]->history)
            set->recorded[k] = (ek_edge){.node = ek_object_retain((ek_node *)handles[k]->history),
                                         .output = handles[k]->history_output};
    return 0;
}

/* Gives the handles the nodes of an earlier forward. Returns false if there are none for these
 * devices, or a source has another requires_grad or a history now. */
static bool record_again(const ek_replica_set *set, const ek_rank_list *ranks,
                         ek_tensor *const *handles)
{
    const ek_rank_list *before = &set->recorded_ranks;
    bool again = set->recorded && before->count == ranks->count &&
                 memcmp(before->at, ranks->at, (size_t)ranks->count * sizeof *ranks->at) == 0;
    for (int i = 0; i < set->count && again; i++)
        again = !set->sources[i]->history &&
                set->sources[i]->requires_grad == (set->recorded[i].node != NULL);
    for (int k = 0; k < ranks->count * set->count && again; k++)
        if (set->recorded[k].node)
            again = ek_record_again(handles[k], set->recorded[k].node, set->recorded[k].output);
    return again;
}

int ek_replica_set_record(ek_replica_set *set, const ek_rank_list *ranks, ek_tensor *const *handles)
{
    if (!ek_grad_enabled() || record_again(set, ranks, handles))
        return 0;
    size_t count = (size_t)set->count + 1, inputs = count + EK_MAX_DEVICES;
    recording r = {.set = set, .devices = ranks->count, .handles = handles};
    for (int i = 0; i < ranks->count; i++)
        r.devs[i] = set->devs[ranks->at[i]];
    r.indices = ek_calloc(count, sizeof *r.indices);
    r.like = ek_calloc(count, sizeof *r.like);
    r.out = ek_calloc(count * (size_t)ranks->count, sizeof *r.out);
    r.inputs = ek_calloc(inputs, sizeof *r.inputs);
    r.slices = ek_calloc(inputs, sizeof *r.slices);
    int rc = r.indices && r.like && r.out && r.inputs && r.slices ? 0 : ek_error_pending();
    for (int k = 0; k < (set->sharding ? 2 : 1) * EK_DTYPES && rc >= 0; k++) {
        r.sharded = k >= EK_DTYPES;
        rc = recording_add_dtype(&r, (ek_dtype)(k % EK_DTYPES));
    }
    free(r.indices);
    free(r.like);
    free(r.out);
    free(r.inputs);
    free(r.slices);
    return rc < 0 ? rc : record_keep_nodes(set, ranks, handles);
}
