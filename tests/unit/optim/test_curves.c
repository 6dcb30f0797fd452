/* Whole networks, trained from a seed without copying anything over: PyTorch's losses of 20 steps.
 */
#include <stdio.h>

#include "evenkeel/autograd.h"
#include "evenkeel/nn.h"
#include "evenkeel/optim.h"
#include "unit.h"

static ek_module *make_mlp(void)
{
    return ek_sequential(ek_linear(12, 32), ek_relu(), ek_linear(32, 24), ek_tanh(),
                         ek_linear(24, 5));
}

static ek_module *make_convnet(void)
{
    return ek_sequential(ek_conv2d(3, 8, 3, .padding = 1, .bias = EK_OFF), ek_batch_norm2d(8),
                         ek_relu(), ek_max_pool2d(2),
                         ek_conv2d(8, 16, 3, .stride = 2, .bias = EK_OFF), ek_batch_norm2d(16),
                         ek_relu(), ek_adaptive_avg_pool2d(1, 1), ek_flatten(1, -1),
                         ek_linear(16, 4));
}

static ek_optimizer *make_optimizer(ek_module *net, bool adam)
{
    return adam ? ek_adam(net, .lr = 3e-3)
                : ek_sgd(net, .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3);
}

static void train(const char *name, ek_module *(*make)(void), ek_shape shape, int64_t classes,
                  bool adam, ek_device device)
{
    char path[64];
    snprintf(path, sizeof path, "curve/%s/%s/losses", name, adam ? "adam" : "sgd");
    ek_tensor *expected = golden("nn.golden", path);
    ek_manual_seed(0);
    ek_module *net = make();
    assert_made(net);
    ek_tensor *x = ek_to_device(ek_randn(shape), device);
    ek_tensor *target = ek_to_device(ek_randint(0, classes, EK_SHAPE(shape.dims[0])), device);
    assert_ok(ek_module_to_device(net, device));
    ek_optimizer *optimizer = make_optimizer(net, adam);
    ek_module *criterion = ek_cross_entropy_loss();
    for (int step = 0; step < ek_tensor_count(expected); step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *loss = ek_loss(criterion, ek_apply(net, x), target);
        double value;
        assert_ok(ek_item(loss, &value));
        double wanted = element(expected, step);
        ck_assert_msg(value - wanted <= 1e-5 * wanted && wanted - value <= 1e-5 * wanted,
                      "%s, step %d: %.8g instead of %.8g", path, step, value, wanted);
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(optimizer));
        ek_scope_end(&scope);
    }
    ek_module_train(net, false);
    ek_set_grad_enabled(false);
    snprintf(path, sizeof path, "curve/%s/%s/evaluation", name, adam ? "adam" : "sgd");
    assert_close(ek_to_device(ek_apply(net, x), ek_cpu()), golden("nn.golden", path), 1e-4, 1e-4);
    ek_set_grad_enabled(true);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(net);
}

TEST_LOOP(mlp_follows_pytorch, 0, 2)
{
    ek_scope scope = ek_scope_begin();
    train("mlp", make_mlp, EK_SHAPE(32, 12), 5, _i, ek_cpu());
    train("mlp", make_mlp, EK_SHAPE(32, 12), 5, _i, test_device(0));
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

TEST_LOOP(convnet_follows_pytorch, 0, 2)
{
    ek_scope scope = ek_scope_begin();
    train("convnet", make_convnet, EK_SHAPE(16, 3, 12, 12), 4, _i, test_device(0));
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

/* The same seed gives the same weights to the bit, and memory in use does not grow. */
TEST(training_repeats)
{
    char hashes[2][65];
    for (int run = 0; run < 2; run++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(5);
        ek_module *net = make_convnet();
        assert_ok(ek_module_to_device(net, test_device(0)));
        ek_optimizer *optimizer = make_optimizer(net, true);
        uint64_t in_use = 0;
        for (int step = 0; step < 5; step++) {
            ek_scope inner = ek_scope_begin();
            ek_tensor *x = ek_randn(EK_SHAPE(8, 3, 12, 12), .device = test_device(0));
            assert_ok(ek_backward(ek_mean(ek_square(ek_apply(net, x)))));
            assert_ok(ek_step(optimizer));
            ek_zero_grad(optimizer);
            ek_scope_end(&inner);
            ek_memory_stats stats;
            assert_ok(ek_memory_get_stats(test_device(0), &stats));
            if (step > 0)
                ck_assert_uint_eq(stats.in_use, in_use);
            in_use = stats.in_use;
        }
        assert_ok(ek_module_sha256(net, hashes[run]));
        ek_optimizer_free(optimizer);
        ek_module_free(net);
        ek_scope_end(&scope);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
    assert_ok(ek_shutdown());
}
