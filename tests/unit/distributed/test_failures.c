/* What ends a call early: ranks that fail, and calls that differ. */
#include <stdatomic.h>
#include <unistd.h>

#include "core/error.h"
#include "core/tensor.h"
#include "kit/ranks.h"

NAMES_DEVICES
COST(10)

enum { RANKS = 3 };

/* ---- a rank that fails ---- */

static int raise_on(const ek_process_group *world, const char *sentence)
{
    ek_error_record error = {.status = EK_E_OUT_OF_MEMORY};
    snprintf(error.message, sizeof error.message, "%s", sentence);
    return ek_communication_raise(world->communication, &error);
}

/* The calls that other ranks are in when rank 1 fails. */
enum { IN_BARRIER, IN_SUM, IN_LARGE_SUM, IN_LIST, IN_SEND, IN_RECV, IN_NOTHING, CALLS };

static int call_that_fails(ek_process_group *world, int call)
{
    ek_tensor *list[RANKS];
    for (int r = 0; r < RANKS; r++)
        list[r] = ranks_ones(10);
    switch (call) {
    case IN_BARRIER:
        return ek_dist_barrier(.group = world);
    case IN_SUM:
        return ek_dist_all_reduce(ranks_ones(4), .group = world);
    case IN_LARGE_SUM:
        return ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = world);
    case IN_LIST:
        return ek_dist_all_gather(ranks_ones(10), list, .group = world);
    case IN_SEND:
        return ek_dist_send(ranks_ones(5), 1, .group = world);
    case IN_RECV:
        return ek_dist_recv(ranks_ones(5), EK_DIST_ANY, .group = world);
    default:
        usleep(20000);
        return ek_dist_barrier(.group = world);
    }
}

