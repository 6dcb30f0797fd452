/* The loop between threads behaves as the transport's header says. */
#include <sched.h>

#include "kit/loop.h"

NAMES_DEVICES

enum { SEEDS = 12, LARGE = 20000 };

static const char *wait_for(ek_request **request, int *source)
{
    int rc = 0;
    while ((rc = loop_transport()->test(request, source)) == 0)
        sched_yield(); /* The awaited thread may need this core. */
    LOOP_TRY(rc);
    LOOP_CHECK(*request == NULL);
    return NULL;
}

/* What every rank does: opens, calls the body, closes. */
typedef const char *body(ek_communicator *world, int rank, int size);
typedef struct job {
    loop *loop;
    body *body;
} job;

static const char *with_world(int rank, void *user)
{
    const job *this = user;
    ek_communicator *world;
    ek_world_place place;
    LOOP_TRY(loop_transport()->open(loop_rank(this->loop, rank), &world, &place));
    LOOP_CHECK_EQ(place.rank, rank);
    LOOP_CHECK_EQ(place.local_rank, rank);
    LOOP_CHECK_EQ(place.size, loop_size(this->loop));
    LOOP_CHECK_EQ(place.local_size, place.size);
    LOOP_PASS(this->body(world, rank, place.size));
    LOOP_TRY(loop_transport()->close(world));
    return NULL;
}

static void run(int size, int seed, body *what)
{
    loop *l = loop_new(size, (uint64_t)seed);
    assert_loop(l, with_world, (&(job){l, what}));
    ck_assert_int_eq(loop_strays(l), 0);
    loop_free(l);
}

/* ---- messages ---- */

static const char *pass_around(ek_communicator *world, int rank, int size)
{
    enum { COUNT = 8 };
    const ek_transport *t = loop_transport();
    int out[COUNT], in[COUNT], right = (rank + 1) % size, left = (rank + size - 1) % size;
    ek_request *sends[COUNT], *receives[COUNT];
    for (int i = 0; i < COUNT; i++) {
        out[i] = 100 * rank + i;
        LOOP_TRY(t->send(world, &out[i], sizeof(int), right, i % 2, &sends[i]));
    }
    /* Two tags, of which the second is asked for first. */
    for (int i = COUNT - 1; i >= 0; i--)
        LOOP_TRY(t->receive(world, &in[i], sizeof(int), left, i % 2, &receives[i]));
    for (int i = 0; i < COUNT; i++) {
        int source = -1;
        LOOP_PASS(wait_for(&receives[i], &source));
        LOOP_CHECK_EQ(source, left);
    }
    for (int i = 0; i < COUNT; i++)
        LOOP_PASS(wait_for(&sends[i], NULL));
    for (int i = 0; i < COUNT; i++) /* the receive posted first has the first message of its tag */
        LOOP_CHECK_EQ(in[i], 100 * left + (i % 2 ? COUNT - i : COUNT - 2 - i));
    return NULL;
}

TEST_LOOP(messages_of_one_tag_arrive_in_order, 0, SEEDS)
{
    run(1, _i, pass_around);
    run(3, _i, pass_around);
}

static const char *gather_any(ek_communicator *world, int rank, int size)
{
    const ek_transport *t = loop_transport();
    char data[LARGE];
    int seen[8] = {0};
    for (int i = 0; rank == 0 && i < 2 * (size - 1); i++) {
        ek_request *request;
        int source = -1;
        LOOP_TRY(t->receive(world, data, sizeof data, EK_TRANSPORT_ANY, 7, &request));
        LOOP_PASS(wait_for(&request, &source));
        LOOP_CHECK(source > 0 && source < size);
        LOOP_CHECK_EQ(data[0], 10 * source + seen[source]);
        LOOP_CHECK_EQ(data[LARGE / 2], seen[source] ? 0 : source); /* the second one is short */
        data[LARGE / 2] = 0;
        seen[source]++;
    }
    for (int i = 0; rank > 0 && i < 2; i++) {
        ek_request *request;
        memset(data, rank, sizeof data);
        data[0] = (char)(10 * rank + i);
        LOOP_TRY(t->send(world, data, i == 0 ? sizeof data : 1, 0, 7, &request));
        LOOP_PASS(wait_for(&request, NULL));
    }
    return NULL;
}

TEST_LOOP(a_receive_from_any_rank_names_the_source, 0, SEEDS)
{
    run(4, _i, gather_any);
}

