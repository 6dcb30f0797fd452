/* loop_transfer.c: requests, their progress, and messages; see loop.h. */
#include "core/clock.h"
#include "kit/loop_state.h"

/* ---- requests ---- */

/* Returns a hash of what the request sends. If one word of eight bytes changes, so does the hash.
 * Memory that goes to several ranks in a row counts once. */
uint64_t loop_sum(const ek_request *request)
{
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    uint64_t sum = 0xcbf29ce484222325u, word;
    ek_bytes last = {NULL, 0};
    for (int i = 0; i < request->outs; i++) {
        ek_bytes out = request->out[i];
        if (out.nbytes == 0 || (out.data == last.data && out.nbytes == last.nbytes))
            continue;
        const unsigned char *byte = out.data, *end = byte + out.nbytes;
        for (; end - byte >= (ptrdiff_t)sizeof word; byte += sizeof word) {
            memcpy(&word, byte, sizeof word);
            sum = (sum ^ word) * prime;
            sum ^= sum >> 32; /* Otherwise two changed signs would cancel. */
        }
        for (; byte < end; byte++)
            sum = (sum ^ *byte) * prime;
        last = out;
    }
    return sum;
}

ek_request *loop_request(ek_communicator *communicator, const char *call, uint64_t number, int outs,
                         int ins)
{
    loop_process *process = communicator->process;
    ek_request *request = loop_room(1, sizeof *request);
    request->process = process;
    request->members = communicator->members;
    request->call = call;
    request->number = number;
    request->outs = outs;
    request->ins = ins;
    request->out = loop_room((size_t)outs, sizeof(ek_bytes));
    request->in = loop_room((size_t)ins, sizeof(ek_bytes));
    request->lacks = loop_room((size_t)ins, sizeof(bool));
    request->source = communicator->rank;
    loop_draw_due(process, process, &request->due_tests, &request->due_ns);
    if (process->fail_request > 0 && --process->fail_request == 0)
        request->status = LOOP_E_FAULT;
    ek_request **end = &process->requests;
    while (*end)
        end = &(*end)->next;
    return *end = request;
}

void loop_request_free(ek_request *request)
{
    loop *l = request->process->loop;
    for (int rank = 0; rank < l->size; rank++)
        for (loop_parcel *p = l->processes[rank].parcels; p; p = p->next) {
            if (p->sender == request)
                p->sender = NULL; /* a parcel without a sender never leaves */
            if (p->receiver == request) {
                p->receiver = NULL;
                p->lost = true;
            }
        }
    ek_request **at = &request->process->requests;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    free(request->out);
    free(request->in);
    free(request->lacks);
    free(request);
}

int loop_open_requests(const loop_process *process, const loop_members *members)
{
    int open = 0;
    for (const ek_request *request = process->requests; request; request = request->next)
        open += !members || request->members == members;
    return open;
}

/* Posts a parcel. Small parcels leave at once; with a seed, only three of four. The others wait
 * until their receiver has a request for them. */
void loop_post(ek_request *request, int rank, int to, const ek_bytes *bytes)
{
    loop_process *process = request->process;
    if (request->status < 0)
        return;
    loop_process *target = &process->loop->processes[request->members->ranks[to]];
    loop_parcel *parcel = loop_room(1, sizeof *parcel);
    parcel->members = request->members;
    parcel->number = request->number;
    parcel->from = rank;
    parcel->tag = request->tag;
    parcel->nbytes = bytes->nbytes;
    parcel->data = loop_room(bytes->nbytes, 1);
    if (bytes->nbytes > 0)
        memcpy(parcel->data, bytes->data, bytes->nbytes);
    loop_draw_due(process, target, &parcel->due_tests, &parcel->due_ns);
    parcel->held =
        process->stopped || (target->rank < 64 && (process->cut >> target->rank & 1) != 0);
    bool waits = loop_draw(process, 3) == 0;
    if (bytes->nbytes > LOOP_EAGER || (process->loop->seed != 0 && waits)) {
        parcel->sender = request;
        request->unsent++;
    } else {
        parcel->sent = true;
    }
    loop_parcel **end = &target->parcels;
    while (*end)
        end = &(*end)->next;
    *end = parcel;
}

/* ---- progress ---- */

