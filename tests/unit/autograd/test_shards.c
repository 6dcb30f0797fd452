/* Leaves in shards: where gradients go, and how they come back. */
#include "kit/shards.h"
#include "toy.h"

enum { ROWS = 5, COLUMNS = 7, COUNT = ROWS * COLUMNS };
static const int64_t ends[] = {4, 4, 20, COUNT}; /* the second is empty */
enum { PIECES = sizeof ends / sizeof *ends };

/* ---- leaves ---- */

static ek_tensor *filled(ek_device device, ek_dtype dtype, const ek_shape *shape,
                         const int64_t *strides, double first)
{
    ek_tensor *tensor = strides ? ek_tensor_new_strided(ek_dev_get(device), dtype, shape, strides)
                                : ek_tensor_new(ek_dev_get(device), dtype, shape, EK_CONTIGUOUS);
    assert_made(tensor);
    double values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = first + i * i;
    ek_tensor *source = tensor_of(values, *shape, dtype, device);
    assert_ok(ek_kernels_of(tensor)->copy(ek_tensor_dev(tensor), tensor, source));
    return tensor;
}

static ek_tensor *matrix(double first)
{
    ek_shape shape = EK_SHAPE(ROWS, COLUMNS);
    return filled(test_device(0), EK_F32, &shape, NULL, first);
}

static ek_tensor *leaf_of(double first)
{
    ek_tensor *leaf = matrix(first);
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    return leaf;
}

static ek_tensor *zeros(int device, int64_t count)
{
    ek_tensor *tensor = ek_empty(EK_SHAPE(count), .device = test_device(device));
    assert_made(tensor);
    assert_ok(ek_kernels_of(tensor)->fill(ek_tensor_dev(tensor), tensor, 0));
    return tensor;
}

/* Shards on device 0, 1, 2, 0; every other one with a slot. One reference. */
static ek_shards *shards_of(const int64_t *shard_ends, int count)
{
    ek_shards *shards = hand_shards(count);
    ck_assert_ptr_nonnull(shards);
    for (int i = 0; i < count; i++) {
        int64_t elements = shard_ends[i] - (i ? shard_ends[i - 1] : 0);
        ek_tensor *tensor = zeros(i % 3, elements);
        assert_ok(ek_tensor_set_requires_grad(tensor, true));
        if (i % 2 == 0)
            assert_ok(ek_leaf_set_grad_buffer(tensor, zeros(i % 3, elements)));
        ek_shards_add(shards, 0, i ? shard_ends[i - 1] : 0, shard_ends[i], tensor);
    }
    return shards;
}

static void shard(ek_tensor *leaf)
{
    ek_shards *shards = shards_of(ends, PIECES);
    assert_ok(ek_leaf_set_shards(leaf, shards, 0));
    ek_object_release(shards);
}

/* The shards' gradients are `whole`'s elements, in order of its memory. */
static void assert_shards(const ek_tensor *leaf, ek_tensor *whole)
{
    for (int i = 0; i < ek_leaf_shard_count(leaf); i++) {
        const ek_shard shard = ek_leaf_shard(leaf, i);
        int64_t count = shard.end - shard.begin, stride = 1;
        ek_tensor *part = ek_tensor_view(whole, 1, &count, &stride, whole->offset + shard.begin);
        assert_made(ek_tensor_grad(shard.tensor));
        assert_close(ek_tensor_grad(shard.tensor), part, 0, 0);
        if (shard.tensor->grad_buffer)
            ck_assert_ptr_eq(ek_tensor_grad(shard.tensor), shard.tensor->grad_buffer);
    }
}

static void begin(ek_scope *scope)
{
    *scope = ek_scope_begin();
    assert_ok(test_devices_configure("3"));
}

static void end(ek_scope *scope)
{
    ek_scope_end(scope);
    ck_assert_int_eq(atomic_load(&shards_alive), 0);
    assert_ok(ek_shutdown());
}

/* ---- tests ---- */

TEST(gradient_moves_and_returns)
{
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = leaf_of(1), *gradient = matrix(3);
    assert_ok(ek_leaf_set_grad_buffer(leaf, matrix(0)));
    assert_ok(ek_tensor_set_grad(leaf, gradient));
    shard(leaf);
    ck_assert_ptr_null(leaf->grad_buffer);
    ck_assert_ptr_null(ek_tensor_grad(leaf));
    ck_assert(ek_leaf_has_gradient(leaf));
    assert_shards(leaf, gradient);
    assert_close(ek_gather_grad(leaf), gradient, 0, 0);

    /* To another division. */
    ek_shards *others = shards_of((const int64_t[]){30, COUNT}, 2);
    ek_tensor *former = ek_keep(ek_leaf_shard(leaf, 2).tensor);
    assert_ok(ek_leaf_set_shards(leaf, others, 0));
    ek_object_release(others);
    assert_shards(leaf, gradient);
    ck_assert_ptr_null(ek_tensor_grad(former));
    ek_release(former);

    assert_ok(ek_leaf_set_shards(leaf, NULL, 0));
    ck_assert_ptr_null(ek_leaf_shards(leaf));
    ck_assert_ptr_null(leaf->grad_buffer);
    assert_close(ek_tensor_grad(leaf), gradient, 0, 0);
    ck_assert_ptr_eq(ek_gather_grad(leaf), ek_tensor_grad(leaf));
    end(&scope);
}

