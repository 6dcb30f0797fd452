/* Sharded state through the lives of its modules, wrappers and optimizers: what is made, changed
 * and freed in between, and in any order. */
#include "nn/module_table.h"
#include "sharded_setup.h"

/* ---- checkpoints ---- */

/* Six steps, of which the last three with another division, in another process as it were. */
static outcome run_in_two(const job *first, const job *second)
{
    outcome o = {.count = 0};
    checkpoint c = {.count = 0};
    ek_scope scope = ek_scope_begin();
    trainer t = make_job(first);
    for (int step = 0; step < 3; step++)
        o.losses[step] = one_step(first, &t, step);
    save(&t, &c);
    free_trainer(&t);
    t = make_job(second);
    one_step(second, &t, 4); /* what is loaded replaces something */
    load(&t, &c);
    for (int step = 3; step < 6; step++)
        o.losses[step] = one_step(second, &t, step);
    note_outcome(&t, &o);
    free_trainer(&t);
    ek_scope_end(&scope);
    return o;
}

TEST_LOOP(checkpoints_are_the_unsharded_ones, 0, 4)
{
    job sharded = small_job(3), unsharded = whole(sharded);
    outcome wanted = run(&unsharded, 6);
    outcome o = run_in_two(_i & 1 ? &sharded : &unsharded, _i & 2 ? &sharded : &unsharded);
    assert_same_outcome(&o, &wanted, 6);
}

/* ---- orders of making and freeing ---- */

/* The optimizer is made before the wrapper, and goes on after it with a whole module; the wrapper
 * goes with a gradient in place. */
static outcome run_bare(const job *j)
{
    outcome o = {.count = 0};
    ek_module *net = make_net(true, j->dtype);
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_optimizer *optimizer = make_optimizer(net, j->algorithm);
    trainer t = wrap(j, ek_module_retain(net));
    ek_optimizer_free(t.optimizer);
    t.optimizer = optimizer;
    for (int step = 0; step < 3; step++)
        o.losses[step] = one_step(j, &t, step);
    ek_tensor *images, *target;
    ek_scope scope = ek_scope_begin();
    batch_of(j, 3, &images, &target);
    ek_zero_grad(optimizer);
    assert_ok(ek_backward(loss_of(&t, images, target)));
    ek_module_free(t.model);
    t.model = net;
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(net, "0.weight")));
    assert_ok(ek_step(optimizer));
    ek_tensor *out = ek_apply(net, ek_to_device(images, test_device(0)));
    ek_zero_grad(optimizer);
    assert_ok(ek_backward(ek_sum(ek_square(out))));
    assert_ok(ek_step(optimizer));
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

TEST_LOOP(a_wrapper_can_go_before_the_optimizer, 0, 3)
{
    job sharded = small_job(2 + _i), unsharded = whole(sharded);
    outcome a = run_bare(&sharded), b = run_bare(&unsharded);
    assert_same_outcome(&a, &b, 3);
}

TEST_LOOP(all_orders_of_freeing, 0, 4)
{
    job j = small_job(3);
    trainer t = make_job(&j);
    one_step(&j, &t, 0);
    ek_tensor *images, *target;
    batch_of(&j, 1, &images, &target);
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = loss_of(&t, images, target);
    if (_i & 1)
        assert_ok(ek_backward(loss));
    if (_i & 2) {
        ek_optimizer_free(t.optimizer);
        ek_module_free(t.model);
    } else {
        ek_module_free(t.model);
        ek_zero_grad(t.optimizer);
        ek_optimizer_free(t.optimizer);
    }
    ek_module_free(t.loss);
    /* The graph still has the shards. */
    if (!(_i & 1))
        assert_ok(ek_backward(loss));
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
}

TEST(a_module_is_divided_once)
{
    job j = small_job(3);
    ek_module *net = make_net(true, EK_F32);
    trainer t = wrap(&j, ek_module_retain(net)); /* later ones take references of their own */
    assert_refused(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2),
                                    .shard = EK_SHARD_OPTIMIZER),
                   EK_E_STATE, "parameter \"0.weight\" is sharded by another wrapper");
    one_step(&j, &t, 0);
    /* Another that doesn't shard works beside it. */
    ek_module *beside = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2));
    assert_made(beside);
    ek_scope scope = ek_scope_begin();
    ek_tensor *images, *target;
    batch_of(&j, 0, &images, &target);
    assert_ok(ek_backward(ek_sum(ek_apply(beside, images))));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(net, "0.weight")));
    assert_ok(ek_step(t.optimizer));
    ck_assert_ptr_null(ek_tensor_grad(ek_module_tensor(net, "0.weight")));
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    ek_module_free(beside);
    free_trainer(&t);
    t = wrap(&j, net);
    one_step(&j, &t, 1);
    free_trainer(&t);
    ek_module_free(net);
}

