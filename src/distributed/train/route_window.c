/* route_window.c: buckets whose gradients ranks of one machine share (reducer.h, Note [Ranks of one
 * machine share the slabs]), and units whose gradients they show each other. */
#include <string.h>

#include "link/combine.h"
#include "train/rank_sharding.h"
#include "train/route.h"

/* ---- slabs in a window ---- */

static bool window_has_all(const ek_reducer *reducer)
{
    return reducer->schedules[EK_SUM_SHARED]->count == 0;
}

static int window_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    return reducer->window && (window_has_all(reducer) || !ek_dtype_is_narrow(bucket->dtype));
}

static ek_readiness window_ready(ek_reducer *reducer, ek_reducer_lane *lane)
{
    const uint64_t ticket = ek_bucket_ticket(reducer, lane->bucket);
    switch (lane->phase) {
    case 0:
        return ek_window_has(reducer->window, EK_BUCKETS_READY, ticket) ? EK_READY
                                                                        : EK_AWAITS_RANKS;
    case 1: /* Later steps write to this rank's elements. The other ranks must have read them. */
        return ek_window_has(reducer->window, EK_BUCKETS_ADDED, ticket) ? EK_READY
                                                                        : EK_AWAITS_RANKS;
    default:
        return lane->ended ? ek_window_has(reducer->window, EK_BUCKETS_ENDED + lane->number, ticket)
                                 ? EK_READY
                                 : EK_AWAITS_RANKS
                           : ek_sum_ready(&lane->sum);
    }
}

/* Returns a rank's elements of the bucket in the window. */
static char *window_address(const ek_window *window, const ek_bucket *bucket, int rank)
{
    return ek_window_memory(window, rank) + bucket->storage_at +
           (size_t)bucket->range->offset * ek_dtype_size(bucket->dtype);
}

/* Combines this rank's slice of the elements of all ranks of the block. Writes the mean to the
 * ranks that need it, or if there are other machines, the sum to this rank's elements. */
static void window_add(const ek_reducer *reducer, const ek_reducer_lane *lane)
{
    const ek_window *window = reducer->window;
    const ek_bucket *bucket = lane->bucket;
    const ek_sum_node *block = &reducer->schedules[EK_SUM_SHARED]->base;
    const bool whole = window_has_all(reducer), all = whole && !reducer->sharding;
    ek_interval slice = ek_sum_node_slice(block, bucket->count, window->rank);
    void **terms = (void **)(void *)lane->requests; /* no message uses them now */
    for (int r = 0; r < window->size; r++)
        terms[r] = window_address(window, bucket, window->first + r) +
                   (size_t)slice.begin * ek_dtype_size(bucket->dtype);
    ek_combine(whole ? EK_DIST_AVG : EK_DIST_SUM, bucket->dtype, (const void *const *)terms,
               window->size, all ? terms : &terms[window->rank - window->first],
               all ? window->size : 1, slice.end - slice.begin);
}

/* Copies the mean from the other ranks of the block. */
static void window_take(const ek_reducer *reducer, const ek_bucket *bucket)
{
    const ek_window *window = reducer->window;
    const size_t size = ek_dtype_size(bucket->dtype);
    for (int r = window->first; r < window->first + window->size; r++) {
        ek_interval slice =
            ek_sum_node_slice(&reducer->schedules[EK_SUM_SHARED]->base, bucket->count, r);
        if (r != window->rank)
            memcpy(window_address(window, bucket, window->rank) + (size_t)slice.begin * size,
                   window_address(window, bucket, r) + (size_t)slice.begin * size,
                   (size_t)(slice.end - slice.begin) * size);
    }
}

static int window_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    const uint64_t ticket = ek_bucket_ticket(reducer, lane->bucket);
    (void)request; /* sums have separate requests */
    if (lane->ended) {
        window_take(reducer, lane->bucket);
        return 1;
    }
    if (lane->phase == 0) {
        window_add(reducer, lane);
        if (window_has_all(reducer))
            return 1;
        ek_window_set(reducer->window, EK_BUCKETS_ADDED, ticket);
        return 0;
    }
    if (lane->phase == 1)
        ek_bucket_begin_sum(reducer, lane, EK_SUM_SHARED);
    int rc = ek_sum_go_on(&lane->sum);
    if (rc <= 0 || reducer->sharding) /* each rank needs its own slice alone */
        return rc;
    ek_window_set(reducer->window, EK_BUCKETS_ENDED + lane->number, ticket);
    lane->ended = true;
    return 0;
}

const ek_route ek_route_window = {window_begin, NULL, window_ready, window_advance, .alone = false};