TEST(no_gradient_is_none)
{
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = leaf_of(1);
    shard(leaf);
    ck_assert(!ek_leaf_has_gradient(leaf));
    ck_assert_ptr_null(ek_gather_grad(leaf));
    assert_ok(ek_leaf_settle_gradient(leaf));
    ck_assert(!ek_leaf_has_gradient(leaf));
    assert_ok(ek_leaf_set_shards(leaf, NULL, 0));
    ck_assert_ptr_null(ek_tensor_grad(leaf));
    ck_assert_ptr_null(ek_gather_grad(leaf));
    ck_assert_int_eq(ek_error_status(), 0);
    assert_refused(ek_gather_grad(NULL), EK_E_INVALID, "NULL");
    end(&scope);
}

/* What arrives beside the shards is added to them, or fills those that have none. */
TEST(settles_what_arrives_beside)
{
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = leaf_of(1), *factor = matrix(2), *sum = matrix(2);
    shard(leaf);
    for (int turn = 1; turn <= 3; turn++) {
        assert_ok(ek_backward(toy_mul(leaf, factor), .gradient = matrix(1)));
        assert_ok(ek_kernels_of(sum)->binary(ek_tensor_dev(sum), EK_BINARY_MUL, sum, factor,
                                             matrix(1), 1));
        assert_ok(
            ek_kernels_of(sum)->unary(ek_tensor_dev(sum), EK_UNARY_AFFINE, sum, sum, turn, 0));
        assert_close(ek_gather_grad(leaf), sum, 0, 0);
        ck_assert_ptr_nonnull(ek_tensor_grad(leaf));
        assert_ok(ek_leaf_settle_gradient(leaf));
        ck_assert_ptr_null(ek_tensor_grad(leaf));
        assert_shards(leaf, sum);
        assert_close(ek_gather_grad(leaf), sum, 0, 0);
    }
    /* A shard without one counts as zeros. */
    ek_tensor_set_grad(ek_leaf_shard(leaf, 2).tensor, NULL);
    ek_tensor *gathered = ek_gather_grad(leaf);
    assert_made(gathered);
    ck_assert_double_eq(element(gathered, 4), 0);
    ck_assert_double_eq(element(gathered, 19), 0);
    ck_assert_double_eq(element(gathered, 20), element(sum, 20));
    end(&scope);
}

/* A leaf in another order of memory, and a gradient in that of rows. */
TEST(orders_of_memory_differ)
{
    ek_scope scope;
    begin(&scope);
    ek_shape shape = EK_SHAPE(ROWS, COLUMNS);
    const int64_t strides[] = {1, ROWS};
    ek_tensor *leaf = filled(test_device(0), EK_F32, &shape, strides, 0);
    ek_tensor *gradient = matrix(5);
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    shard(leaf);
    assert_ok(ek_tensor_set_grad(leaf, gradient));
    assert_ok(ek_leaf_settle_gradient(leaf));
    assert_shards(leaf, filled(test_device(0), EK_F32, &shape, strides, 5));
    assert_close(ek_gather_grad(leaf), gradient, 0, 0);
    end(&scope);
}

TEST(setting_replaces_the_shards)
{
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = leaf_of(1);
    shard(leaf);
    for (int turn = 0; turn < 2; turn++) {
        assert_ok(ek_tensor_set_grad(leaf, matrix(turn)));
        assert_close(ek_gather_grad(leaf), matrix(turn), 0, 0);
        assert_ok(ek_leaf_settle_gradient(leaf));
    }
    /* What doesn't fit changes nothing. */
    assert_refused(ek_tensor_set_grad(leaf, zeros(0, COUNT)), EK_E_INVALID, "no gradient");
    assert_close(ek_gather_grad(leaf), matrix(1), 0, 0);
    /* Freezing keeps what there is, and shards freeze and thaw with their leaf. */
    for (int requires_grad = 0; requires_grad < 2; requires_grad++) {
        assert_ok(ek_tensor_set_requires_grad(leaf, requires_grad));
        assert_close(ek_gather_grad(leaf), matrix(1), 0, 0);
        for (int i = 0; i < PIECES; i++)
            ck_assert_int_eq(ek_tensor_requires_grad(ek_leaf_shard(leaf, i).tensor), requires_grad);
    }
    assert_ok(ek_tensor_set_grad(leaf, NULL));
    ck_assert(!ek_leaf_has_gradient(leaf));
    for (int i = 0; i < PIECES; i++)
        ck_assert_ptr_null(ek_tensor_grad(ek_leaf_shard(leaf, i).tensor));
    end(&scope);
}

