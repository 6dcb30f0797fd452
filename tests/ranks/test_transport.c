/* test_transport.c: the transport over MPI alone, of any number of ranks from 2 on. All of it
 * happens on a thread that is not the program's first, as in the library. */
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job.h"
#include "launch/launcher.h"

static const ek_transport *transport;
static ek_communicator *world;
static ek_world_place place;
static int rank, size;

/* A call of the transport succeeds, else its reason is written. */
#define DONE(call) done((call), __LINE__, #call)

static int done(int status, int line, const char *call)
{
    if (status < 0)
        job_fail(__FILE__, line, call, "status %d: %s", status, transport->reason(status));
    return status;
}

/* Waits for the end of a request: its status, 1 if all is well. */
static int outcome(ek_request **request, int *source)
{
    int status;
    while ((status = transport->test(request, source)) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    CHECK(!*request || status < 0, "a complete request was not freed");
    return status;
}

static void complete(ek_request **request)
{
    CHECK(DONE(outcome(request, NULL)) == 1, "the request is not complete");
}

/* ---- bytes that tell who sent them ---- */

static unsigned char byte_of(int from, int to, size_t at)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 57 + at * 7 + at / 251 + 1);
}

/* malloc(0) may be NULL. */
static unsigned char *bytes_new(size_t nbytes)
{
    unsigned char *bytes = malloc(nbytes + 1);
    CHECK(bytes, "out of memory: %zu bytes", nbytes);
    memset(bytes, 0xee, nbytes + 1);
    return bytes;
}

static void fill(unsigned char *bytes, size_t nbytes, int from, int to)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = byte_of(from, to, i);
}

/* The byte behind the last stays as bytes_new made it. */
static void expect(const unsigned char *bytes, size_t nbytes, int from, int to, const char *what)
{
    for (size_t i = 0; i < nbytes; i++)
        CHECK(bytes[i] == byte_of(from, to, i), "%s: byte %zu of %zu from rank %d is %d, not %d",
              what, i, nbytes, from, bytes[i], byte_of(from, to, i));
}

static void expect_end(const unsigned char *bytes, size_t nbytes, const char *what)
{
    CHECK(bytes[nbytes] == 0xee, "%s: byte %zu was written, behind the last", what, nbytes);
}

/* Around the plugin's part of 1000 bytes in one of the variants, and beyond what MPIs send at
 * once. */
static const size_t lengths[] = {0, 1, 255, 999, 1000, 1001, 1999, 2000, 2001, 65537, 3000000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* All ranks are here. */
static void barrier(void)
{
    size_t *at = malloc(((size_t)size + 1) * sizeof *at);
    unsigned char *all = bytes_new((size_t)size);
    for (int r = 0; r <= size; r++)
        at[r] = (size_t)r;
    ek_request *request;
    DONE(transport->all_gather(world, all, at, &request));
    complete(&request);
    free(all);
    free(at);
}

/* ---- messages ---- */

static void messages_go_around(void)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int i = 0; i < LENGTHS; i++) {
        unsigned char *out = bytes_new(lengths[i]), *in = bytes_new(lengths[i]);
        fill(out, lengths[i], rank, next);
        ek_request *send, *receive;
        DONE(transport->receive(world, in, lengths[i], before, i, &receive));
        DONE(transport->send(world, out, lengths[i], next, i, &send));
        int source = -1;
        CHECK(DONE(outcome(&receive, &source)) == 1, "not received");
        CHECK(source == before, "the source is %d, not %d", source, before);
        complete(&send);
        expect(in, lengths[i], before, rank, "message");
        expect_end(in, lengths[i], "message");
        free(out);
        free(in);
    }
}

/* Tags choose; those of one tag keep their order, and a short message leaves its room untouched. */
static void tags_and_order(void)
{
    enum { COUNT = 8, HIGHEST = 32767 };
    int numbers[COUNT];
    if (rank == 0) {
        ek_request *requests[COUNT];
        for (int i = 0; i < COUNT; i++) {
            numbers[i] = 100 + i;
            DONE(transport->send(world, &numbers[i], sizeof(int), 1, i % 2 ? HIGHEST : 0,
                                 &requests[i]));
        }
        for (int i = 0; i < COUNT; i++)
            complete(&requests[i]);
    } else if (rank == 1) {
        for (int i = 0; i < COUNT; i++) { /* those of odd numbers first */
            int number[200] = {0};
            ek_request *request;
            int wanted = i < COUNT / 2 ? 2 * i + 1 : 2 * (i - COUNT / 2);
            DONE(transport->receive(world, number, sizeof number, 0, i < COUNT / 2 ? HIGHEST : 0,
                                    &request));
            complete(&request);
            CHECK(number[0] == 100 + wanted && number[1] == 0, "number %d is %d, then %d", wanted,
                  number[0], number[1]);
        }
    }
}

