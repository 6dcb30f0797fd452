/* Faults of the loop that other threads wait for, and its runner. */
#include <pthread.h>
#include <stdatomic.h>

#include "kit/loop.h"

static const ek_transport *t;
static loop *own;

static void choose(void)
{
    t = loop_transport();
}

FIXTURE(choose, NULL)

/* Opens, and waits until all ranks have. */
static const char *open_world(int rank, ek_communicator **world)
{
    ek_communicator *all;
    ek_world_place place;
    LOOP_TRY(t->open(loop_rank(own, rank), world, &place));
    LOOP_TRY(t->split(*world, 0, 0, &all));
    t->close_communicator(all);
    return NULL;
}

static const char *leave_open(int rank, void *user)
{
    static char in[2];
    ek_communicator *world, *part;
    ek_world_place place;
    ek_request *request;
    LOOP_TRY(t->open(loop_rank(own, rank), &world, &place));
    LOOP_TRY(t->split(world, 0, 0, &part));
    if (rank == 0) {
        LOOP_TRY(t->receive(world, &in[0], 1, 1, 0, &request));
        LOOP_TRY(t->receive(part, &in[1], 1, 1, 0, &request));
    }
    t->close_communicator(part);
    LOOP_TRY(t->close(world));
    return NULL;
}

TEST(what_is_open_at_the_end_is_a_violation_and_a_leak)
{
    own = loop_new(2, 1);
    ck_assert_ptr_null(loop_run(own, leave_open, NULL));
    ck_assert_str_eq(loop_violations(own),
                     "rank 0 closes communicator 1 with 1 open requests\n"
                     "rank 0 closes with 0 open communicators and 2 open requests\n");
    ck_assert_int_eq(loop_leaks(own), 2);
    loop_free(own);
}

static const char *split_against(int rank, void *user)
{
    static char data;
    ek_communicator *world, *part;
    ek_world_place place;
    ek_request *request = NULL;
    LOOP_TRY(t->open(loop_rank(own, rank), &world, &place));
    if (rank == 1) {
        LOOP_TRY(t->broadcast(world, &data, 1, 0, &request));
        LOOP_CHECK_EQ(t->test(&request, NULL), 0);
    } else {
        LOOP_CHECK_EQ(t->split(world, 0, 0, &part), LOOP_E_INVALID);
    }
    LOOP_TRY(t->close(world)); /* with the request, which never ends */
    return NULL;
}

TEST(a_split_against_another_collective_fails)
{
    own = loop_new(3, 0);
    ck_assert_ptr_null(loop_run(own, split_against, NULL));
    ck_assert_ptr_nonnull(strstr(loop_violations(own), "split"));
    ck_assert_ptr_nonnull(strstr(loop_violations(own), "broadcast"));
    loop_free(own);
}

/* Rank 0 waits in split or close, for which rank 1 does not come. */
typedef struct wait_case {
    bool close;
    int expected;
} wait_case;

static const char *wait_in_vain(int rank, void *user)
{
    const wait_case *this = user;
    ek_communicator *world, *part;
    LOOP_PASS(open_world(rank, &world));
    if (rank == 1) {
        if (this->expected == LOOP_E_ENDED)
            t->end(world, 9);
        else
            loop_kill(own, 1);
    } else if (!this->close) {
        LOOP_CHECK_EQ(t->split(world, 0, 0, &part), this->expected);
        LOOP_CHECK(part == NULL);
    }
    LOOP_CHECK((t->close(world) < 0) == (rank == 1 || this->expected == LOOP_E_ENDED));
    return NULL;
}

TEST_LOOP(waits_end_with_the_job_or_a_rank, 0, 4)
{
    wait_case this = {_i % 2, _i < 2 ? LOOP_E_ENDED : LOOP_E_DEAD};
    own = loop_new(2, 0);
    assert_loop(own, wait_in_vain, &this);
    loop_free(own);
}

static atomic_int split_is_over;

static const char *split_while_stopped(int rank, void *user)
{
    ek_communicator *world, *part;
    ek_world_place place;
    LOOP_TRY(t->open(loop_rank(own, rank), &world, &place));
    LOOP_TRY(t->split(world, 0, 0, &part));
    split_is_over++;
    t->close_communicator(part);
    LOOP_TRY(t->close(world));
    return NULL;
}

static void *resume_later(void *user)
{
    int *over = user;
    for (int i = 0; i < 200000; i++)
        *over += split_is_over;
    loop_resume(own, 1);
    return NULL;
}

TEST(a_stopped_rank_holds_a_split_up)
{
    int over = 0;
    pthread_t thread;
    own = loop_new(3, 0);
    loop_stop(own, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, resume_later, &over), 0);
    assert_loop(own, split_while_stopped, NULL);
    pthread_join(thread, NULL);
    ck_assert_int_eq(over, 0);
    ck_assert_int_eq(split_is_over, 3);
    loop_free(own);
}

/* ---- the runner ---- */

static const char *second_fails(int rank, void *user)
{
    ek_communicator *world, *part;
    LOOP_PASS(open_world(rank, &world));
    if (rank == 2)
        return loop_failure("file.c", 7, "%d is wrong", 4);
    LOOP_TRY(t->split(world, 0, 0, &part)); /* rank 2 does not come */
    return NULL;
}

TEST(the_runner_gives_the_first_failure_and_ends_the_others)
{
    own = loop_new(4, 0);
    ck_assert_str_eq(loop_run(own, second_fails, NULL), "rank 2: file.c:7: 4 is wrong");
    ck_assert(loop_ended(own, NULL));
    ck_assert_int_eq(loop_leaks(own), 4);
    loop_free(own);
}

static const char *check_of(int rank, void *user)
{
    if (rank == 0)
        LOOP_CHECK_EQ(1 + 1, 2);
    else
        LOOP_CHECK_EQ(rank + 1, 3);
    return NULL;
}

TEST(checks_of_ranks_say_what_was_wrong)
{
    own = loop_new(2, 0);
    const char *text = loop_run(own, check_of, NULL);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(strstr(text, "rank 1: "));
    ck_assert_ptr_nonnull(strstr(text, "rank + 1 == 2, not 3"));
    loop_free(own);
}
