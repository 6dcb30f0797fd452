/* bucket.c: how a bucket travels.
 *
 * Before each pass a bucket takes the first route that it can travel on: a route of units, the
 * window that all ranks share, a rail between GPUs, or messages. Messages carry memory of the host
 * in place, and memory of a GPU through pinned memory of the host (staging.h). On every route the
 * average begins once the bucket's last gradient has arrived, while backward computes other
 * gradients. */
#include <string.h>

#include "autograd/shards.h"
#include "comm/exchange.h"
#include "core/bits.h"
#include "core/staging.h"
#include "core/thread.h"
#include "group/sum.h"
#include "link/combine.h"
#include "link/staging.h"
#include "ops/ops.h"
#include "train/rank_sharding.h"
#include "train/reducer.h"

static ek_dev *bucket_dev(const ek_bucket *bucket)
{
    return ek_tensor_dev(bucket->range);
}

static bool bucket_is_plain(const ek_bucket *bucket)
{
    return ek_dev_is_host(bucket_dev(bucket));
}

int ek_bucket_open(ek_bucket *bucket, ek_tensor *range)
{
    bucket->range = ek_object_retain(range);
    bucket->dtype = range->dtype;
    bucket->count = ek_count(range);
    bucket->memory = bucket_is_plain(bucket) ? ek_object_retain(range) : NULL;
    return 0;
}

void ek_bucket_close(ek_bucket *bucket)
{
    if (bucket->range)
        ek_dev_free_event(bucket_dev(bucket), bucket->event);
    ek_object_release(bucket->range);
    ek_object_release(bucket->memory);
    ek_object_release(bucket->wire);
    ek_object_release(bucket->mean);
}

static int bucket_convert(ek_tensor *to, const ek_tensor *from)
{
    return ek_kernels_of(to)->copy(ek_tensor_dev(to), to, from);
}

/* ---- what routes have in common ---- */

static bool bucket_is_narrow(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return reducer->narrow && bucket->dtype == EK_F32;
}

/* Takes this thread's pending error for this rank's report. The other ranks average the bucket
 * nevertheless. */
static void bucket_fail(ek_reducer *reducer)
{
    ek_error_record error;
    ek_error_take(&error);
    if (reducer->lost.status >= 0)
        reducer->lost = error;
}

/* Returns where the elements travel from. A unit without a gradient on this rank travels as zeros.
 */
static char *bucket_address(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return bucket->memory ? ek_tensor_address(bucket->memory) : reducer->blank;
}

static ek_sum bucket_sum(const ek_reducer *reducer, const ek_bucket *bucket)
{
    bool narrow = bucket_is_narrow(reducer, bucket);
    return (ek_sum){.group = reducer->group,
                    .op = EK_DIST_AVG,
                    .dtype = narrow ? EK_BF16 : bucket->dtype,
                    .address = narrow ? reducer->wire : bucket_address(reducer, bucket),
                    .count = bucket->count,
                    .root = -1,
                    .scratch = reducer->scratch,
                    .out = reducer->out,
                    .in = reducer->in};
}

/* Tells whether the gradients are in the memory from which they travel. */
static ek_readiness bucket_fetched(ek_reducer *reducer, const ek_bucket *bucket)
{
    if (bucket_is_plain(bucket))
        return EK_READY;
    int done = ek_dev_event_done(bucket_dev(bucket), bucket->event);
    if (done < 0)
        bucket_fail(reducer);
    return done != 0 ? EK_READY : EK_AWAITS_RANKS;
}

/* ---- the window ---- */

static int window_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)bucket;
    return reducer->window != NULL;
}

static ek_readiness window_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    uint64_t before = reducer->passes * (uint64_t)reducer->bucket_count;
    (void)bucket; /* the bucket is number reducer->bucket */
    for (int r = 0; r < reducer->window->size; r++)
        if (ek_window_count(reducer->window, r) <= before + (uint64_t)reducer->bucket)
            return EK_AWAITS_RANKS;
    return EK_READY;
}

static int window_advance(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    const ek_window *window = reducer->window;
    char **addresses = (char **)(void *)reducer->in;
    ek_sum sum = bucket_sum(reducer, bucket);
    (void)request;         /* nothing is sent */
    if (reducer->sharding) /* each rank needs its own slice alone */
        sum.root = window->rank;
    for (int r = 0; r < window->size; r++)
        addresses[r] = ek_window_memory(window, r) + bucket->storage_at +
                       (size_t)bucket->range->offset * ek_dtype_size(bucket->range->dtype);
    ek_sum_in_place(&sum, addresses);
    return 1;
}

/* ---- rails ---- */

