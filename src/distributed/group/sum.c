/* sum.c: see sum.h.
 *
 * A rank's partial sums lie at their elements' own addresses. Other ranks' sums of a level come to
 * scratch, which has room for the rank's slice from each side. */
#include "group/sum.h"

#include "core/multiversion.h"
#include "link/combine.h"

enum { SUM_STEP = 1 << 18 }; /* elements that one step combines at most */

static const ek_sum_level *sum_level(const ek_sum *sum)
{
    return &sum->schedule->levels[sum->level];
}

static ek_interval sum_slice(const ek_sum *sum, const ek_sum_node *node)
{
    return ek_sum_node_slice(node, sum->count, sum->schedule->rank);
}

static size_t sum_size(const ek_sum *sum)
{
    return ek_dtype_size(sum->dtype);
}

/* Returns where scratch has the element that a side has sent. */
static char *sum_received(const ek_sum *sum, int side, int64_t element)
{
    ek_interval slice = sum_slice(sum, &sum_level(sum)->node);
    return sum->scratch +
           (size_t)(side * (slice.end - slice.begin) + element - slice.begin) * sum_size(sum);
}

size_t ek_sum_scratch_nbytes(const ek_sum_schedule *schedule, ek_dtype dtype, int64_t count)
{
    int64_t most = 0;
    for (int i = 0; i < schedule->count; i++) {
        const ek_sum_level *level = &schedule->levels[i];
        ek_interval slice = ek_sum_node_slice(&level->node, count, level->node.first);
        int64_t needs = (slice.end - slice.begin) * level->count;
        most = needs > most ? needs : most;
    }
    return (size_t)most * ek_dtype_size(dtype);
}

/* ---- messages ---- */

/* Starts to send the elements to their owners in the node, or to receive them from the owners. If
 * `side` is a side of the level, receives terms to scratch; if negative, results in place. Elements
 * that this rank owns stay. */
static void sum_transfer(ek_sum *sum, const ek_sum_node *node, ek_interval elements, bool sends,
                         int side)
{
    const ek_transport *transport = sum->group->communication->transport;
    ek_communicator *communicator = sum->group->communicator;
    elements = ek_interval_meet(elements, sum->range);
    while (elements.begin < elements.end && sum->status >= 0) {
        ek_interval part;
        int owner = node->owners[ek_sum_node_find(node, sum->count, elements.begin, &part)];
        part = ek_interval_meet(part, elements);
        elements.begin = part.end;
        if (owner == sum->schedule->rank)
            continue;
        char *address = side < 0 ? sum->address + (size_t)part.begin * sum_size(sum)
                                 : sum_received(sum, side, part.begin);
        size_t nbytes = (size_t)(part.end - part.begin) * sum_size(sum);
        ek_request **request = &sum->requests[sum->open];
        sum->status =
            sends ? transport->send(communicator, address, nbytes, owner, sum->tag, request)
                  : transport->receive(communicator, address, nbytes, owner, sum->tag, request);
        sum->open += sum->status >= 0;
    }
}

/* Brings each element's sums of the sides to the element's owner in the node. */
static void sum_send_partials(ek_sum *sum)
{
    const ek_sum_level *level = sum_level(sum);
    for (int s = 0; s < level->count; s++)
        sum_transfer(sum, &level->sides[s], sum_slice(sum, &level->node), false, s);
    sum_transfer(sum, &level->node, sum_slice(sum, &level->sides[level->own]), true, -1);
}

static bool sum_awaits_result(const ek_sum *sum, const ek_sum_node *node)
{
    return sum->root < 0 || (sum->root >= node->first && sum->root < node->first + node->size);
}

/* Brings each element's result to the element's owners in the sides. */
static void sum_send_results(ek_sum *sum)
{
    const ek_sum_level *level = sum_level(sum);
    if (!sum_awaits_result(sum, &level->node))
        return;
    if (sum_awaits_result(sum, &level->sides[level->own]))
        sum_transfer(sum, &level->node, sum_slice(sum, &level->sides[level->own]), false, -1);
    for (int s = 0; s < level->count; s++)
        if (sum_awaits_result(sum, &level->sides[s]))
            sum_transfer(sum, &level->sides[s], sum_slice(sum, &level->node), true, -1);
}

