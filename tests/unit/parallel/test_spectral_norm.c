/* Spectral norm, weight norm, and instance norm's running statistics on several devices. */
#include "parallel_setup.h"

static ek_module *make_critic(void)
{
    ek_manual_seed(11);
    ek_module *net = ek_sequential(ek_spectral_norm(ek_conv1d(2, 4, 3, .padding = 1)),
                                   ek_leaky_relu(0.2), ek_weight_norm(ek_conv1d(4, 3, 1)),
                                   ek_flatten(1, -1), ek_spectral_norm(ek_linear(15, 1)));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

static const char *const paths[] = {"0.weight_orig", "0.bias",        "2.weight_g", "2.weight_v",
                                    "2.bias",        "4.weight_orig", "4.bias"};

/* A step of plain gradient descent, whose loss has a penalty on the input's gradient. */
static void step(ek_module *model, ek_module *module, ek_tensor *from)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_clone(from), *dx = NULL;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *out = ek_sum(ek_apply(model, x));
    assert_made(out);
    assert_ok(ek_grad(.outputs = &out, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    ek_tensor *penalty = ek_to_device(ek_sum(ek_square(dx)), ek_tensor_device(out));
    assert_ok(ek_backward(ek_add(out, penalty)));
    bool before = ek_set_grad_enabled(false);
    for (int i = 0; i < 7; i++) {
        ek_tensor *parameter = ek_module_tensor(module, paths[i]);
        if (ek_tensor_grad(parameter)) /* the last bias has no part in the penalty, but in `out` */
            assert_made(ek_add_scaled_(parameter, ek_tensor_grad(parameter), -0.01));
    }
    ek_set_grad_enabled(before);
    ek_module_zero_grad(module);
    ek_scope_end(&scope);
}

static void assert_same_tensor(ek_module *a, ek_module *b, const char *path)
{
    ek_tensor *of_a = ek_module_tensor(a, path), *of_b = ek_module_tensor(b, path);
    assert_made(of_a);
    assert_made(of_b);
    assert_close(ek_to_device(ek_detach(of_b), ek_cpu()), ek_to_device(ek_detach(of_a), ek_cpu()),
                 1e-11, 1e-13);
}

TEST_LOOP(devices_equal_one, 2, 4)
{
    static const char *const buffers[] = {"0.weight_u", "0.weight_v", "4.weight_u", "4.weight_v"};
    ek_module *alone = held(make_critic()), *net = make_critic();
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), _i)));
    for (int i = 0; i < 3; i++) {
        ek_tensor *x = normal(60 + (uint64_t)i, EK_SHAPE(7, 2, 5), EK_F64, ek_cpu());
        step(alone, alone, x);
        step(model, model, x);
        for (int p = 0; p < 7; p++)
            assert_same_tensor(alone, model, paths[p]);
        for (int b = 0; b < 4; b++)
            assert_same_tensor(alone, model, buffers[b]);
    }
}

/* As batch norm's buffers: those of the first device's samples are kept, or their average. */
TEST(running_statistics_of_instances)
{
    ek_module *alone = held(ek_instance_norm1d(3, .track_running_stats = true));
    assert_ok(ek_module_to_dtype(alone, EK_F64));
    ek_module *model = held(ek_data_parallel(ek_module_copy(alone), ek_devices(test_kind(), 2)));
    for (int i = 0; i < 2; i++) {
        ek_tensor *x = normal(70 + (uint64_t)i, EK_SHAPE(4, 3, 5), EK_F64, ek_cpu());
        assert_made(ek_apply(alone, ek_narrow(x, 0, 0, 2)));
        assert_made(ek_apply(model, x));
    }
    assert_same_tensor(alone, model, "running_mean");
    assert_same_tensor(alone, model, "running_var");
    ek_module_train(model, false);
    ek_module_train(alone, false);
    ek_tensor *x = normal(72, EK_SHAPE(4, 3, 5), EK_F64, ek_cpu());
    assert_close(ek_to_device(ek_apply(model, x), ek_cpu()), ek_apply(alone, x), 1e-12, 1e-12);
}
