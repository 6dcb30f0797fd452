/* sum.c: adds tensors of several devices.
 *
 * Sums are cut into stretches, and stretches are put into batches for which bounded buffers are
 * enough. A batch copies all terms that its sums can't read in place in one exchange, and then
 * adds. If devices offer collectives, slices.c adds what it can. */
#include "comm/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "comm/slices.h"
#include "core/lane.h"
#include "core/object.h"
#include "core/trace.h"
#include "kernels/kernels.h"

enum { CUT_ELEMENTS = 64 }; /* stretches of flat tensors begin at multiples of this */

/* ---- a batch ---- */

/* Sums that are made together. */
typedef struct batch {
    const char *what;
    int collective; /* ek_collective among all devices of all sums */
    int room, most; /* room for how many sums, and for how many terms of a sum */
    int count;
    ek_addition *sums;   /* `room` sums */
    ek_tensor **terms;   /* `most` terms for each sum */
    ek_tensor ***unread; /* entries of `terms` that must be copied */
    ek_move *moves;      /* one move for each term */
    ek_tensor **handles; /* two handles for each term */
    ek_move *results;    /* moves of sums that were added on another device, at most `room` */
    int result_count;
    ek_dev_set devs;                /* devices that take part */
    size_t staged[EK_MOST_DEVICES]; /* bytes that each device stages */
} batch;

static void batch_close(batch *b)
{
    free(b->sums);
    free(b->terms);
    free(b->moves);
    free(b->results);
    free(b->unread);
    free(b->handles);
}

static int batch_open(batch *b, int room, int most)
{
    size_t terms = (size_t)room * (size_t)most;
    b->room = room;
    b->most = most;
    b->sums = ek_calloc((size_t)room, sizeof *b->sums);
    b->terms = ek_calloc(terms, sizeof(ek_tensor *));
    b->moves = ek_calloc(terms, sizeof *b->moves);
    b->results = ek_calloc((size_t)room, sizeof *b->results);
    b->unread = ek_calloc(terms, sizeof *b->unread);
    b->handles = ek_calloc(2 * terms, sizeof(ek_tensor *));
    return b->sums && b->terms && b->moves && b->results && b->unread && b->handles
               ? 0
               : ek_error_pending();
}

/* Returns the device on which the sum is made. A single term is the sum where it lies. */
static ek_dev *sum_dev(const ek_addition *sum)
{
    ek_dev *out = ek_tensor_dev(sum->out);
    return !sum->dev || sum->dev == out ? out
           : sum->count > 1             ? sum->dev
                                        : ek_tensor_dev(sum->terms[0]);
}

static bool sum_is_diverted(const ek_addition *sum)
{
    return sum_dev(sum) != ek_tensor_dev(sum->out);
}

/* Returns true if the sum's device reads the term in place. With collectives, terms of other
 * devices are exchanged even if the device could read them. */
static bool sum_is_read_in_place(const batch *b, const ek_addition *sum, const ek_tensor *term)
{
    ek_dev *dev = sum_dev(sum), *from = ek_tensor_dev(term);
    bool reaches = dev == from || (!b->collective && ek_dev_reaches(dev, from));
    return reaches && ek_comm_alike(term, sum->out);
}

/* Gives each sum that is made on another device than that of its `out` an `out` there, and lists
 * the move to the old one. Sums of a device share a slab; a single term becomes its own `out`. */
static int batch_divert(batch *b)
{
    ek_tensor **like = b->handles, **there = like + b->room;
    for (int d = 0; d < b->devs.count; d++) {
        ek_dev *dev = b->devs.devs[d];
        int n = 0;
        for (int k = 0; k < b->count; k++)
            if (sum_dev(&b->sums[k]) == dev && sum_is_diverted(&b->sums[k]) && b->sums[k].count > 1)
                like[n++] = b->sums[k].out;
        EK_TRY(n > 0 ? ek_comm_room(dev, like, n, there) : 0);
        for (int k = 0, i = 0; k < b->count; k++) {
            ek_addition *sum = &b->sums[k];
            if (sum_dev(sum) != dev || !sum_is_diverted(sum))
                continue;
            ek_tensor *own = sum->count > 1 ? there[i++] : sum->terms[0];
            b->results[b->result_count++] = (ek_move){sum->out, own};
            sum->out = own;
        }
    }
    return 0;
}

