/* exchange.c: copies elements between devices, below the graph. */
#include "comm/exchange.h"

#include "core/fork.h"
#include "core/lane.h"
#include "core/slab.h"
#include "core/thread.h"
#include "core/trace.h"
#include "core/worker.h"
#include "ops/ops.h"

enum {
    MOST_AT_ONCE = 64, /* how many moves are packed or exchanged at a time; they fit on the stack */
    WORKER_BYTES = 1 << 18 /* waking workers saves time from this many bytes on */
};

/* ---- memory for copies, and parts ---- */

ek_tensor *ek_comm_like(const ek_tensor *like, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(like);
    return ek_repeats(like) ? ek_tensor_new(dev, like->dtype, &shape, EK_CONTIGUOUS)
                            : ek_tensor_like_on(like, like->dtype, dev);
}

int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out)
{
    if (count == 1) {
        out[0] = ek_comm_like(tensors[0], dev);
        return out[0] ? 0 : ek_error_pending();
    }
    ek_slab *slab = ek_slab_new(dev, tensors, count);
    int rc = slab ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc == 0; i++) {
        out[i] = ek_itself(slab->members[i]);
        rc = out[i] ? 0 : ek_error_pending();
    }
    ek_object_release(slab);
    return rc;
}

ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length)
{
    ek_shape shape = ek_tensor_shape(tensor);
    shape.dims[dim] = length;
    return ek_tensor_view(tensor, tensor->ndim, shape.dims, tensor->stride,
                          tensor->offset + start * tensor->stride[dim]);
}

ek_tensor *ek_comm_flat(const ek_tensor *dense, int64_t begin, int64_t end)
{
    return ek_tensor_member(dense->storage, dense->dtype, &(ek_shape){1, {end - begin}},
                            &(int64_t){1}, dense->offset + begin);
}

int ek_comm_slowest(const ek_tensor *tensor)
{
    int slowest = -1;
    for (int dim = 0; dim < tensor->ndim; dim++)
        if (tensor->shape[dim] > 1 &&
            (slowest < 0 || tensor->stride[dim] > tensor->stride[slowest]))
            slowest = dim;
    return slowest;
}

bool ek_comm_alike(const ek_tensor *a, const ek_tensor *b)
{
    return ek_same_layout(a, b) && ek_is_dense(a) && ek_is_dense(b);
}

ptrdiff_t ek_comm_step(const ek_tensor *tensor, const ek_tensor *next)
{
    const char *begin = ek_tensor_address(tensor), *end = ek_tensor_address(next);
    ptrdiff_t step = end - begin, gap = step - (ptrdiff_t)ek_comm_nbytes(tensor);
    return tensor->storage == next->storage && gap >= 0 && gap < EK_COMM_ALIGNMENT ? step : -1;
}

/* ---- one move ---- */

/* Copies through blocks of limited size, for targets that can't be written in place. */
static int exchange_copy_in_parts(ek_tensor *to, const ek_tensor *from)
{
    int dim = ek_comm_slowest(to);
    if (ek_comm_alike(to, from) || dim < 0 || ek_comm_nbytes(to) <= EK_COMM_BUFFER_BYTES) {
        ek_scope scope = ek_scope_begin();
        int rc = ek_transfer(to, from);
        ek_scope_end(&scope);
        return rc;
    }
    int64_t size = to->shape[dim], half = size / 2;
    for (int64_t start = 0; start < size; start += half, half = size - half) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *target = ek_comm_part(to, dim, start, half);
        ek_tensor *source = ek_comm_part(from, dim, start, half);
        int rc = target && source ? exchange_copy_in_parts(target, source) : ek_error_pending();
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return 0;
}

int ek_comm_copy(ek_tensor *to, const ek_tensor *from)
{
    size_t nbytes = ek_comm_nbytes(from);
    if (nbytes == 0)
        return 0;
    EK_TRY(ek_tensor_hold(from));
    EK_TRY(ek_tensor_hold(to));
    if (ek_comm_alike(to, from))
        return ek_dev_copy(ek_tensor_dev(to), ek_tensor_address(to), ek_tensor_dev(from),
                           ek_tensor_address(from), nbytes);
    ek_dev *dev = ek_tensor_dev(to), *source = ek_tensor_dev(from);
    if (!ek_dev_reaches(dev, source))
        return exchange_copy_in_parts(to, from);
    EK_TRY(ek_dev_wait(dev, source));
    EK_TRY(ek_kernels_of(to)->copy(dev, to, from));
    return ek_dev_wait(source, dev);
}

/* ---- runs: moves that are one copy ---- */

