/* broadcast.c: moves that are equal lists for several receivers, by collectives. Blocks and events
 * are steps of one exchange, for which a GPU's launcher is woken once. */
#include <stdlib.h>

#include "comm/moves.h"
#include "core/lane.h"
#include "core/trace.h"

int ek_broadcast_length(const ek_move *moves, int count, int receivers)
{
    int n = ek_moves_route(moves, count);
    if (count != n * receivers)
        return 0;
    for (int i = 0; i < count; i++)
        if (moves[i].from != moves[i % n].from ||
            !ek_moves_same_route(&moves[i], &moves[i / n * n]) ||
            !ek_comm_alike(moves[i].to, moves[i % n].to) || !ek_move_is_block(&moves[i]))
            return 0;
    return n;
}

/* Returns how many of `length` moves, from `first` on, lie alike at all receivers: the distances in
 * bytes between their targets equal those at the first receiver. */
static int broadcast_common(const ek_move *moves, int count, int n, int first, int length)
{
    for (int r = n; r < count; r += n)
        for (int i = first + 1; i < first + length; i++)
            if (ek_comm_step(moves[r + i - 1].to, moves[r + i].to) !=
                ek_comm_step(moves[i - 1].to, moves[i].to))
                length = i - first;
    return length;
}

typedef struct broadcast {
    const ek_move *moves;
    int count, n;                  /* moves in all, and of each receiver */
    ek_arrival *arrivals;          /* NULL: the devices wait for all blocks */
    ek_dev *devs[EK_MOST_DEVICES]; /* the sender, then the receivers */
    int devices;
    void **data;             /* a place for each block on each device */
    ek_exchange_step *steps; /* room for two of each block */
    int blocks, step_count;
} broadcast;

/* Records that a block has arrived on `dev`; `user` are the arrivals of the block. */
static int broadcast_note(void *user, ek_dev *dev)
{
    ek_arrival *arrival = user;
    while (arrival->dev != dev)
        arrival++;
    ek_dev_record_event(dev, EK_STREAM_EXCHANGE, &arrival->event);
    return 0;
}

/* Lets tensors of moves [first, first + length) arrive with the last block. */
static void broadcast_expect(broadcast *b, int first, int length)
{
    ek_arrival *arrivals = b->arrivals + (ptrdiff_t)b->blocks * b->devices;
    for (int d = 0; d < b->devices; d++)
        arrivals[d].dev = b->devs[d];
    for (int i = first; i < first + length; i++) {
        atomic_store(&b->moves[i].from->version->arrival, &arrivals[0]);
        for (int d = 1; d < b->devices; d++)
            atomic_store(&b->moves[(d - 1) * b->n + i].to->version->arrival, &arrivals[d]);
    }
    b->steps[b->step_count++] = (ek_exchange_step){.work = broadcast_note, .user = arrivals};
}

/* Lists moves [first, first + length) of each receiver as one block. */
static void broadcast_list(broadcast *b, int first, int length, const ek_tensor *source)
{
    void **data = b->data + (ptrdiff_t)b->blocks * b->devices;
    size_t nbytes = ek_moves_block(b->moves + first, length).nbytes;
    data[0] = ek_tensor_address(source);
    for (int d = 1; d < b->devices; d++)
        data[d] = ek_tensor_address(b->moves[(d - 1) * b->n + first].to);
    if (nbytes > 0)
        b->steps[b->step_count++] = (ek_exchange_step){.data = data, .nbytes = nbytes};
    if (b->arrivals)
        broadcast_expect(b, first, length);
    b->blocks++;
}

static int broadcast_issue(broadcast *b)
{
    int count = b->step_count;
    b->step_count = 0;
    return count > 0 ? ek_dev_exchange(b->devs, b->devices, b->steps, count) : 0;
}

/* Returns how many of `length` moves become one block: of a broadcast ahead, a bucket. */
static int broadcast_length_of(const broadcast *b, const ek_move *moves, int length)
{
    const size_t most = b->arrivals ? (size_t)ek_lane_bucket(b->devs[0]) : SIZE_MAX;
    int n = 1;
    while (n < length && ek_moves_block(moves, n + 1).nbytes <= most)
        n++;
    return n;
}

/* Packed blocks are sent at once, so that memory for packing is bounded. */
static int broadcast_list_all(broadcast *b)
{
    int rc = 0;
    for (int i = 0, length; i < b->n && rc >= 0; i += length) {
        ek_tensor *packed[EK_MOVES_AT_ONCE] = {NULL};
        const ek_move *moves = b->moves + i;
        int together =
            broadcast_common(b->moves, b->count, b->n, i, ek_moves_packable(moves, b->n - i));
        length = broadcast_common(b->moves, b->count, b->n, i, ek_moves_run(moves, b->n - i));
        if (together <= length && ek_comm_alike(moves[0].to, moves[0].from)) {
            length = broadcast_length_of(b, moves, length);
            broadcast_list(b, i, length, moves[0].from);
            continue;
        }
        length = together;
        ek_scope scope = ek_scope_begin();
        rc = ek_moves_pack(moves, length, packed);
        if (rc >= 0) {
            broadcast_list(b, i, length, packed[0]);
            rc = broadcast_issue(b);
        }
        ek_scope_end(&scope);
    }
    return rc < 0 ? rc : broadcast_issue(b);
}

int ek_broadcast_moves(const char *what, const ek_move *moves, int count, int n,
                       ek_arrival *arrivals)
{
    broadcast b = {.moves = moves,
                   .count = count,
                   .n = n,
                   .arrivals = arrivals,
                   .devs = {ek_tensor_dev(moves[0].from)},
                   .devices = 1};
    for (int r = 0; r < count; r += n)
        b.devs[b.devices++] = ek_tensor_dev(moves[r].to);
    b.data = ek_calloc((size_t)n * (size_t)b.devices, sizeof *b.data);
    b.steps = ek_calloc(2 * (size_t)n, sizeof *b.steps);
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, what, NULL, b.devs[0]);
    int rc = b.data && b.steps ? broadcast_list_all(&b) : ek_error_pending();
    ek_span_end(&span);
    free(b.data);
    free(b.steps);
    return rc;
}
