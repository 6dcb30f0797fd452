/* Networks trained under autocast: PyTorch's CPU autocast from the same seed, and f32's losses. */
#include <math.h>
#include <stdio.h>

#include "evenkeel/autograd.h"
#include "evenkeel/nn.h"
#include "evenkeel/optim.h"
#include "evenkeel/precision.h"
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

static ek_tensor *expected(const network *which, const char *mode, const char *key)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s/%s", which->name, mode, key);
    return golden("autocast.golden", path);
}

static void assert_near(double value, double wanted, double relative, const char *what, int step)
{
    ck_assert_msg(fabs(value - wanted) <= relative * wanted, "step %d: %.8g instead of %s's %.8g",
                  step, value, what, wanted);
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

TEST_LOOP(follows_pytorch, 0, sizeof networks / sizeof *networks)
{
    const network *which = &networks[_i];
    ek_scope scope = ek_scope_begin();
    ek_device device = test_device(0);
    ek_manual_seed(0);
    ek_module *net = which->make();
    assert_made(net);
    ek_tensor *x = ek_to_device(ek_randn(which->shape), device);
    ek_tensor *target =
        ek_to_device(ek_randint(0, which->classes, EK_SHAPE(which->shape.dims[0])), device);
    assert_ok(ek_module_to_device(net, device));
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3);
    ek_module *criterion = ek_cross_entropy_loss();
    ek_tensor *torch = expected(which, "bf16", "losses"), *exact = expected(which, "f32", "losses");
    for (int step = 0; step < ek_tensor_count(torch); step++) {
        ek_scope inner = ek_scope_begin();
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_tensor *output = ek_apply(net, x);
        ek_tensor *loss = ek_loss(criterion, output, target);
        ek_autocast_end(&region);
        double value;
        assert_ok(ek_item(loss, &value));
        ck_assert_int_eq(ek_tensor_dtype(output), EK_BF16);
        ck_assert_int_eq(ek_tensor_dtype(loss), EK_F32);
        /* One rounding to 2^-8 in the first; 20 steps of weights that went apart after it. */
        assert_near(value, element(torch, step), step == 0 ? 0.004 : 0.02, "PyTorch", step);
        assert_near(value, element(exact, step), step == 0 ? 0.004 : 0.02, "f32", step);
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(loss));
        if (step == 0)
            check_gradients(which, net);
        assert_ok(ek_step(optimizer));
        ek_scope_end(&inner);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(net);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