/* Returns how many moves, from the first on, can be done as one copy. */
static int exchange_run_length(const ek_move *moves, int count)
{
    int n = 1;
    if (!ek_comm_alike(moves[0].to, moves[0].from))
        return 1;
    for (; n < count; n++) {
        const ek_move *move = &moves[n - 1], *next = &moves[n];
        ptrdiff_t step = ek_comm_step(move->to, next->to);
        if (!ek_comm_alike(next->to, next->from) || step < 0 ||
            step != ek_comm_step(move->from, next->from))
            break;
    }
    return n;
}

/* Returns how many moves, from the first on, can be packed at once, because their targets lie as in
 * a slab; 0 if the first target isn't dense. */
static int exchange_pack_length(const ek_move *moves, int count)
{
    int n = 1;
    size_t nbytes = ek_comm_nbytes(moves[0].to);
    if (!ek_is_dense(moves[0].to))
        return 0;
    for (; n < count && n < MOST_AT_ONCE; n++) {
        const ek_tensor *before = moves[n - 1].to, *to = moves[n].to;
        size_t step = (ek_comm_nbytes(before) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT;
        nbytes += ek_comm_nbytes(to);
        if (!ek_is_dense(to) || to->dtype != before->dtype || nbytes > EK_COMM_BUFFER_BYTES ||
            ek_comm_step(before, to) != (ptrdiff_t)step * EK_COMM_ALIGNMENT)
            break;
    }
    return n;
}

/* Copies each move's elements to packed[i], on the sender, in the receiver's layout, in the
 * scope. */
static int exchange_pack(const ek_move *moves, int count, ek_tensor **packed)
{
    ek_tensor *to[MOST_AT_ONCE];
    for (int i = 0; i < count; i++)
        to[i] = moves[i].to;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = ek_comm_room(ek_tensor_dev(moves[0].from), to, count, packed);
    ek_memory_set_category(before);
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_comm_copy(packed[i], moves[i].from);
    return rc;
}

/* Returns the block that copies these moves at once. */
static ek_block_move exchange_block_of(const ek_move *moves, int count)
{
    const ek_tensor *to = moves[0].to, *from = moves[0].from, *last = moves[count - 1].to;
    ptrdiff_t before_last = (char *)ek_tensor_address(last) - (char *)ek_tensor_address(to);
    return (ek_block_move){ek_tensor_dev(to), ek_tensor_dev(from), ek_tensor_address(to),
                           ek_tensor_address(from), (size_t)before_last + ek_comm_nbytes(last)};
}

/* Copies a block. Within a section neither the caller nor the compute stream waits for a block to
 * the host. */
static int exchange_copy_block(const ek_block_move *block)
{
    if (ek_section_is_open() && ek_dev_is_host(block->to) && block->from->lane)
        return ek_lane_fetch(block);
    return ek_dev_copy(block->to, block->target, block->from, block->source, block->nbytes);
}

static int exchange_copy_run(const ek_move *moves, int count)
{
    if (count == 1 && !ek_comm_alike(moves[0].to, moves[0].from))
        return ek_comm_copy(moves[0].to, moves[0].from);
    ek_block_move block = exchange_block_of(moves, count);
    return exchange_copy_block(&block);
}

/* ---- lists of moves ---- */

static bool exchange_same_route(const ek_move *a, const ek_move *b)
{
    return ek_tensor_dev(a->to) == ek_tensor_dev(b->to) &&
           ek_tensor_dev(a->from) == ek_tensor_dev(b->from);
}

static int exchange_route_length(const ek_move *moves, int count)
{
    int n = 1;
    while (n < count && exchange_same_route(&moves[0], &moves[n]))
        n++;
    return n;
}

/* Returns true if the move can be one block: `to` is dense, and either `from` needs no packing or
 * the packed elements fit the buffer. */
static bool exchange_is_block(const ek_move *move)
{
    return ek_is_dense(move->to) && (ek_comm_alike(move->to, move->from) ||
                                     ek_comm_nbytes(move->to) <= EK_COMM_BUFFER_BYTES);
}

/* Sends blocks by collectives, among the devices of the blocks in ascending order, so that
 * exchanges among one set of devices share a communicator. */
static int exchange_collectively(const ek_block_move *blocks, int count)
{
    ek_dev_set devs = {0};
    for (int i = 0; i < count; i++) {
        ek_dev_set_add(&devs, blocks[i].from);
        ek_dev_set_add(&devs, blocks[i].to);
    }
    ek_dev_set_sort(&devs);
    const ek_exchange_step step = {.moves = blocks, .count = count};
    return count > 0 ? ek_dev_exchange(devs.devs, devs.count, &step, 1) : 0;
}

/* Collects up to MOST_AT_ONCE blocks and sends them at once. Moves become blocks if the devices
 * exchange them by collectives or if they are packed first; all other moves are copied while blocks
 * are collected. Returns how many moves were done. */
static int exchange_send_some(const ek_move *moves, int count, bool collective)
{
    ek_block_move blocks[MOST_AT_ONCE];
    int n = 0, done = 0;
    size_t packed_nbytes = 0;
    while (done < count && n < MOST_AT_ONCE) {
        const ek_move *first = &moves[done];
        ek_dev *to = ek_tensor_dev(first->to), *from = ek_tensor_dev(first->from);
        int route = exchange_route_length(first, count - done),
            length = exchange_run_length(first, route);
        bool packs =
            to != from && exchange_is_block(first) && (collective || !ek_dev_reaches(to, from));
        int together = packs ? exchange_pack_length(first, route) : 0;
        if (together > length || (packs && !ek_comm_alike(first->to, first->from))) {
            ek_tensor *packed[MOST_AT_ONCE];
            ek_block_move block = exchange_block_of(first, together);
            packed_nbytes += block.nbytes;
            if (n > 0 && packed_nbytes > EK_COMM_BUFFER_BYTES)
                break;
            EK_TRY(exchange_pack(first, together, packed));
            block.source = ek_tensor_address(packed[0]);
            blocks[n++] = block;
            done += together;
            continue;
        }
        if (collective && packs) {
            blocks[n] = exchange_block_of(first, length);
            n += blocks[n].nbytes > 0;
        } else {
            EK_TRY(exchange_copy_run(first, length));
        }
        done += length;
    }
    if (collective)
        EK_TRY(exchange_collectively(blocks, n));
    for (int i = 0; i < n && !collective; i++)
        EK_TRY(exchange_copy_block(&blocks[i]));
    return done;
}

static int exchange_send_all(const char *what, ek_dev *dev, const ek_move *moves, int count,
                             bool collective)
{
    int rc = 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, what, NULL, dev);
    for (int done = 0; done < count && rc >= 0; done += rc) {
        ek_scope scope = ek_scope_begin();
        rc = exchange_send_some(moves + done, count - done, collective);
        ek_scope_end(&scope);
    }
    ek_span_end(&span);
    return rc < 0 ? rc : 0;
}