static const char *one_fails(ek_process_group *world, void *user)
{
    int call = *(const int *)user;
    for (int round = 0; round < 3; round++) {
        RANKS_OK(ek_dist_barrier(.group = world));
        if (world->rank == 1) {
            if (round == 1)
                usleep(10000);
            LOOP_CHECK(raise_on(world, "no memory for layer 3") == EK_E_OUT_OF_MEMORY);
        } else {
            RANKS_EXPECT(call_that_fails(world, call), EK_E_ABORTED, "rank 1 on ");
        }
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(a_failure_is_every_rank_s_and_the_world_works_again, 0, 4 * CALLS)
{
    int call = _i % CALLS;
    ranks_check(RANKS, (uint64_t)(_i / CALLS), one_fails, &call);
}

/* A rank that fails in the same way again, with the same sentence, is heard each time. */
static const char *fails_alike(ek_process_group *world, void *user)
{
    for (int round = 0; round < 3; round++) {
        ek_tensor *x = world->rank == 1 ? NULL : ranks_ones(4);
        RANKS_EXPECT(ek_dist_all_reduce(x, .group = world),
                     world->rank == 1 ? EK_E_INVALID : EK_E_ABORTED, "tensor is NULL");
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(the_same_failure_twice_is_two_failures, 0, 4)
{
    ranks_check(RANKS, (uint64_t)_i, fails_alike, NULL);
}

static const char *all_fail(ek_process_group *world, void *user)
{
    for (int round = 0; round < 10; round++) {
        LOOP_CHECK(raise_on(world, "each by itself") == EK_E_OUT_OF_MEMORY);
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(ranks_that_fail_at_once_have_their_own_error, 0, 4)
{
    ranks_check(RANKS, (uint64_t)_i, all_fail, NULL);
}

/* Rank 1 fails as soon as it is told of rank 0's failure. */
static const char *one_after_another(ek_process_group *world, void *user)
{
    for (int round = 0; round < 20; round++) {
        bool told = false;
        if (world->rank == 0) {
            LOOP_CHECK(raise_on(world, "the first") == EK_E_OUT_OF_MEMORY);
        } else {
            int rc = ek_dist_barrier(.group = world);
            bool both = strstr(ek_error_message(), "the first");
            RANKS_EXPECT(rc, EK_E_ABORTED, both ? "the first" : "the second");
            if (world->rank == 1) {
                LOOP_CHECK(raise_on(world, "the second") == EK_E_OUT_OF_MEMORY);
                LOOP_PASS(ranks_work(world));
                continue;
            }
            told = !both; /* of the last failure alone */
        }
        if (!told)
            RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "the second");
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(a_rank_that_has_failed_is_told_of_the_next_failure, 0, 6)
{
    ranks_check(RANKS, (uint64_t)_i, one_after_another, NULL);
}

/* Works that were only started fail with the call that waits for them. */
static const char *started(ek_process_group *world, void *user)
{
    ek_dist_work *works_of[5];
    ek_tensor *x = ranks_ones(RANKS_LARGE);
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 2) {
        raise_on(world, "alone");
        return ranks_work(world);
    }
    for (int i = 0; i < 5; i++)
        if (ek_dist_all_reduce(ek_clone(x), .group = world, .work = &works_of[i]) < 0) {
            RANKS_EXPECT(EK_E_ABORTED, EK_E_ABORTED, "rank 2 on "); /* the notice came before */
            works_of[i] = NULL;
            for (int k = 0; k < i; k++) {
                ek_dist_wait(works_of[k]);
                ek_error_clear();
            }
            return ranks_work(world);
        }
    for (int i = 0; i < 5; i++)
        RANKS_EXPECT(ek_dist_wait(works_of[i]), EK_E_ABORTED, "alone");
    return ranks_work(world);
}

TEST_LOOP(calls_under_way_fail_too, 0, 6)
{
    ranks_check(RANKS, (uint64_t)_i, started, NULL);
}

/* Rank 1 has failed; the others destroy a group before they are told of it. */
static const char *destroyed(ek_process_group *world, void *user)
{
    int all[RANKS] = {0, 1, 2};
    ek_process_group *group = ek_communication_new_group(world->communication, all, RANKS, 60);
    LOOP_CHECK(group);
    if (world->rank == 1)
        raise_on(world, "before the end");
    ek_communication_destroy_group(group);
    if (world->rank != 1)
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "before the end");
    return ranks_work(world);
}

TEST_LOOP(a_group_is_destroyed_after_a_failure_too, 0, 4)
{
    ranks_check(RANKS, (uint64_t)_i, destroyed, NULL);
}

static ek_process_group *kept[RANKS]; /* until after the world's end */

typedef struct broken_run {
    loop *loop;
    int call; /* of the transport, from the failure on: two notices, and the agreement */
} broken_run;

/* The transport of rank 1 fails while rank 1 tells the others of a failure, or drains it. */
static const char *breaks_while_it_raises(ek_process_group *world, void *user)
{
    const broken_run *broken = user;
    int rc = ek_dist_barrier(.group = world);
    if (world->rank == 1) {
        RANKS_OK(rc);
        loop_fail_call(broken->loop, 1, broken->call);
        LOOP_CHECK(raise_on(world, "and then it breaks") == EK_E_OUT_OF_MEMORY);
    }
    LOOP_CHECK(ek_dist_barrier(.group = world) < 0);
    ek_error_clear(); /* the first barrier's may be pending too: rank 1 has ended the job */
    return NULL;
}

TEST_LOOP(a_rank_that_raises_a_failure_learns_that_the_world_is_broken, 1, 4)
{
    loop *l = loop_new(RANKS, 0);
    broken_run broken = {l, _i};
    ranks_run run = {.loop = l,
                     .function = breaks_while_it_raises,
                     .user = &broken,
                     .breaks = true};
    const char *failure = loop_run(l, ranks_of, &run);
    ck_assert_msg(!failure, "%s", failure);
    loop_free(l);
}

/* Nobody waits for others who keep the group. */
static const char *given_up(ek_process_group *world, void *user)
{
    int all[RANKS] = {0, 1, 2};
    bool keeps = *(const int *)user > 1;
    ek_process_group *group = ek_communication_new_group(world->communication, all, RANKS, 60);
    LOOP_CHECK(group);
    RANKS_OK(ek_dist_all_reduce(ranks_ones(4), .group = group));
    if (world->rank == 0)
        ek_communication_destroy_group(group);
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 2) {
        raise_on(world, "while one has given up the group");
    } else {
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "given up the group");
    }
    LOOP_PASS(ranks_work(world));
    if (world->rank > 0 && keeps)
        kept[world->rank] = group;
    else if (world->rank > 0)
        ek_communication_destroy_group(group);
    return ranks_work(world);
}

TEST_LOOP(who_destroys_a_group_waits_for_nobody, 0, 4)
{
    ranks_check(RANKS, (uint64_t)(_i % 2), given_up, &_i);
    for (int r = 1; r < RANKS && _i > 1; r++)
        ek_communication_destroy_group(kept[r]);
}

/* Rank 0 has given the group up, and the others call it. */
static const char *called_late(ek_process_group *world, void *user)
{
    int all[RANKS] = {0, 1, 2};
    ek_process_group *group = ek_communication_new_group(world->communication, all, RANKS, 60);
    LOOP_CHECK(group);
    if (world->rank == 0) {
        ek_communication_destroy_group(group);
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_STATE, "rank 1 all_reduce");
    } else {
        RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(4), .group = group), EK_E_STATE,
                     "rank 0 calls destroy_process_group, rank 1 all_reduce");
        ek_communication_destroy_group(group);
    }
    return ranks_work(world);
}

