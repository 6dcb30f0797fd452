/* Groups of more ranks than send to each other directly: what travels in rounds then. */
#include "autograd/shards.h"
#include "core/ranks.h"
#include "core/tensor.h"
#include "group/world.h"
#include "kit/ranks.h"
#include "kit/same.h"

NAMES_DEVICES
COST(10)

enum { SEEDS = 3 };

static int size_of(int index)
{
    return index % 2 ? 16 : 11; /* a power of two, and none */
}

/* ---- tensors ---- */

static ek_tensor *counted(int64_t n, double value)
{
    ek_tensor *x = ek_full(value, EK_SHAPE(n), EK_F64, .device = ek_cpu());
    if (x && n > 1)
        ((double *)ek_tensor_address(x))[n - 1] = 1;
    return x;
}

/* Rank r has r + 1 elements, all of them r, for the others. */
static const char *lists(ek_process_group *world)
{
    ek_tensor *list[MOST];
    for (int r = 0; r < world->size; r++)
        list[r] = counted(r + 1, -1);
    RANKS_OK(ek_dist_all_gather(ek_full(world->rank, EK_SHAPE(world->rank + 1), EK_F64,
                                        .device = ek_cpu()),
                                list, .group = world));
    for (int r = 0; r < world->size; r++)
        for (int64_t i = 0; i <= r; i++)
            LOOP_CHECK(element(list[r], i) == r);
    RANKS_EXPECT(ek_dist_all_gather(counted(2, 0), list, .group = world), EK_E_SHAPE,
                 "rank 0 gives f64[2] to rank 0, which awaits f64[1]");
    return NULL;
}

static const char *tensors(ek_process_group *world, void *user)
{
    int size = world->size, rank = world->rank;
    double sum = size * (size - 1) / 2.;
    for (int64_t n = 1; n < 3000; n = 7 * n + 3) {
        ek_tensor *x = counted(n, rank), *y = counted(n, rank), *z = counted(n, rank);
        RANKS_OK(ek_dist_all_reduce(x, .group = world));
        LOOP_CHECK(element(x, 0) == sum && (n == 1 || element(x, n - 1) == size));
        RANKS_OK(ek_dist_reduce(y, size - 2, .op = EK_DIST_MAX, .group = world));
        LOOP_CHECK(element(y, 0) == (rank == size - 2 ? size - 1 : rank));
        RANKS_OK(ek_dist_broadcast(z, size - 1, .group = world));
        LOOP_CHECK(element(z, 0) == size - 1);
    }
    RANKS_OK(
        ek_dist_broadcast(ek_empty(EK_SHAPE(0), EK_F64, .device = ek_cpu()), 1, .group = world));
    RANKS_OK(ek_dist_barrier(.group = world));
    return lists(world);
}

TEST_LOOP(tensors_reach_all_ranks, 0, 2 * SEEDS)
{
    ranks_check(size_of(_i), (uint64_t)(_i / 2), tensors, NULL);
}

/* ---- joins and counts ---- */

static const char *joins(ek_process_group *world, void *user)
{
    ek_ranks *ranks = ek_ranks_of(world);
    LOOP_CHECK(ranks);
    int64_t mine[3] = {world->rank, 7, -world->rank}, all[3 * MOST];
    RANKS_OK(ranks->gather(ranks, mine, 3, all));
    for (int r = 0; r < world->size; r++)
        LOOP_CHECK(all[3 * r] == r && all[3 * r + 1] == 7 && all[3 * r + 2] == -r);
    ek_tensor *x = ek_full(world->rank, EK_SHAPE(world->rank % 3), EK_F64, .device = ek_cpu());
    RANKS_OK(ek_tensor_set_requires_grad(x, world->rank == 10));
    ek_tensor *joined = ek_dist_join(x, 0, world);
    LOOP_CHECK(joined && ek_tensor_requires_grad(joined)); /* rank 10's is enough */
    for (int64_t r = 0, at = 0; r < world->size; at += r++ % 3)
        for (int64_t i = 0; i < r % 3; i++)
            LOOP_CHECK(element(joined, at + i) == r);
    RANKS_OK(ek_backward(ek_sum(joined)));
    LOOP_CHECK(world->rank != 10 || element(ek_tensor_grad(x), 0) == world->size);
    ek_tensor *y = counted(2, 0);
    RANKS_OK(ek_tensor_set_requires_grad(y, world->rank == 10));
    bool enabled = ek_set_grad_enabled(world->rank != 9);
    ek_tensor *sum = ek_dist_sum(y, world);
    int rc = sum ? 0 : ek_error_status();
    ek_set_grad_enabled(enabled);
    RANKS_EXPECT(rc, EK_E_STATE,
                 "rank 10's tensor requires a gradient, but gradient mode is off on rank 9");
    ek_object_release(ranks);
    return NULL;
}