/* ---- copies on workers ---- */

typedef struct exchange {
    const char *what;
    const ek_move *moves;
    int count;
    size_t nbytes;        /* how many bytes leave their device */
    ek_dev_set receivers; /* devices that receive such bytes */
    ek_dev_set devs;      /* devices that send or receive such bytes */
    ek_dev_set all;       /* `devs`, and devices with moves within them */
} exchange;

static void exchange_survey(exchange *x)
{
    for (int i = 0, n; i < x->count; i += n) {
        n = exchange_route_length(x->moves + i, x->count - i);
        ek_dev *to = ek_tensor_dev(x->moves[i].to), *from = ek_tensor_dev(x->moves[i].from);
        ek_dev_set_add(&x->all, from);
        ek_dev_set_add(&x->all, to);
        if (to == from)
            continue;
        ek_dev_set_add(&x->devs, from);
        ek_dev_set_add(&x->devs, to);
        ek_dev_set_add(&x->receivers, to);
        for (int k = i; k < i + n; k++)
            x->nbytes += ek_comm_nbytes(x->moves[k].to);
    }
}

/* Does the moves to `dev`; all moves if dev is NULL. */
static int exchange_copy_to(const exchange *x, const ek_dev *dev)
{
    for (int i = 0, n; i < x->count; i += n) {
        n = exchange_route_length(x->moves + i, x->count - i);
        ek_dev *to = ek_tensor_dev(x->moves[i].to);
        if (!dev || to == dev)
            EK_TRY(exchange_send_all(x->what, to, x->moves + i, n, false));
    }
    return 0;
}

static int exchange_copy_on_worker(void *user, int index)
{
    const exchange *x = user;
    ek_dev *dev = x->receivers.devs[index];
    ek_dev_set devs = {0};
    ek_section section;
    for (int i = 0; i < x->count; i++) {
        if (ek_tensor_dev(x->moves[i].to) != dev)
            continue;
        ek_dev_set_add(&devs, dev);
        ek_dev_set_add(&devs, ek_tensor_dev(x->moves[i].from));
    }
    ek_section_begin(&section, devs.devs, devs.count, false);
    int rc = exchange_copy_to(x, dev);
    ek_section_end(&section);
    return rc;
}

/* Does the moves to each receiver on the receiver's worker, and moves within a device on the
 * calling thread. If memory is short for the workers' jobs, the calling thread does all moves
 * itself. */