/* Messages of many parts and of one tag keep their order, too, whichever is awaited first. */
static void long_messages_keep_order(void)
{
    enum { COUNT = 3, LONG = 3000001 };
    unsigned char *bytes[COUNT];
    ek_request *requests[COUNT];
    for (int i = 0; i < COUNT && rank < 2; i++) {
        bytes[i] = bytes_new(LONG);
        if (rank == 0) {
            fill(bytes[i], LONG, i, 1);
            DONE(transport->send(world, bytes[i], LONG, 1, 8, &requests[i]));
        } else {
            DONE(transport->receive(world, bytes[i], LONG, 0, 8, &requests[i]));
        }
    }
    for (int i = COUNT - 1; i >= 0 && rank < 2; i--) {
        complete(&requests[i]);
        expect(bytes[i], LONG, i, 1, "long message");
        expect_end(bytes[i], LONG, "long message");
        free(bytes[i]);
    }
}

/* Counts of parts grow with what has come, and an open receive names its rank. */
static void transfers_are_counted(void)
{
    enum { LONG = 3000000 };
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    unsigned char *out = bytes_new(LONG), *in = bytes_new(LONG);
    ek_request *send, *receive;
    DONE(transport->receive(world, in, LONG, before, 9, &receive));
    uint64_t came = transport->moved(world, before),
             moved = transport->moved(world, EK_TRANSPORT_ANY);
    CHECK(transport->awaits(world, before), "nothing is awaited");
    CHECK(!transport->awaits(world, rank), "a rank awaits itself");
    DONE(transport->send(world, out, LONG, next, 9, &send));
    complete(&receive);
    complete(&send);
    CHECK(transport->moved(world, before) > came, "nothing has come");
    CHECK(transport->moved(world, EK_TRANSPORT_ANY) >= moved + 2, "nothing has moved");
    CHECK(!transport->awaits(world, before), "what has come is awaited");
    free(out);
    free(in);
    barrier();
}

static void receives_from_any_rank(void)
{
    if (rank > 0) {
        int number = 1000 + rank;
        ek_request *request;
        DONE(transport->send(world, &number, sizeof number, 0, 5, &request));
        complete(&request);
        return;
    }
    int seen = 0;
    for (int i = 1; i < size; i++) {
        int number = 0, source = -1;
        ek_request *request;
        DONE(transport->receive(world, &number, sizeof number, EK_TRANSPORT_ANY, 5, &request));
        CHECK(DONE(outcome(&request, &source)) == 1, "not received");
        CHECK(source > 0 && source < size && number == 1000 + source, "%d came from %d", number,
              source);
        CHECK(!(seen & 1 << source), "rank %d was heard twice", source);
        seen |= 1 << source;
    }
}

/* What was cancelled takes no message that comes later. */
static void receives_are_cancelled(void)
{
    int lost = 7, number = 0, partner = rank ^ 1;
    bool paired = partner < size;
    ek_request *request, *send;
    DONE(transport->receive(world, &lost, sizeof lost, EK_TRANSPORT_ANY, 6, &request));
    CHECK(DONE(transport->test(&request, NULL)) == 0, "nobody has sent anything");
    transport->cancel(&request);
    CHECK(!request, "what was cancelled was not freed");
    barrier();
    if (paired) {
        int mine = 300 + rank;
        DONE(transport->receive(world, &number, sizeof number, partner, 6, &request));
        DONE(transport->send(world, &mine, sizeof mine, partner, 6, &send));
        complete(&request);
        complete(&send);
        CHECK(number == 300 + partner, "%d came", number);
    }
    CHECK(lost == 7, "a cancelled receive took %d", lost);
}

static void expect_reason(int status, const char *part)
{
    const char *reason = transport->reason(status);
    CHECK(strstr(reason, part), "the reason is \"%s\", and not about \"%s\"", reason, part);
    CHECK(!strchr(reason, '\n'), "the reason has several lines: %s", reason);
}

/* A message of one part that is too long is an error of the receiver, and the communicator works
 * on. */