/* ---- additions ---- */

EK_MULTIVERSION static void sum_divide_f32(float *values, int64_t count, float divisor)
{
    for (int64_t i = 0; i < count; i++)
        values[i] /= divisor;
}

EK_MULTIVERSION static void sum_divide_f64(double *values, int64_t count, double divisor)
{
    for (int64_t i = 0; i < count; i++)
        values[i] /= divisor;
}

/* Combines the elements [begin, end) of the level's slice, of which each side has given one term.
 */
static void sum_combine(const ek_sum *sum, int64_t begin, int64_t end, const void **terms)
{
    const ek_sum_level *level = sum_level(sum);
    const bool whole = level->count == sum->group->size, mean = sum->op == EK_DIST_AVG && !whole;
    void *out = sum->address + (size_t)begin * sum_size(sum);
    for (int s = 0; s < level->count; s++) {
        ek_interval own = sum_slice(sum, &level->sides[s]);
        bool is_own = s == level->own && own.begin <= begin && begin < own.end;
        terms[s] = is_own ? out : sum_received(sum, s, begin);
    }
    ek_combine(mean ? EK_DIST_SUM : sum->op, sum->dtype, terms, level->count, &out, 1, end - begin);
    if (mean && sum->level + 1 == sum->schedule->count && sum->dtype == EK_F32)
        sum_divide_f32(out, end - begin, (float)sum->group->size);
    else if (mean && sum->level + 1 == sum->schedule->count)
        sum_divide_f64(out, end - begin, sum->group->size);
}

/* Combines the next elements of the level's slice. Returns true once all are combined. */
static bool sum_combine_next(ek_sum *sum)
{
    const ek_sum_level *level = sum_level(sum);
    ek_interval slice = sum_slice(sum, &level->node),
                own = sum_slice(sum, &level->sides[level->own]);
    int64_t begin = slice.begin + sum->done, end = slice.end;
    if (end - begin > SUM_STEP)
        end = begin + SUM_STEP;
    if (begin < own.begin && own.begin < end) /* this rank's own terms begin there */
        end = own.begin;
    if (begin < own.end && own.end < end)
        end = own.end;
    if (begin < end) /* no message uses `requests` now */
        sum_combine(sum, begin, end, (const void **)(void *)sum->requests);
    sum->done += end - begin;
    return end == slice.end;
}

/* ---- steps ---- */

void ek_sum_begin(ek_sum *sum)
{
    sum->back = sum->parts == EK_SUM_GATHER;
    sum->level = sum->back ? sum->schedule->count - 1 : 0;
    sum->open = sum->status = 0;
    sum->started = false;
    sum->done = 0;
    if (!sum->back)
        sum->range = (ek_interval){0, sum->count};
}

ek_readiness ek_sum_ready(ek_sum *sum)
{
    const ek_transport *transport = sum->group->communication->transport;
    while (sum->open > 0 && sum->status >= 0) {
        int rc = transport->test(&sum->requests[sum->open - 1], NULL);
        if (rc == 0)
            return EK_AWAITS_RANKS;
        sum->open--;
        sum->status = rc < 0 ? rc : 0;
    }
    return EK_READY;
}

int ek_sum_go_on(ek_sum *sum)
{
    if (sum->status < 0)
        return sum->status;
    if (sum->started && (sum->back || sum_combine_next(sum))) {
        sum->level += sum->back ? -1 : 1;
        sum->started = false;
        sum->done = 0;
    }
    if (sum->started)
        return 0;
    if (!sum->back && sum->level == sum->schedule->count) {
        if (sum->parts == EK_SUM_SCATTER)
            return 1;
        sum->back = true;
        sum->level--;
    }
    if (sum->level < 0)
        return 1;
    sum->started = true;
    if (sum->back)
        sum_send_results(sum);
    else
        sum_send_partials(sum);
    return sum->status;
}