static bool loop_fits(const loop_parcel *parcel, const ek_request *request)
{
    if (parcel->members != request->members || parcel->number != request->number ||
        request->status < 0 || request->hangs)
        return false;
    return parcel->number > 0 ||
           (request->ins == 1 && !request->taken && request->tag == parcel->tag &&
            (request->from == EK_TRANSPORT_ANY || request->from == parcel->from));
}

/* Returns true if an earlier message between the two ranks, of the same tag, is still waiting. */
static bool loop_is_overtaking(const loop_process *process, const loop_parcel *parcel)
{
    for (const loop_parcel *p = process->parcels; p != parcel; p = p->next)
        if (!p->receiver && !p->lost && p->members == parcel->members && p->number == 0 &&
            parcel->number == 0 && p->from == parcel->from && p->tag == parcel->tag)
            return true;
    return false;
}

static void loop_match(loop_process *process, loop_parcel *parcel)
{
    if (parcel->held || !loop_is_due(process, parcel->due_tests, parcel->due_ns) ||
        loop_is_overtaking(process, parcel))
        return;
    ek_request *request = process->requests;
    while (request && !loop_fits(parcel, request))
        request = request->next;
    if (!request)
        return;
    parcel->receiver = request;
    request->taken = true;
    if (parcel->number == 0)
        request->source = parcel->from;
}

/* Copies the parcel's bytes to the receiver's memory. */
static void loop_deliver(loop_process *process, const loop_parcel *parcel)
{
    ek_request *request = parcel->receiver;
    const ek_bytes *room = &request->in[parcel->number > 0 ? parcel->from : 0];
    bool wrong = parcel->number > 0 && parcel->nbytes != room->nbytes;
    if (wrong) {
        loop_violation(process->loop,
                       "%s %llu of communicator %d: rank %d sends %zu bytes to rank "
                       "%d, which has room for %zu",
                       request->call, (unsigned long long)request->number, request->members->id,
                       request->members->ranks[parcel->from], parcel->nbytes, process->rank,
                       room->nbytes);
        request->hangs = true;
    } else if (parcel->nbytes > room->nbytes) {
        request->status = LOOP_E_TRUNCATED;
    } else if (parcel->nbytes > 0) {
        memcpy(room->data, parcel->data, parcel->nbytes);
    }
    request->missing--;
    request->lacks[parcel->number > 0 ? parcel->from : 0] = false;
}

/* Counts a part that has come from the rank `from` of a communicator, or (-1) has gone. */
static void loop_count(const loop_process *process, const loop_members *members, int from)
{
    for (ek_communicator *handle = process->handles; handle; handle = handle->next)
        if (handle->members == members) {
            handle->moved++;
            if (from >= 0)
                handle->came[from]++;
        }
}

/* Makes the parts arrive whose time has come. Returns true once all parts are there. */
static bool loop_has_come(const loop_process *process, loop_parcel *parcel)
{
    const loop *l = process->loop;
    uint64_t now = ek_clock_ns();
    size_t part = l->part > 0 ? l->part : parcel->nbytes + 1;
    do {
        if (l->part > 0 && now < parcel->part_ns)
            return false;
        parcel->part_ns = now + (uint64_t)l->part_ms * 1000000u;
        parcel->came += part;
        loop_count(process, parcel->members, parcel->from);
    } while (parcel->came < parcel->nbytes);
    return true;
}

/* Makes the progress of a call of test: the rank's parcels leave if the receiver has a request for
 * them, and parcels to the rank arrive. */
static void loop_go_on(loop_process *process)
{
    loop *l = process->loop;
    for (int rank = 0; rank < l->size; rank++)
        for (loop_parcel *p = l->processes[rank].parcels; p; p = p->next)
            if (p->sender && p->sender->process == process && (p->receiver || p->lost)) {
                p->sent = true;
                p->sender->unsent--;
                loop_count(process, p->members, -1);
                p->sender = NULL;
            }
    loop_parcel **at = &process->parcels;
    while (*at) {
        loop_parcel *parcel = *at;
        if (!parcel->receiver && !parcel->lost)
            loop_match(process, parcel);
        if (!parcel->sent || (!parcel->receiver && !parcel->lost)) {
            at = &parcel->next;
            continue;
        }
        if (parcel->receiver && !loop_has_come(process, parcel)) {
            at = &parcel->next;
            continue;
        }
        if (parcel->receiver)
            loop_deliver(process, parcel);
        *at = parcel->next;
        free(parcel->data);
        free(parcel);
    }
}