/* One parameter that fills its memory to the last byte looks like one that lies in no slab; its
 * shards stay on it whoever wraps its module beside. */
TEST_LOOP(divided_parameters_stay_where_they_are, 0, 2)
{
    ek_module *net = ek_linear(16, 4, .bias = false);
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_module *model =
        ek_data_parallel(ek_module_retain(net), .device_ids = devices, .shard = EK_SHARD_OPTIMIZER);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 1);
    ek_module *beside = NULL;
    if (_i == 0)
        beside = ek_data_parallel(net, .device_ids = devices);
    else
        ck_assert_ptr_null(
            ek_data_parallel(net, .device_ids = devices, .shard = EK_SHARD_OPTIMIZER));
    ek_error_clear();
    ek_scope scope = ek_scope_begin();
    ek_tensor *weight = ek_module_tensor(net, "weight");
    assert_ok(ek_init_constant(weight, 3));
    assert_ok(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(2, 16))))));
    assert_ok(ek_step(optimizer)); /* a gradient of 2 everywhere */
    weight = ek_to_device(weight, ek_cpu());
    for (int64_t i = 0; i < 64; i++)
        ck_assert_double_eq(element(weight, i), 1);
    ek_scope_end(&scope);
    ek_module_free(beside);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(net);
}

TEST(policies_are_checked)
{
    assert_refused(ek_data_parallel(ek_linear(2, 2), .device_ids = ek_devices(test_kind(), 2),
                                    .shard = (ek_shard_policy)7),
                   EK_E_INVALID, "data_parallel: 7 is no shard policy");
    /* One device owns all there is. */
    ek_module *one = ek_data_parallel(ek_linear(2, 2), .device_ids = ek_devices(test_kind(), 1),
                                      .shard = EK_SHARD_OPTIMIZER);
    assert_made(one);
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_backward(ek_sum(ek_apply(one, ek_ones(EK_SHAPE(3, 2))))));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(one, "weight")));
    ek_scope_end(&scope);
    ek_module_free(one);
}

/* Two optimizers have some of the parameters each, others none, and they step by turns. */
TEST_LOOP(optimizers_can_share_a_module, 0, 2)
{
    char hashes[2][65];
    job jobs[] = {small_job(3), whole(small_job(3))};
    for (int k = 0; k < 2; k++) {
        trainer t = make_job(&jobs[k]);
        ek_tensor *some[] = {ek_module_tensor(t.model, "0.weight"),
                             ek_module_tensor(t.model, "3.bias"),
                             ek_module_tensor(t.model, "3.weight")};
        ek_optimizer *both[] = {ek_adam(.lr = 0.01), ek_sgd(.lr = 0.1, .momentum = 0.9)};
        ck_assert_int_ge(ek_optimizer_add_group(both[0], some, 2), 0);
        ck_assert_int_ge(ek_optimizer_add_group(both[1], some + 2, 1), 0);
        for (int step = 0; step < 6; step++) {
            ek_tensor *images, *target;
            ek_scope scope = ek_scope_begin();
            batch_of(&jobs[k], step, &images, &target);
            assert_ok(ek_backward(loss_of(&t, images, target)));
            for (int o = 0; o < 2; o++) {
                if (step % 3 == o)
                    continue;
                assert_ok(ek_clip_grad_value(both[o], 0.1));
                assert_ok(ek_step(both[o]));
                ek_zero_grad(both[o]);
            }
            ek_scope_end(&scope);
            ek_release(images);
            ek_release(target);
        }
        assert_ok(ek_module_sha256(t.model, hashes[k]));
        ek_optimizer_free(both[_i]);
        free_trainer(&t);
        ek_optimizer_free(both[1 - _i]);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
}

/* Inside another wrapper's replicas its own call is plain: gradients are whole until the step. */
TEST(wrappers_can_be_nested)
{
    char hashes[2][65];
    job jobs[] = {small_job(3), whole(small_job(3))};
    for (int k = 0; k < 2; k++) {
        trainer t = make_job(&jobs[k]);
        ek_module *outer =
            ek_data_parallel(ek_module_retain(t.model), .device_ids = ek_devices(test_kind(), 2));
        assert_made(outer);
        for (int step = 0; step < 4; step++) {
            ek_tensor *images, *target;
            ek_scope scope = ek_scope_begin();
            batch_of(&jobs[k], step, &images, &target);
            ek_zero_grad(t.optimizer);
            assert_ok(ek_backward(ek_mul_scalar(ek_sum(ek_square(ek_apply(outer, images))), 1e-4)));
            assert_ok(ek_step(t.optimizer));
            ek_scope_end(&scope);
            ek_release(images);
            ek_release(target);
            one_step(&jobs[k], &t, step);
        }
        assert_ok(ek_module_sha256(t.model, hashes[k]));
        ek_module_free(outer);
        free_trainer(&t);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
}

/* ---- changes in between ---- */

typedef void change(const trainer *t, int step);

static outcome run_changing(const job *j, change *function, int steps)
{
    outcome o = {.count = 0};
    trainer t = make_job(j);
    for (int step = 0; step < steps; step++) {
        ek_scope scope = ek_scope_begin();
        function(&t, step);
        ek_scope_end(&scope);
        o.losses[step] = one_step(j, &t, step);
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

static void assert_change_is_the_same(job j, change *function)
{
    job unsharded = whole(j);
    outcome a = run_changing(&j, function, 6), b = run_changing(&unsharded, function, 6);
    assert_same_outcome(&a, &b, 6);
}

static void write_parameters(const trainer *t, int step)
{
    bool before = ek_set_grad_enabled(false);
    if (step == 2)
        assert_made(ek_mul_scalar_(ek_module_tensor(t->model, "3.weight"), 0.5));
    if (step == 4)
        assert_made(ek_mul_scalar_(ek_module_tensor(t->model, "1.weight"), 2));
    ek_set_grad_enabled(before);
}

TEST(what_others_write_is_sent)
{
    assert_change_is_the_same(small_job(3), write_parameters);
}

static void freeze(const trainer *t, int step)
{
    assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(t->model, "3.weight"), step % 3 != 1));
    assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(t->model, "0.weight"), step % 2 != 1));
}

