/* Averages of parameters against PyTorch's. */
#include "unit.h"

static void assert_row(ek_tensor *tensor, const ek_tensor *rows, int64_t row, double tolerance)
{
    for (int64_t i = 0; i < ek_tensor_count(tensor); i++) {
        double wanted = element(rows, row * ek_tensor_count(tensor) + i);
        ck_assert_double_eq_tol(element(tensor, i), wanted, tolerance * (1 + fabs(wanted)));
    }
}

TEST_LOOP(follow_pytorch, 0, 4)
{
    const bool wide = _i & 1, equal = _i & 2;
    ek_tensor *values = golden("train.golden", "ema/values");
    ek_tensor *rows = golden("train.golden", equal ? "ema/equal" : "ema/moving");
    ek_module *module = ek_linear(19, 1, .bias = false);
    if (wide)
        assert_ok(ek_module_to_dtype(module, EK_F64));
    ek_tensor *weight = ek_module_tensor(module, "weight");
    ek_ema *ema = ek_ema_new(module, .decay = 0.9, .equal = equal);
    assert_made(ema);
    for (int64_t step = 0; step < 4; step++) {
        ek_set_grad_enabled(false);
        assert_made(ek_copy_(weight, ek_reshape(ek_select(values, 0, step), EK_SHAPE(1, 19))));
        ek_set_grad_enabled(true);
        assert_ok(ek_ema_update(ema));
        assert_row(ek_ema_tensor(ema, "weight"), rows, step, wide ? 1e-12 : 2e-6);
    }
    ck_assert_int_eq(ek_ema_updates(ema), 4);
    ek_ema_free(ema);
    ek_module_free(module);
}

static ek_module *net(void)
{
    return ek_sequential(ek_linear(3, 4), ek_batch_norm1d(4), ek_linear(4, 2));
}

static void change(ek_module *module, double by)
{
    ek_tensor *weight = ek_module_tensor(module, "0.weight");
    ek_tensor *mean = ek_module_tensor(module, "1.running_mean");
    ek_set_grad_enabled(false);
    ek_add_(weight, ek_full(by, ek_tensor_shape(weight), .dtype = ek_tensor_dtype(weight),
                            .device = ek_tensor_device(weight)));
    ek_fill_(mean, by);
    ek_set_grad_enabled(true);
}

TEST(a_module_shows_them_and_comes_back)
{
    char own[65], averaged[65], now[65];
    ek_module *module = net(), *other = net();
    ek_ema *ema = ek_ema_new(module, .decay = 0.5);
    assert_ok(ek_ema_update(ema));
    change(module, 1);
    assert_ok(ek_ema_update(ema));
    assert_ok(ek_module_sha256(module, own));
    ck_assert_double_eq(element(ek_ema_tensor(ema, "1.running_mean"), 2), 1);
    assert_ok(ek_ema_copy_to(ema, other));
    assert_ok(ek_module_sha256(other, averaged));
    ck_assert_str_ne(own, averaged);
    for (int times = 0; times < 2; times++) {
        assert_ok(ek_ema_apply(ema));
        assert_ok(ek_module_sha256(module, now));
        ck_assert_str_eq(now, averaged);
        assert_refused(ek_ema_apply(ema), EK_E_STATE, "shows the averages already");
        assert_refused(ek_ema_update(ema), EK_E_STATE, "ek_ema_restore");
        assert_ok(ek_ema_copy_to(ema, other));
        assert_ok(ek_module_sha256(other, now));
        ck_assert_str_eq(now, averaged);
        assert_ok(ek_ema_restore(ema));
        assert_ok(ek_module_sha256(module, now));
        ck_assert_str_eq(now, own);
        assert_refused(ek_ema_restore(ema), EK_E_STATE, "its own values");
    }
    ek_ema_free(ema);
    ek_module_free(module);
    ek_module_free(other);
}

/* Buffers are copied or averaged, integers always copied; memory is the optimizers'. */
TEST_LOOP(buffers, 0, 2)
{
    ek_module *module = net();
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(ek_cpu(), &before));
    ek_ema *ema = ek_ema_new(module, .decay = 0.25,
                             .buffers = _i ? EK_EMA_BUFFERS_AVERAGE : EK_EMA_BUFFERS_COPY);
    assert_ok(ek_memory_get_stats(ek_cpu(), &after));
    ck_assert_uint_gt(after.now[EK_MEMORY_OPTIMIZER], before.now[EK_MEMORY_OPTIMIZER]);
    ek_tensor *tracked = ek_module_tensor(module, "1.num_batches_tracked");
    assert_ok(ek_ema_update(ema));
    change(module, 4);
    ek_fill_(tracked, 9);
    assert_ok(ek_ema_update(ema));
    ck_assert_double_eq(element(ek_ema_tensor(ema, "1.running_mean"), 0), _i ? 3 : 4);
    ck_assert_double_eq(element(ek_ema_tensor(ema, "1.num_batches_tracked"), 0), 9);
    ek_module_free(module); /* it may go first */
    assert_ok(ek_ema_update(ema));
    ek_ema_free(ema);
}

TEST(they_go_where_the_module_goes)
{
    assert_ok(test_devices_configure("2"));
    ek_module *module = net();
    ek_ema *ema = ek_ema_new(module, .decay = 0.5);
    assert_ok(ek_ema_update(ema));
    const double at = element(ek_module_tensor(module, "0.weight"), 5);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    assert_ok(ek_module_to_device(module, test_device(1)));
    change(module, 2);
    assert_ok(ek_ema_update(ema));
    ek_tensor *average = ek_ema_tensor(ema, "0.weight");
    ck_assert(ek_device_equal(ek_tensor_device(average), test_device(1)));
    ck_assert_int_eq(ek_tensor_dtype(average), EK_F64);
    ck_assert_double_eq_tol(element(ek_to_device(average, ek_cpu()), 5), at + 1, 1e-12);
    assert_ok(ek_module_to_dtype(module, EK_BF16));
    assert_refused(ek_ema_update(ema), EK_E_DTYPE, "\"0.weight\" has become");
    ek_ema_free(ema);
    ek_module_free(module);
}

TEST(refuses)
{
    ek_module *module = net(), *other = ek_linear(2, 2);
    assert_refused(ek_ema_new(NULL), EK_E_INVALID, "the module is NULL");
    assert_refused(ek_ema_new(module, .decay = 1.5), EK_E_INVALID, "decay has to be 0 to 1");
    ek_ema *ema = ek_ema_new(module, .decay = 0); /* the last values */
    assert_refused(ek_ema_tensor(ema, "0.wieght"), EK_E_INVALID, "\"0.wieght\"");
    assert_refused(ek_ema_copy_to(ema, other), EK_E_INVALID, "0.weight");
    assert_refused(ek_ema_update(NULL), EK_E_INVALID, "the ema is NULL");
    assert_ok(ek_ema_update(ema));
    change(module, 1);
    assert_ok(ek_ema_update(ema));
    assert_close(ek_ema_tensor(ema, "0.weight"), ek_detach(ek_module_tensor(module, "0.weight")), 0,
                 0);
    ek_ema_free(ema);
    ek_ema_free(NULL);
    assert_ok(ek_module_to_dtype(module, EK_BF16));
    assert_refused(ek_ema_new(module), EK_E_DTYPE, "\"0.weight\" is");
    ek_module_free(module);
    ek_module_free(other);
}
