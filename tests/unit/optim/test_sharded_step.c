/* Steps of shards that are made by hand: ranges of which others own what lies between, and an owner
 * that fails. Sharded trainings are in unit/distributed/test_sharded.c. */
#include "autograd/graph.h"
#include "core/slab.h"
#include "kit/devices.h"
#include "kit/shards.h"

enum { COUNT = 64, SHARDS = 3 };

FIXTURE(two_devices, shut_down)

/* A flat leaf on elements of a copy. */
static ek_tensor *shard_of(ek_tensor *copy, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    ek_tensor *tensor =
        ek_tensor_member(copy->storage, copy->dtype, &shape, &stride, copy->offset + begin);
    assert_made(tensor);
    tensor->requires_grad = true;
    return tensor;
}

/* Gives the shards gradients of ones, in a slab of their device: with padding between them. */
static void give_ones(const int *shards, int count, ek_shards *all)
{
    ek_tensor *tensors[SHARDS] = {NULL};
    for (int i = 0; i < count; i++)
        tensors[i] = all->all[shards[i]].tensor;
    ek_slab *slab = ek_slab_new(ek_tensor_dev(tensors[0]), tensors, count);
    assert_made(slab);
    for (int i = 0; i < count; i++) {
        assert_ok(ek_leaf_set_grad_buffer(tensors[i], slab->members[i]));
        assert_made(ek_fill_(slab->members[i], 1));
        assert_ok(ek_tensor_set_grad(tensors[i], slab->members[i]));
    }
    ek_object_release(slab);
}

static int refused_refresh(ek_shards *shards)
{
    return EK_FAIL(EK_E_STATE, "no refreshment");
}

/* The first device owns elements 0 to 20 and 32 to 64, the second one those between. */
TEST_LOOP(what_others_own_is_left, 0, 2)
{
    static const int64_t ends[SHARDS] = {20, 32, COUNT};
    bool fails = _i;
    ek_scope scope = ek_scope_begin();
    ek_tensor *copies[2];
    for (int d = 0; d < 2; d++)
        copies[d] = ek_ones(EK_SHAPE(COUNT), .device = test_device(d), .requires_grad = d == 0);
    ek_shards *shards = hand_shards(SHARDS);
    ck_assert_ptr_nonnull(shards);
    for (int i = 0; i < SHARDS; i++) {
        int64_t begin = i ? ends[i - 1] : 0;
        ek_shards_add(shards, 0, begin, ends[i], shard_of(copies[i % 2], begin, ends[i]));
        assert_ok(
            ek_leaf_set_grad_buffer(shards->all[i].tensor, ek_tensor_like(shards->all[i].tensor)));
    }
    assert_ok(ek_leaf_set_shards(copies[0], shards, 0));
    ek_object_release(shards);
    give_ones((const int[]){0, 2}, 2, shards);
    give_ones((const int[]){1}, 1, shards);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5);
    assert_ok(ek_optimizer_add_group(optimizer, &copies[0], 1));
    uint64_t version = ek_tensor_version(copies[0]);
    if (fails) {
        shards->refresh = refused_refresh;
        assert_refused(ek_step(optimizer), EK_E_STATE, "no refreshment");
        ck_assert_uint_eq(bytes_now(test_device(0), EK_MEMORY_OPTIMIZER), 0);
    } else {
        assert_ok(ek_step(optimizer));
    }
    ck_assert_uint_eq(ek_tensor_version(copies[0]), version + !fails);
    for (int i = 0; i < COUNT; i++) {
        bool theirs = i >= 20 && i < 32;
        ck_assert_double_eq_tol(element(copies[0], i), theirs || fails ? 1 : 0.85, 1e-6);
        ck_assert_double_eq_tol(element(copies[1], i), !theirs || fails ? 1 : 0.85, 1e-6);
    }
    ek_optimizer_free(optimizer);
    ek_scope_end(&scope);
}
