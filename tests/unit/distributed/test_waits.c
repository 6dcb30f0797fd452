/* Who waits for whom. A rank is held back until the others wait, and they are held back until it
 * has gone on: what is measured then has one order, however long anything takes. */
#include <unistd.h>

#include "core/ranks.h"
#include "evenkeel/function.h"
#include "group/world.h"
#include "kit/ranks.h"

enum { HELD = 1, ROUNDS = 3 };

/* Waits until rank 0 has started so many transfers, and lets nothing reach it from then on. */
static void hold_until(loop *l, int transfers)
{
    while (loop_transfers(l, 0) < transfers)
        usleep(100);
    loop_stop(l, 0);
}

/* ---- calls that end at once ---- */

static const char *meets(ek_process_group *world, void *user)
{
    loop *l = user;
    for (int i = 0; i < ROUNDS; i++) {
        if (world->rank == HELD)
            hold_until(l, loop_transfers(l, HELD) + 1);
        RANKS_OK(ek_dist_barrier(.group = world));
        if (world->rank == HELD)
            loop_resume(l, 0);
    }
    RANKS_OK(ek_dist_barrier(.group = world)); /* tells of the last round */
    ek_ranks *ranks = ek_process_group_ranks(world);
    ek_ranks_wait of[2];
    LOOP_CHECK(ranks);
    uint64_t exposed = ranks->waits(ranks, of);
    ek_object_release(ranks);
    LOOP_CHECK_EQ(of[HELD].calls, ROUNDS);
    LOOP_CHECK_EQ(of[0].calls, 0);
    LOOP_CHECK_EQ(of[0].waited, 0);
    if (world->rank == HELD)
        LOOP_CHECK_EQ(of[HELD].waited, 0);
    else
        LOOP_CHECK(of[HELD].waited > 0);
    LOOP_CHECK(exposed > 0);
    return NULL;
}

TEST(the_rank_that_comes_last_is_waited_for)
{
    loop *l = loop_new(2, 0);
    ranks_run run = {.loop = l, .function = meets, .user = l};
    assert_loop(l, ranks_of, &run);
    loop_free(l);
}

/* ---- backwards ---- */

typedef struct held {
    loop *loop;
    int until; /* what hold_until waits for in the backward; 0: it does not */
} held;

static int pass_forward(ek_function_call *call, ek_tensor *const *inputs, ek_tensor **outputs)
{
    outputs[0] = ek_clone(inputs[0]);
    return 0;
}

/* Runs when all parameters have their gradients. */
static int pass_backward(ek_function_call *call, ek_tensor *const *gradients, ek_tensor **results)
{
    const held *h = ek_function_user(call);
    if (h->until)
        hold_until(h->loop, h->until);
    results[0] = gradients[0];
    return 0;
}

static const ek_function pass = {.name = "pass",
                                 .forward = pass_forward,
                                 .backward = pass_backward};

static const char *goes_back(ek_module *model, held *h)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), .device = ek_cpu()), *y;
    RANKS_OK(ek_tensor_set_requires_grad(x, true));
    RANKS_OK(ek_function_apply_user(&pass, &x, 1, &y, h));
    RANKS_OK(ek_backward(ek_sum(ek_apply(model, y))));
    return NULL;
}

static const char *trains(ek_process_group *world, void *user)
{
    held h = {.loop = user};
    ek_distributed_stats stats;
    ek_module *model = ek_distributed_data_parallel(ek_linear(3, 2), .process_group = world);
    LOOP_CHECK(model);
    RANKS_OK(ek_distributed_get_stats(model, &stats));
    LOOP_CHECK_EQ(stats.waited_for, -1);
    LOOP_CHECK(stats.waited == 0 && stats.exposed == 0 && stats.communicating == 0);
    int before = loop_transfers(h.loop, world->rank);
    LOOP_PASS(goes_back(model, &h));
    int each = loop_transfers(h.loop, world->rank) - before;
    for (int i = 0; i < ROUNDS; i++) {
        if (world->rank == HELD)
            h.until = loop_transfers(h.loop, HELD) + each;
        LOOP_PASS(goes_back(model, &h));
        if (world->rank == HELD)
            loop_resume(h.loop, 0);
    }
    h.until = 0;
    LOOP_PASS(goes_back(model, &h)); /* tells of the one before */
    RANKS_OK(ek_distributed_get_stats(model, &stats));
    LOOP_CHECK_EQ(stats.backwards, ROUNDS + 2);
    LOOP_CHECK_EQ(stats.waited_for, HELD);
    LOOP_CHECK(stats.communicating > 0 && stats.exposed > 0);
    if (world->rank != HELD)
        LOOP_CHECK(stats.waited > 0);
    ek_module_free(model);
    return NULL;
}

TEST(the_rank_that_ends_its_backward_last_is_waited_for)
{
    loop *l = loop_new(2, 0);
    ranks_run run = {.loop = l, .function = trains, .user = l};
    assert_loop(l, ranks_of, &run);
    loop_free(l);
}
