/* Sharded state where something fails: memory, copies between devices. */
#include <stdatomic.h>

#include "core/device.h"
#include "core/thread.h"
#include "kit/remote.h"
#include "nn/module_table.h"
#include "sharded_setup.h"

/* ---- errors ---- */

static int try_step(const trainer *t, ek_tensor *images, ek_tensor *target)
{
    double loss;
    return train_step(t, images, target, &loss);
}

TEST_LOOP(out_of_memory_is_survived, 0, 4)
{
    job j = small_job(4);
    j.dtype = EK_F64;
    trainer t = make_job(&j);
    ek_tensor *large[2];
    one_step(&j, &t, 0);
    make_batch(64, 0, NONE_IGNORED, EK_F64, 1, &large[0], &large[1]);
    for (int d = 0; d < DEVICES; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        assert_ok(
            ek_memory_set_capacity(test_device(d), stats.peak + (uint64_t)_i * 20000 + 30000));
    }
    assert_refused(try_step(&t, large[0], large[1]), EK_E_OUT_OF_MEMORY, "is out of memory");
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_set_capacity(test_device(d), 0));
    outcome o = {.count = 0};
    for (int step = 1; step < 5; step++)
        o.losses[step - 1] = one_step(&j, &t, step);
    /* Running statistics have seen some of the large batch: the state is compared, not they. */
    ek_release(large[0]);
    ek_release(large[1]);
    job unsharded = whole(j);
    trainer other = make_job(&unsharded);
    one_step(&j, &other, 0);
    for (int step = 1; step < 5; step++)
        ck_assert_double_eq(o.losses[step - 1], one_step(&j, &other, step));
    free_trainer(&t);
    free_trainer(&other);
}

/* No memory for copies, slots: there is no wrapper, and the module is whole. */
TEST_LOOP(a_wrapper_that_cannot_be_made_leaves_the_module_whole, 0, 6)
{
    ek_module *net = make_mlp(200, EK_F32);
    assert_ok(ek_memory_set_capacity(test_device(_i % 3), _i < 3 ? 100000 : 400000));
    ek_module *model =
        ek_data_parallel(ek_module_retain(net), .device_ids = ek_devices(test_kind(), 3),
                         .shard = EK_SHARD_OPTIMIZER);
    ck_assert_ptr_null(model);
    assert_error(EK_E_OUT_OF_MEMORY, "out of memory");
    assert_ok(ek_memory_set_capacity(test_device(_i % 3), 0));
    model = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 3),
                             .shard = EK_SHARD_OPTIMIZER);
    assert_made(model);
    ek_module_free(model);
    ek_module_free(net);
}

/* ---- backends of other kinds ---- */

static atomic_int failing = -1; /* the device that gets nothing */

static int failing_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                        size_t nbytes)
{
    if (to != from && from->id.kind != EK_CPU && to->id.index == atomic_load(&failing))
        return EK_FAIL(EK_E_BACKEND, "a cable is loose");
    return remote_real->copy(to, to_data, from, from_data, nbytes);
}

static void make_failing(void)
{
    make_remote(DEVICES, EK_COLLECTIVE_NONE);
    remote.copy = failing_copy;
}

TEST_LOOP(devices_that_do_not_reach_each_other, 0, test_kind() == EK_HOST ? 4 : 0)
{
    job j = small_job(3 + _i / 2), unsharded = whole(j);
    j.mlp = _i / 2 * 300;
    unsharded.mlp = j.mlp;
    outcome wanted = run(&unsharded, 4);
    make_remote(DEVICES, _i % 2 ? EK_COLLECTIVE_MOVES : EK_COLLECTIVE_NONE);
    outcome o = run(&j, 4);
    ck_assert_int_eq(atomic_load(&exchanges) > 0, _i % 2);
    assert_same_outcome(&o, &wanted, 4);
}

/* What was stepped and could not be shared is shared before it is used. */
TEST_LOOP(a_share_that_fails_is_made_up_for, 0, test_kind() == EK_HOST ? 3 : 0)
{
    job j = small_job(3), unsharded = whole(j);
    outcome wanted = run(&unsharded, 4), o = {.count = 0};
    make_failing();
    trainer t = make_job(&j);
    for (int step = 0; step < 4; step++) {
        ek_tensor *images, *target;
        ek_scope scope = ek_scope_begin();
        batch_of(&j, step, &images, &target);
        ek_tensor *loss = loss_of(&t, images, target);
        ek_zero_grad(t.optimizer);
        assert_ok(ek_backward(loss));
        assert_ok(ek_item(loss, &o.losses[step]));
        atomic_store(&failing, step == 1 ? _i : -1);
        int rc = ek_step(t.optimizer);
        atomic_store(&failing, -1);
        if (step == 1) {
            ck_assert_int_eq(rc, EK_E_BACKEND);
            assert_error(EK_E_BACKEND, "a cable is loose");
        } else {
            assert_ok(rc);
        }
        ek_scope_end(&scope);
        ek_release(images);
        ek_release(target);
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    assert_same_outcome(&o, &wanted, 4);
}

/* Without the wrapper the module has the whole step too. */
TEST_LOOP(a_share_that_failed_is_made_up_for_at_the_end, 0, test_kind() == EK_HOST ? 3 : 0)
{
    char hashes[2][65];
    job jobs[] = {small_job(3), whole(small_job(3))};
    make_failing();
    for (int k = 0; k < 2; k++) {
        ek_module *net = make_net(true, EK_F32);
        trainer t = wrap(&jobs[k], ek_module_retain(net));
        ek_tensor *images, *target;
        ek_scope scope = ek_scope_begin();
        batch_of(&jobs[k], 0, &images, &target);
        assert_ok(ek_backward(loss_of(&t, images, target)));
        atomic_store(&failing, k == 0 ? _i : -1);
        ck_assert_int_eq(ek_step(t.optimizer), k == 0 ? EK_E_BACKEND : 0);
        atomic_store(&failing, -1);
        ek_error_clear();
        ek_scope_end(&scope);
        ek_release(images);
        ek_release(target);
        free_trainer(&t);
        assert_ok(ek_module_sha256(net, hashes[k]));
        ek_module_free(net);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
}

/* What a user writes after it (a checkpoint) is what counts. */
TEST_LOOP(what_is_written_after_a_share_that_failed_stays, 0, test_kind() == EK_HOST ? 3 : 0)
{
    job j = small_job(3), unsharded = whole(j);
    outcome wanted = run(&unsharded, 3), o = {.count = 0};
    make_failing();
    trainer t = make_job(&j);
    checkpoint c = {.count = 0};
    ek_tensor *images, *target;
    ek_scope scope = ek_scope_begin();
    save(&(trainer){.model = t.model}, &c);
    batch_of(&j, 3, &images, &target);
    assert_ok(ek_backward(loss_of(&t, images, target)));
    atomic_store(&failing, _i);
    ck_assert_int_eq(ek_step(t.optimizer), EK_E_BACKEND);
    atomic_store(&failing, -1);
    ek_error_clear();
    load(&t, &c);
    ek_scope_end(&scope);
    ek_optimizer_free(t.optimizer);
    t.optimizer = make_optimizer(t.model, j.algorithm);
    for (int step = 0; step < 3; step++)
        o.losses[step] = one_step(&j, &t, step);
    note_outcome(&t, &o);
    ek_release(images);
    ek_release(target);
    free_trainer(&t);
    assert_same_outcome(&o, &wanted, 3);
}