static void assert_shards_refused(ek_tensor *leaf, ek_shards *shards, const char *part)
{
    assert_refused(ek_leaf_set_shards(leaf, shards, 0), EK_E_INVALID, part);
    ck_assert_ptr_null(ek_leaf_shards(leaf));
    ek_object_release(shards);
}

static void replace_shard(ek_shards *shards, int index, ek_tensor *tensor)
{
    ek_release(shards->all[index].tensor);
    shards->all[index].tensor = ek_keep(tensor);
}

TEST(refuses_what_does_not_cover)
{
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = leaf_of(1);
    assert_shards_refused(leaf, shards_of((const int64_t[]){3, COUNT - 1}, 2),
                          "the 2 shards of f32[5, 7] on host:0 end at element 34 of 35");

    ek_shards *shards = shards_of((const int64_t[]){3, COUNT}, 2);
    shards->all[1].begin = 4;
    assert_shards_refused(leaf, shards, "for elements 4 to 35");

    shards = shards_of((const int64_t[]){3, COUNT}, 2);
    replace_shard(shards, 1, zeros(0, COUNT - 4));
    assert_shards_refused(leaf, shards, "a flat, whole leaf of f32 for elements 3 to 35");

    shards = shards_of((const int64_t[]){3, COUNT}, 2);
    shards->all[1].tensor->dtype = EK_BF16;
    assert_shards_refused(leaf, shards, "leaf of f32");

    shards = shards_of((const int64_t[]){3, COUNT}, 2);
    replace_shard(shards, 0, NULL);
    assert_shards_refused(leaf, shards, "shard 0 of f32[5, 7] on host:0 is NULL");

    ek_tensor *view =
        ek_tensor_view(leaf, 2, (const int64_t[]){ROWS, COLUMNS - 1}, leaf->stride, leaf->offset);
    assert_shards_refused(view, shards_of((const int64_t[]){ROWS * (COLUMNS - 1)}, 1), "gaps");
    assert_shards_refused(toy_exp(leaf), shards_of((const int64_t[]){COUNT}, 1), "only leaves");
    assert_shards_refused(leaf, hand_shards(0), "the 0 shards");
    end(&scope);
}

/* A large gradient goes to a device through little memory; without room there, nothing changes. */
TEST(temporaries_are_bounded)
{
    enum { LARGE = 8 << 20, LIMIT = 10 << 20 };
    ek_scope scope;
    begin(&scope);
    ek_tensor *leaf = zeros(0, LARGE), *gradient = zeros(0, LARGE);
    ek_shards *shards = shards_of((const int64_t[]){1, LARGE}, 2);
    assert_ok(ek_kernels_of(gradient)->fill(ek_tensor_dev(gradient), gradient, 3));
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    assert_ok(ek_leaf_set_shards(leaf, shards, 0));
    ek_object_release(shards);
    assert_ok(ek_tensor_set_grad(leaf, gradient));
    assert_ok(ek_leaf_settle_gradient(leaf));

    ek_memory_stats before, after;
    assert_ok(ek_memory_reset_peak(test_device(1)));
    assert_ok(ek_memory_get_stats(test_device(1), &before));
    assert_ok(ek_backward(toy_mul(leaf, gradient), .gradient = gradient));
    assert_ok(ek_memory_set_capacity(test_device(1), before.in_use + 4096));
    assert_refused(ek_leaf_settle_gradient(leaf), EK_E_OUT_OF_MEMORY, "host:1");
    ck_assert_double_eq(element(ek_tensor_grad(leaf), LARGE - 1), 9);
    ck_assert_double_eq(element(ek_tensor_grad(ek_leaf_shard(leaf, 0).tensor), 0), 3);
    assert_ok(ek_memory_set_capacity(test_device(1), 0));
    assert_ok(ek_leaf_settle_gradient(leaf));
    assert_ok(ek_memory_get_stats(test_device(1), &after));
    ck_assert_uint_gt(after.peak, before.peak);
    ck_assert_uint_le(after.peak - before.peak, LIMIT);
    ck_assert_uint_eq(after.in_use, before.in_use);
    ek_tensor *sums = ek_tensor_grad(ek_leaf_shard(leaf, 1).tensor);
    int64_t few = 3, stride = LIMIT / 4 + 1;
    assert_close(ek_tensor_view(sums, 1, &few, &stride, sums->offset),
                 tensor_of((const double[]){12, 12, 12}, EK_SHAPE(3), EK_F32, test_device(1)), 0,
                 0);
    ck_assert_double_eq(element(sums, LARGE - 2), 12);
    end(&scope);
}