/* ---- units in a window ----
 *
 * Every rank shows the other ranks its terms of their slices, piece by piece. A piece has a part of
 * each slice. Pieces lie by turns in two places of the window. Once all ranks have counted a piece,
 * they have read the piece before, whose place the next piece takes. */

static int shared_begin(ek_reducer *reducer, ek_bucket *bucket)
{
    return bucket->unit >= 0 && reducer->sharding->window && !ek_bucket_is_narrow(reducer, bucket);
}

static uint64_t shared_count(const ek_window *window)
{
    return ek_window_count(window, window->rank, 0);
}

static ek_readiness shared_ready(ek_reducer *reducer, ek_reducer_lane *lane)
{
    const ek_window *window = reducer->sharding->window;
    return lane->phase == 0 || ek_window_has(window, 0, shared_count(window)) ? EK_READY
                                                                              : EK_AWAITS_RANKS;
}

/* Returns how many elements of a slice a piece has. */
static int64_t shared_length(const ek_reducer *reducer, const ek_bucket *bucket)
{
    return (int64_t)(reducer->sharding->piece / ek_dtype_size(bucket->dtype)) /
           reducer->group->size;
}

/* Returns the elements of a rank's slice that are in the piece. */
static ek_interval shared_elements(const ek_reducer *reducer, const ek_bucket *bucket, int rank,
                                   int piece)
{
    const int64_t length = shared_length(reducer, bucket);
    ek_interval slice = ek_slab_slice(bucket->count, EK_SUM_UNIT, reducer->group->size, rank);
    int64_t at = slice.begin + piece * length;
    return ek_interval_meet(slice, (ek_interval){at, at + length});
}

/* Returns where the newest piece that this rank has counted has rank `of`'s terms of rank `to`'s
 * slice. If `next`, returns the place in the next piece. */
static char *shared_terms(const ek_reducer *reducer, const ek_bucket *bucket, int of, int to,
                          bool next)
{
    const ek_window *window = reducer->sharding->window;
    uint64_t place = (shared_count(window) + next) % 2;
    return ek_window_memory(window, of) + reducer->sharding->exchange +
           place * reducer->sharding->piece +
           (size_t)(to * shared_length(reducer, bucket)) * ek_dtype_size(bucket->dtype);
}

/* Shows the other ranks a piece of this rank's gradients. */
static void shared_show(const ek_reducer *reducer, const ek_reducer_lane *lane, int piece)
{
    const ek_bucket *bucket = lane->bucket;
    const size_t size = ek_dtype_size(bucket->dtype);
    ek_window *window = reducer->sharding->window;
    for (int r = 0; r < reducer->group->size; r++) {
        ek_interval part = shared_elements(reducer, bucket, r, piece);
        if (r != reducer->group->rank)
            memcpy(shared_terms(reducer, bucket, reducer->group->rank, r, true),
                   ek_bucket_address(lane) + (size_t)part.begin * size,
                   (size_t)(part.end - part.begin) * size);
    }
    ek_window_set(window, 0, shared_count(window) + 1);
}

/* Makes the piece's part of this rank's slice the mean over all ranks. */
static void shared_average(const ek_reducer *reducer, const ek_reducer_lane *lane, int piece)
{
    const ek_bucket *bucket = lane->bucket;
    const int rank = reducer->group->rank;
    ek_interval part = shared_elements(reducer, bucket, rank, piece);
    void *mine = ek_bucket_address(lane) + (size_t)part.begin * ek_dtype_size(bucket->dtype);
    const void **terms = (const void **)(void *)lane->requests; /* no message uses them */
    for (int r = 0; r < reducer->group->size; r++)
        terms[r] = r == rank ? mine : shared_terms(reducer, bucket, r, rank, false);
    ek_combine(EK_DIST_AVG, bucket->dtype, terms, reducer->group->size, &mine, 1,
               part.end - part.begin);
}

static int shared_advance(ek_reducer *reducer, ek_reducer_lane *lane, ek_request **request)
{
    const ek_bucket *bucket = lane->bucket;
    const int piece = lane->phase;
    (void)request; /* nothing is sent */
    if (piece > 0)
        shared_average(reducer, lane, piece - 1);
    if (piece * shared_length(reducer, bucket) <
        ek_slab_cut(bucket->count, EK_SUM_UNIT, reducer->group->size, 1)) { /* the largest slice */
        shared_show(reducer, lane, piece);
        return 0;
    }
    ek_unit_deliver(reducer, lane);
    return 1;
}

const ek_route ek_route_shared_unit = {shared_begin, ek_unit_fetch, shared_ready, shared_advance,
                                       .alone = true};
