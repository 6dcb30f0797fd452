/* loop_communicator.c: the transport's table, and how communicators begin and end; see loop.h. */
#include "kit/loop_state.h"

static int loop_open(void *context, ek_communicator **world, ek_world_place *place)
{
    loop_process *process = context;
    loop *l = process->loop;
    *world = NULL;
    pthread_mutex_lock(&l->lock);
    if (!process->opened)
        process->thread = pthread_self();
    pthread_mutex_unlock(&l->lock);
    int rc = loop_start(process);
    if (rc == 0 && process->opened)
        rc = loop_violation(l, "rank %d opens twice", process->rank);
    if (rc < 0)
        return loop_leave(process, rc);
    process->opened = true;
    *world = loop_handle(process, l->world, process->rank);
    *place = (ek_world_place){.rank = process->rank,
                              .size = l->size,
                              .local_rank = process->rank,
                              .local_size = l->size};
    return loop_leave(process, 0);
}

/* Makes the communicator of a color, with its ranks in the order of keys, then of ranks. */
static void loop_make_part(loop *l, const loop_members *members, loop_record *record, int color)
{
    int size = 0;
    for (int rank = 0; rank < members->size; rank++)
        size += record->colors[rank] == color;
    loop_members *part = loop_members_new(l, size);
    for (int rank = 0; rank < members->size; rank++) {
        if (record->colors[rank] != color)
            continue;
        int at = 0;
        for (int other = 0; other < members->size; other++)
            at += record->colors[other] == color &&
                  (record->keys[other] < record->keys[rank] ||
                   (record->keys[other] == record->keys[rank] && other < rank));
        part->ranks[at] = members->ranks[rank];
        record->parts[rank] = part;
    }
}

static bool loop_has_dead(const loop *l, const loop_members *members)
{
    for (int rank = 0; rank < members->size; rank++)
        if (l->processes[members->ranks[rank]].dead)
            return true;
    return false;
}

/* Waits until all ranks have joined a split. The split then succeeds, whatever happens before the
 * rank notices. */
static int loop_wait_split(ek_communicator *communicator, const loop_record *record)
{
    loop_process *process = communicator->process;
    const loop_members *members = communicator->members;
    int rc = 0;
    while (process->stopped || record->joined < members->size) {
        if (rc < 0 || record->broken)
            break;
        if (loop_has_dead(process->loop, members))
            return LOOP_E_DEAD;
        rc = loop_wait(process);
    }
    if (record->broken)
        return LOOP_E_INVALID;
    return record->joined < members->size ? rc : 0;
}

static int loop_split(ek_communicator *communicator, int color, int key, ek_communicator **part)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process), own = communicator->rank;
    *part = NULL;
    while (rc == 0 && process->stopped)
        rc = loop_wait(process);
    if (rc < 0)
        return loop_leave(process, rc);
    loop_record *record = loop_join(communicator, "split", NULL, 0);
    record->colors[own] = color;
    record->keys[own] = key;
    rc = loop_wait_split(communicator, record);
    if (rc == 0 && color >= 0) {
        if (!record->parts[own])
            loop_make_part(process->loop, communicator->members, record, color);
        int rank = 0;
        while (record->parts[own]->ranks[rank] != process->rank)
            rank++;
        *part = loop_handle(process, record->parts[own], rank);
    }
    loop_part(communicator, record);
    return loop_leave(process, rc);
}

/* Closes a communicator. A rank whose calls fail may leave requests open. */
static void loop_close_communicator(ek_communicator *communicator)
{
    loop_process *process = communicator->process;
    int rc = loop_enter(process), open = loop_open_requests(process, communicator->members);
    if (communicator->members == process->loop->world)
        loop_violation(process->loop, "rank %d closes the world as a communicator", process->rank);
    if (rc == 0 && open > 0)
        loop_violation(process->loop, "rank %d closes communicator %d with %d open requests",
                       process->rank, communicator->members->id, open);
    loop_handle_free(communicator);
    loop_leave(process, 0);
}

static bool loop_all_closed(const loop *l)
{
    for (int rank = 0; rank < l->size; rank++)
        if (!l->processes[rank].closed && !l->processes[rank].dead)
            return false;
    return true;
}

static int loop_close(ek_communicator *world)
{
    loop_process *process = world->process;
    loop *l = process->loop;
    int rc = loop_enter(process), requests = loop_open_requests(process, NULL);
    if (world->members != l->world)
        loop_violation(l, "rank %d closes a part as the world", process->rank);
    int parts = loop_open_handles(process) - 1;
    if (rc == 0 && (parts > 0 || requests > 0))
        loop_violation(l, "rank %d closes with %d open communicators and %d open requests",
                       process->rank, parts, requests);
    process->closed = rc == 0;
    pthread_cond_broadcast(&l->changed);
    while (rc == 0 && (process->stopped || !loop_all_closed(l)))
        rc = loop_wait(process);
    if (process->closed && loop_all_closed(l))
        rc = 0;
    loop_handle_free(world);
    return loop_leave(process, rc);
}

static const char *loop_reason(int status)
{
    static const char *const reasons[] = {
        [-LOOP_E_TRUNCATED] = "the message is longer than its room",
        [-LOOP_E_FAULT] = "the loop was asked for a fault",
        [-LOOP_E_DEAD] = "a rank is dead",
        [-LOOP_E_ENDED] = "the job has been ended",
        [-LOOP_E_INVALID] = "the call is not allowed",
    };
    bool known = status < 0 && status >= LOOP_E_INVALID;
    return known ? reasons[-status] : "no status of the loop";
}

static int loop_blamed(void)
{
    return -1;
}

static void loop_end_of(ek_communicator *world, int status)
{
    loop_end(world->process->loop, status);
}

const ek_transport *loop_transport(void)
{
    static const ek_transport transport = {
        .version = EK_TRANSPORT_VERSION,
        .name = "loop",
        .part = (size_t)-1,
        .open = loop_open,
        .split = loop_split,
        .close_communicator = loop_close_communicator,
        .send = loop_send,
        .receive = loop_receive,
        .all_to_all = loop_all_to_all,
        .all_gather = loop_all_gather,
        .broadcast = loop_broadcast,
        .test = loop_test,
        .cancel = loop_cancel,
        .moved = loop_moved,
        .awaits = loop_awaits,
        .reason = loop_reason,
        .blamed = loop_blamed,
        .close = loop_close,
        .end = loop_end_of,
    };
    return &transport;
}