static int exchange_copy_on_workers(exchange *x)
{
    int pending = ek_error_status();
    int rc = ek_jobs_run(x->receivers.devs, x->receivers.count, exchange_copy_on_worker, x, NULL);
    if (rc == EK_E_NO_MEMORY && pending == 0)
        ek_error_clear();
    if (rc == EK_E_NO_MEMORY)
        return exchange_copy_to(x, NULL);
    for (int i = 0; i < x->count && rc >= 0; i++)
        if (ek_dev_set_find(&x->receivers, ek_tensor_dev(x->moves[i].to)) == x->receivers.count)
            rc = ek_comm_copy(x->moves[i].to, x->moves[i].from);
    return rc;
}

/* Returns true if workers may do the moves. In backward they may not, because workers then serve
 * backward's ready queues (autograd/run.h) and may be waiting for these moves. In a section they
 * may not, because a section must not wait for other threads. */
static bool exchange_can_use_workers(const exchange *x)
{
    return x->receivers.count > 1 && x->nbytes >= WORKER_BYTES && !ek_forked() &&
           !ek_section_is_open() && !(ek_thread_self()->modes.flags & EK_MODE_BACKWARD);
}

/* ---- broadcast ---- */

/* Returns how many moves each receiver has, if the moves are equal lists from one device to several
 * receivers, one receiver after another; else 0. */
static int broadcast_length(const exchange *x)
{
    const ek_move *moves = x->moves;
    int n = exchange_route_length(moves, x->count), receivers = x->count / n;
    if (receivers < 2 || x->count % n != 0 || receivers != x->receivers.count)
        return 0;
    for (int i = 0; i < x->count; i++)
        if (moves[i].from != moves[i % n].from ||
            !exchange_same_route(&moves[i], &moves[i / n * n]) ||
            !ek_comm_alike(moves[i].to, moves[i % n].to) || !exchange_is_block(&moves[i]))
            return 0;
    return n;
}

/* Returns how many of `length` moves, from `first` on, lie alike at all receivers: the distances in
 * bytes between their targets equal those at the first receiver. */
static int exchange_common_length(const exchange *x, int n, int first, int length)
{
    for (int r = n; r < x->count; r += n)
        for (int i = first + 1; i < first + length; i++)
            if (ek_comm_step(x->moves[r + i - 1].to, x->moves[r + i].to) !=
                ek_comm_step(x->moves[i - 1].to, x->moves[i].to))
                length = i - first;
    return length;
}

/* Broadcasts moves [first, first + length) of each receiver's n moves as one block. */
static int broadcast_block(const exchange *x, int n, int first, int length, ek_tensor *source)
{
    ek_dev *devs[EK_MOST_DEVICES] = {ek_tensor_dev(x->moves[0].from)};
    void *data[EK_MOST_DEVICES] = {ek_tensor_address(source)};
    int count = 1;
    for (int r = 0; r < x->count; r += n) {
        devs[count] = ek_tensor_dev(x->moves[r].to);
        data[count++] = ek_tensor_address(x->moves[r + first].to);
    }
    size_t nbytes = exchange_block_of(x->moves + first, length).nbytes;
    return ek_dev_broadcast(devs, count, data, nbytes);
}

static int broadcast_all(const exchange *x, int n)
{
    int rc = 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, x->what, NULL, x->devs.devs[0]);
    for (int i = 0, length; i < n && rc >= 0; i += length) {
        ek_tensor *packed[MOST_AT_ONCE] = {NULL}, *source = x->moves[i].from;
        ek_scope scope = ek_scope_begin();
        int together = exchange_common_length(x, n, i, exchange_pack_length(x->moves + i, n - i));
        length = exchange_common_length(x, n, i, exchange_run_length(x->moves + i, n - i));
        if (together > length || !ek_comm_alike(x->moves[i].to, source)) {
            length = together;
            rc = exchange_pack(x->moves + i, length, packed);
            source = packed[0];
        }
        if (rc >= 0)
            rc = broadcast_block(x, n, i, length, source);
        ek_scope_end(&scope);
    }
    ek_span_end(&span);
    return rc;
}

int ek_exchange(const char *what, const ek_move *moves, int count)
{
    if (count == 0)
        return 0;
    exchange x = {.what = what, .moves = moves, .count = count};
    exchange_survey(&x);
    int collective = ek_dev_collective(x.devs.devs, x.devs.count);
    EK_TRY(collective);
    if (collective == EK_COLLECTIVE_NONE && exchange_can_use_workers(&x))
        return exchange_copy_on_workers(&x);
    int n = collective ? broadcast_length(&x) : 0;
    ek_section section;
    ek_section_begin(&section, x.all.devs, x.all.count, false);
    int rc = n            ? broadcast_all(&x, n)
             : collective ? exchange_send_all(what, x.devs.devs[0], moves, count, true)
                          : exchange_copy_to(&x, NULL);
    ek_section_end(&section);
    return rc;
}
