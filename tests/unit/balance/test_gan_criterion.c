/* ek_gan_loss in ek_data_parallel_criterion: outputs alone, no target; one device's mean for any
 * chunks. */
#include "penalty_setup.h"

enum { LOSSES = 4, ROLES = 3 };

static void compare(ek_module *plain, ek_module *wrapped, way how, int devices, int batch)
{
    ek_tensor *x = normal(4, sample_shape(batch), EK_F64, ek_cpu());
    ek_module *alone = seeded(leaky_critic, EK_F64);
    outcome wanted = {.value = ek_loss(plain, ek_apply(alone, x))}, o = {0};
    assert_ok(ek_backward(wanted.value));
    assert_ok(ek_module_parameters(alone, note_gradient, &wanted));

    ek_module *critic = on_devices(seeded(leaky_critic, EK_F64), how, devices);
    o.value = ek_loss(wrapped, ek_forward(critic, x));
    assert_made(o.value);
    ck_assert(ek_device_equal(ek_tensor_device(o.value), test_device(0)));
    assert_ok(ek_backward(o.value));
    assert_ok(ek_module_parameters(critic, note_gradient, &o));
    assert_same_outcome(&o, &wanted, 1e-12);
    ek_module_free(alone);
    ek_module_free(critic);
}

/* 4 devices: 10 is cut 3 3 3 1. */
TEST_LOOP(outputs_alone, 0, (LOSSES * ROLES))
{
    ek_gan_loss_kind kind = (ek_gan_loss_kind)(_i / ROLES);
    ek_gan_role role = (ek_gan_role)(_i % ROLES);
    static const way ways[] = {CLASSIC, BALANCED, BALANCED_EVEN, BALANCED_PLAIN,
                               BALANCED_EVALUATION};
    ek_module *plain = held(ek_gan_loss(kind, role));
    for (int devices = 1; devices <= 4; devices += 3) {
        ek_module *wrapped =
            ek_data_parallel_criterion(ek_gan_loss(kind, role), ek_devices(test_kind(), devices));
        for (int w = 0; w < 5; w++) {
            compare(plain, wrapped, ways[w], devices, 10);
            compare(plain, wrapped, ways[w], devices, 1);
        }
        ek_module_free(wrapped);
    }
}