static void long_messages_fail(void)
{
    static const size_t rooms[] = {8, 999, 1500, 200000};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0] && rooms[i] < transport->part; i++) {
        unsigned char *bytes = bytes_new(rooms[i] + 1);
        ek_request *request;
        if (rank == 0) {
            DONE(transport->send(world, bytes, rooms[i] + 1, 1, 7, &request));
            complete(&request);
        } else if (rank == 1) {
            DONE(transport->receive(world, bytes, rooms[i], 0, 7, &request));
            int status = outcome(&request, NULL);
            CHECK(status < 0, "%zu bytes were received where there is room for %zu", rooms[i] + 1,
                  rooms[i]);
            CHECK(!request, "a failed request was not freed");
            expect_end(bytes, rooms[i], "a message that is too long");
            expect_reason(status, "runcated");
        }
        free(bytes);
    }
    messages_go_around();
}

static void wrong_ranks_fail(void)
{
    int number = 0;
    ek_request *request = NULL;
    int status = transport->send(world, &number, sizeof number, size, 0, &request);
    CHECK(status < 0 && !request, "a message to rank %d was sent: %d", size, status);
    expect_reason(status, "rank");
    status = transport->broadcast(world, &number, sizeof number, size, &request);
    CHECK(status < 0 && !request, "rank %d broadcasts: %d", size, status);
    expect_reason(status, "root");
}

/* ---- collectives ---- */

/* Some pairs have nothing for each other; what a rank has for itself stays. */
static size_t exchanged(int from, int to, int turn)
{
    return (from + 2 * to + turn) % 3 == 0 ? 0 : lengths[(from + 3 * to + turn) % LENGTHS];
}

static void all_to_all_of_uneven_sizes(void)
{
    enum { TURNS = 4 }; /* at once */
    ek_bytes *out = calloc(TURNS * (size_t)size, sizeof *out),
             *in = calloc(TURNS * (size_t)size, sizeof *in);
    ek_request *requests[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        ek_bytes *sent = out + turn * size, *received = in + turn * size;
        for (int r = 0; r < size; r++) {
            sent[r].nbytes = exchanged(rank, r, turn);
            received[r].nbytes = exchanged(r, rank, turn);
            sent[r].data = bytes_new(sent[r].nbytes);
            received[r].data = bytes_new(received[r].nbytes);
            fill(sent[r].data, sent[r].nbytes, rank + turn, r);
        }
        DONE(transport->all_to_all(world, sent, received, &requests[turn]));
    }
    for (int turn = TURNS - 1; turn >= 0; turn--) {
        complete(&requests[turn]);
        for (int r = 0; r < size; r++) {
            const ek_bytes *bytes = &in[turn * size + r];
            if (r != rank)
                expect(bytes->data, bytes->nbytes, r + turn, rank, "all_to_all");
            else if (bytes->nbytes > 0)
                CHECK(*(unsigned char *)bytes->data == 0xee, "the own part was moved");
            expect_end(bytes->data, bytes->nbytes, "all_to_all");
        }
    }
    for (int i = 0; i < TURNS * size; i++) {
        free(out[i].data);
        free(in[i].data);
    }
    free(out);
    free(in);
}

static void all_gather_of_uneven_sizes(void)
{
    size_t *at = malloc(((size_t)size + 1) * sizeof *at);
    for (int turn = 0; turn < LENGTHS; turn++) {
        at[0] = 3; /* it need not begin at the first byte */
        for (int r = 0; r < size; r++)
            at[r + 1] = at[r] + lengths[(turn + 5 * r) % LENGTHS];
        unsigned char *all = bytes_new(at[size]);
        fill(all + at[rank], at[rank + 1] - at[rank], rank, turn);
        ek_request *request;
        DONE(transport->all_gather(world, all, at, &request));
        complete(&request);
        for (int r = 0; r < size; r++)
            expect(all + at[r], at[r + 1] - at[r], r, turn, "all_gather");
        CHECK(all[0] == 0xee && all[2] == 0xee, "bytes before the first were written");
        expect_end(all, at[size], "all_gather");
        free(all);
    }
    free(at);
}

static void broadcast_from_every_rank(void)
{
    for (int root = 0; root < size; root++)
        for (int i = 0; i < LENGTHS; i++) {
            unsigned char *bytes = bytes_new(lengths[i]);
            if (rank == root)
                fill(bytes, lengths[i], root, i);
            ek_request *request;
            DONE(transport->broadcast(world, bytes, lengths[i], root, &request));
            complete(&request);
            expect(bytes, lengths[i], root, i, "broadcast");
            expect_end(bytes, lengths[i], "broadcast");
            free(bytes);
        }
}

