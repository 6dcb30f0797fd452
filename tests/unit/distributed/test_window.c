/* Memory that ranks of one machine share, and gradients that are averaged in it. */
#include "core/tensor.h"
#include "kit/models.h"
#include "kit/ranks.h"
#include "train/window.h"

enum { RANKS = 3, NBYTES = 10000 };

/* ---- windows ---- */

RANKS_TEST(ranks_write_to_each_others_memory, RANKS, 1)
{
    ek_window *window;
    RANKS_OK(ek_window_open(world, NBYTES, true, &window));
    LOOP_CHECK(window);
    char *own = ek_window_memory(window, world->rank);
    LOOP_CHECK_EQ((uintptr_t)own % 64, 0);
    for (int r = 0; r < RANKS; r++) { /* each rank writes a byte of every part */
        LOOP_CHECK_EQ(ek_window_memory(window, r)[NBYTES - 1 - world->rank], 0);
        ek_window_memory(window, r)[NBYTES - 1 - world->rank] = (char)(10 * r + world->rank + 1);
    }
    ek_window_set(window, 1, 2);
    RANKS_OK(ek_dist_barrier(.group = world));
    LOOP_CHECK(ek_window_has(window, 1, 2) && !ek_window_has(window, 1, 3));
    for (int r = 0; r < RANKS; r++) {
        LOOP_CHECK_EQ(ek_window_count(window, r, 1), 2);
        LOOP_CHECK_EQ(own[NBYTES - 1 - r], 10 * world->rank + r + 1);
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    ek_object_release(window);
    return NULL;
}

/* The last rank does not want to, or has another size. */
static const char *one_cannot(ek_process_group *world, void *user)
{
    bool last = world->rank == RANKS - 1, size = *(bool *)user;
    ek_window *window;
    RANKS_OK(ek_window_open(world, size && last ? 2 * NBYTES : NBYTES, size || !last, &window));
    LOOP_CHECK(!window);
    LOOP_CHECK_EQ(ek_error_status(), 0);
    return NULL;
}

TEST(no_rank_shares_unless_all_can)
{
    ranks_check(RANKS, 2, one_cannot, &(bool){false});
    ranks_check(RANKS, 3, one_cannot, &(bool){true});
}

static const char *none_is_made(ek_process_group *world, void *user)
{
    ek_window *window;
    RANKS_OK(ek_window_open(world, NBYTES, true, &window));
    LOOP_CHECK(!window);
    return NULL;
}

TEST(the_environment_can_forbid_it)
{
    setenv("EVENKEEL_DIST_SHARED_MEMORY", "0", 1);
    ranks_check(RANKS, 4, none_is_made, NULL);
    unsetenv("EVENKEEL_DIST_SHARED_MEMORY");
}

/* ---- gradients ---- */

/* y = x a + x b + x c, with a and c of f32 and b of f64, so that slabs take turns. */
typedef struct mixed {
    ek_module module;
    ek_tensor *a, *b, *c;
} mixed;

enum { WIDE = 1237, STEPS = 3, ROOM = 3 * WIDE };

static ek_value mixed_forward(ek_module *module, const ek_args *args)
{
    mixed *self = (mixed *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_add(ek_mul(x, self->a), ek_mul(x, self->c));
    return ek_value_of_tensor(
        ek_add(ek_to_dtype(y, EK_F64), ek_mul(ek_to_dtype(x, EK_F64), self->b)));
}

MODULE_TYPE(mixed, mixed)

static mixed *new_mixed(void)
{
    mixed *self = (mixed *)ek_module_new(&mixed_type);
    ek_shape wide = EK_SHAPE(WIDE);
    ek_register_parameter(&self->module, "a", &self->a, ek_full(1, wide, .device = ek_cpu()));
    ek_register_parameter(&self->module, "b", &self->b,
                          ek_full(2, wide, .dtype = EK_F64, .device = ek_cpu()));
    ek_register_parameter(&self->module, "c", &self->c, ek_full(3, wide, .device = ek_cpu()));
    return self;
}

/* What rank 1 ends with. */
typedef struct outcome {
    bool shares;
    uint64_t buckets;
    double gradients[ROOM];
} outcome;

static ek_tensor *sample(int rank, int step)
{
    float values[WIDE];
    for (int i = 0; i < WIDE; i++)
        values[i] = (float)sin(i * 1.3 + rank * 7.7 + step);
    return ek_from_data(values, EK_SHAPE(WIDE), EK_F32, .device = ek_cpu());
}

static const char *gradients_are_averaged(ek_process_group *world, void *user)
{
    outcome *o = user;
    mixed *net = new_mixed();
    RANKS_OK(ek_dist_barrier(.group = world));
    ek_module *model =
        ek_distributed_data_parallel(&net->module, .process_group = world, .bucket_cap_mb = 0.006);
    LOOP_CHECK(model);
    for (int step = 0; step < STEPS; step++) /* they add up */
        RANKS_OK(ek_backward(ek_sum(ek_apply(model, sample(world->rank, step)))));
    const ek_tensor *gradients[] = {ek_tensor_grad(net->a), ek_tensor_grad(net->b),
                                    ek_tensor_grad(net->c)};
    ek_distributed_stats stats;
    RANKS_OK(ek_distributed_get_stats(model, &stats));
    if (world->rank == 1) {
        o->shares = stats.shares_memory;
        o->buckets = stats.buckets;
        for (int i = 0; i < ROOM; i++)
            o->gradients[i] = element(gradients[i / WIDE], i % WIDE);
    }
    ek_module_free(model);
    return NULL;
}

TEST(gradients_are_those_that_travel_as_messages)
{
    static outcome shared, sent;
    ranks_check(RANKS, 5, gradients_are_averaged, &shared);
    setenv("EVENKEEL_DIST_SHARED_MEMORY", "0", 1);
    ranks_check(RANKS, 6, gradients_are_averaged, &sent);
    unsetenv("EVENKEEL_DIST_SHARED_MEMORY");
    ck_assert(shared.shares);
    ck_assert(!sent.shares);
    ck_assert_int_eq(shared.buckets, sent.buckets);
    ck_assert_int_eq(shared.buckets, 3 * STEPS);
    for (int i = 0; i < ROOM; i++) {
        double sum = 0;
        for (int r = 0; r < RANKS; r++)
            for (int step = 0; step < STEPS; step++)
                sum += (double)(float)sin(i % WIDE * 1.3 + r * 7.7 + step);
        ck_assert(fabs(shared.gradients[i] - sum / RANKS) <= 1e-6);
    }
    ck_assert_int_eq(memcmp(shared.gradients, sent.gradients, sizeof sent.gradients), 0);
}