TEST(parameters_can_be_frozen)
{
    assert_change_is_the_same(small_job(3), freeze);
}

/* A gradient penalty, a second loss: what is frozen after the forward gets no gradient either. */
TEST(frozen_after_the_forward)
{
    job j = small_job(3);
    trainer t = make_job(&j);
    ek_tensor *images, *target, *weight = ek_module_tensor(t.model, "0.weight");
    batch_of(&j, 0, &images, &target);
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = loss_of(&t, images, target);
    assert_ok(ek_tensor_set_requires_grad(weight, false));
    assert_ok(ek_backward(loss));
    ck_assert_ptr_null(ek_gather_grad(weight));
    ck_assert_ptr_nonnull(ek_gather_grad(ek_module_tensor(t.model, "3.weight")));
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    free_trainer(&t);
}

/* Unsharded from the beginning, and sharded only in what required a gradient then. */
TEST(parameters_without_a_gradient_stay_whole)
{
    job j = small_job(3), unsharded = whole(j);
    outcome o[2];
    for (int k = 0; k < 2; k++) {
        o[k] = (outcome){.count = 0};
        ek_module *net = make_net(true, EK_F32);
        assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(net, "3.weight"), false));
        trainer t = wrap(k ? &unsharded : &j, net);
        one_step(&j, &t, 0);
        assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(net, "3.weight"), true));
        for (int step = 1; step < 4; step++)
            o[k].losses[step] = one_step(&j, &t, step);
        note_outcome(&t, &o[k]);
        free_trainer(&t);
    }
    assert_same_outcome(&o[0], &o[1], 4);
}

/* Converted to f64 and later moved away and back: sharded anew, with the state it had. */
static void convert(const trainer *t, int step)
{
    if (step == 2 || step == 4)
        assert_ok(ek_module_to_dtype(t->model, step == 2 ? EK_F64 : EK_F32));
    if (step == 3) {
        assert_ok(ek_module_to_device(t->model, ek_cpu()));
        assert_ok(ek_module_to_device(t->model, test_device(0)));
    }
}

static outcome run_converting(const job *j)
{
    outcome o = {.count = 0};
    trainer t = make_job(j);
    job now = *j;
    for (int step = 0; step < 6; step++) {
        convert(&t, step);
        now.dtype = step == 2 || step == 3 ? EK_F64 : EK_F32;
        o.losses[step] = one_step(&now, &t, step);
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

TEST(converted_modules_are_divided_anew)
{
    job j = small_job(3), unsharded = whole(j);
    outcome a = run_converting(&j), b = run_converting(&unsharded);
    assert_same_outcome(&a, &b, 6);
}