static const char *empty_and_too_long(ek_communicator *world, int rank, int size)
{
    const ek_transport *t = loop_transport();
    ek_request *request;
    char data[8] = "abcdefg";
    if (rank == 0) {
        LOOP_TRY(t->send(world, NULL, 0, 1, 0, &request));
        LOOP_PASS(wait_for(&request, NULL));
        LOOP_TRY(t->send(world, data, 8, 1, 0, &request));
        LOOP_PASS(wait_for(&request, NULL));
        LOOP_TRY(t->send(world, data, 3, 1, 0, &request));
        return wait_for(&request, NULL);
    }
    LOOP_TRY(t->receive(world, NULL, 0, 0, 0, &request));
    LOOP_PASS(wait_for(&request, NULL));
    memset(data, 'x', 7);
    LOOP_TRY(t->receive(world, data, 7, 0, 0, &request));
    int rc = 0;
    while (rc == 0)
        rc = t->test(&request, NULL);
    LOOP_CHECK_EQ(rc, LOOP_E_TRUNCATED);
    LOOP_CHECK(request == NULL);
    LOOP_CHECK(strcmp(t->reason(rc), "the message is longer than its room") == 0);
    LOOP_TRY(t->receive(world, data, 7, 0, 0, &request));
    LOOP_PASS(wait_for(&request, NULL));
    LOOP_CHECK(memcmp(data, "abcxxxx", 7) == 0); /* the rest stays */
    return NULL;
}

TEST_LOOP(a_message_that_is_too_long_fails_at_its_receiver, 0, SEEDS)
{
    run(2, _i, empty_and_too_long);
}

/* ---- collectives ---- */

/* Rank r has 3 * r bytes for all to gather. */
static size_t gather_at(int rank)
{
    return (size_t)(3 * rank * (rank - 1) / 2);
}

static const char *start_gather(ek_communicator *communicator, int rank, int size, char all[],
                                ek_request **request)
{
    size_t at[9];
    for (int r = 0; r <= size; r++)
        at[r] = gather_at(r);
    memset(all + at[rank], 'a' + rank, at[rank + 1] - at[rank]);
    LOOP_TRY(loop_transport()->all_gather(communicator, all, at, request));
    return NULL;
}

static const char *check_gathered(const char *all, int size)
{
    for (int r = 0; r < size; r++)
        for (size_t i = gather_at(r); i < gather_at(r + 1); i++)
            LOOP_CHECK_EQ(all[i], 'a' + r);
    return NULL;
}

/* Rank a has (a + b) % 3 * 1000 times 'a' + a for rank b: for some nothing, for some much. */
static const char *start_exchange(ek_communicator *communicator, int rank, int size, char out[],
                                  char in[], ek_request **request)
{
    ek_bytes to[8], from[8];
    memset(out, 'a' + rank, 2000);
    for (int r = 0; r < size; r++) {
        size_t nbytes = (size_t)((rank + r) % 3) * 1000;
        to[r] = (ek_bytes){out, nbytes};
        from[r] = (ek_bytes){in + 2000 * r, nbytes};
    }
    from[rank] = to[rank] = (ek_bytes){NULL, 2000}; /* what a rank has for itself is not moved */
    LOOP_TRY(loop_transport()->all_to_all(communicator, to, from, request));
    memset(to, 0, sizeof to);
    memset(from, 0, sizeof from);
    return NULL;
}

static const char *check_exchanged(const char *in, int rank, int size)
{
    for (int r = 0; r < size; r++)
        for (int i = 0; i < 2000; i++)
            LOOP_CHECK_EQ(in[2000 * r + i], r != rank && i < (rank + r) % 3 * 1000 ? 'a' + r : '.');
    return NULL;
}

static const char *all_at_once(ek_communicator *communicator, int rank, int size)
{
    char all[100], out[2000], in[2000 * 8], large[LARGE], one = rank == 1 ? 'q' : 0;
    ek_request *requests[4];
    memset(in, '.', sizeof in);
    memset(large, rank == 0 ? 'l' : 0, sizeof large);
    const ek_transport *t = loop_transport();
    LOOP_PASS(start_gather(communicator, rank, size, all, &requests[0]));
    LOOP_PASS(start_exchange(communicator, rank, size, out, in, &requests[1]));
    LOOP_TRY(t->broadcast(communicator, large, sizeof large, 0, &requests[2]));
    LOOP_TRY(t->broadcast(communicator, &one, 1, size > 1, &requests[3]));
    for (int i = 3; i >= 0; i--)
        LOOP_PASS(wait_for(&requests[i], NULL));
    LOOP_PASS(check_gathered(all, size));
    LOOP_PASS(check_exchanged(in, rank, size));
    for (int i = 0; i < LARGE; i++)
        LOOP_CHECK_EQ(large[i], 'l');
    LOOP_CHECK_EQ(one, size > 1 ? 'q' : 0);
    return NULL;
}