TEST_LOOP(ranks_join_and_count, 0, 2 * SEEDS)
{
    ranks_check(size_of(_i), (uint64_t)(_i / 2), joins, NULL);
}

/* ---- failures ---- */

static const char *fails(ek_process_group *world, void *user)
{
    for (int turn = 0; turn < 3; turn++) {
        bool odd = world->rank == 10;
        RANKS_EXPECT(odd ? ek_dist_barrier(.group = world)
                         : ek_dist_all_reduce(counted(2, 0), .group = world),
                     EK_E_STATE,
                     "rank 0 calls all_reduce of f64[2] by SUM, rank 10 barrier; all ranks");
        RANKS_EXPECT(ek_dist_all_reduce(odd ? NULL : counted(2, 0), .group = world),
                     odd ? EK_E_INVALID : EK_E_ABORTED, "tensor is NULL");
        LOOP_PASS(ranks_work(world));
    }
    return NULL;
}

TEST_LOOP(calls_that_differ_are_named, 0, 2 * SEEDS)
{
    ranks_check(size_of(_i), (uint64_t)(_i / 2), fails, NULL);
}

/* ---- backwards and steps ---- */

static const char *trains(same_pair *pair)
{
    ek_optimizer *optimizer = pair->optimizers[SHARDED];
    tensor_list list = same_parameters(pair, SHARDED);
    bool odd = pair->group->rank == 10;
    LOOP_PASS(same_trains(pair));
    ek_zero_grad(optimizer);
    RANKS_OK(same_backward(pair, SHARDED, 1));
    if (odd)
        RANKS_OK(ek_tensor_set_grad(list.tensors[1], NULL));
    RANKS_EXPECT(ek_step(optimizer), EK_E_STATE, "and rank 10 of ");
    return NULL;
}

SAME_LOOP(many_ranks_train, 0, 4, .ranks = size_of(_i), .how = _i < 2 ? HALF_UNUSED : ONCE,
          .algorithm = ADAM, .cap = 0.001, .steps = 2)
{
    return trains(pair);
}

/* The optimizer's step fails on one rank, and no notice tells the others. */
SAME_LOOP(an_error_of_one_rank_is_told, 0, 2, .ranks = size_of(_i), .algorithm = ADAM)
{
    ek_shards *shards = ek_leaf_shards(same_parameters(pair, SHARDED).tensors[0]);
    bool odd = pair->group->rank >= 9;
    for (int i = 0; i < shards->leaf_count; i++)
        shards->stepped[i] = true;
    RANKS_OK(shards->refresh(shards));
    RANKS_OK(shards->agree(shards, 0));
    int rc =
        shards->publish(shards, odd ? ek_error(EK_E_USER, "rank %d is odd", pair->group->rank) : 0);
    shards->leave(shards);
    char wanted[40];
    snprintf(wanted, sizeof wanted, "rank %d is odd", odd ? pair->group->rank : 9);
    RANKS_EXPECT(rc, odd ? EK_E_USER : EK_E_ABORTED, wanted);
    return NULL;
}
