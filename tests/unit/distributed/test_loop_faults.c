/* What the loop does on demand, and what it records. One thread makes the calls of all ranks. */
#include <pthread.h>

#include "kit/loop.h"

enum { RANKS = 3 };
static loop *l;
static const ek_transport *t;
static ek_communicator *worlds[RANKS];

static void open_ranks(void)
{
    ek_world_place place;
    t = loop_transport();
    l = loop_new(RANKS, 0);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(t->open(loop_rank(l, rank), &worlds[rank], &place), 0);
}

/* Requests may be open, on which the test has its word. */
static void close_ranks(void)
{
    loop_end(l, 0);
    for (int rank = 0; rank < RANKS; rank++)
        if (worlds[rank])
            ck_assert_int_eq(t->close(worlds[rank]), LOOP_E_ENDED);
    loop_free(l);
}

FIXTURE(open_ranks, close_ranks)

static ek_request *sent(int rank, int to, const char *data)
{
    ek_request *request = NULL;
    ck_assert_int_eq(t->send(worlds[rank], data, 1, to, 0, &request), 0);
    return request;
}

static ek_request *received(int rank, int from, char *data)
{
    ek_request *request = NULL;
    ck_assert_int_eq(t->receive(worlds[rank], data, 1, from, 0, &request), 0);
    return request;
}

/* Three ranks gather a byte each. */
static ek_request *gathered(int rank, char all[RANKS])
{
    ek_request *request = NULL;
    ck_assert_int_eq(t->all_gather(worlds[rank], all, (size_t[]){0, 1, 2, 3}, &request), 0);
    return request;
}

/* What 20 calls of test say, as one. */
static int tested(ek_request **request)
{
    int rc = 0;
    for (int i = 0; i < 20 && rc == 0; i++)
        rc = t->test(request, NULL);
    return rc;
}

/* ---- faults ---- */

TEST(a_stopped_rank_neither_takes_nor_gives)
{
    char in[2] = {0};
    ek_request *to = sent(0, 1, "a"), *from = received(1, 0, &in[0]);
    loop_stop(l, 1);
    ek_request *back = sent(1, 0, "b"), *other = received(0, 1, &in[1]);
    ck_assert_int_eq(tested(&to), 1); /* it was out already */
    ck_assert_int_eq(tested(&from), 0);
    ck_assert_int_eq(tested(&back), 0);
    ck_assert_int_eq(tested(&other), 0);
    loop_resume(l, 1);
    ck_assert_int_eq(tested(&other), 1);
    ck_assert_int_eq(tested(&from), 1);
    ck_assert_int_eq(tested(&back), 1);
    ck_assert_int_eq(memcmp(in, "ab", 2), 0);
    ck_assert_str_eq(loop_violations(l), "");
}