/* Returns what a rail carries: the gradients, or their copy in bf16. */
static ek_tensor *bucket_cargo(const ek_bucket *bucket)
{
    return bucket->wire ? bucket->wire : bucket->range;
}

static int rail_open(ek_reducer *reducer, ek_bucket *bucket, ek_group_rail *rail)
{
    ek_tensor *range = bucket->range;
    EK_TRY(ek_rail_run_open(&bucket->run, reducer->group, rail));
    bucket->run.meets = true;
    ek_rail_run_restart(&bucket->run);
    if (bucket_is_narrow(reducer, bucket) && !bucket->wire) {
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
        bucket->wire = ek_object_retain(ek_tensor_like_dtype(range, EK_BF16));
        ek_memory_set_category(before);
        if (!bucket->wire)
            return ek_error_pending();
    }
    const ek_tensor *cargo = bucket_cargo(bucket);
    return ek_rail_run_sum(&bucket->run, reducer->group, EK_DIST_AVG, cargo->dtype,
                           ek_tensor_address(cargo), ek_count(cargo), -1);
}

static int rail_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    ek_group_rail *rail;
    if (bucket_is_plain(bucket) || reducer->sharding)
        return 0;
    EK_TRY(ek_rail_find(ek_verb_name(EK_VERB_BACKWARD), reducer->group, bucket_dev(bucket), &rail));
    if (!rail)
        return 0;
    ek_scope scope = ek_scope_begin();
    int rc = rail_open(reducer, bucket, rail);
    ek_scope_end(&scope);
    return rc < 0 ? rc : 1;
}

static int rail_fetch(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    if (bucket->wire)
        EK_TRY(bucket_convert(bucket->wire, bucket->range));
    ek_dev_record_event(bucket_dev(bucket), EK_STREAM_COMPUTE, &bucket->event);
    return 0;
}

static ek_readiness rail_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    return reducer->phase > 0 ? ek_rail_run_ready(&bucket->run, reducer->group)
                              : bucket_fetched(reducer, bucket);
}

static int rail_advance(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    (void)request; /* the run has separate transfers */
    if (ek_rail_run_go_on(&bucket->run, reducer->group) < 0) {
        bucket_fail(reducer);
        reducer->failure = bucket->run.failure;
    }
    return ek_rail_run_is_over(&bucket->run);
}

/* ---- messages ---- */

int ek_bucket_stage(ek_bucket *bucket)
{
    ek_shape shape = ek_tensor_shape(bucket->range);
    if (!bucket->memory)
        bucket->memory =
            ek_object_retain(ek_stage_memory(bucket_dev(bucket), bucket->range->dtype, &shape));
    return bucket->memory ? 0 : ek_error_pending();
}

static int messages_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    if (bucket_is_plain(bucket))
        return 1;
    ek_scope scope = ek_scope_begin();
    int rc = ek_bucket_stage(bucket);
    ek_scope_end(&scope);
    return rc < 0 ? rc : 1;
}

static int messages_fetch(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    return bucket_is_plain(bucket)
               ? 0
               : ek_staging_fetch(bucket->memory, bucket->range, &bucket->event);
}

static ek_readiness messages_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    return reducer->phase > 0 ? EK_READY : bucket_fetched(reducer, bucket);
}

/* Converts bucket->memory to bf16 in reducer->wire, or if `back`, from there. */
static void messages_convert(const ek_reducer *reducer, const ek_bucket *bucket, bool back)
{
    float *wide = (float *)(void *)bucket_address(reducer, bucket);
    uint16_t *narrow = (uint16_t *)(void *)reducer->wire;
    for (int64_t i = 0; i < bucket->count && !back; i++)
        narrow[i] = ek_bf16_of(wide[i]);
    for (int64_t i = 0; i < bucket->count && back; i++)
        wide[i] = ek_float_of_bf16(narrow[i]);
}

/* Starts to copy the mean from the host's memory back to the device. The fetch has ended, so that
 * no other copy uses the range, and bucket->event can be recorded after this copy. */
static void messages_return(ek_reducer *reducer, ek_bucket *bucket)
{
    ek_dev *dev = bucket_dev(bucket);
    if (bucket_is_plain(bucket) || !bucket->fetched)
        return;
    if (ek_dev_upload(dev, ek_tensor_address(bucket->range), ek_tensor_dev(bucket->memory),
                      ek_tensor_address(bucket->memory), ek_comm_nbytes(bucket->range)) < 0)
        bucket_fail(reducer);
    ek_dev_record_event(dev, EK_STREAM_UPLOAD, &bucket->event);
}

