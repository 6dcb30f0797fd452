/* Whole networks, trained from a seed without copying anything over: PyTorch's losses of 20 steps,
 * in f32 and under its CPU autocast. */
#include "kit/devices.h"

static ek_module *make_mlp(void)
{
    return ek_sequential(ek_linear(12, 32), ek_relu(), ek_linear(32, 24), ek_tanh(),
                         ek_linear(24, 5));
}

static ek_module *make_convnet(void)
{
    return ek_sequential(ek_conv2d(3, 8, 3, .padding = 1, .bias = false), ek_batch_norm2d(8),
                         ek_relu(), ek_max_pool2d(2),
                         ek_conv2d(8, 16, 3, .stride = 2, .bias = false), ek_batch_norm2d(16),
                         ek_relu(), ek_adaptive_avg_pool2d(1, 1), ek_flatten(1, -1),
                         ek_linear(16, 4));
}

typedef struct network {
    const char *name;
    ek_module *(*make)(void);
    ek_shape shape;
    int64_t classes;
    const char *parameters[10];
} network;

static const network networks[] = {
    {"mlp",
     make_mlp,
     {.ndim = 2, .dims = {32, 12}},
     5,
     {"0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"}},
    {"convnet",
     make_convnet,
     {.ndim = 4, .dims = {16, 3, 12, 12}},
     4,
     {"0.weight", "1.weight", "1.bias", "4.weight", "5.weight", "5.bias", "9.weight", "9.bias"}},
};

enum { NETWORKS = sizeof networks / sizeof *networks };

typedef struct training {
    ek_module *net, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *x, *target;
} training;

static training training_begin(const network *which, bool adam, ek_device device)
{
    ek_manual_seed(0);
    training t = {.net = which->make(), .criterion = ek_cross_entropy_loss()};
    assert_made(t.net);
    t.x = ek_to_device(ek_randn(which->shape), device);
    t.target = ek_to_device(ek_randint(0, which->classes, EK_SHAPE(which->shape.dims[0])), device);
    assert_ok(ek_module_to_device(t.net, device));
    t.optimizer = adam ? ek_adam(t.net, .lr = 3e-3)
                       : ek_sgd(t.net, .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3);
    return t;
}

static void training_end(training *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->criterion);
    ek_module_free(t->net);
}

static void assert_near(double value, const ek_tensor *curve, int step, double relative,
                        const char *what)
{
    const double wanted = element(curve, step);
    ck_assert_msg(fabs(value - wanted) <= relative * wanted, "step %d: %.8g instead of %s's %.8g",
                  step, value, what, wanted);
}

/* ---- f32 ---- */

static void check_curve(const network *which, bool adam, ek_device device)
{
    char path[64];
    ek_scope scope = ek_scope_begin();
    snprintf(path, sizeof path, "curve/%s/%s/losses", which->name, adam ? "adam" : "sgd");
    ek_tensor *curve = golden("nn.golden", path);
    training t = training_begin(which, adam, device);
    for (int step = 0; step < ek_tensor_count(curve); step++) {
        ek_scope inner = ek_scope_begin();
        ek_tensor *loss = ek_loss(t.criterion, ek_apply(t.net, t.x), t.target);
        double value;
        assert_ok(ek_item(loss, &value));
        assert_near(value, curve, step, 1e-5, path);
        ek_zero_grad(t.optimizer);
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(t.optimizer));
        ek_scope_end(&inner);
    }
    ek_module_train(t.net, false);
    ek_set_grad_enabled(false);
    snprintf(path, sizeof path, "curve/%s/%s/evaluation", which->name, adam ? "adam" : "sgd");
    assert_close(ek_to_device(ek_apply(t.net, t.x), ek_cpu()), golden("nn.golden", path), 1e-4,
                 1e-4);
    ek_set_grad_enabled(true);
    training_end(&t);
    ek_scope_end(&scope);
}

TEST_LOOP(f32_follows_pytorch, 0, 2 * NETWORKS)
{
    if (_i / 2 == 0)
        check_curve(&networks[0], _i % 2, ek_cpu());
    check_curve(&networks[_i / 2], _i % 2, test_device(0));
}

