/* Sums that travel level by level: between ranks, and between machines whose ranks share memory. */
#include "core/tensor.h"
#include "group/sum.h"
#include "kit/models.h"
#include "kit/ranks.h"

NAMES_DEVICES
COST(15)

/* Puts `per_machine` ranks on each machine, in this rank's view. */
static void put_on_machines(const ek_process_group *world, int per_machine)
{
    for (int r = 0; r < world->size; r++)
        snprintf(world->communication->hosts[r], sizeof world->communication->hosts[r], "m%d",
                 r / per_machine);
}

/* ---- blocks ---- */

/* Machines have these ranks; `block` is what ek_sum_block says. */
typedef struct placing {
    int ranks, machines[6], block;
} placing;
static const placing placings[] = {
    {6, {0, 0, 0, 0, 0, 0}, 6},
    {6, {0, 1, 2, 3, 4, 5}, 1},
    {6, {0, 0, 1, 1, 2, 2}, 2},
    {5, {0, 0, 1, 1, 2}, 2},
    {6, {0, 0, 0, 1, 1, 1}, 1},
    {6, {0, 0, 0, 0, 1, 1}, 4},
    {5, {0, 0, 0, 0, 1}, 4},
    {6, {0, 0, 1, 1, 1, 1}, 1},
    {4, {0, 0, 1, 2}, 1},
    {4, {0, 1, 0, 1}, 1},
    {2, {0, 1}, 1},
};
enum { PLACINGS = sizeof placings / sizeof *placings };

RANKS_TEST(ranks_of_machines_are_blocks, 6, 0)
{
    for (int i = 0; i < PLACINGS; i++) {
        ek_process_group group = *world;
        for (int r = 0; r < 6; r++)
            snprintf(world->communication->hosts[r], 64, "m%d", placings[i].machines[r]);
        group.size = placings[i].ranks;
        LOOP_CHECK_EQ(ek_sum_block(&group), placings[i].block);
    }
    return NULL;
}

/* ---- messages ---- */

static float term(int rank, int64_t i)
{
    uint32_t x = (uint32_t)(rank * 7919 + i) * 2654435761U;
    return (float)(x >> 8) * 1e-3F * (x & 1 ? 1 : -1);
}

/* The sum of terms lo to hi - 1 by its definition. */
static float tree(int64_t i, int lo, int hi)
{
    int mid = lo + 1;
    if (hi - lo == 1)
        return term(lo, i);
    while (2 * (mid - lo) < hi - lo)
        mid = lo + 2 * (mid - lo);
    return tree(i, lo, mid) + tree(i, mid, hi);
}

enum { LARGE = 70000 };

/* The means of all ranks' terms: what each rank is to get. They are made once for all. */
static float *means;

static void make_means(int ranks, int64_t count)
{
    means = realloc(means, sizeof *means * (size_t)count);
    ck_assert_ptr_nonnull(means);
    for (int64_t i = 0; i < count; i++)
        means[i] = tree(i, 0, ranks) / (float)ranks;
}

static const char *check_elements(const ek_tensor *x, int64_t count)
{
    const float *values = ek_tensor_address(x);
    for (int64_t i = 0; i < count; i++)
        if (!(values[i] == means[i]))
            return loop_failure(__FILE__, __LINE__, "element %lld: %.9g, not %.9g", (long long)i,
                                (double)values[i], (double)means[i]);
    return NULL;
}

static ek_tensor *own_terms(int rank, int64_t count)
{
    ek_tensor *x = ek_empty(EK_SHAPE(count), EK_F32, .device = ek_cpu());
    float *values = ek_tensor_address(x);
    for (int64_t i = 0; i < count; i++)
        values[i] = term(rank, i);
    return x;
}

/* A mean of all elements, and one for the last rank alone. */
static const char *means_are_of_the_tree(ek_process_group *world, void *user)
{
    const int per_machine = *(int *)user;
    put_on_machines(world, per_machine);
    ek_tensor *x = own_terms(world->rank, LARGE), *y = own_terms(world->rank, LARGE);
    RANKS_OK(ek_dist_all_reduce(x, .op = EK_DIST_AVG, .group = world));
    LOOP_PASS(check_elements(x, LARGE));
    RANKS_OK(ek_dist_reduce(y, world->size - 1, .op = EK_DIST_AVG, .group = world));
    if (world->rank == world->size - 1)
        return check_elements(y, LARGE);
    for (int64_t i = 0; i < LARGE; i++)
        LOOP_CHECK(((float *)ek_tensor_address(y))[i] == term(world->rank, i));
    return NULL;
}

