/* A module that is taken out of its wrapper, and averages of one that is in it. */
#include "kit/held.h"

FIXTURE(NULL, free_held)

static void train(ek_module *module, ek_optimizer *optimizer, ek_ema *ema, int steps)
{
    for (int i = 0; i < steps; i++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(50 + (uint64_t)i);
        ek_tensor *y = ek_apply(module, ek_randn(EK_SHAPE(8, 3), .dtype = EK_F64));
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
        assert_ok(ek_step(optimizer));
        if (ema)
            assert_ok(ek_ema_update(ema));
        ek_scope_end(&scope);
    }
}

static ek_module *net(void)
{
    ek_manual_seed(1);
    ek_module *module = ek_sequential(ek_linear(3, 5), ek_tanh(), ek_linear(5, 2));
    assert_ok(ek_module_to_dtype(module, EK_F64));
    return module;
}

static void assert_alike(ek_module *a, ek_module *b)
{
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    for (int i = 0; i < 4; i++)
        assert_close(ek_to_device(ek_detach(ek_module_tensor(a, paths[i])), ek_cpu()),
                     ek_detach(ek_module_tensor(b, paths[i])), 1e-10, 1e-10);
}

/* Training goes on without the wrapper, with the same optimizer; sharded and offloaded, too. */
TEST_LOOP(training_goes_on_without_the_wrapper, 0, 6)
{
    assert_ok(test_devices_configure("2"));
    ek_module *plain = held(net()), *inner = net(), *averaged[2] = {net(), net()};
    ek_module *wrapped = ek_data_parallel(inner, .device_ids = ek_devices(test_kind(), 2),
                                          .shard = (ek_shard_policy)(_i % 3),
                                          .offload = (ek_offload_policy)(_i / 3));
    ek_optimizer *optimizers[] = {ek_nadam(plain, .lr = 0.1), ek_nadam(wrapped, .lr = 0.1)};
    ek_ema *emas[] = {ek_ema_new(plain, .decay = 0.5), ek_ema_new(wrapped, .decay = 0.5)};
    train(plain, optimizers[0], emas[0], 3);
    train(wrapped, optimizers[1], emas[1], 3);
    assert_alike(inner, plain);
    for (int i = 0; i < 2; i++)
        assert_ok(ek_ema_copy_to(emas[i], averaged[i]));
    assert_alike(averaged[1], averaged[0]);
    /* The wrapper shows the averages on all devices. */
    ek_tensor *x = ek_ones(EK_SHAPE(6, 3), .dtype = EK_F64);
    assert_ok(ek_ema_apply(emas[1]));
    ek_module_train(wrapped, false);
    assert_close(ek_to_device(ek_detach(ek_apply(wrapped, x)), ek_cpu()),
                 ek_detach(ek_apply(averaged[0], x)), 1e-10, 1e-10);
    assert_ok(ek_ema_restore(emas[1]));
    ek_module_train(wrapped, true);
    train(plain, optimizers[0], emas[0], 1);
    train(wrapped, optimizers[1], emas[1], 1);
    assert_alike(inner, plain);

    ck_assert_ptr_eq(ek_data_parallel_unwrap(wrapped), inner);
    assert_refused(ek_data_parallel_unwrap(inner), EK_E_INVALID,
                   "sequential is no data-parallel wrapper");
    assert_ok(ek_module_to_device(inner, ek_cpu()));
    train(plain, optimizers[0], emas[0], 2);
    train(inner, optimizers[1], emas[1], 2);
    assert_alike(inner, plain);
    held(ek_sequential(inner, ek_tanh())); /* the module has no parent, so it can get one */
    for (int i = 0; i < 2; i++) {
        ek_ema_free(emas[i]);
        ek_optimizer_free(optimizers[i]);
        ek_module_free(averaged[i]);
    }
}

TEST(wrappers_are_not_copied)
{
    assert_ok(test_devices_configure("2"));
    ek_module *wrapped = ek_data_parallel(net(), .device_ids = ek_devices(test_kind(), 2));
    assert_refused(ek_module_copy(wrapped), EK_E_INVALID, "data_parallel frees memory of its own");
    held(ek_module_copy(ek_data_parallel_module(wrapped)));
    ek_module *sync = ek_convert_sync_batch_norm(ek_sequential(ek_batch_norm1d(3)));
    ek_module *again = ek_module_copy(sync);
    assert_made(again);
    ek_module_free(sync);
    assert_made(ek_apply(again, ek_ones(EK_SHAPE(2, 3))));
    ek_module_free(again);
    held(ek_sequential(wrapped));
    assert_refused(ek_data_parallel_unwrap(wrapped), EK_E_INVALID, "a part of another module");
}
