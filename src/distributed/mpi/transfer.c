/* transfer.c: see transfer.h. */
#include "transfer.h"

#include <stdlib.h>

enum {
    TRANSFER_WINDOW = 4, /* parts of a stream that are under way at a time */
    /* How many ranks get a broadcast from one rank: a broadcast of one part; of more parts among at
     * most TRANSFER_CHAIN_RANKS ranks (a chain, so that each rank sends each byte once); of more
     * parts among more ranks. */
    TRANSFER_FAN_SHORT = 4,
    TRANSFER_FAN_CHAIN = 1,
    TRANSFER_FAN_LONG = 2,
    TRANSFER_CHAIN_RANKS = 8
};

/* The bytes that one rank sends or receives in a request. */
typedef struct transfer_stream {
    char *data;
    size_t nbytes;
    int peer; /* rank of the communicator, or MPI_ANY_SOURCE */
    bool receives;
    size_t part;   /* bytes of a part */
    size_t parts;  /* at least 1 */
    size_t posted; /* parts that were started */
    size_t front;  /* parts before the first that is not complete */
} transfer_stream;

struct ek_request {
    ek_request *next, **at; /* in the list of open requests; `at` is what points to this one */
    ek_communicator *communicator;
    int tag;
    int source;   /* the rank from which the last part came */
    int code;     /* the code of the first part that failed, or MPI_SUCCESS */
    int count;    /* streams */
    bool relays;  /* the other streams send the parts that have come by stream 0 */
    int window;   /* slots of each stream */
    int open;     /* parts under way */
    size_t close; /* parts that were not posted yet */
    transfer_stream *streams;
    MPI_Request slots[]; /* part k of stream s is in slot s * window + k % window */
};

/* The list of open requests, in the order in which they were started. One thread makes all calls.
 */
static ek_request *transfer_first, **transfer_end = &transfer_first;
static int transfer_unposted; /* open requests of which parts are not posted yet */
static int transfer_last_blamed = -1;

int transfer_blamed(void)
{
    return transfer_last_blamed;
}

/* ---- parts ---- */

static MPI_Request *transfer_slot(ek_request *request, const transfer_stream *stream, size_t part)
{
    int first = (int)(stream - request->streams) * request->window;
    return &request->slots[first + (int)(part % (size_t)request->window)];
}

/* Notes the first error of a request, and gives up the parts that are not posted. */
static void transfer_fail(ek_request *request, int code, int peer)
{
    if (request->code == MPI_SUCCESS) {
        request->code = code;
        transfer_last_blamed = peer >= 0 && peer < request->communicator->size
                                   ? request->communicator->ranks[peer].world
                                   : -1;
    }
    transfer_unposted -= request->close > 0;
    request->close = 0;
}

/* Tells whether an earlier request has parts between the stream's ranks that are not posted. */
static bool transfer_is_behind(const ek_request *request, const transfer_stream *stream)
{
    for (const ek_request *one = transfer_first; one != request; one = one->next) {
        if (one->close == 0 || one->communicator != request->communicator ||
            one->tag != request->tag)
            continue;
        for (const transfer_stream *other = one->streams; other < one->streams + one->count;
             other++)
            if (other->peer == stream->peer && other->receives == stream->receives &&
                other->posted < other->parts)
                return true;
    }
    return false;
}

/* Posts the next parts of a stream, as many as its window allows. */
static void transfer_post_stream(ek_request *request, transfer_stream *stream)
{
    const ek_communicator *communicator = request->communicator;
    if (stream->posted == stream->parts || transfer_is_behind(request, stream))
        return;
    size_t end = stream->parts;
    const transfer_stream *relayed = request->streams;
    if (request->relays && stream != relayed && relayed->front < relayed->parts)
        end = relayed->front * relayed->part / stream->part;
    while (request->close > 0 && stream->posted < end) {
        MPI_Request *slot = transfer_slot(request, stream, stream->posted);
        if (*slot != MPI_REQUEST_NULL)
            return;
        size_t at = stream->posted * stream->part, left = stream->nbytes - at;
        int count = (int)(left < stream->part ? left : stream->part);
        char *data = count > 0 ? stream->data + at : stream->data;
        int code = stream->receives ? MPI_Irecv(data, count, MPI_BYTE, stream->peer, request->tag,
                                                communicator->comm, slot)
                                    : MPI_Isend(data, count, MPI_BYTE, stream->peer, request->tag,
                                                communicator->comm, slot);
        if (code != MPI_SUCCESS) {
            *slot = MPI_REQUEST_NULL;
            transfer_fail(request, code, stream->peer);
            return;
        }
        stream->posted++;
        request->open++;
        transfer_unposted -= --request->close == 0;
    }
}

static void transfer_post(ek_request *request)
{
    for (int i = 0; i < request->count && request->close > 0; i++)
        transfer_post_stream(request, &request->streams[i]);
}

