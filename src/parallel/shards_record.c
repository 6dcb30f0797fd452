/* shards_record.c: nodes that bring replicas' gradients to the owners of their ranges. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "comm/collectives.h"
#include "comm/layout.h"
#include "parallel/shards.h"

/* One forward while its nodes are recorded, and room for a bucket. */
typedef struct recording {
    const ek_sharding *sharding;
    const ek_sharding_forward *forward;
    ek_dev *devs[EK_MAX_DEVICES]; /* in order of summation */
    int places[EK_MAX_DEVICES];   /* in the forward's list of devices */
    int *indices;                 /* the bucket's parameters, descending */
    int count;
    ek_tensor **like, **out, **inputs;
    ek_piece *pieces;
} recording;

static bool comes_before(const recording *r, const ek_dev *a, const ek_dev *b)
{
    if (a == r->forward->home || b == r->forward->home)
        return a == r->forward->home;
    return a->id.kind != b->id.kind ? a->id.kind < b->id.kind : a->id.index < b->id.index;
}

static void put_in_order(recording *r)
{
    for (int k = 0; k < r->forward->devices; k++) {
        int at = k;
        for (; at > 0 && comes_before(r, r->forward->devs[k], r->devs[at - 1]); at--) {
            r->devs[at] = r->devs[at - 1];
            r->places[at] = r->places[at - 1];
        }
        r->devs[at] = r->forward->devs[k];
        r->places[at] = k;
    }
}

static int record_bucket(recording *r)
{
    const ek_sharding_forward *f = r->forward;
    int n = r->count, pieces = 0;
    for (int k = 0; k < n; k++) {
        int i = r->indices[n - 1 - k];
        const ek_shards *shards = ek_leaf_shards(f->parameters[i]);
        r->like[k] = f->parameters[i];
        for (int j = 0; j < shards->count; j++) {
            const ek_shard *shard = &shards->shards[j];
            shard->piece->requires_grad = true; /* as the parameter does */
            r->inputs[pieces] = shard->piece;
            r->pieces[pieces++] =
                (ek_piece){k, shard->begin, shard->end, ek_tensor_dev(shard->piece)};
        }
        for (int d = 0; d < f->devices; d++)
            r->out[d * n + k] = f->handles[r->places[d] * f->stride + i];
    }
    r->count = 0;
    ek_division division = {r->devs, f->devices, r->like, n, r->pieces, pieces};
    return n ? ek_comm_record_all_gather(&division, r->inputs, r->out) : 0;
}

/* The device that owns all of a parameter, or NULL. */
static const ek_dev *owner_of(const ek_tensor *parameter)
{
    const ek_shards *shards = ek_leaf_shards(parameter);
    return shards->count == 1 ? ek_tensor_dev(shards->shards[0].piece) : NULL;
}

static int record_dtype(recording *r, ek_dtype dtype)
{
    size_t nbytes = 0, limit = EK_FIRST_BUCKET_BYTES;
    const ek_dev *owner = NULL;
    for (int i = r->forward->parameter_count - 1; i >= 0; i--) {
        const ek_tensor *parameter = r->forward->parameters[i];
        if (!ek_sharding_has(r->sharding, i) || !parameter->requires_grad ||
            parameter->dtype != dtype)
            continue;
        const ek_dev *own = owner_of(parameter);
        if (r->count && (nbytes >= limit || !own || own != owner)) {
            EK_TRY(record_bucket(r));
            limit = EK_BUCKET_BYTES;
            nbytes = 0;
        }
        owner = own;
        r->indices[r->count++] = i;
        nbytes += ek_comm_nbytes(parameter);
    }
    return record_bucket(r);
}

int ek_sharding_record(const ek_sharding *sharding, const ek_sharding_forward *forward)
{
    size_t count = (size_t)forward->parameter_count + 1, pieces = 1;
    for (int i = 0; i < forward->parameter_count; i++)
        if (ek_sharding_has(sharding, i))
            pieces += (size_t)ek_leaf_shards(forward->parameters[i])->count;
    recording r = {.sharding = sharding, .forward = forward};
    put_in_order(&r);
    r.indices = ek_calloc(count, sizeof *r.indices);
    r.like = ek_calloc(count, sizeof *r.like);
    r.out = ek_calloc(count * (size_t)forward->devices, sizeof *r.out);
    r.inputs = ek_calloc(pieces, sizeof *r.inputs);
    r.pieces = ek_calloc(pieces, sizeof *r.pieces);
    int rc = r.indices && r.like && r.out && r.inputs && r.pieces ? 0 : ek_error_pending();
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++)
        rc = record_dtype(&r, (ek_dtype)dtype);
    free(r.indices);
    free(r.like);
    free(r.out);
    free(r.inputs);
    free(r.pieces);
    return rc;
}