TEST(a_stopped_rank_holds_a_collective_up)
{
    char all[RANKS][RANKS];
    ek_request *requests[RANKS];
    loop_stop(l, 2);
    for (int rank = 0; rank < RANKS; rank++) {
        memset(all[rank], 'a' + rank, RANKS);
        requests[rank] = gathered(rank, all[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(tested(&requests[rank]), 0);
    loop_resume(l, 2);
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_int_eq(tested(&requests[rank]), 1);
        ck_assert_int_eq(memcmp(all[rank], "abc", 3), 0);
    }
    ck_assert_int_eq(loop_leaks(l), RANKS);
}

TEST(every_call_of_a_killed_rank_fails)
{
    char in = 0, all[RANKS] = {0};
    ek_bytes none[RANKS] = {{0}};
    ek_communicator *part;
    ek_request *early = sent(2, 0, "a"), *open = received(2, 0, &in), *request;
    loop_kill(l, 2);
    ck_assert_int_eq(t->test(&early, NULL), LOOP_E_DEAD);
    ck_assert_ptr_null(early);
    t->cancel(&open);
    ck_assert_ptr_null(open);
    ck_assert_int_eq(t->send(worlds[2], "a", 1, 0, 0, &request), LOOP_E_DEAD);
    ck_assert_int_eq(t->receive(worlds[2], &in, 1, 0, 0, &request), LOOP_E_DEAD);
    ck_assert_int_eq(t->all_to_all(worlds[2], none, none, &request), LOOP_E_DEAD);
    ck_assert_int_eq(t->all_gather(worlds[2], all, (size_t[]){0, 1, 2, 3}, &request), LOOP_E_DEAD);
    ck_assert_int_eq(t->broadcast(worlds[2], all, 1, 0, &request), LOOP_E_DEAD);
    ck_assert_int_eq(t->split(worlds[2], 0, 0, &part), LOOP_E_DEAD);
    received(1, 2, &all[0]); /* stays open */
    ck_assert_int_eq(t->close(worlds[2]), LOOP_E_DEAD);
    worlds[2] = NULL;
    ck_assert_ptr_null(request);
    ck_assert_ptr_null(part);
    /* The others have what it sent before, and no more. */
    request = received(0, 2, &in);
    ck_assert_int_eq(tested(&request), 1);
    ck_assert_int_eq(in, 'a');
    ck_assert_int_eq(t->split(worlds[0], 0, 0, &part), LOOP_E_DEAD);
    ck_assert_str_eq(loop_violations(l), "");
}

TEST(the_nth_call_fails_and_does_nothing)
{
    char in = 0;
    ek_request *request;
    loop_fail_call(l, 0, 2);
    ek_request *first = sent(0, 1, "a");
    ck_assert_int_eq(t->send(worlds[0], "b", 1, 1, 0, &request), LOOP_E_FAULT);
    ck_assert_ptr_null(request);
    ek_request *third = sent(0, 1, "c");
    ck_assert_int_eq(tested(&first), 1);
    ck_assert_int_eq(tested(&third), 1);
    for (int i = 0; i < 2; i++) {
        request = received(1, 0, &in);
        ck_assert_int_eq(tested(&request), 1);
        ck_assert_int_eq(in, i == 0 ? 'a' : 'c');
    }
    /* A collective that fails is none: the next one is the others' first. */
    char all[RANKS][RANKS] = {"a", " b", "  c"};
    ek_request *requests[RANKS];
    loop_fail_call(l, 1, 1);
    ck_assert_int_eq(t->all_gather(worlds[1], all[1], (size_t[]){0, 1, 2, 3}, &request),
                     LOOP_E_FAULT);
    for (int rank = 0; rank < RANKS; rank++)
        requests[rank] = gathered(rank, all[rank]);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(tested(&requests[rank]), 1);
    ck_assert_int_eq(memcmp(all[0], "abc", 3), 0);
    ck_assert_str_eq(loop_violations(l), "");
}

TEST(opening_and_splitting_can_fail)
{
    loop *other = loop_new(1, 0);
    ek_communicator *world, *part;
    ek_world_place place;
    loop_fail_call(other, 0, 1);
    ck_assert_int_eq(t->open(loop_rank(other, 0), &world, &place), LOOP_E_FAULT);
    ck_assert_int_eq(t->open(loop_rank(other, 0), &world, &place), 0);
    loop_fail_call(other, 0, 1);
    ck_assert_int_eq(t->split(world, 0, 0, &part), LOOP_E_FAULT);
    ck_assert_int_eq(t->split(world, 0, 0, &part), 0);
    ck_assert_int_eq(loop_leaks(other), 2);
    t->close_communicator(part);
    ck_assert_int_eq(t->close(world), 0);
    ck_assert_int_eq(loop_leaks(other), 0);
    ck_assert_str_eq(loop_violations(other), "");
    loop_free(other);
}

TEST(the_nth_request_fails_in_its_test)
{
    char in = 0, all[RANKS][RANKS];
    loop_fail_request(l, 0, 2);
    ek_request *first = sent(0, 1, "a"), *second = sent(0, 1, "b"), *third = sent(0, 1, "c");
    ck_assert_int_eq(tested(&second), LOOP_E_FAULT);
    ck_assert_ptr_null(second);
    ck_assert_int_eq(tested(&first), 1);
    ck_assert_int_eq(tested(&third), 1);
    for (int i = 0; i < 2; i++) {
        ek_request *request = received(1, 0, &in);
        ck_assert_int_eq(tested(&request), 1);
        ck_assert_int_eq(in, i == 0 ? 'a' : 'c');
    }
    loop_fail_request(l, 1, 1);
    ek_request *requests[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        requests[rank] = gathered(rank, all[rank]);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(tested(&requests[rank]), rank == 1 ? LOOP_E_FAULT : 0);
}

TEST(the_nth_message_is_dropped)
{
    char in = 0;
    loop_drop(l, 0, 1, 2);
    for (int i = 0; i < 3; i++) {
        ek_request *elsewhere = sent(0, 2, "x"), *request = sent(0, 1, &"abc"[i]);
        ck_assert_int_eq(tested(&elsewhere), 1);
        ck_assert_int_eq(tested(&request), 1);
    }
    ck_assert_int_eq(loop_strays(l), 5);
    for (int i = 0; i < 2; i++) {
        ek_request *request = received(1, 0, &in);
        ck_assert_int_eq(tested(&request), 1);
        ck_assert_int_eq(in, i == 0 ? 'a' : 'c');
    }
    ek_request *request = received(1, 0, &in);
    ck_assert_int_eq(tested(&request), 0);
    t->cancel(&request);
}

TEST(an_end_ends_all_ranks)
{
    char in = 0;
    int status = 0;
    ek_request *request = received(1, 0, &in);
    ck_assert(!loop_ended(l, &status));
    t->end(worlds[0], 5);
    t->end(worlds[1], 6);
    ck_assert(loop_ended(l, &status));
    ck_assert_int_eq(status, 5);
    ck_assert_int_eq(t->test(&request, NULL), LOOP_E_ENDED);
    ck_assert_ptr_null(request);
    ck_assert_str_eq(t->reason(LOOP_E_ENDED), "the job has been ended");
    ck_assert_str_eq(t->reason(3), "no status of the loop");
    ck_assert_int_eq(loop_leaks(l), RANKS);
}

/* ---- violations ---- */

static void assert_violation(const char *sentence)
{
    ck_assert_str_eq(loop_violations(l), sentence);
}

TEST(collectives_of_different_kinds_are_a_violation)
{
    char all[RANKS][RANKS] = {{0}};
    ek_request *requests[RANKS];
    requests[0] = gathered(0, all[0]);
    ck_assert_int_eq(t->broadcast(worlds[1], all[1], 1, 0, &requests[1]), 0);
    requests[2] = gathered(2, all[2]);
    assert_violation("call 1 of communicator 0: rank 1 calls broadcast, rank 0 all_gather\n");
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(tested(&requests[rank]), 0);
    ck_assert_int_eq(loop_leaks(l), 2 * RANKS);
}

TEST(collectives_of_different_sizes_are_a_violation)
{
    char all[RANKS][RANKS] = {{0}};
    ek_request *requests[2];
    requests[0] = gathered(0, all[0]);
    ck_assert_int_eq(t->all_gather(worlds[1], all[1], (size_t[]){0, 1, 2, 2}, &requests[1]), 0);
    assert_violation("call 1 of communicator 0: rank 1 calls all_gather, rank 0 all_gather with "
                     "other sizes\n");
    ck_assert_int_eq(tested(&requests[0]), 0);
    ck_assert_int_eq(tested(&requests[1]), 0);
}

TEST(broadcasts_of_different_roots_are_a_violation)
{
    char data[2] = {0};
    ek_request *requests[2];
    for (int rank = 0; rank < 2; rank++)
        ck_assert_int_eq(t->broadcast(worlds[rank], &data[rank], 1, rank, &requests[rank]), 0);
    assert_violation(
        "call 1 of communicator 0: rank 1 calls broadcast, rank 0 broadcast with other sizes\n");
}

TEST(pairs_that_differ_in_an_exchange_are_a_violation)
{
    char out[2] = {0}, in[2];
    ek_bytes none[RANKS] = {{0}};
    ek_request *requests[RANKS];
    ck_assert_int_eq(t->all_to_all(worlds[0], (ek_bytes[]){{0}, {out, 2}, {0}}, none, &requests[0]),
                     0);
    ck_assert_int_eq(t->all_to_all(worlds[1], none, (ek_bytes[]){{in, 1}, {0}, {0}}, &requests[1]),
                     0);
    ck_assert_int_eq(t->all_to_all(worlds[2], none, none, &requests[2]), 0);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(tested(&requests[rank]), rank != 1);
    assert_violation("all_to_all 1 of communicator 0: rank 0 sends 2 bytes to rank 1, which has "
                     "room for 1\n");
}

TEST(memory_that_overlaps_is_a_violation)
{
    char data[4] = {0};
    ek_request *request;
    ck_assert_int_eq(t->all_to_all(worlds[0], (ek_bytes[]){{0}, {data, 2}, {0}},
                                   (ek_bytes[]){{0}, {data + 1, 2}, {0}}, &request),
                     0);
    assert_violation("rank 0 calls all_to_all with memory that overlaps\n");
}

TEST(a_send_whose_memory_changes_is_a_violation)
{
    char data = 'a';
    ek_request *request = sent(0, 1, &data);
    data = 'b';
    ck_assert_int_eq(tested(&request), 1);
    assert_violation("rank 0 changes memory before its send is complete\n");
}

TEST(ranks_and_tags_that_do_not_exist_are_violations)
{
    char data = 0;
    ek_request *request;
    ck_assert_int_eq(t->send(worlds[0], &data, 1, 3, 0, &request), LOOP_E_INVALID);
    ck_assert_int_eq(t->send(worlds[0], &data, 1, EK_TRANSPORT_ANY, 0, &request), LOOP_E_INVALID);
    ck_assert_int_eq(t->receive(worlds[0], &data, 1, -2, 0, &request), LOOP_E_INVALID);
    ck_assert_int_eq(t->receive(worlds[0], &data, 1, 1, 32768, &request), LOOP_E_INVALID);
    ck_assert_int_eq(t->broadcast(worlds[0], &data, 1, -1, &request), LOOP_E_INVALID);
    ck_assert_ptr_null(request);
    assert_violation("rank 0 calls send with rank 3 of 3 and tag 0\n"
                     "rank 0 calls send with rank -1 of 3 and tag 0\n"
                     "rank 0 calls receive with rank -2 of 3 and tag 0\n"
                     "rank 0 calls receive with rank 1 of 3 and tag 32768\n"
                     "rank 0 calls broadcast with rank -1 of 3 and tag 0\n");
    t->send(worlds[0], &data, 1, 0, 32767, &request);
    ck_assert_int_eq(tested(&request), 1);
}

TEST(the_world_is_closed_by_close)
{
    t->close_communicator(worlds[2]);
    worlds[2] = NULL;
    assert_violation("rank 2 closes the world as a communicator\n");
}

TEST(only_receives_can_be_cancelled)
{
    ek_request *request = sent(0, 1, "a");
    t->cancel(&request);
    ck_assert_ptr_null(request);
    assert_violation("rank 0 cancels a send\n");
}

TEST(a_rank_opens_once)
{
    ek_communicator *world;
    ek_world_place place;
    ck_assert_int_eq(t->open(loop_rank(l, 1), &world, &place), LOOP_E_INVALID);
    ck_assert_ptr_null(world);
    assert_violation("rank 1 opens twice\n");
}

static void *test_elsewhere(void *user)
{
    t->test(user, NULL);
    return NULL;
}

TEST(calls_from_two_threads_are_a_violation)
{
    char in = 0;
    pthread_t thread;
    ek_request *request = received(1, 0, &in);
    ck_assert_int_eq(pthread_create(&thread, NULL, test_elsewhere, &request), 0);
    pthread_join(thread, NULL);
    assert_violation("rank 1 calls from two threads\n");
}
