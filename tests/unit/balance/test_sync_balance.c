/* Synchronised batch norm if nothing meets but scalars: outputs stay on their devices. */
#include "balance_setup.h"

enum { SAMPLES = 10 };

/* Scores (n, CLASSES, POINTS) from x (n, FEATURES, POINTS): convolution, norm, relu, convolution.
 */
static ek_module *make_net(bool sync)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_conv1d(FEATURES, 6, 1), ek_batch_norm1d(6), ek_relu(),
                                   ek_conv1d(6, CLASSES, 1));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return sync ? ek_convert_sync_batch_norm(net) : net;
}

static ek_tensor *inputs_of(uint64_t seed)
{
    ek_generator *generator = ek_generator_new(seed);
    ek_tensor *x = ek_empty(EK_SHAPE(SAMPLES, FEATURES, POINTS), .dtype = EK_F64);
    assert_ok(ek_normal_(x, 0.5, 2, generator));
    ek_generator_free(generator);
    return x;
}

static ek_tensor *here(ek_tensor *x)
{
    assert_made(x);
    return ek_to_device(ek_detach(x), ek_cpu());
}

static const char *const state[] = {"0.weight",       "0.bias",        "1.weight",
                                    "1.bias",         "3.weight",      "3.bias",
                                    "1.running_mean", "1.running_var", "1.num_batches_tracked"};

static void assert_same_state(ek_module *a, ek_module *b)
{
    for (size_t i = 0; i < sizeof state / sizeof *state; i++)
        assert_close_norm(here(ek_module_tensor(a, state[i])), here(ek_module_tensor(b, state[i])),
                          1e-10);
}

TEST_LOOP(training_goes_as_on_one_device, 0, 2)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    if (_i)
        devices = EK_DEVICES(test_device(3), test_device(1), test_device(2));
    ek_module *model = held(ek_data_parallel_model(make_net(true), .device_ids = devices));
    ek_module *loss =
        held(ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = IGNORED),
                                        .device_ids = devices));
    ek_module *plain = held(make_net(false));
    ek_module *plain_loss = held(ek_cross_entropy_loss(.ignore_index = IGNORED));
    ek_optimizer *optimizer = held(ek_sgd(model, .lr = 0.1, .momentum = 0.9));
    ek_optimizer *plain_optimizer = held(ek_sgd(plain, .lr = 0.1, .momentum = 0.9));
    for (int i = 0; i < 5; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = inputs_of(30 + (uint64_t)i), *target = make_targets(SAMPLES, i, i + 2);
        ek_tensor *got = ek_loss(loss, ek_forward(model, x), target);
        ek_tensor *wanted = ek_loss(plain_loss, ek_forward(plain, x), target);
        assert_near(value_of(got), value_of(wanted), 1e-12);
        ek_zero_grad(optimizer);
        ek_zero_grad(plain_optimizer);
        assert_ok(ek_backward(got));
        assert_ok(ek_backward(wanted));
        assert_ok(ek_step(optimizer));
        assert_ok(ek_step(plain_optimizer));
        assert_same_state(model, plain);
        ek_scope_end(&scope);
    }
}

/* (|dx| - 1)^2 over samples, then backward to the parameters. */
static ek_tensor *penalty_of(ek_tensor *const *outputs, int count, ek_tensor *x)
{
    ek_tensor *sums[4], *dx, *ones[4];
    for (int d = 0; d < count; d++) {
        sums[d] = ek_sum(ek_square(outputs[d]));
        ones[d] = ek_ones(ek_scalar_shape(), .dtype = EK_F64, .device = ek_tensor_device(sums[d]));
    }
    assert_ok(ek_grad(.outputs = sums, .output_count = count, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .grad_outputs = ones, .create_graph = true));
    ek_tensor *norm = ek_norm(dx, EK_DIMS(1, 2));
    return ek_mean(ek_square(ek_add_scalar(norm, -1)));
}

TEST(a_penalty_over_all_replicas_is_that_of_one_device)
{
    ek_module *model =
        held(ek_data_parallel_model(make_net(true), .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(make_net(false));
    ek_tensor *x = inputs_of(3), *outputs[4];
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_value out = ek_forward(model, x);
    ck_assert_int_eq(ek_value_length(out), 4);
    for (int d = 0; d < 4; d++)
        outputs[d] = ek_value_tensor(ek_value_at(out, d));
    ek_tensor *got = penalty_of(outputs, 4, x);
    outputs[0] = ek_apply(plain, x);
    ek_tensor *wanted = penalty_of(outputs, 1, x);
    assert_near(value_of(got), value_of(wanted), 1e-12);
    assert_ok(ek_backward(got));
    assert_ok(ek_backward(wanted));
    static const int concerned[] = {0, 2, 3, 4}; /* the norm hides the first bias */
    for (int k = 0; k < 4; k++) {
        const char *name = state[concerned[k]];
        assert_close_norm(here(ek_tensor_grad(ek_module_tensor(model, name))),
                          here(ek_tensor_grad(ek_module_tensor(plain, name))), 1e-10);
    }
}

TEST(a_replica_that_fails_ends_the_waiting)
{
    ek_module *model =
        held(ek_data_parallel_model(make_net(true), .device_ids = ek_devices(test_kind(), 4)));
    for (int i = 0; i < 100; i++) {
        ek_scope scope = ek_scope_begin();
        ek_value parts[4];
        for (int d = 0; d < 4; d++) /* one of another width, which the convolution refuses */
            parts[d] = ek_value_of_tensor(
                ek_ones(EK_SHAPE(2, FEATURES + (d == i % 4), POINTS), .dtype = EK_F64));
        ck_assert_int_eq(ek_forward(model, ek_value_per_device(parts, 4)).kind, EK_VALUE_ERROR);
        char sentence[40];
        snprintf(sentence, sizeof sentence, "replica %d on host:%d", i % 4, i % 4);
        assert_error(EK_E_SHAPE, sentence);
        ek_scope_end(&scope);
    }
    ck_assert_int_eq(ek_forward(model, inputs_of(1)).kind, EK_VALUE_LIST);
}