static int messages_advance(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    ek_sum sum = bucket_sum(reducer, bucket);
    bool narrow = bucket_is_narrow(reducer, bucket), sharded = reducer->sharding;
    char *slice;
    switch (reducer->phase) {
    case 0:
        if (narrow)
            messages_convert(reducer, bucket, false);
        return ek_sum_spread(&sum, request);
    case 1:
        slice = ek_sum_slice(&sum);
        return sharded ? 0 : ek_sum_collect(&sum, slice, request);
    default:
        if (narrow)
            messages_convert(reducer, bucket, true);
        if (!sharded) /* each rank needs its own slice alone if the parameters are sharded */
            messages_return(reducer, bucket);
        return 1;
    }
}

/* ---- units: messages whose memory is made for one pass ---- */

static int unit_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    return bucket->unit >= 0;
}

/* Returns how many leaves of the bucket have a gradient on this rank. */
static int unit_gradients(const ek_reducer *reducer, const ek_bucket *bucket)
{
    int count = 0;
    for (int i = bucket->first; i < bucket->end; i++)
        count += reducer->leaves[i]->grad != NULL;
    return count;
}

/* Copies the leaf's gradient to its place, and drops it. */
static int unit_fetch_leaf(ek_reducer *reducer, const ek_bucket *bucket, int i)
{
    ek_tensor *leaf = reducer->leaves[i];
    ek_tensor *place = ek_rank_sharding_in(reducer->sharding, leaf->shards_index, bucket->memory);
    if (!place)
        return ek_error_pending();
    EK_TRY(ek_comm_copy(place, leaf->grad));
    EK_TRY(ek_synchronize(ek_tensor_device(leaf)));
    ek_reducer_report_gradient(reducer, i);
    ek_leaf_set_own_gradient(leaf, NULL);
    return 0;
}

static int unit_fetch(ek_reducer *reducer, ek_bucket *bucket)
{
    const int count = unit_gradients(reducer, bucket);
    if (count == 0)
        return 0;
    ek_shape shape = EK_SHAPE(bucket->count);
    ek_reducer_make_copy(reducer, ek_bucket_nbytes(bucket));
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    bucket->memory = ek_object_retain(count == bucket->end - bucket->first
                                          ? ek_empty(shape, bucket->dtype, .device = ek_cpu())
                                          : ek_zeros(shape, bucket->dtype, .device = ek_cpu()));
    ek_memory_set_category(before);
    int rc = bucket->memory ? 0 : ek_error_pending();
    for (int i = bucket->first; i < bucket->end && rc >= 0; i++)
        if (reducer->leaves[i]->grad)
            rc = unit_fetch_leaf(reducer, bucket, i);
    ek_scope_end(&scope);
    return rc;
}

static ek_readiness unit_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    (void)bucket;
    return EK_READY;
}

/* Gives the shards this rank's slice of the mean, and releases the unit's memory. */
static void unit_deliver(ek_reducer *reducer, ek_bucket *bucket)
{
    char *address = bucket_address(reducer, bucket);
    ek_rank_units_deliver(reducer->sharding, bucket, address);
    if (!bucket->memory) { /* the slice of the mean was written there */
        memset(address, 0, ek_bucket_nbytes(bucket));
        return;
    }
    ek_object_release(bucket->memory);
    bucket->memory = NULL;
    ek_reducer_drop_copy(reducer, ek_bucket_nbytes(bucket));
}

static int unit_advance(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    int rc = messages_advance(reducer, bucket, request);
    if (rc > 0)
        unit_deliver(reducer, bucket);
    return rc;
}

/* ---- units in a window ----
 *
 * Every rank shows the other ranks its terms of their slices, piece by piece. A piece has a part of
 * each slice. Pieces lie by turns in two places of the window. Once all ranks have counted a piece,
 * they have read the piece before, whose place the next piece takes. */

static int shared_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    return bucket->unit >= 0 && reducer->sharding->window && !bucket_is_narrow(reducer, bucket);
}

static ek_readiness shared_ready(ek_reducer *reducer, ek_bucket *bucket)
{
    const ek_window *window = reducer->sharding->window;
    (void)bucket;
    for (int r = 0; r < window->size && reducer->phase > 0; r++)
        if (ek_window_count(window, r) < ek_window_count(window, window->rank))
            return EK_AWAITS_RANKS;
    return EK_READY;
}

/* Returns how many elements of a slice a piece has. */
static int64_t shared_length(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return (int64_t)(reducer->sharding->piece / ek_dtype_size(bucket->dtype)) /
           reducer->group->size;
}