/* Messages of all tags and collectives do not meet. */
static void kinds_stay_apart(void)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    int message = 10 + rank, heard = 0, all = rank == 0 ? 77 : 0;
    ek_bytes *out = calloc((size_t)size, sizeof *out), *in = calloc((size_t)size, sizeof *in);
    int *exchange = calloc(2 * (size_t)size, sizeof *exchange);
    for (int r = 0; r < size; r++) {
        exchange[r] = 1000 * rank + r;
        out[r] = (ek_bytes){&exchange[r], sizeof(int)};
        in[r] = (ek_bytes){&exchange[size + r], sizeof(int)};
    }
    ek_request *receive, *send, *both, *broadcast;
    DONE(transport->receive(world, &heard, sizeof heard, EK_TRANSPORT_ANY, 32767, &receive));
    DONE(transport->all_to_all(world, out, in, &both));
    DONE(transport->broadcast(world, &all, sizeof all, 0, &broadcast));
    DONE(transport->send(world, &message, sizeof message, next, 32767, &send));
    complete(&broadcast);
    complete(&receive);
    complete(&both);
    complete(&send);
    CHECK(heard == 10 + before && all == 77, "heard %d, got %d", heard, all);
    for (int r = 0; r < size; r++)
        CHECK(r == rank || exchange[size + r] == 1000 * r + rank, "%d came from rank %d",
              exchange[size + r], r);
    free(exchange);
    free(out);
    free(in);
}

/* ---- communicators ---- */

/* Ranks of even and of odd numbers, in reverse order; then none but the last. */
static void communicators_are_split(void)
{
    ek_communicator *half, *last;
    int members = (size + 1 - rank % 2) / 2, mine = members - 1 - rank / 2, root = -1;
    DONE(transport->split(world, rank % 2, -rank, &half));
    CHECK(half, "rank %d has no communicator", rank);
    int *ranks = malloc((size_t)members * sizeof *ranks);
    size_t *at = malloc(((size_t)members + 1) * sizeof *at);
    for (int r = 0; r <= members; r++)
        at[r] = (size_t)r * sizeof(int);
    ranks[mine] = rank;
    ek_request *request;
    DONE(transport->all_gather(half, ranks, at, &request));
    complete(&request);
    for (int r = 0; r < members; r++)
        CHECK(ranks[r] == rank % 2 + 2 * (members - 1 - r), "member %d is rank %d", r, ranks[r]);
    root = mine == 0 ? rank : -1;
    DONE(transport->broadcast(half, &root, sizeof root, 0, &request));
    complete(&request);
    CHECK(root == ranks[0], "the root is rank %d", root);
    transport->close_communicator(half);

    DONE(transport->split(world, rank == size - 1 ? 0 : -1, 0, &last));
    CHECK(!last == (rank != size - 1), "who has a communicator?");
    if (last) {
        ek_bytes own = {ranks, sizeof *ranks};
        DONE(transport->all_to_all(last, &own, &own, &request));
        complete(&request);
        transport->close_communicator(last);
    }
    free(at);
    free(ranks);
}

static void place_is_the_launchers(const ek_launched *launched)
{
    CHECK(place.rank == launched->rank && place.size == launched->size,
          "rank %d of %d, not %d of %d", place.rank, place.size, launched->rank, launched->size);
    CHECK(place.local_rank == launched->local_rank || launched->local_rank < 0,
          "local rank %d, not %d", place.local_rank, launched->local_rank);
    CHECK(place.local_size == launched->local_size || launched->local_size == 0,
          "local size %d, not %d", place.local_size, launched->local_size);
    const char *digit = strpbrk(transport->name, "0123456789");
    CHECK(strncmp(transport->name, launched->mpi, strlen(launched->mpi)) == 0 && digit &&
              strchr(digit, '.') && digit[-1] == ' ',
          "its name is \"%s\"", transport->name);
}

static void *run(void *unused)
{
    (void)unused;
    ek_launched launched;
    CHECK_OK(ek_launcher_find(&launched));
    job_rank = rank = launched.rank;
    job_size = size = launched.size;
    CHECK(launched.several && size > 1, "start it with mpirun");
    CHECK_OK(ek_launcher_transport(&launched, &transport));
    DONE(transport->open(NULL, &world, &place));
    place_is_the_launchers(&launched);
    messages_go_around();
    tags_and_order();
    long_messages_keep_order();
    transfers_are_counted();
    receives_from_any_rank();
    receives_are_cancelled();
    wrong_ranks_fail();
    all_to_all_of_uneven_sizes();
    all_gather_of_uneven_sizes();
    broadcast_from_every_rank();
    kinds_stay_apart();
    communicators_are_split();
    long_messages_fail();
    barrier();
    DONE(transport->close(world));
    int status = transport->open(NULL, &world, &place);
    CHECK(status < 0, "MPI was started twice");
    expect_reason(status, "ended");
    return NULL;
}

int main(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    if (rank == 0)
        printf("%s, %d ranks: all is well\n", transport->name, size);
    return 0;
}