/* Notes the end of the part in a slot. */
static void transfer_end_part(ek_request *request, int index, int code, int source)
{
    transfer_stream *stream = &request->streams[index / request->window];
    ek_communicator *communicator = request->communicator;
    request->open--;
    if (code != MPI_SUCCESS) {
        if (request->slots[index] != MPI_REQUEST_NULL)
            MPI_Request_free(&request->slots[index]);
        transfer_fail(request, code, stream->peer);
        return;
    }
    communicator->moved++;
    if (stream->receives) {
        request->source = source;
        communicator->ranks[source].came++;
    }
    while (stream->front < stream->posted &&
           *transfer_slot(request, stream, stream->front) == MPI_REQUEST_NULL)
        stream->front++;
}

/* Takes the parts that are complete, and posts the next ones. */
static void transfer_advance(ek_request *request)
{
    while (request->open > 0) {
        int index = MPI_UNDEFINED, done = 0;
        MPI_Status status;
        int code =
            MPI_Testany(request->count * request->window, request->slots, &index, &done, &status);
        if (code == MPI_SUCCESS && !done)
            break;
        if (index == MPI_UNDEFINED) { /* MPI doesn't tell which part has failed */
            transfer_fail(request, code == MPI_SUCCESS ? MPI_ERR_REQUEST : code, -1);
            request->open = 0;
            break;
        }
        transfer_end_part(request, index, code, status.MPI_SOURCE);
    }
    if (request->close > 0)
        transfer_post(request);
}

/* ---- requests ---- */

static void transfer_free(ek_request *request)
{
    transfer_unposted -= request->close > 0;
    *request->at = request->next;
    if (request->next)
        request->next->at = request->at;
    else
        transfer_end = request->at;
    free(request->streams);
    free(request);
}

/* Makes a request with room for `streams` streams, of which none has more than `most` bytes. */
static ek_request *transfer_new(ek_communicator *communicator, int tag, int streams, size_t most)
{
    int window = most > (TRANSFER_WINDOW - 1) * EK_MPI_PART ? TRANSFER_WINDOW
                                                            : (int)(most / EK_MPI_PART) + 1;
    size_t slots = (size_t)streams * (size_t)window;
    ek_request *request = malloc(sizeof *request + slots * sizeof(MPI_Request));
    transfer_stream *list = malloc(((size_t)streams + 1) * sizeof *list);
    if (!request || !list) {
        free(request);
        free(list);
        return NULL;
    }
    *request = (ek_request){.at = transfer_end,
                            .communicator = communicator,
                            .tag = tag,
                            .code = MPI_SUCCESS,
                            .window = window,
                            .streams = list};
    for (size_t i = 0; i < slots; i++)
        request->slots[i] = MPI_REQUEST_NULL;
    *transfer_end = request;
    transfer_end = &request->next;
    return request;
}

static void transfer_add(ek_request *request, bool receives, void *data, size_t nbytes, int peer)
{
    const ek_communicator *communicator = request->communicator;
    bool near = peer >= 0 && peer < communicator->size && communicator->ranks[peer].near;
    size_t part = near ? TRANSFER_NEAR * EK_MPI_PART : EK_MPI_PART;
    size_t parts = nbytes / part + (nbytes % part > 0 || nbytes == 0);
    request->streams[request->count++] = (transfer_stream){.data = data,
                                                           .nbytes = nbytes,
                                                           .peer = peer,
                                                           .receives = receives,
                                                           .part = part,
                                                           .parts = parts};
    transfer_unposted += request->close == 0;
    request->close += parts;
}

/* Posts the first parts and writes `begun` to *request. If a part could not be started, the request
 * fails once its other parts are complete, because MPI uses their memory until then. If there are
 * no other parts, frees `begun` and returns the error. */
static int transfer_begin(ek_request *begun, ek_request **request)
{
    transfer_post(begun);
    int code = begun->code;
    if (code != MPI_SUCCESS && begun->open == 0) {
        transfer_free(begun);
        return transfer_status(code);
    }
    *request = begun;
    return 0;
}

int transfer_test(ek_request **request, int *source)
{
    ek_request *tested = *request;
    if (transfer_unposted > (tested->close > 0))
        for (ek_request *one = transfer_first; one; one = one->next)
            if (one != tested && one->close > 0)
                transfer_advance(one);
    transfer_advance(tested);
    if (tested->open > 0 || tested->close > 0)
        return 0;
    int code = tested->code;
    if (source)
        *source = tested->source;
    transfer_free(tested);
    *request = NULL;
    return code == MPI_SUCCESS ? 1 : transfer_status(code);
}