TEST_LOOP(collectives_in_flight_together_do_not_mix, 0, SEEDS)
{
    run(1, _i, all_at_once);
    run(2, _i, all_at_once);
    run(5, _i, all_at_once);
}

/* ---- communicators ---- */

/* Ranks of even and odd numbers, in falling order; rank 4 is in neither. */
static const char *even_and_odd(ek_communicator *world, int rank, int size)
{
    const ek_transport *t = loop_transport();
    ek_communicator *part, *twin;
    LOOP_TRY(t->split(world, rank == 4 ? -1 : rank % 2, -rank, &part));
    LOOP_CHECK((part == NULL) == (rank == 4));
    LOOP_TRY(t->split(world, 0, 0, &twin));
    if (part) {
        int inside = rank < 2 ? 1 : 0, from = -1;
        ek_request *sends[2], *receives[2];
        /* One tag on two communicators. */
        int other = (rank + 2) % 4, gift = 77;
        LOOP_TRY(t->send(part, &rank, sizeof rank, !inside, 1, &sends[0]));
        LOOP_TRY(t->send(twin, &gift, sizeof gift, other, 1, &sends[1]));
        int on_part = 0, on_twin = 0;
        LOOP_TRY(t->receive(twin, &on_twin, sizeof(int), other, 1, &receives[1]));
        LOOP_TRY(t->receive(part, &on_part, sizeof(int), EK_TRANSPORT_ANY, 1, &receives[0]));
        LOOP_PASS(wait_for(&receives[1], &from));
        LOOP_CHECK_EQ(from, other);
        LOOP_PASS(wait_for(&receives[0], &from));
        LOOP_CHECK_EQ(from, !inside);
        LOOP_PASS(wait_for(&sends[0], NULL));
        LOOP_PASS(wait_for(&sends[1], NULL));
        LOOP_CHECK_EQ(on_part, other);
        LOOP_CHECK_EQ(on_twin, 77);
        LOOP_PASS(all_at_once(part, inside, 2));
        t->close_communicator(part);
    }
    LOOP_PASS(all_at_once(world, rank, size));
    t->close_communicator(twin);
    return NULL;
}

TEST_LOOP(parts_of_a_communicator_are_communicators, 0, SEEDS)
{
    run(5, _i, even_and_odd);
}

/* Rank 1 splits later than rank 0, and more than once. */
static const char *many_splits(ek_communicator *world, int rank, int size)
{
    const ek_transport *t = loop_transport();
    ek_communicator *parts[20];
    for (int i = 0; i < 20; i++) {
        LOOP_TRY(t->split(world, i % 3 == rank, rank, &parts[i]));
        LOOP_PASS(all_at_once(world, rank, size));
    }
    for (int i = 0; i < 20; i++)
        t->close_communicator(parts[i]);
    return NULL;
}

TEST_LOOP(splits_come_in_order_among_the_collectives, 0, SEEDS)
{
    run(3, _i, many_splits);
}

/* ---- one thread for all ranks: the order of calls is the test's ---- */

enum { RANKS = 3 };
static loop *together;
static ek_communicator *worlds[RANKS];

static void open_together(int seed)
{
    ek_world_place place;
    together = loop_new(RANKS, (uint64_t)seed);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(loop_transport()->open(loop_rank(together, rank), &worlds[rank], &place),
                         0);
}

static void close_together(void)
{
    ck_assert_str_eq(loop_violations(together), "");
    loop_end(together, 0); /* close would wait for the other ranks */
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(loop_transport()->close(worlds[rank]), LOOP_E_ENDED);
    ck_assert_int_eq(loop_leaks(together), 0);
    loop_free(together);
}

TEST(a_transfer_goes_on_in_tests_of_its_own_rank_alone)
{
    const ek_transport *t = loop_transport();
    ek_request *send, *receive;
    char out[LARGE] = "large", in[LARGE] = {0};
    open_together(0);
    ck_assert_int_eq(t->send(worlds[0], out, LARGE, 1, 0, &send), 0);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(t->test(&send, NULL), 0); /* nobody is there to receive it */
    ck_assert_int_eq(t->receive(worlds[1], in, LARGE, 0, 0, &receive), 0);
    ck_assert_int_eq(t->test(&send, NULL), 0);
    ck_assert_int_eq(t->test(&receive, NULL), 0); /* now its receiver is */
    ck_assert_int_eq(t->test(&receive, NULL), 0); /* but the sender does not know */
    ck_assert_str_eq(in, "");
    ck_assert_int_eq(t->test(&send, NULL), 1);
    ck_assert_str_eq(in, "");
    ck_assert_int_eq(t->test(&receive, NULL), 1);
    ck_assert_str_eq(in, "large");
    close_together();
}

