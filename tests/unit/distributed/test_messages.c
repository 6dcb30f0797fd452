/* Messages between two ranks. */
#include "core/tensor.h"
#include "kit/ranks.h"

static ek_tensor *filled(double value, int64_t n)
{
    return ek_full(value, EK_SHAPE(n), .device = test_home());
}

static const char *to_and_fro(ek_process_group *world, void *user)
{
    int64_t sizes[] = {0, 1, 1000, 200000};
    for (int s = 0; s < 4; s++) {
        ek_tensor *x = filled(world->rank, sizes[s]);
        if (world->rank == 0) {
            RANKS_OK(ek_dist_send(ek_add_scalar(x, 1), 1, .group = world));
            LOOP_CHECK(ek_dist_recv(x, 1, .group = world) == 1);
            LOOP_CHECK(sizes[s] == 0 || element(x, sizes[s] - 1) == 2);
        } else if (world->rank == 1) {
            RANKS_OK(ek_dist_recv(x, 0, .group = world));
            RANKS_OK(ek_dist_send(ek_add_scalar(x, 1), 0, .group = world));
        }
    }
    return NULL;
}

TEST_LOOP(a_message_comes_back, 0, 4)
{
    ranks_check(2 + _i % 2, (uint64_t)_i, to_and_fro, NULL);
}

/* Tags match whatever the order; messages of one tag keep theirs. */
RANKS_LOOP(tags_match_and_keep_their_order, 2, 0, 6)
{
    ek_dist_work *works[6];
    ek_tensor *x[6];
    for (int i = 0; i < 6; i++) {
        if (world->rank == 0) {
            x[i] = filled(i, 100);
            RANKS_OK(ek_dist_send(x[i], 1, .tag = i % 3, .group = world, .work = &works[i]));
        } else {
            int k = 5 - i; /* tags 2 1 0 2 1 0 */
            x[i] = filled(-1, 100);
            RANKS_OK(ek_dist_recv(x[i], i % 2 ? 0 : EK_DIST_ANY, .tag = k % 3, .group = world,
                                  .work = &works[i]));
        }
        LOOP_CHECK(works[i]);
    }
    for (int i = 0; i < 6; i++)
        RANKS_OK(ek_dist_wait(works[i]));
    double wanted[] = {2, 1, 0, 5, 4, 3};
    for (int i = 0; i < 6 && world->rank == 1; i++)
        LOOP_CHECK(element(x[i], 99) == wanted[i]);
    return NULL;
}

RANKS_LOOP(a_receive_of_any_rank_says_which, 4, 0, 4)
{
    if (world->rank > 0) {
        RANKS_OK(ek_dist_send(filled(world->rank, 10), 0, .group = world));
        return NULL;
    }
    int seen = 0;
    for (int r = 1; r < world->size; r++) {
        ek_tensor *x = filled(0, 10);
        int from = ek_dist_recv(x, EK_DIST_ANY, .group = world);
        RANKS_OK(from);
        LOOP_CHECK(element(x, 0) == from);
        seen |= 1 << from;
    }
    LOOP_CHECK(seen == (1 << world->size) - 2);
    return NULL;
}

RANKS_LOOP(messages_that_do_not_fit_fail_on_both_ranks, 2, 0, 3)
{
    if (world->rank == 0) {
        RANKS_EXPECT(ek_dist_send(filled(1, 4), 1, .group = world), EK_E_SHAPE,
                     "f32[4] is sent, but f32[3] is to be received");
        RANKS_EXPECT(ek_dist_send(ek_zeros(EK_SHAPE(3), EK_F64, .device = ek_cpu()), 1,
                                  .group = world),
                     EK_E_DTYPE, "f64[3] is sent");
    } else {
        RANKS_EXPECT(ek_dist_recv(filled(1, 3), 0, .group = world), EK_E_SHAPE,
                     "rank 0 to rank 1 (tag 0): f32[4]");
        RANKS_EXPECT(ek_dist_recv(filled(1, 3), 0, .group = world), EK_E_DTYPE, "f64[3] is sent");
    }
    return to_and_fro(world, NULL);
}

/* Wrong arguments fail on the rank, and on the one that would wait for it. */
RANKS_LOOP(wrong_messages_are_the_other_rank_s_error_too, 2, 0, 3)
{
    if (world->rank == 0) {
        RANKS_EXPECT(ek_dist_send(filled(1, 3), 7, .group = world), EK_E_INVALID,
                     "rank 7 is not in the world");
    } else {
        RANKS_EXPECT(ek_dist_recv(filled(1, 3), 0, .group = world), EK_E_ABORTED, "rank 7");
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 0)
        RANKS_EXPECT(ek_dist_send(filled(1, 3), 0, .group = world), EK_E_INVALID, "itself");
    else
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "itself");
    if (world->rank == 0)
        RANKS_EXPECT(ek_dist_send(filled(1, 3), 1, .tag = -1, .group = world), EK_E_INVALID,
                     "tag -1");
    else
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "tag -1");
    return to_and_fro(world, NULL);
}