/* Makes room on `dev` for the terms on `from` that sums on `dev` can't read in place, and appends
 * the moves that copy these terms to b->moves, which holds `moves` moves. Returns the new number of
 * moves. */
static int batch_stage(batch *b, ek_dev *dev, const ek_dev *from, int moves)
{
    int n = 0;
    ek_tensor **like = b->handles, **staged = like + (ptrdiff_t)b->room * b->most;
    for (int k = 0; k < b->count; k++) {
        const ek_addition *sum = &b->sums[k];
        if (sum->count == 1 || ek_tensor_dev(sum->out) != dev)
            continue;
        for (int p = 0; p < sum->count; p++) {
            ek_tensor **term = &b->terms[(ptrdiff_t)k * b->most + p];
            if (!*term || ek_tensor_dev(*term) != from || sum_is_read_in_place(b, sum, *term))
                continue;
            like[n] = sum->out;
            b->unread[n++] = term;
        }
    }
    EK_TRY(n > 0 ? ek_comm_room(dev, like, n, staged) : 0);
    for (int k = 0; k < n; k++) {
        b->moves[moves + k] = (ek_move){staged[k], *b->unread[k]};
        *b->unread[k] = staged[k];
    }
    return moves + n;
}

/* Copies all terms that the sums can't read in place, and sums of a single term. */
static int batch_fetch(batch *b)
{
    int moves = 0;
    bool any = false;
    for (int d = 0; d < b->devs.count; d++)
        any = any || b->staged[d] > 0;
    for (int to = 0; any && to < b->devs.count && moves >= 0; to++)
        for (int from = 0; from < b->devs.count && moves >= 0; from++)
            moves = batch_stage(b, b->devs.devs[to], b->devs.devs[from], moves);
    EK_TRY(moves);
    for (int k = 0; k < b->count; k++)
        if (b->sums[k].count == 1 && b->sums[k].out != b->sums[k].terms[0])
            b->moves[moves++] = (ek_move){b->sums[k].out, b->sums[k].terms[0]};
    return ek_exchange(b->what, b->moves, moves);
}

/* If `before`, makes each device wait for all devices whose memory it reads; else makes those
 * devices wait for the device that reads. */
static int batch_order(const batch *b, bool before)
{
    for (int d = 0; d < b->devs.count; d++) {
        ek_dev *dev = b->devs.devs[d];
        ek_dev_set read = {0};
        for (int k = 0; k < b->count; k++)
            for (int p = 0; p < b->sums[k].count && ek_tensor_dev(b->sums[k].out) == dev; p++)
                if (b->sums[k].terms[p])
                    ek_dev_set_add(&read, ek_tensor_dev(b->sums[k].terms[p]));
        for (int r = 0; r < read.count; r++)
            EK_TRY(before ? ek_dev_wait(dev, read.devs[r]) : ek_dev_wait(read.devs[r], dev));
    }
    return 0;
}

/* Returns how many sums, from `first` on, the kernel makes in one launch. */
static int sum_launch_length(const batch *b, int first)
{
    const ek_addition *sum = &b->sums[first];
    int n = 1;
    for (; first + n < b->count; n++) {
        const ek_addition *next = &b->sums[first + n];
        if (next->count != sum->count || next->out->dtype != sum->out->dtype ||
            ek_tensor_dev(next->out) != ek_tensor_dev(sum->out))
            break;
    }
    return n;
}

static int batch_add(const batch *b)
{
    for (int first = 0, n; first < b->count; first += n) {
        const ek_addition *sum = &b->sums[first];
        ek_dev *dev = ek_tensor_dev(sum->out);
        n = sum_launch_length(b, first);
        if (sum->count == 1)
            continue;
        ek_tensor **outs = b->handles, **terms = outs + n;
        for (int k = 0; k < n; k++) {
            outs[k] = b->sums[first + k].out;
            for (int p = 0; p < sum->count; p++)
                terms[(ptrdiff_t)p * n + k] = b->sums[first + k].terms[p];
        }
        EK_TRY(dev->backend->kernels->add_n(dev, n, outs, (const ek_tensor *const *)terms,
                                            sum->count));
    }
    return 0;
}

