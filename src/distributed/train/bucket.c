/* bucket.c: how a bucket travels.
 *
 * The host's memory is averaged where it is. That of a GPU travels on a rail, if its group has one;
 * else through pinned memory of the host (staging.h). Either way that begins once the bucket's last
 * gradient has arrived, while backward goes on. */
#include "comm/exchange.h"
#include "core/staging.h"
#include "core/thread.h"
#include "link/staging.h"
#include "ops/ops.h"
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
}

static int bucket_convert(ek_tensor *to, const ek_tensor *from)
{
    return ek_kernels_of(to)->copy(ek_tensor_dev(to), to, from);
}

/* ---- before and after a pass ---- */

/* What a rail carries: the gradients, or the same as bf16. */
static ek_tensor *bucket_cargo(const ek_bucket *bucket)
{
    return bucket->wire ? bucket->wire : bucket->range;
}

static int bucket_begin_on_rail(ek_reducer *reducer, ek_bucket *bucket, ek_group_rail *rail)
{
    ek_tensor *range = bucket->range;
    EK_TRY(ek_rail_run_open(&bucket->run, reducer->group, rail));
    bucket->run.meets = true;
    ek_rail_run_restart(&bucket->run);
    if (reducer->narrow && range->dtype == EK_F32 && !bucket->wire) {
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

int ek_bucket_stage(ek_bucket *bucket)
{
    ek_shape shape = ek_tensor_shape(bucket->range);
    if (!bucket->memory)
        bucket->memory =
            ek_object_retain(ek_stage_memory(bucket_dev(bucket), bucket->range->dtype, &shape));
    return bucket->memory ? 0 : ek_error_pending();
}

int ek_bucket_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    ek_group_rail *rail;
    bucket->fetched = false;
    if (bucket_is_plain(bucket))
        return 0;
    if (reducer->sharding)
        return ek_bucket_stage(bucket);
    EK_TRY(ek_rail_find(ek_verb_name(EK_VERB_BACKWARD), reducer->group, bucket_dev(bucket), &rail));
    ek_scope scope = ek_scope_begin();
    int rc = rail ? bucket_begin_on_rail(reducer, bucket, rail) : ek_bucket_stage(bucket);
    ek_scope_end(&scope);
    return rc;
}

int ek_bucket_end(const ek_reducer *reducer, ek_bucket *bucket)
{
    int rc = 0;
    if (bucket_is_plain(bucket))
        return 0;
    ek_dev_wait_event(bucket_dev(bucket), EK_STREAM_COMPUTE, bucket->event);
    if (bucket->fetched && bucket->run.rail && bucket->wire && bucket->run.state >= 0 &&
        ek_rail_run_is_over(&bucket->run))
        rc = bucket_convert(bucket->range, bucket->wire);
    ek_rail_run_close(&bucket->run, reducer->group);
    return rc;
}

int ek_bucket_fetch(ek_bucket *bucket)
{
    if (bucket_is_plain(bucket))
        return 0;
    if (!bucket->run.rail) {
        EK_TRY(ek_staging_fetch(bucket->memory, bucket->range, &bucket->event));
    } else {
        if (bucket->wire)
            EK_TRY(bucket_convert(bucket->wire, bucket->range));
        ek_dev_record_event(bucket_dev(bucket), EK_STREAM_COMPUTE, &bucket->event);
    }
    bucket->fetched = true;
    return 0;
}

/* ---- the communication thread ---- */

/* What this rank says of its error in its report. The other ranks average the bucket all the same.
 */
static void bucket_fail(ek_reducer *reducer)
{
    ek_error_record error;
    ek_error_take(&error);
    if (reducer->lost.status >= 0)
        reducer->lost = error;
}

bool ek_bucket_fetched(ek_reducer *reducer, const ek_bucket *bucket)
{
    if (bucket_is_plain(bucket))
        return true;
    int done = ek_dev_event_done(bucket_dev(bucket), bucket->event);
    if (done < 0)
        bucket_fail(reducer);
    return done != 0;
}

bool ek_bucket_go_on(ek_reducer *reducer, ek_bucket *bucket, ek_request **request)
{
    if (ek_rail_run_go_on(&bucket->run, reducer->group, request) < 0) {
        bucket_fail(reducer);
        reducer->failure = bucket->run.failure;
    }
    return ek_rail_run_is_over(&bucket->run);
}

/* The event of the fetch is over, so that nothing else uses the range. */
void ek_bucket_return(ek_reducer *reducer, ek_bucket *bucket)
{
    ek_dev *dev = bucket_dev(bucket);
    if (bucket_is_plain(bucket) || bucket->run.rail || !bucket->fetched)
        return;
    if (ek_dev_upload(dev, ek_tensor_address(bucket->range), ek_tensor_dev(bucket->memory),
                      ek_tensor_address(bucket->memory), ek_comm_nbytes(bucket->range)) < 0)
        bucket_fail(reducer);
    ek_dev_record_event(dev, EK_STREAM_UPLOAD, &bucket->event);
}
