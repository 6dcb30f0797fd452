/* exchange.c: copies elements between devices, below the graph. */
#include "comm/exchange.h"

#include "comm/moves.h"
#include "core/fork.h"
#include "core/lane.h"
#include "core/thread.h"
#include "core/trace.h"
#include "core/worker.h"

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
    ek_block_move block = ek_moves_block(moves, count);
    return exchange_copy_block(&block);
}

/* ---- lists of moves ---- */

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

/* Collects up to EK_MOVES_AT_ONCE blocks and sends them at once. Moves become blocks if the devices
 * exchange them by collectives or if they are packed first; all other moves are copied while blocks
 * are collected. Returns how many moves were done. */
static int exchange_send_some(const ek_move *moves, int count, bool collective)
{
    ek_block_move blocks[EK_MOVES_AT_ONCE];
    int n = 0, done = 0;
    size_t packed_nbytes = 0;
    while (done < count && n < EK_MOVES_AT_ONCE) {
        const ek_move *first = &moves[done];
        ek_dev *to = ek_tensor_dev(first->to), *from = ek_tensor_dev(first->from);
        int route = ek_moves_route(first, count - done), length = ek_moves_run(first, route);
        bool packs =
            to != from && ek_move_is_block(first) && (collective || !ek_dev_reaches(to, from));
        int together = packs ? ek_moves_packable(first, route) : 0;
        if (together > length || (packs && !ek_comm_alike(first->to, first->from))) {
            ek_tensor *packed[EK_MOVES_AT_ONCE];
            ek_block_move block = ek_moves_block(first, together);
            packed_nbytes += block.nbytes;
            if (n > 0 && packed_nbytes > EK_COMM_BUFFER_BYTES)
                break;
            EK_TRY(ek_moves_pack(first, together, packed));
            block.source = ek_tensor_address(packed[0]);
            blocks[n++] = block;
            done += together;
            continue;
        }
        if (collective && packs) {
            blocks[n] = ek_moves_block(first, length);
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
    ek_arrival *arrivals; /* A broadcast ahead has arrivals; NULL: none. */
} exchange;

static void exchange_survey(exchange *x)
{
    for (int i = 0, n; i < x->count; i += n) {
        n = ek_moves_route(x->moves + i, x->count - i);
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
        n = ek_moves_route(x->moves + i, x->count - i);
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
    return x->receivers.count > 1 && x->nbytes >= EK_COMM_WORKER_BYTES && !ek_forked() &&
           !ek_section_is_open() && !(ek_thread_self()->modes.flags & EK_MODE_BACKWARD);
}

static int exchange_do(exchange *x)
{
    static const ek_deferral ahead = {.count = 0};
    if (x->count == 0)
        return 0;
    exchange_survey(x);
    int collective = ek_dev_collective(x->devs.devs, x->devs.count);
    EK_TRY(collective);
    if (collective == EK_COLLECTIVE_NONE && exchange_can_use_workers(x))
        return exchange_copy_on_workers(x);
    const bool is_broadcast = collective && x->receivers.count >= (x->arrivals ? 1 : 2);
    int n = is_broadcast ? ek_broadcast_length(x->moves, x->count, x->receivers.count) : 0;
    const ek_deferral *before = n && x->arrivals ? ek_section_defer(&ahead) : NULL;
    ek_section section;
    ek_section_begin(&section, x->all.devs, x->all.count, false);
    int rc = n            ? ek_broadcast_moves(x->what, x->moves, x->count, n, x->arrivals)
             : collective ? exchange_send_all(x->what, x->devs.devs[0], x->moves, x->count, true)
                          : exchange_copy_to(x, NULL);
    ek_section_end(&section);
    if (n && x->arrivals)
        ek_section_defer(before);
    return rc;
}

int ek_exchange(const char *what, const ek_move *moves, int count)
{
    return exchange_do(&(exchange){.what = what, .moves = moves, .count = count});
}

int ek_exchange_ahead(const char *what, const ek_move *moves, int count, ek_arrival *arrivals)
{
    return exchange_do(
        &(exchange){.what = what, .moves = moves, .count = count, .arrivals = arrivals});
}