/* The same seed gives the same weights to the bit, and memory in use does not grow. */
TEST(training_repeats)
{
    char hashes[2][65];
    ek_use_deterministic_algorithms(true); /* sums of convolutions on GPUs may differ otherwise */
    for (int run = 0; run < 2; run++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(5);
        ek_module *net = make_convnet();
        assert_ok(ek_module_to_device(net, test_device(0)));
        ek_optimizer *optimizer = ek_adam(net, .lr = 3e-3);
        uint64_t in_use = 0;
        for (int step = 0; step < 5; step++) {
            ek_scope inner = ek_scope_begin();
            ek_tensor *x = ek_randn(EK_SHAPE(8, 3, 12, 12), .device = test_device(0));
            assert_ok(ek_backward(ek_mean(ek_square(ek_apply(net, x)))));
            assert_ok(ek_step(optimizer));
            ek_zero_grad(optimizer);
            ek_scope_end(&inner);
            if (step > 0)
                ck_assert_uint_eq(bytes_in_use(test_device(0)), in_use);
            in_use = bytes_in_use(test_device(0));
        }
        assert_ok(ek_module_sha256(net, hashes[run]));
        ek_optimizer_free(optimizer);
        ek_module_free(net);
        ek_scope_end(&scope);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
}

/* ---- bf16 ---- */

static ek_tensor *expected(const network *which, const char *mode, const char *key)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s/%s", which->name, mode, key);
    return golden("autocast.golden", path);
}

static double distance(const ek_tensor *a, const ek_tensor *b)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < ek_tensor_count(b); i++) {
        difference += pow(element(a, i) - element(b, i), 2);
        size += pow(element(b, i), 2);
    }
    return sqrt(difference / size);
}

/* bf16 rounds activations and gradients to 2^-9, a few times in a row: 1 % of a gradient. If max
 * pooling then takes another of two neighbours, an element of the gradient goes another way; 1 % of
 * those are sqrt(2 * 0.01) of the norm. PyTorch's own distance from f32 shows how many there are.
 */
static void check_gradients(const network *which, ek_module *net)
{
    for (int i = 0; which->parameters[i]; i++) {
        char key[64];
        snprintf(key, sizeof key, "gradient/%s", which->parameters[i]);
        ek_tensor *w = ek_module_tensor(net, which->parameters[i]);
        assert_made(w);
        ck_assert_int_eq(ek_tensor_dtype(w), EK_F32);
        ek_tensor *gradient = ek_to_device(ek_tensor_grad(w), ek_cpu());
        ek_tensor *torch = expected(which, "bf16", key), *exact = expected(which, "f32", key);
        ck_assert_int_eq(ek_tensor_dtype(gradient), EK_F32);
        double own = distance(gradient, exact), theirs = distance(torch, exact);
        ck_assert_msg(own <= fmax(0.012, 1.5 * theirs), "%s: %g of f32's away, PyTorch's %g", key,
                      own, theirs);
        ck_assert_msg(distance(gradient, torch) <= 0.02 + 1.5 * theirs,
                      "%s: %g of PyTorch's away, which is %g from f32's", key,
                      distance(gradient, torch), theirs);
        ck_assert_msg(own > 1e-4, "%s is that of f32", key);
    }
}

TEST_LOOP(autocast_follows_pytorch, 0, NETWORKS)
{
    const network *which = &networks[_i];
    training t = training_begin(which, false, test_device(0));
    ek_tensor *torch = expected(which, "bf16", "losses"), *exact = expected(which, "f32", "losses");
    for (int step = 0; step < ek_tensor_count(torch); step++) {
        ek_scope inner = ek_scope_begin();
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_tensor *output = ek_apply(t.net, t.x);
        ek_tensor *loss = ek_loss(t.criterion, output, t.target);
        ek_autocast_end(&region);
        double value;
        assert_ok(ek_item(loss, &value));
        ck_assert_int_eq(ek_tensor_dtype(output), EK_BF16);
        ck_assert_int_eq(ek_tensor_dtype(loss), EK_F32);
        /* One rounding to 2^-8 in the first; 20 steps of weights that went apart after it. */
        assert_near(value, torch, step, step == 0 ? 0.004 : 0.02, "PyTorch");
        assert_near(value, exact, step, step == 0 ? 0.004 : 0.02, "f32");
        ek_zero_grad(t.optimizer);
        assert_ok(ek_backward(loss));
        if (step == 0)
            check_gradients(which, t.net);
        assert_ok(ek_step(t.optimizer));
        ek_scope_end(&inner);
    }
    training_end(&t);
}