TEST_LOOP(large_tensors_are_summed_by_the_tree, 4, 18)
{
    make_means(_i, LARGE);
    for (int per_machine = 1; per_machine <= 8; per_machine *= 2)
        ranks_check(_i, (uint64_t)(_i % 2 * 3), means_are_of_the_tree, &per_machine);
}

/* ---- gradients of machines ---- */

enum { WIDE = 3001, STEPS = 2, PIECES = 2 * (8 << 20) / 4 + 100 };

typedef struct scene {
    int per_machine, buckets;
    int64_t count; /* elements of a parameter */
    bool shares, shards;
} scene;

/* The gradient of a parameter w in sum(w x) is x. */
typedef struct linear {
    ek_module module;
    ek_tensor *w[4];
} linear;

static ek_value linear_forward(ek_module *module, const ek_args *args)
{
    linear *self = (linear *)module;
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_mul(x, self->w[0]);
    for (int k = 1; k < 4; k++)
        y = ek_add(y, ek_mul(x, self->w[k]));
    return ek_value_of_tensor(y);
}

MODULE_TYPE(linear, linear)

static const char *gradients_are_of_the_tree(ek_process_group *world, void *user)
{
    const scene *s = user;
    put_on_machines(world, s->per_machine);
    linear *net = (linear *)ek_module_new(&linear_type);
    for (int k = 0; k < 4; k++) {
        const char name[] = {(char)('a' + k), 0};
        ek_register_parameter(&net->module, name, &net->w[k],
                              ek_full(1, EK_SHAPE(s->count), .device = ek_cpu()));
    }
    ek_module *model =
        ek_distributed_data_parallel(&net->module, .process_group = world, .bucket_cap_mb = 0.012,
                                     .shard = s->shards ? EK_SHARD_OPTIMIZER : 0);
    LOOP_CHECK(model);
    ek_optimizer *optimizer = ek_sgd(model, .lr = 1);
    LOOP_CHECK(optimizer);
    for (int step = 0; step < STEPS; step++) {
        ek_zero_grad(optimizer);
        RANKS_OK(ek_backward(ek_sum(ek_apply(model, own_terms(world->rank, s->count)))));
        for (int k = 0; k < 4 && !s->shards; k++)
            LOOP_PASS(check_elements(ek_tensor_grad(net->w[k]), s->count));
        RANKS_OK(ek_step(optimizer));
    }
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < s->count; i++)
            LOOP_CHECK(((float *)ek_tensor_address(net->w[k]))[i] == 1 - means[i] - means[i]);
    ek_distributed_stats stats;
    RANKS_OK(ek_distributed_get_stats(model, &stats));
    LOOP_CHECK_EQ(stats.shares_memory, s->shares);
    LOOP_CHECK_EQ(stats.buckets, s->buckets * STEPS);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    return NULL;
}

/* Ranks and ranks of a machine. */
static const int machines[][2] = {{4, 2}, {8, 4}, {6, 2}, {7, 2}, {5, 4},  {3, 2},
                                  {9, 4}, {4, 8}, {3, 1}, {9, 1}, {12, 4}, {10, 2}};

TEST_LOOP(machines_average_gradients_by_the_tree, 0, 12 * 3)
{
    const int *m = machines[_i / 3];
    scene s = {.per_machine = m[1],
               .buckets = 4,
               .count = WIDE,
               .shares = m[1] > 1,
               .shards = _i % 3 == 2};
    if (_i % 3 == 1) {
        s.shares = false;
        setenv("EVENKEEL_DIST_SHARED_MEMORY", "0", 1);
    }
    make_means(m[0], WIDE);
    ranks_check(m[0], (uint64_t)(_i % 4), gradients_are_of_the_tree, &s);
    unsetenv("EVENKEEL_DIST_SHARED_MEMORY");
}

/* Leaves of more than 8 MiB are three buckets each. */
TEST_LOOP(pieces_of_large_leaves_are_averaged, 0, 3)
{
    scene s = {.per_machine = 1 << _i, .buckets = 4 * 3, .count = PIECES, .shares = _i > 0};
    make_means(3, PIECES);
    ranks_check(3, 0, gradients_are_of_the_tree, &s);
}