/* Makes the batch's sums and empties it. */
static int batch_flush(batch *b)
{
    if (b->count == 0)
        return 0;
    ek_memory_category category = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_scope scope = ek_scope_begin();
    int rc = batch_divert(b);
    if (rc >= 0)
        rc = batch_fetch(b);
    if (rc >= 0)
        rc = batch_order(b, true);
    if (rc >= 0)
        rc = batch_add(b);
    if (rc >= 0)
        rc = ek_exchange(b->what, b->results, b->result_count);
    /* Also after an error, because sums that were issued still read other devices' memory. */
    int ordered = batch_order(b, false);
    ek_scope_end(&scope);
    ek_memory_set_category(category);
    memset(b->staged, 0, sizeof b->staged);
    b->devs.count = b->count = b->result_count = 0;
    return rc < 0 ? rc : ordered;
}

/* ---- cutting ---- */

/* Writes the bytes that each of the batch's devices stages for one element of a sum: for terms, and
 * for the sum if `out` lies elsewhere. A term from another device also counts on that device, where
 * it may have to be packed, unless it is sent as one block. */
static void sum_cost_of(batch *b, const ek_addition *sum, bool alone, size_t *cost)
{
    size_t size = ek_dtype_size(sum->out->dtype);
    memset(cost, 0, EK_MOST_DEVICES * sizeof *cost);
    int to = ek_dev_set_add(&b->devs, sum_dev(sum));
    cost[to] = sum->count > 1 && sum_is_diverted(sum) ? size : 0;
    for (int p = 0; p < sum->count; p++) {
        if (!sum->terms[p])
            continue;
        int from = ek_dev_set_add(&b->devs, ek_tensor_dev(sum->terms[p]));
        if (sum->count == 1 || sum_is_read_in_place(b, sum, sum->terms[p]))
            continue;
        bool block = alone && ek_comm_alike(sum->terms[p], sum->out);
        cost[to] += size;
        if (from != to && !block)
            cost[from] += size;
    }
}

/* Returns how many of n elements still fit into the batch. */
static int64_t sum_fitting(const batch *b, const size_t *cost, int64_t n)
{
    for (int d = 0; d < b->devs.count; d++) {
        if (cost[d] == 0)
            continue;
        size_t left = (size_t)EK_COMM_BUFFER_BYTES - b->staged[d];
        int64_t most = (int64_t)(left / cost[d]);
        n = n < most ? n : most;
    }
    return n;
}

/* Appends a stretch, for which the batch has room. If the batch is then full, computes it. */
static int batch_append(batch *b, const ek_addition *sum, const size_t *cost)
{
    ek_tensor **terms = b->terms + (ptrdiff_t)b->count * b->most;
    memcpy(terms, sum->terms, (size_t)sum->count * sizeof *terms);
    b->sums[b->count++] = (ek_addition){sum->out, terms, sum->count, sum->dev};
    for (int d = 0; d < b->devs.count; d++)
        b->staged[d] += cost[d] * (size_t)ek_count(sum->out);
    return b->count == b->room ? batch_flush(b) : 0;
}

int ek_addition_part(const ek_addition *sum, int dim, int64_t begin, int64_t length,
                     ek_tensor **terms, ek_addition *part)
{
    *part = (ek_addition){sum->out, terms, sum->count, sum->dev};
    for (int p = -1; p < sum->count && part->out; p++) {
        ek_tensor *whole = p < 0 ? sum->out : sum->terms[p];
        if (!whole) {
            terms[p] = NULL;
            continue;
        }
        ek_tensor *own = dim < 0 ? ek_comm_flat(whole, begin, begin + length)
                                 : ek_comm_part(whole, dim, begin, length);
        if (p >= 0)
            terms[p] = own;
        part->out = p < 0 || !own ? own : part->out;
    }
    return part->out ? 0 : ek_error_pending();
}

