/* Optimizers and wrappers, made in any order; the same bits from run to run. */
#include "balance_setup.h"

enum { STEPS = 10 };

static void train(ek_module *model, ek_module *criterion, ek_optimizer *optimizer, double *losses)
{
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *loss =
            ek_loss(criterion, ek_forward(model, make_inputs(10)), make_targets(10, 2, 4));
        losses[step] = value_of(loss);
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(optimizer));
        ek_scope_end(&scope);
    }
}

/* One device, without a wrapper. */
static void train_alone(double *losses)
{
    ek_module *net = make_scorer();
    ek_module *criterion = ek_cross_entropy_loss(.ignore_index = IGNORED);
    ek_optimizer *optimizer = ek_adam(net, .lr = 0.05);
    train(net, criterion, optimizer, losses);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
    ek_module_free(criterion);
}

TEST_LOOP(an_optimizer_from_before_survives, 0, 2)
{
    double expected[STEPS], losses[STEPS];
    train_alone(expected);
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *net = make_scorer();
    ek_optimizer *optimizer = NULL;
    if (_i == 0)
        optimizer = ek_adam(net, .lr = 0.05);
    ek_module *model = held(ek_data_parallel_model(net, devices));
    if (_i == 1)
        optimizer = ek_adam(model, .lr = 0.05);
    assert_made(optimizer);
    ek_module *criterion =
        held(ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = IGNORED), devices));
    train(model, criterion, optimizer, losses);
    for (int i = 0; i < STEPS; i++)
        assert_near(losses[i], expected[i], 1e-12);
    ck_assert(losses[STEPS - 1] < losses[0]);
    ek_optimizer_free(optimizer);
}

TEST(wrapping_in_the_middle_of_training)
{
    /* State that the optimizer has already goes on; one wrapper follows the other. */
    ek_module *alone = make_scorer(), *net = make_scorer();
    ek_module *criterion = ek_cross_entropy_loss(.ignore_index = IGNORED);
    ek_optimizer *first = ek_sgd(alone, .lr = 0.1, .momentum = 0.9);
    ek_optimizer *second = ek_sgd(net, .lr = 0.1, .momentum = 0.9);
    ek_tensor *x = make_inputs(10), *target = make_targets(10, 0, 0);
    ek_module *models[3] = {net};
    assert_ok(ek_module_to_device(net, test_device(0)));
    for (int step = 0; step < 6; step++) {
        if (step == 2)
            models[1] = ek_data_parallel(net, ek_devices(test_kind(), 2));
        if (step == 4)
            models[2] = ek_data_parallel(net, ek_devices(test_kind(), 4));
        ek_tensor *a = ek_loss(criterion, ek_apply(alone, x), target);
        ek_tensor *out = ek_apply(models[step / 2], ek_to_device(x, test_device(0)));
        ek_tensor *b = ek_loss(criterion, ek_to_device(out, ek_cpu()), target);
        assert_near(value_of(b), value_of(a), 1e-12);
        ek_zero_grad(first);
        ek_zero_grad(second);
        assert_ok(ek_backward(a));
        assert_ok(ek_backward(b));
        assert_ok(ek_step(first));
        assert_ok(ek_step(second));
    }
    ek_optimizer_free(first);
    ek_optimizer_free(second);
    ek_module_free(alone);
    ek_module_free(criterion);
    ek_module_free(models[1]); /* the wrappers share the net */
    ek_module_free(models[2]);
}

TEST_LOOP(two_runs_give_the_same_bits, 0, 2)
{
    char sums[2][65];
    for (int run = 0; run < 2; run++) {
        double losses[STEPS];
        ek_device_list devices = ek_devices(test_kind(), 4);
        ek_module *model = _i ? ek_data_parallel(make_scorer(), devices)
                              : ek_data_parallel_model(make_scorer(), devices);
        ek_module *criterion = ek_cross_entropy_loss(.ignore_index = IGNORED);
        if (!_i)
            criterion = ek_data_parallel_criterion(criterion, devices);
        ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1);
        for (int step = 0; step < STEPS && _i; step++) {
            ek_tensor *out = ek_value_tensor(ek_forward(model, make_inputs(10)));
            ek_tensor *loss =
                ek_loss(criterion, ek_to_device(out, ek_cpu()), make_targets(10, 2, 4));
            ek_zero_grad(optimizer);
            assert_ok(ek_backward(loss));
            assert_ok(ek_step(optimizer));
        }
        if (!_i)
            train(model, criterion, optimizer, losses);
        assert_ok(ek_module_sha256(model, sums[run]));
        ek_optimizer_free(optimizer);
        ek_module_free(model);
        ek_module_free(criterion);
    }
    ck_assert_str_eq(sums[0], sums[1]);
}
