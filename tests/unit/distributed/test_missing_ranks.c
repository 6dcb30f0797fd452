/* Ranks that do not come: who is named, where they are found, and what becomes of the world. */
#include <stdatomic.h>
#include <unistd.h>

#include "kit/ranks.h"
#include "link/post.h"

NAMES_DEVICES
COST(15)

enum { RANKS = 3 };

/* How many ranks have had their error: others wait for that and not for a time, so that the tests
 * don't depend on how fast the machine is. */
static atomic_int told;

/* How many ranks have left the barrier. */
static atomic_int away;

static void begin(void)
{
    atomic_store(&told, 0);
    atomic_store(&away, 0);
}

FIXTURE(begin, NULL)

/* Returns when all ranks have left a barrier, so that none of its messages is under way. */
static const char *leave_together(ek_process_group *world)
{
    const int rc = ek_dist_barrier(.group = world);
    for (atomic_fetch_add(&away, 1); atomic_load(&away) < RANKS;)
        usleep(1000);
    RANKS_OK(rc);
    return NULL;
}

static void wait_until_told(int ranks)
{
    while (atomic_load(&told) < ranks)
        usleep(1000);
}

static const char *one_is_late(ek_process_group *world, void *user)
{
    int where = *(const int *)user;
    double patience = world->timeout;
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 2) { /* in its own code, while its communication thread answers */
        wait_until_told(2);
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_TIMEOUT, "rank 2 on ");
        return ranks_work(world);
    }
    world->timeout = 0.5;
    if (where == 0)
        RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = world), EK_E_TIMEOUT,
                     "is at call 1, barrier, which it left");
    else
        RANKS_EXPECT(ek_dist_recv(ranks_ones(5), 2, .group = world), EK_E_TIMEOUT, "rank 2 on ");
    world->timeout = patience;
    atomic_fetch_add(&told, 1);
    return ranks_work(world);
}

TEST_LOOP(a_rank_that_does_not_come_is_named, 0, 2)
{
    ranks_check(RANKS, 1, one_is_late, &_i);
}

/* Rank 2 is in a call of another group, or in a message. */
static const char *one_is_elsewhere(ek_process_group *world, void *user)
{
    int where = *(const int *)user, all[RANKS] = {0, 1, 2};
    ek_process_group *group = ek_communication_new_group(world->communication, all, RANKS, 60);
    LOOP_CHECK(group);
    if (world->rank == 2) {
        ek_dist_work *work = NULL;
        ek_tensor *x = ranks_ones(5);
        if (where)
            RANKS_OK(ek_dist_recv(x, 0, .group = world, .tag = 7, .work = &work));
        else
            RANKS_OK(ek_dist_barrier(.group = world, .work = &work));
        atomic_store(&told, 1);
        RANKS_EXPECT(ek_dist_wait(work), EK_E_TIMEOUT, "all_reduce (call 1 of group 1) waited");
    } else {
        wait_until_told(1);
        group->timeout = 0.1;
        RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(4), .group = group), EK_E_TIMEOUT,
                     where ? "is in recv from rank 0, since"
                           : "is in call 2 of the world, barrier, since");
    }
    LOOP_PASS(ranks_work(world));
    ek_communication_destroy_group(group);
    return NULL;
}

TEST_LOOP(a_rank_that_is_elsewhere_is_found_there, 0, 2)
{
    ranks_check(RANKS, 1, one_is_elsewhere, &_i);
}

/* The answer to rank 0's question is lost, and rank 2 comes while rank 0 waits for that. */
static const char *comes_meanwhile(ek_process_group *world, void *user)
{
    loop_drop(user, 2, 0, 1);
    if (world->rank == 2) {
        usleep(200000);
        RANKS_OK(ek_dist_barrier(.group = world));
    } else {
        double patience = world->timeout;
        world->timeout = world->rank == 0 ? 0.05 : patience;
        int rc = ek_dist_barrier(.group = world);
        world->timeout = patience;
        if (rc != EK_E_TIMEOUT) /* a machine may be too slow for it */
            RANKS_OK(rc);
        ek_error_clear();
        usleep(500000);
    }
    return ranks_work(world);
}

TEST(a_question_ends_with_the_call_that_it_is_for)
{
    loop *l = loop_new(RANKS, 1);
    ranks_run run = {.loop = l, .function = comes_meanwhile, .user = l};
    assert_loop(l, ranks_of, &run);
    loop_free(l);
}

/* A rank's process stops: the others cannot go on, and say so in time. If the rank is rank 0, which
 * asks first, another rank asks. */
static int silent;