TEST(a_small_send_ends_without_its_receiver)
{
    const ek_transport *t = loop_transport();
    ek_request *send, *receive;
    char in = 0;
    open_together(0);
    ck_assert_int_eq(t->send(worlds[0], "a", 1, 1, 0, &send), 0);
    ck_assert_int_eq(t->test(&send, NULL), 1);
    ck_assert_int_eq(loop_strays(together), 1);
    ck_assert_int_eq(t->receive(worlds[1], &in, 1, 0, 0, &receive), 0);
    ck_assert_int_eq(in, 0);
    ck_assert_int_eq(t->test(&receive, NULL), 1);
    ck_assert_int_eq(in, 'a');
    ck_assert_int_eq(loop_strays(together), 0);
    close_together();
}

TEST(a_cancelled_receive_takes_no_message)
{
    const ek_transport *t = loop_transport();
    ek_request *send, *first, *second;
    char gone = 0, in = 0;
    open_together(0);
    ck_assert_int_eq(t->receive(worlds[1], &gone, 1, 0, 0, &first), 0);
    ck_assert_int_eq(t->test(&first, NULL), 0);
    t->cancel(&first);
    ck_assert_ptr_null(first);
    ck_assert_int_eq(t->send(worlds[0], "a", 1, 1, 0, &send), 0);
    ck_assert_int_eq(t->test(&send, NULL), 1);
    ck_assert_int_eq(t->receive(worlds[1], &in, 1, 0, 0, &second), 0);
    ck_assert_int_eq(t->test(&second, NULL), 1);
    ck_assert_int_eq(in, 'a');
    ck_assert_int_eq(gone, 0);
    close_together();
}

TEST(memory_of_a_collective_is_not_to_be_read_before_its_end)
{
    const ek_transport *t = loop_transport();
    ek_request *requests[RANKS];
    char all[RANKS][3];
    open_together(0);
    for (int rank = 0; rank < RANKS; rank++) {
        memcpy(all[rank], "abc", 3);
        ck_assert_int_eq(t->all_gather(worlds[rank], all[rank], (size_t[]){0, 1, 2, 3},
                                       &requests[rank]),
                         0);
    }
    ck_assert_int_eq(memcmp(all[1],
                            "\xff"
                            "b\xff",
                            3),
                     0);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(t->test(&requests[rank], NULL), 1);
    ck_assert_int_eq(memcmp(all[1], "abc", 3), 0);
    close_together();
}

/* The order in which two messages reach rank 0, and the tests that it took, as one number. */
static int race(int seed)
{
    const ek_transport *t = loop_transport();
    ek_request *sends[RANKS] = {0}, *receive;
    char in;
    int order = 0, tests = 0;
    open_together(seed);
    for (int rank = 1; rank < RANKS; rank++)
        ck_assert_int_eq(t->send(worlds[rank], "a", 1, 0, 0, &sends[rank]), 0);
    for (int i = 0; i < 2; i++) {
        int source = 0;
        ck_assert_int_eq(t->receive(worlds[0], &in, 1, EK_TRANSPORT_ANY, 0, &receive), 0);
        while (t->test(&receive, &source) == 0) {
            tests++;
            for (int rank = 1; rank < RANKS; rank++)
                if (sends[rank])
                    t->test(&sends[rank], NULL);
        }
        order = 2 * order + source;
    }
    for (int rank = 1; rank < RANKS; rank++)
        while (sends[rank])
            t->test(&sends[rank], NULL);
    close_together();
    return 100 * order + tests;
}

TEST(seeds_vary_the_order_and_repeat_it)
{
    int orders[6] = {0};
    for (int seed = 0; seed < 30; seed++) {
        int result = race(seed);
        ck_assert_int_eq(result, race(seed));
        orders[result / 100]++;
    }
    ck_assert_int_eq(race(0), 100 * 4);
    ck_assert_int_gt(orders[4], 0); /* 1, 2 */
    ck_assert_int_gt(orders[5], 0); /* 2, 1 */
}

TEST(a_delay_can_be_a_time)
{
    const ek_transport *t = loop_transport();
    ek_request *send, *receive;
    char in = 0;
    open_together(5);
    loop_delay(together, 0, 1000 * 3600 * 24); /* what is drawn of it is hours */
    ck_assert_int_eq(t->send(worlds[0], "a", 1, 1, 0, &send), 0);
    loop_delay(together, 0, 0);
    ck_assert_int_eq(t->receive(worlds[1], &in, 1, 0, 0, &receive), 0);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(t->test(&receive, NULL), 0);
        ck_assert_int_eq(t->test(&send, NULL), 0);
    }
    t->cancel(&receive);
    loop_end(together, 0);
    ck_assert_int_eq(t->test(&send, NULL), LOOP_E_ENDED);
    close_together();
}
