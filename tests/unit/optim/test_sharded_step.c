/* Parameters in shards on several devices are stepped as if they were whole, to the bit. */
#include "kit/shards.h"
#include "sharded.h"

/* ---- stepping ---- */

static void step_as_whole(int i, int devices, bool straddling)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, devices, straddling);
    ek_optimizer *whole = make(i, p), *sharded = make(i, q);
    for (int step = 0; step < STEPS; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, sharded);
        assert_equal_lists(q, p, PARAMETERS);
        assert_published(group);
        ck_assert_int_eq(group->refreshed, step + 1);
        ck_assert_int_eq(group->published, step + 1);
    }
    for (int k = 0; k < PARAMETERS; k++) {
        ck_assert_int_eq(ek_optimizer_steps(sharded, q[k]), ek_optimizer_steps(whole, p[k]));
        ck_assert_ptr_null(ek_tensor_grad(q[k]));
    }
    /* Nothing to step: nothing is sent. */
    ek_zero_grad(sharded);
    assert_ok(ek_step(sharded));
    ck_assert_int_eq(group->published, STEPS);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}

TEST_LOOP(steps_as_the_whole_does, 0, CASES)
{
    for (int devices = 1; devices <= MOST_DEVICES; devices++) {
        step_as_whole(_i, devices, false);
        step_as_whole(_i, devices, true);
    }
}

/* ---- the group ---- */

TEST(a_failing_refresh_leaves_all)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *sharded = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    group->fail = 1;
    ck_assert_int_eq(ek_step(sharded), EK_E_STATE);
    assert_error(EK_E_STATE, "no refreshment");
    assert_equal_lists(q, p, PARAMETERS);
    ck_assert_int_eq(group->published, 0);
    for (int d = 0; d < 2; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), 0);
    ek_optimizer_free(sharded);
}

/* Between two shards of one owner there may be another's, where a slab of gradients has padding. */
TEST(what_others_own_is_left)
{
    enum { PIECES = 3 };
    static const int64_t ends[PIECES] = {20, 32, 64};
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(25);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p = ek_ones(EK_SHAPE(64), .device = test_device(0), .requires_grad = true);
    fake_group *group = divide_over(&p, 1, 2, false);
    ek_object_retain(&group->shards);
    ek_shards *shards = hand_shards(PIECES);
    ck_assert_ptr_nonnull(shards);
    ek_tensor *tensors[2], *slots[3];
    for (int i = 0; i < PIECES; i++) {
        ek_tensor *tensor = shard_of(group->copies[i % 2][0], i ? ends[i - 1] : 0, ends[i]);
        ek_shards_add(shards, 0, i ? ends[i - 1] : 0, ends[i], tensor);
        ek_object_release(tensor);
    }
    tensors[0] = shards->all[0].tensor;
    tensors[1] = shards->all[2].tensor;
    make_homes(tensors, 2, test_device(0), slots);
    make_homes(&shards->all[1].tensor, 1, test_device(1), slots + 2);
    for (int i = 0; i < PIECES; i++) {
        assert_ok(ek_leaf_set_grad_buffer(shards->all[i].tensor, slots[i == 0 ? 0 : 3 - i]));
        ek_object_release(slots[i == 0 ? 0 : 3 - i]);
    }
    assert_ok(ek_leaf_set_shards(p, shards, 0));
    ek_object_release(shards);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.1, .weight_decay = 0.5);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    give_to_shards(p, ek_ones(EK_SHAPE(64), .device = test_device(0)), false);
    assert_ok(ek_step(optimizer));
    for (int i = 0; i < 64; i++) {
        bool theirs = i >= 20 && i < 32;
        ck_assert_double_eq_tol(element(p, i), theirs ? 1 : 0.85, 1e-6);
        ck_assert_double_eq_tol(element(group->copies[1][0], i), theirs ? 0.85 : 1, 1e-6);
    }
    ek_object_release(&group->shards);
    ek_optimizer_free(optimizer);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

/* What a user wrote into a parameter is what is stepped. */
TEST(parameters_may_be_written_between_steps)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 3, true);
    ek_optimizer *whole = make(ADAM, p), *sharded = make(ADAM, q);
    for (int step = 0; step < 3; step++) {
        give_all(p, q, 0, step);
        step_both(whole, sharded);
        assert_made(ek_mul_scalar_(ek_detach(p[1]), -2));
        assert_made(ek_mul_scalar_(ek_detach(q[1]), -2));
    }
    give_all(p, q, 0, 0);
    step_both(whole, sharded);
    assert_equal_lists(q, p, PARAMETERS);
    assert_published(group);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}

/* A graph that saved the parameter, or a shard, must not go on with what the step made of it. */
TEST(graphs_notice_the_step)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *sharded = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    ek_tensor *saved[] = {q[1], ek_leaf_shard(q[1], 0).tensor, ek_leaf_shard(q[1], 1).tensor};
    ek_tensor *losses[3];
    for (int i = 0; i < 3; i++)
        losses[i] = ek_sum(ek_mul(saved[i], saved[i]));
    uint64_t version = ek_tensor_version(q[1]);
    assert_ok(ek_step(sharded));
    ck_assert_uint_eq(ek_tensor_version(q[1]), version + 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ek_backward(losses[i]), EK_E_MODIFIED);
        assert_error(EK_E_MODIFIED, "the optimizer's step");
    }
    ek_optimizer_free(sharded);
}

/* ---- gradients ---- */

TEST(zero_grad_empties_shards)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *sharded = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    ek_zero_grad(sharded);
    for (int i = 0; i < PARAMETERS; i++) {
        ck_assert_ptr_null(ek_gather_grad(q[i]));
        for (int k = 0; k < 2; k++)
            ck_assert_ptr_null(ek_tensor_grad(ek_leaf_shard(q[i], k).tensor));
    }
    assert_ok(ek_step(sharded));
    assert_equal_lists(q, p, PARAMETERS);
    ck_assert_int_eq(group->published, 0);
    ek_optimizer_free(sharded);
}

TEST(gradients_are_clipped_in_shards)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 3, true);
    ek_optimizer *whole = make(ADAM, p), *sharded = make(ADAM, q);
    double norms[2];
    give_all(p, q, 0x21, IN_PIECES);
    assert_ok(ek_clip_grad_norm(whole, 2, &norms[0]));
    assert_ok(ek_clip_grad_norm(sharded, 2, &norms[1]));
    ck_assert_double_gt(norms[0], 4);
    ck_assert_double_eq_tol(norms[1], norms[0], 1e-6 * norms[0]);
    for (int i = 0; i < PARAMETERS; i++) {
        if (0x21 >> i & 1)
            ck_assert_ptr_null(ek_gather_grad(q[i]));
        else
            assert_close_norm(ek_gather_grad(q[i]), ek_tensor_grad(p[i]), 1e-6);
    }
    /* Below the limit nothing is scaled. */
    assert_ok(ek_clip_grad_norm(sharded, 5, &norms[1]));
    ck_assert_double_eq_tol(norms[1], 2, 1e-5);

    give_all(p, q, 0, IN_PIECES);
    assert_ok(ek_clip_grad_value(whole, 0.5));
    assert_ok(ek_clip_grad_value(sharded, 0.5));
    for (int i = 0; i < PARAMETERS; i++)
        assert_close(ek_gather_grad(q[i]), ek_tensor_grad(p[i]), 0, 0);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}