void transfer_cancel(ek_request **request)
{
    ek_request *cancelled = *request;
    for (int i = 0; i < cancelled->count * cancelled->window; i++)
        if (cancelled->slots[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&cancelled->slots[i]);
            MPI_Wait(&cancelled->slots[i], MPI_STATUS_IGNORE);
        }
    transfer_free(cancelled);
    *request = NULL;
}

uint64_t transfer_moved(const ek_communicator *communicator, int rank)
{
    return rank == EK_TRANSPORT_ANY ? communicator->moved : communicator->ranks[rank].came;
}

bool transfer_awaits(const ek_communicator *communicator, int rank)
{
    for (const ek_request *one = transfer_first; one; one = one->next)
        for (int i = 0; i < one->count && one->communicator == communicator; i++)
            if (one->streams[i].receives && one->streams[i].peer == rank &&
                one->streams[i].front < one->streams[i].parts)
                return true;
    return false;
}

/* ---- messages ---- */

int transfer_send(ek_communicator *communicator, const void *data, size_t nbytes, int to, int tag,
                  ek_request **request)
{
    ek_request *begun = transfer_new(communicator, tag, 1, nbytes);
    if (!begun)
        return TRANSFER_NO_MEMORY;
    transfer_add(begun, false, (void *)(uintptr_t)data, nbytes, to);
    return transfer_begin(begun, request);
}

int transfer_receive(ek_communicator *communicator, void *data, size_t nbytes, int from, int tag,
                     ek_request **request)
{
    ek_request *begun = transfer_new(communicator, tag, 1, nbytes);
    if (!begun)
        return TRANSFER_NO_MEMORY;
    transfer_add(begun, true, data, nbytes, from == EK_TRANSPORT_ANY ? MPI_ANY_SOURCE : from);
    return transfer_begin(begun, request);
}

/* ---- collectives ---- */

/* Returns the larger of `most` and the bytes of the ranks other than `own`. */
static size_t transfer_most(const ek_bytes *bytes, int size, int own, size_t most)
{
    for (int r = 0; r < size; r++)
        if (r != own && bytes[r].nbytes > most)
            most = bytes[r].nbytes;
    return most;
}

int transfer_all_to_all(ek_communicator *communicator, const ek_bytes *out, const ek_bytes *in,
                        ek_request **request)
{
    int size = communicator->size, own = communicator->rank;
    size_t most = transfer_most(in, size, own, transfer_most(out, size, own, 0));
    ek_request *begun = transfer_new(communicator, TRANSFER_TAG, 2 * (size - 1), most);
    if (!begun)
        return TRANSFER_NO_MEMORY;
    for (int i = 1; i < size; i++) {
        int from = (own + size - i) % size;
        if (in[from].nbytes > 0)
            transfer_add(begun, true, in[from].data, in[from].nbytes, from);
    }
    for (int i = 1; i < size; i++) {
        int to = (own + i) % size; /* each rank begins with another receiver */
        if (out[to].nbytes > 0)
            transfer_add(begun, false, out[to].data, out[to].nbytes, to);
    }
    return transfer_begin(begun, request);
}

int transfer_all_gather(ek_communicator *communicator, void *all, const size_t *at,
                        ek_request **request)
{
    int size = communicator->size, own = communicator->rank;
    ek_bytes *out = malloc(2 * (size_t)size * sizeof *out), *in = out + size;
    if (!out)
        return TRANSFER_NO_MEMORY;
    for (int r = 0; r < size; r++) {
        out[r] = (ek_bytes){(char *)all + at[own], at[own + 1] - at[own]};
        in[r] = (ek_bytes){(char *)all + at[r], at[r + 1] - at[r]};
    }
    int status = transfer_all_to_all(communicator, out, in, request);
    free(out);
    return status;
}

/* The ranks are a tree in the shape of a heap, with the root first. Each rank passes on the parts
 * that have come. */
int transfer_broadcast(ek_communicator *communicator, void *data, size_t nbytes, int root,
                       ek_request **request)
{
    int size = communicator->size, place = (communicator->rank + size - root) % size;
    if (root < 0 || root >= size)
        return transfer_status(MPI_ERR_ROOT);
    int fan = nbytes <= EK_MPI_PART          ? TRANSFER_FAN_SHORT
              : size <= TRANSFER_CHAIN_RANKS ? TRANSFER_FAN_CHAIN
                                             : TRANSFER_FAN_LONG;
    ek_request *begun = transfer_new(communicator, TRANSFER_TAG, fan + 1, nbytes);
    if (!begun)
        return TRANSFER_NO_MEMORY;
    if (nbytes == 0)
        return transfer_begin(begun, request);
    if (place > 0)
        transfer_add(begun, true, data, nbytes, ((place - 1) / fan + root) % size);
    begun->relays = place > 0;
    for (int child = place * fan + 1; child <= place * fan + fan && child < size; child++)
        transfer_add(begun, false, data, nbytes, (child + root) % size);
    return transfer_begin(begun, request);
}