static bool sum_all_alike(const ek_addition *sum)
{
    bool alike = true;
    for (int p = 0; p < sum->count && alike; p++)
        alike = !sum->terms[p] || ek_comm_alike(sum->terms[p], sum->out);
    return alike;
}

/* Appends a sum, which is cut into stretches if the batch has too little room. If its tensors are
 * alike, the sum is cut at multiples of CUT_ELEMENTS elements. Otherwise it is cut at rows of the
 * dimension that is slowest in its memory; a row that is larger than all buffers is cut along the
 * row's slowest dimension. */
static int batch_add_sum(batch *b, const ek_addition *sum, bool alone)
{
    size_t cost[EK_MOST_DEVICES];
    ek_tensor *terms[EK_MAX_DEVICES];
    bool flat = sum_all_alike(sum);
    int dim = flat ? -1 : ek_comm_slowest(sum->out);
    int64_t count = ek_count(sum->out), rows = flat ? count : sum->out->shape[dim];
    for (int64_t begin = 0, n; begin < rows; begin += n) {
        ek_addition part;
        sum_cost_of(b, sum, alone && flat, cost);
        n = sum_fitting(b, cost, (rows - begin) * (count / rows)) / (count / rows);
        if (n == rows)
            return batch_append(b, sum, cost);
        if (flat && n < rows - begin)
            n = n / CUT_ELEMENTS * CUT_ELEMENTS;
        if (n == 0 && b->count > 0) {
            EK_TRY(batch_flush(b));
            continue;
        }
        bool fits = n > 0;
        n = fits ? n : 1;
        EK_TRY(ek_addition_part(sum, dim, begin, n, terms, &part));
        EK_TRY(fits ? batch_append(b, &part, cost) : batch_add_sum(b, &part, false));
    }
    return 0;
}

/* Appends all sums. A batch has one dtype, so that its copies from a device lie in one slab. */
static int sum_add_list(batch *b, const ek_addition *sums, int count)
{
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        if (b->count > 0 && b->sums[0].out->dtype != sums[i].out->dtype)
            rc = batch_flush(b);
        if (rc >= 0 && ek_comm_nbytes(sums[i].out) > 0)
            rc = batch_add_sum(b, &sums[i], count == 1);
    }
    return rc < 0 ? rc : batch_flush(b);
}

/* ---- whole lists of sums ---- */

static int sum_add_batches(batch *b, const ek_addition *sums, int count)
{
    ek_dev_set devs = {0};
    int most = 1;
    bool diverted = false;
    for (int i = 0; i < count; i++) {
        diverted = diverted || sum_is_diverted(&sums[i]);
        ek_dev_set_add(&devs, sum_dev(&sums[i]));
        for (int p = 0; p < sums[i].count; p++)
            if (sums[i].terms[p])
                ek_dev_set_add(&devs, ek_tensor_dev(sums[i].terms[p]));
        most = sums[i].count > most ? sums[i].count : most;
    }
    b->collective = ek_dev_collective(devs.devs, devs.count);
    EK_TRY(b->collective);
    bool sliced = b->collective && ek_slices_can_add(sums, count);
    if (!sliced)
        EK_TRY(batch_open(b, count, most));
    ek_section section;
    ek_section_begin(&section, devs.devs, devs.count, diverted);
    int rc = sliced ? ek_slices_add(sums, count, (ek_collective)b->collective)
                    : sum_add_list(b, sums, count);
    ek_section_end(&section);
    return rc;
}

int ek_add_all(const char *what, const ek_addition *sums, int count)
{
    batch b = {.what = what};
    if (count == 0)
        return 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, what, NULL, ek_tensor_dev(sums[0].out));
    ek_scope scope = ek_scope_begin();
    int rc = sum_add_batches(&b, sums, count);
    ek_scope_end(&scope);
    ek_span_end(&span);
    batch_close(&b);
    return rc;
}