TEST_LOOP(a_call_of_a_group_that_another_rank_has_destroyed_differs, 0, 4)
{
    ranks_check(RANKS, (uint64_t)_i, called_late, NULL);
}

/* A failure reaches groups that the failing rank is not in. */
static const char *elsewhere(ek_process_group *world, void *user)
{
    int pair_ranks[] = {0, 1};
    ek_process_group *pair = ek_communication_new_group(world->communication, pair_ranks, 2, 60);
    LOOP_CHECK(pair);
    if (world->rank == 2) {
        usleep(5000);
        raise_on(world, "outside");
    } else if (world->rank == 0) { /* waits for rank 1, which waits for rank 2 */
        RANKS_EXPECT(ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = pair), EK_E_ABORTED,
                     "outside");
    } else {
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "outside");
    }
    LOOP_PASS(ranks_work(world));
    if (world->rank < 2)
        RANKS_OK(ek_dist_all_reduce(ranks_ones(RANKS_LARGE), .group = pair));
    ek_communication_destroy_group(pair);
    return NULL;
}

TEST_LOOP(groups_that_the_rank_is_not_in_fail_too, 0, 6)
{
    ranks_check(RANKS, (uint64_t)_i, elsewhere, NULL);
}

/* ---- calls that differ ---- */

static int differing_call(ek_process_group *world, int what)
{
    int odd = world->rank == 1;
    ek_tensor *list[RANKS];
    for (int r = 0; r < RANKS; r++)
        list[r] = ranks_ones(odd && r == 2 ? 11 : 10);
    switch (what) {
    case 0:
        return odd ? ek_dist_barrier(.group = world)
                   : ek_dist_all_reduce(ranks_ones(4), .group = world);
    case 1:
        return ek_dist_all_reduce(ranks_ones(4 + odd), .group = world);
    case 2:
        return ek_dist_broadcast(ranks_ones(4), odd, .group = world);
    case 3:
        return ek_dist_all_reduce(ranks_ones(4), .group = world,
                                  .op = odd ? EK_DIST_MAX : EK_DIST_SUM);
    case 4:
        return ek_dist_all_reduce(odd ? ek_zeros(EK_SHAPE(4), EK_F64, .device = ek_cpu())
                                      : ranks_ones(4),
                                  .group = world);
    case 5:
        return ek_dist_all_gather(ranks_ones(10), list, .group = world);
    default:
        return ek_dist_all_to_all(.inputs = list, .list = list, .group = world);
    }
}

static const struct {
    int status;
    const char *sentence;
} differences[] = {
    {EK_E_STATE, "rank 0 calls all_reduce of f32[4] by SUM, rank 1 barrier"},
    {EK_E_STATE, "rank 0 calls all_reduce of f32[4] by SUM, rank 1 all_reduce of f32[5] by SUM"},
    {EK_E_STATE, "rank 0 calls broadcast of f32[4], root rank 0, rank 1 broadcast of f32[4], root "
                 "rank 1"},
    {EK_E_STATE, "rank 1 all_reduce of f32[4] by MAX"},
    {EK_E_STATE, "rank 1 all_reduce of f64[4] by SUM"},
    {EK_E_SHAPE, "rank 2 gives f32[10] to rank 1, which awaits f32[11]"},
    {EK_E_SHAPE, "rank 2 gives f32[10] to rank 1, which awaits f32[11]"},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };

static const char *they_differ(ek_process_group *world, void *user)
{
    int what = *(const int *)user;
    for (int round = 0; round < 2; round++) {
        RANKS_EXPECT(differing_call(world, what), differences[what].status,
                     differences[what].sentence);
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(calls_that_differ_fail_on_all_ranks_alike, 0, DIFFERENCES)
{
    ranks_check(RANKS, (uint64_t)_i, they_differ, &_i);
}

/* What differs in one group is an error in others too, in which the ranks would wait for each
 * other. */
static const char *differ_elsewhere(ek_process_group *world, void *user)
{
    int all[RANKS] = {0, 1, 2};
    ek_process_group *group = ek_communication_new_group(world->communication, all, RANKS, 60);
    ek_dist_work *work = NULL;
    LOOP_CHECK(group);
    if (world->rank != 1)
        RANKS_OK(ek_dist_all_reduce(ranks_ones(4), .group = group, .work = &work));
    RANKS_EXPECT(world->rank == 1 ? ek_dist_all_reduce(ranks_ones(4), .group = world)
                                  : ek_dist_barrier(.group = world),
                 EK_E_STATE, "rank 0 calls barrier, rank 1 all_reduce");
    if (world->rank == 0)
        RANKS_EXPECT(ek_dist_wait(work), EK_E_STATE, "rank 1 all_reduce");
    if (world->rank == 2)
        RANKS_EXPECT(ek_dist_wait(work), EK_E_ABORTED, "rank 1 all_reduce");
    LOOP_PASS(ranks_work(world));
    RANKS_OK(ek_dist_all_reduce(ranks_ones(4), .group = group));
    ek_communication_destroy_group(group);
    return NULL;
}

TEST_LOOP(calls_that_differ_end_other_calls_too, 0, 4)
{
    ranks_check(RANKS, (uint64_t)_i, differ_elsewhere, NULL);
}

/* With .check off the ranks compare what kind of call each makes, and no more. */
TEST(kinds_of_calls_are_always_compared)
{
    int what = 0;
    ranks_run run = {.loop = loop_new(RANKS, 1),
                     .function = they_differ,
                     .user = &what,
                     .lax = true};
    assert_loop(run.loop, ranks_of, &run);
    loop_free(run.loop);
}

/* ---- a failure that takes long to drain ---- */

static atomic_int committed, released;

static ek_readiness slow_is_ready(ek_dist_work *work)
{
    return work->group->rank > 0 || atomic_load(&released) ? EK_READY : EK_AWAITS_CALLER;
}

static int slow_go_on(ek_dist_work *work)
{
    return 0;
}

static const ek_verb slow = {.id = EK_VERB_BARRIER, .go_on = slow_go_on, .ready = slow_is_ready};

/* Rank 2 fails while rank 0 is in a call that needs two seconds more. */
static const char *drains_slowly(ek_process_group *world, void *user)
{
    int members[] = {0, 1};
    ek_process_group *pair = ek_communication_new_group(world->communication, members, 2, 60);
    LOOP_CHECK(pair);
    if (world->rank == 2) {
        while (!atomic_load(&committed))
            usleep(1000);
        LOOP_CHECK(raise_on(world, "meanwhile") == EK_E_OUT_OF_MEMORY);
    } else {
        ek_dist_work *work = ek_dist_work_new(pair, &slow, 0);
        LOOP_CHECK(work);
        RANKS_OK(ek_dist_work_run(work));
        atomic_store(&committed, 1);
        if (world->rank == 1) {
            usleep(2000000);
            atomic_store(&released, 1);
        }
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "meanwhile");
    }
    ek_communication_destroy_group(pair);
    return ranks_work(world);
}

TEST(a_failure_waits_for_calls_that_take_long)
{
    ranks_check(RANKS, 1, drains_slowly, NULL);
}

/* Rank 1 runs with another MPI. */
static const char *builds_differ(int rank, void *user)
{
    static ek_transport other;
    const ek_transport *transport = loop_transport();
    if (rank == 1) {
        other = *transport;
        other.name = "another loop";
        transport = &other;
    }
    ek_communication *communication;
    RANKS_EXPECT(ek_communication_open(transport, loop_rank(user, rank), 0, 60, true, NULL, NULL,
                                       &communication),
                 EK_E_BACKEND, "with another loop; all ranks need one build");
    return NULL;
}

TEST(ranks_of_different_builds_do_not_meet)
{
    loop *l = loop_new(3, 1);
    assert_loop(l, builds_differ, l);
    loop_free(l);
}