/* Returns the first element of a rank's slice that is in the piece or in a later one. */
static int64_t shared_element(const ek_reducer *reducer, const ek_bucket *bucket, int rank,
                              int piece)
{
    const int ranks = reducer->group->size;
    int64_t end = ek_sum_begin(bucket->count, ranks, rank + 1);
    int64_t at = ek_sum_begin(bucket->count, ranks, rank) + piece * shared_length(reducer, bucket);
    return at < end ? at : end;
}

/* Returns where the newest piece that this rank has counted, or if `next` the one after, has rank
 * `of`'s terms of rank `to`'s slice. */
static char *shared_terms(const ek_reducer *reducer, const ek_bucket *bucket, int of, int to,
                          bool next)
{
    const ek_window *window = reducer->sharding->window;
    uint64_t place = (ek_window_count(window, window->rank) + next) % 2;
    return ek_window_memory(window, of) + reducer->sharding->exchange +
           place * reducer->sharding->piece +
           (size_t)(to * shared_length(reducer, bucket)) * ek_dtype_size(bucket->dtype);
}

/* Shows the other ranks a piece of this rank's gradients. */
static void shared_show(const ek_reducer *reducer, const ek_bucket *bucket, int piece)
{
    const size_t size = ek_dtype_size(bucket->dtype);
    for (int r = 0; r < reducer->group->size; r++) {
        int64_t begin = shared_element(reducer, bucket, r, piece);
        int64_t end = shared_element(reducer, bucket, r, piece + 1);
        if (r != reducer->group->rank)
            memcpy(shared_terms(reducer, bucket, reducer->group->rank, r, true),
                   bucket_address(reducer, bucket) + (size_t)begin * size,
                   (size_t)(end - begin) * size);
    }
    ek_window_add(reducer->sharding->window);
}

/* Makes the piece's part of this rank's slice the mean over all ranks. */
static void shared_average(const ek_reducer *reducer, const ek_bucket *bucket, int piece)
{
    const int rank = reducer->group->rank;
    int64_t begin = shared_element(reducer, bucket, rank, piece);
    int64_t count = shared_element(reducer, bucket, rank, piece + 1) - begin;
    void *mine = bucket_address(reducer, bucket) + (size_t)begin * ek_dtype_size(bucket->dtype);
    const void **terms = (const void **)(void *)reducer->out;
    for (int r = 0; r < reducer->group->size; r++)
        terms[r] = r == rank ? mine : shared_terms(reducer, bucket, r, rank, false);
    ek_combine(EK_DIST_AVG, bucket->dtype, terms, reducer->group->size, &mine, 1, count);
}

static int shared_advance(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    const int piece = reducer->phase;
    (void)request; /* nothing is sent */
    if (piece > 0)
        shared_average(reducer, bucket, piece - 1);
    if (piece * shared_length(reducer, bucket) <
        ek_sum_begin(bucket->count, reducer->group->size, 1)) { /* the largest slice */
        shared_show(reducer, bucket, piece);
        return 0;
    }
    unit_deliver(reducer, bucket);
    return 1;
}

/* ---- the choice ---- */

static const ek_route bucket_routes[] = {
    {shared_begin, unit_fetch, shared_ready, shared_advance},
    {unit_begin, unit_fetch, unit_ready, unit_advance},
    {window_begin, NULL, window_ready, window_advance},
    {rail_begin, rail_fetch, rail_ready, rail_advance},
    {messages_begin, messages_fetch, messages_ready, messages_advance},
};

int ek_bucket_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    int rc = 0;
    bucket->fetched = false;
    for (bucket->route = bucket_routes; rc == 0; bucket->route += rc == 0)
        rc = bucket->route->begin(reducer, bucket);
    return rc < 0 ? rc : 0;
}

int ek_bucket_fetch(ek_reducer *reducer, ek_bucket *bucket)
{
    if (bucket->route->fetch)
        EK_TRY(bucket->route->fetch(reducer, bucket));
    bucket->fetched = true;
    return 0;
}

int ek_bucket_end(const ek_reducer *reducer, ek_bucket *bucket)
{
    int rc = 0;
    if (bucket->unit >= 0) { /* after a failed pass it may have memory */
        ek_object_release(bucket->memory);
        bucket->memory = NULL;
    }
    if (bucket->unit >= 0 || bucket_is_plain(bucket))
        return 0;
    ek_dev_wait_event(bucket_dev(bucket), EK_STREAM_COMPUTE, bucket->event);
    if (bucket->fetched && bucket->run.rail && bucket->wire && bucket->run.state >= 0 &&
        ek_rail_run_is_over(&bucket->run))
        rc = bucket_convert(bucket->range, bucket->wire);
    ek_rail_run_close(&bucket->run, reducer->group);
    return rc;
}