static const char *one_stops(ek_process_group *world, void *user)
{
    loop *l = user;
    LOOP_PASS(leave_together(world));
    world->timeout = 0.3;
    if (world->rank == silent) {
        loop_stop(l, silent);
        atomic_store(&told, 1);
        wait_until_told(RANKS);
        return NULL;
    }
    wait_until_told(1);
    RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = world), EK_E_TIMEOUT,
                 "does not answer");
    RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_TIMEOUT, "does not answer");
    atomic_fetch_add(&told, 1);
    return NULL;
}

TEST_LOOP(a_rank_that_has_stopped_breaks_the_world, 0, RANKS)
{
    silent = _i;
    loop *l = loop_new(RANKS, 1);
    ranks_run run = {.loop = l, .function = one_stops, .user = l, .breaks = true};
    const char *text = loop_run(l, ranks_of, &run);
    ck_assert_msg(!text, "%s", text);
    ck_assert(loop_ended(l, NULL));
    loop_free(l);
}

/* What rank 1 sends to rank 2 is lost. All ranks hear rank 0, which locates the cut. */
static const char *two_are_cut_off(ek_process_group *world, void *user)
{
    LOOP_PASS(leave_together(world));
    loop_cut(user, 1, 2);
    world->timeout = 0.3;
    RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = world), EK_E_TIMEOUT,
                 world->rank == 0 ? "all_reduce" : "rank 0 on ");
    LOOP_CHECK(strstr(world->communication->failure.error.message, "rank 1 on "));
    LOOP_CHECK(strstr(world->communication->failure.error.message, "rank 2 on "));
    LOOP_CHECK(strstr(world->communication->failure.error.message, "hear from"));
    return NULL;
}

TEST(a_cut_between_two_ranks_is_located_by_a_third)
{
    loop *l = loop_new(RANKS, 1);
    ranks_run run = {.loop = l, .function = two_are_cut_off, .user = l, .breaks = true};
    const char *text = loop_run(l, ranks_of, &run);
    ck_assert_msg(!text, "%s", text);
    ck_assert(loop_ended(l, NULL));
    loop_free(l);
}

/* Rank 1 never posts. */
static const char *one_does_not_post(ek_process_group *world, void *user)
{
    ek_packet packet;
    (void)user;
    RANKS_OK(ek_dist_barrier(.group = world));
    world->timeout = 0.3;
    if (world->rank == 0)
        RANKS_EXPECT(ek_post_take(world->communication, 1, &packet), EK_E_TIMEOUT,
                     "for rank 1 on ");
    return NULL;
}

TEST(a_post_that_does_not_come_breaks_the_world)
{
    loop *l = loop_new(RANKS, 1);
    ranks_run run = {.loop = l, .function = one_does_not_post, .user = l, .breaks = true};
    const char *text = loop_run(l, ranks_of, &run);
    ck_assert_msg(!text, "%s", text);
    ck_assert(loop_ended(l, NULL));
    loop_free(l);
}

/* A transfer takes several times the time-out. Each of its parts comes in time. */
static const char *parts_are_slow(ek_process_group *world, void *user)
{
    (void)user;
    RANKS_OK(ek_dist_barrier(.group = world));
    double patience = world->timeout;
    world->timeout = 0.5;
    RANKS_OK(ek_dist_broadcast(ranks_ones(RANKS_LARGE), 0, .group = world));
    world->timeout = patience;
    return NULL;
}

TEST(a_slow_transfer_is_not_late)
{
    loop *l = loop_new(RANKS, 1);
    loop_rate(l, RANKS_LARGE * sizeof(float) / 20, 100);
    ranks_run run = {.loop = l, .function = parts_are_slow};
    assert_loop(l, ranks_of, &run);
    loop_free(l);
}

static const char *monitored(ek_process_group *world, void *user)
{
    bool all = *(const int *)user;
    if (world->rank > 0) {
        usleep(1000000);
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_TIMEOUT,
                     "barrier (call 1 of the world)");
        return ranks_work(world);
    }
    int rc = ek_dist_monitored_barrier(0.2, all, world);
    LOOP_CHECK(strstr(ek_error_message(), "rank 1 on "));
    LOOP_CHECK(!strstr(ek_error_message(), "rank 2 on ") == !all);
    RANKS_EXPECT(rc, EK_E_TIMEOUT, "has made no call of the world yet");
    atomic_store(&told, 1);
    return ranks_work(world);
}

TEST_LOOP(a_monitored_barrier_names_one_or_all, 0, 2)
{
    ranks_check(RANKS, 1, monitored, &_i);
}
