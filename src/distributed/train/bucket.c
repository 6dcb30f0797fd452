/* bucket.c: how a bucket travels.
 *
 * Before each pass a bucket takes the first route that it can travel on: a route of units, the
 * window that the ranks of a machine share, a rail between GPUs, or messages. Messages carry memory
 * of the host in place, and memory of a GPU through pinned memory of the host (staging.h). On every
 * route the average begins once the bucket's last gradient has arrived, while backward computes
 * other gradients. */
#include <string.h>

#include "autograd/shards.h"
#include "comm/exchange.h"
#include "core/bits.h"
#include "core/staging.h"
#include "core/thread.h"
#include "link/staging.h"
#include "ops/ops.h"
#include "train/rank_sharding.h"
#include "train/route.h"

static ek_dev *bucket_dev(const ek_bucket *bucket)
{
    return ek_tensor_dev(bucket->range);
}

static bool bucket_is_on_host(const ek_bucket *bucket)
{
    return ek_dev_is_host(bucket_dev(bucket));
}

int ek_bucket_open(ek_bucket *bucket, ek_tensor *range)
{
    bucket->range = ek_object_retain(range);
    bucket->dtype = range->dtype;
    bucket->count = ek_count(range);
    bucket->memory = bucket_is_on_host(bucket) ? ek_object_retain(range) : NULL;
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

bool ek_bucket_is_narrow(const ek_reducer *reducer, const ek_bucket *bucket)
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

char *ek_bucket_address(const ek_reducer_lane *lane)
{
    return lane->bucket->memory ? ek_tensor_address(lane->bucket->memory) : lane->blank;
}

void ek_bucket_begin_sum(const ek_reducer *reducer, ek_reducer_lane *lane, ek_sum_way way)
{
    const ek_bucket *bucket = lane->bucket;
    bool narrow = ek_bucket_is_narrow(reducer, bucket);
    lane->sum = (ek_sum){.group = reducer->group,
                         .schedule = reducer->schedules[way],
                         .op = EK_DIST_AVG,
                         .dtype = narrow ? EK_BF16 : bucket->dtype,
                         .parts = reducer->sharding ? EK_SUM_SCATTER : EK_SUM_ALL,
                         .root = -1,
                         .tag = lane->number,
                         .address = narrow ? lane->wire : ek_bucket_address(lane),
                         .count = bucket->count,
                         .scratch = lane->scratch,
                         .requests = lane->requests};
    ek_sum_begin(&lane->sum);
}

/* Tells whether the gradients are in the memory from which they travel. */
static ek_readiness bucket_fetched(ek_reducer *reducer, const ek_bucket *bucket)
{
    if (bucket_is_on_host(bucket))
        return EK_READY;
    int done = ek_dev_event_done(bucket_dev(bucket), bucket->event);
    if (done < 0)
        bucket_fail(reducer);
    return done != 0 ? EK_READY : EK_AWAITS_RANKS;
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
    if (ek_bucket_is_narrow(reducer, bucket) && !bucket->wire) {
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
    if (bucket_is_on_host(bucket) || reducer->sharding)
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

static ek_readiness rail_ready(ek_reducer *reducer, ek_reducer_lane *lane)
{
    return lane->phase > 0 ? ek_rail_run_ready(&lane->bucket->run, reducer->group)
                           : bucket_fetched(reducer, lane->bucket);
}

static int rail_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    ek_bucket *bucket = lane->bucket;
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
    if (bucket_is_on_host(bucket))
        return 1;
    ek_scope scope = ek_scope_begin();
    int rc = ek_bucket_stage(bucket);
    ek_scope_end(&scope);
    return rc < 0 ? rc : 1;
}

static int messages_fetch(ek_reducer *reducer, ek_bucket *bucket)
{
    (void)reducer;
    return bucket_is_on_host(bucket)
               ? 0
               : ek_staging_fetch(bucket->memory, bucket->range, &bucket->event);
}

static ek_readiness messages_ready(ek_reducer *reducer, ek_reducer_lane *lane)
{
    return lane->phase > 0 ? ek_sum_ready(&lane->sum) : bucket_fetched(reducer, lane->bucket);
}

/* Converts the bucket's memory to bf16 in lane->wire, or if `back`, from there. */
static void messages_convert(const ek_reducer_lane *lane, bool back)
{
    float *wide = (float *)(void *)ek_bucket_address(lane);
    uint16_t *narrow = (uint16_t *)(void *)lane->wire;
    for (int64_t i = 0; i < lane->bucket->count && !back; i++)
        narrow[i] = ek_bf16_of(wide[i]);
    for (int64_t i = 0; i < lane->bucket->count && back; i++)
        wide[i] = ek_float_of_bf16(narrow[i]);
}

/* Starts to copy the mean from the host's memory back to the device. The fetch has ended, so that
 * no other copy uses the range, and bucket->event can be recorded after this copy. */
static void messages_return(ek_reducer *reducer, ek_bucket *bucket)
{
    ek_dev *dev = bucket_dev(bucket);
    if (bucket_is_on_host(bucket) || !bucket->fetched)
        return;
    if (ek_dev_upload(dev, ek_tensor_address(bucket->range), ek_tensor_dev(bucket->memory),
                      ek_tensor_address(bucket->memory), ek_comm_nbytes(bucket->range)) < 0)
        bucket_fail(reducer);
    ek_dev_record_event(dev, EK_STREAM_UPLOAD, &bucket->event);
}

static int messages_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    const ek_bucket *bucket = lane->bucket;
    const bool narrow = ek_bucket_is_narrow(reducer, bucket);
    (void)request; /* sums have separate requests */
    if (lane->phase == 0) {
        if (narrow)
            messages_convert(lane, false);
        ek_bucket_begin_sum(reducer, lane,
                            narrow || ek_dtype_is_narrow(bucket->dtype) ? EK_SUM_DIRECT
                                                                        : EK_SUM_SENT);
    }
    int rc = ek_sum_go_on(&lane->sum);
    if (rc <= 0)
        return rc;
    if (narrow)
        messages_convert(lane, true);
    if (!reducer->sharding) /* if parameters are sharded, each rank needs its own slice alone */
        messages_return(reducer, lane->bucket);
    return 1;
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

int ek_unit_fetch(ek_reducer *reducer, ek_bucket *bucket)
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

static ek_readiness unit_ready(ek_reducer *reducer, ek_reducer_lane *lane)
{
    (void)reducer;
    return lane->phase > 0 ? ek_sum_ready(&lane->sum) : EK_READY;
}

void ek_unit_deliver(ek_reducer *reducer, const ek_reducer_lane *lane)
{
    ek_bucket *bucket = lane->bucket;
    char *address = ek_bucket_address(lane);
    ek_rank_units_deliver(reducer->sharding, bucket, address);
    if (!bucket->memory) { /* the slice of the mean was written there */
        memset(address, 0, ek_bucket_nbytes(bucket));
        return;
    }
    ek_object_release(bucket->memory);
    bucket->memory = NULL;
    ek_reducer_drop_copy(reducer, ek_bucket_nbytes(bucket));
}

static int unit_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    int rc = messages_advance(reducer, lane, request);
    if (rc > 0)
        ek_unit_deliver(reducer, lane);
    return rc;
}

/* ---- the choice ---- */

static const ek_route bucket_unit = {unit_begin, ek_unit_fetch, unit_ready, unit_advance,
                                     .alone = false};
static const ek_route bucket_rail = {rail_begin, rail_fetch, rail_ready, rail_advance,
                                     .alone = true};
static const ek_route bucket_messages = {messages_begin, messages_fetch, messages_ready,
                                         messages_advance, .alone = false};
static const ek_route *const bucket_routes[] = {&ek_route_shared_unit, &bucket_unit,
                                                &ek_route_window, &bucket_rail, &bucket_messages};

int ek_bucket_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    int rc = 0;
    bucket->fetched = false;
    for (int i = 0; rc == 0; i++) {
        bucket->route = bucket_routes[i];
        rc = bucket->route->begin(reducer, bucket);
    }
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
    /* A failed pass may have left memory. If the world is broken, transfers may use that memory. */
    if (bucket->unit >= 0 && !reducer->group->communication->broken) {
        ek_object_release(bucket->memory);
        bucket->memory = NULL;
    }
    if (bucket->unit >= 0 || bucket_is_on_host(bucket))
        return 0;
    ek_dev_wait_event(bucket_dev(bucket), EK_STREAM_COMPUTE, bucket->event);
    if (bucket->fetched && bucket->run.rail && bucket->wire && bucket->run.state >= 0 &&
        ek_rail_run_is_over(&bucket->run))
        rc = bucket_convert(bucket->range, bucket->wire);
    ek_rail_run_close(&bucket->run, reducer->group);
    return rc;
}
