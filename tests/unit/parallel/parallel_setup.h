/* parallel_setup.h: devices, and modules whose arithmetic is known. */
#ifndef EK_TESTS_PARALLEL_SETUP_H
#define EK_TESTS_PARALLEL_SETUP_H

#include "core/tensor.h"
#include "kit/devices.h"
#include "kit/held.h"
#include "kit/tensors.h"

static inline void setup(void)
{
    assert_ok(test_devices_configure("4"));
    ek_manual_seed(1);
}

FIXTURE(setup, free_held)

/* linear(3, 5), tanh, linear(5, 2), in f64; the same numbers each time. */
static inline ek_module *make_net(void)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_linear(3, 5), ek_tanh(), ek_linear(5, 2));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

/* mean(out^2), backward. */
static inline double square_loss(ek_tensor *out)
{
    ek_tensor *loss = ek_mean(ek_square(out));
    double value;
    assert_made(loss);
    assert_ok(ek_item(loss, &value));
    assert_ok(ek_backward(loss));
    return value;
}

/* Gradients of b's parameters equal those of a's. */
static inline void assert_same_gradients(ek_module *a, ek_module *b, double relative)
{
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    for (int i = 0; i < 4; i++) {
        ek_tensor *of_a = ek_tensor_grad(ek_module_tensor(a, paths[i]));
        ek_tensor *of_b = ek_tensor_grad(ek_module_tensor(b, paths[i]));
        assert_made(of_a);
        assert_made(of_b);
        assert_close_norm(ek_to_device(of_b, ek_cpu()), ek_to_device(of_a, ek_cpu()), relative);
    }
}

#endif