/* ---- messages ---- */

int loop_check_message(const ek_communicator *communicator, const char *call, int rank, int tag)
{
    if (rank >= 0 && rank < communicator->members->size && tag >= 0 && tag < LOOP_TAGS)
        return 0;
    return loop_violation(communicator->process->loop,
                          "rank %d calls %s with rank %d of %d and tag %d",
                          communicator->process->rank, call, rank, communicator->members->size,
                          tag);
}

/* Returns true if this message is the one that loop_drop loses. */
static bool loop_drops(loop_process *process, int to)
{
    return process->drop > 0 && to == process->drop_to && --process->drop == 0;
}

int loop_send(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
              ek_request **request)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process);
    *request = NULL;
    if (rc == 0)
        rc = loop_check_message(communicator, "send", to, tag);
    if (rc < 0)
        return loop_leave(process, rc);
    *request = loop_request(communicator, "send", 0, 1, 0);
    (*request)->tag = tag;
    (*request)->out[0] = (ek_bytes){(void *)data, nbytes};
    (*request)->sum = loop_sum(*request);
    process->transfers++;
    if (!loop_drops(process, communicator->members->ranks[to]))
        loop_post(*request, communicator->rank, to, &(*request)->out[0]);
    return loop_leave(process, 0);
}

int loop_receive(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                 ek_request **request)
{
    loop_process *process = communicator->process;
    int rc = loop_start(process);
    *request = NULL;
    if (rc == 0)
        rc = loop_check_message(communicator, "receive", from == EK_TRANSPORT_ANY ? 0 : from, tag);
    if (rc < 0)
        return loop_leave(process, rc);
    *request = loop_request(communicator, "receive", 0, 0, 1);
    (*request)->from = from;
    (*request)->tag = tag;
    (*request)->in[0] = (ek_bytes){data, nbytes};
    (*request)->sum = loop_sum(*request);
    (*request)->missing = 1;
    (*request)->lacks[0] = true;
    return loop_leave(process, 0);
}

void loop_cancel(ek_request **request)
{
    loop_process *process = (*request)->process;
    loop_enter(process);
    if ((*request)->ins != 1 || (*request)->number > 0)
        loop_violation(process->loop, "rank %d cancels a %s", process->rank, (*request)->call);
    loop_request_free(*request);
    *request = NULL;
    loop_leave(process, 0);
}

int loop_test(ek_request **request, int *source)
{
    ek_request *tested = *request;
    loop_process *process = tested->process;
    int rc = loop_enter(process);
    if (rc == 0) {
        if (process->stopped)
            return loop_leave(process, 0);
        process->tests++;
        loop_go_on(process);
        bool complete = tested->missing == 0 && tested->unsent == 0 && !tested->hangs;
        if (!loop_is_due(process, tested->due_tests, tested->due_ns) ||
            (tested->status == 0 && !complete))
            return loop_leave(process, 0);
        if (loop_sum(tested) != tested->sum)
            loop_violation(process->loop, "rank %d changes memory before its %s is complete",
                           process->rank, tested->call);
        rc = tested->status < 0 ? tested->status : 1;
    }
    if (source)
        *source = tested->source;
    loop_request_free(tested);
    *request = NULL;
    return loop_leave(process, rc);
}

uint64_t loop_moved(const ek_communicator *communicator, int rank)
{
    loop_enter(communicator->process);
    uint64_t moved = rank == EK_TRANSPORT_ANY ? communicator->moved : communicator->came[rank];
    loop_leave(communicator->process, 0);
    return moved;
}

bool loop_awaits(const ek_communicator *communicator, int rank)
{
    bool awaits = false;
    loop_enter(communicator->process);
    for (const ek_request *one = communicator->process->requests; one; one = one->next)
        if (one->members == communicator->members)
            awaits =
                awaits || (one->number > 0 ? one->ins > rank && one->lacks[rank]
                                           : one->ins == 1 && one->from == rank && one->lacks[0]);
    loop_leave(communicator->process, 0);
    return awaits;
}
