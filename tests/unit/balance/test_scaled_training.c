/* Training under autocast to f16 with a gradient scaler: on one device, and by wrappers on several,
 * with whole and with sharded gradients. */
#include "penalty_setup.h"

enum { SAMPLES = 11, GOOD_STEPS = 8 };

static ek_module *make_classifier(void)
{
    ek_manual_seed(5);
    ek_module *net = ek_sequential(ek_linear(6, 16), ek_tanh(), ek_linear(16, 4));
    assert_made(net);
    return net;
}

typedef enum wrapping { ON_ONE, WHOLE_OUTPUT, IN_CHUNKS, IN_SHARDS, WRAPPINGS } wrapping;

typedef struct training {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
} training;

static training begin(wrapping how)
{
    const ek_device_list devices = ek_devices(test_kind(), how == IN_CHUNKS ? 3 : 2);
    training t = {.net = make_classifier(), .criterion = ek_cross_entropy_loss()};
    t.model = t.net;
    if (how == ON_ONE)
        assert_ok(ek_module_to_device(t.net, test_device(0)));
    if (how == WHOLE_OUTPUT)
        t.model = ek_data_parallel(t.net, .device_ids = devices);
    if (how >= IN_CHUNKS) {
        t.model =
            ek_data_parallel_model(t.net, .device_ids = devices,
                                   .shard = how == IN_SHARDS ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
        t.criterion = ek_data_parallel_criterion(t.criterion, .device_ids = devices);
    }
    t.optimizer = ek_adam(t.model, .lr = 0.05);
    assert_made(t.model);
    assert_made(t.optimizer);
    return t;
}

static void end(training *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->model);
    ek_module_free(t->criterion);
}

/* The loss before the step. */
static ek_tensor *loss_of(training *t, ek_dtype dtype)
{
    int64_t classes[SAMPLES] = {0, 2, 1, 3, 1, 2, 0, 0, 1, 3, 2};
    ek_tensor *x = ek_to_device(normal(3, EK_SHAPE(SAMPLES, 6), EK_F32, ek_cpu()), test_device(0));
    ek_tensor *target =
        ek_to_device(ek_from_data(classes, EK_SHAPE(SAMPLES), EK_I64), test_device(0));
    ek_zero_grad(t->optimizer);
    ek_autocast region = ek_autocast_begin(dtype);
    ek_tensor *loss = ek_loss(t->criterion, ek_forward(t->model, x), target);
    ek_autocast_end(&region);
    assert_made(loss);
    ck_assert_int_eq(ek_tensor_dtype(loss), EK_F32);
    return loss;
}

/* Steps until GOOD_STEPS of them have been made; the loss after that. */
static double train(training *t, ek_dtype dtype, ek_grad_scaler *scaler)
{
    double value = 0;
    for (int64_t made = 0; made < GOOD_STEPS;) {
        ek_scope scope = ek_scope_begin();
        int64_t skipped = ek_grad_scaler_skipped(scaler);
        ek_tensor *loss = loss_of(t, dtype);
        assert_ok(ek_backward(ek_grad_scaler_scale(scaler, loss)));
        assert_ok(ek_grad_scaler_step(scaler, t->optimizer));
        assert_ok(ek_grad_scaler_update(scaler));
        made += ek_grad_scaler_skipped(scaler) == skipped;
        ek_scope_end(&scope);
    }
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_item(loss_of(t, dtype), &value));
    ek_scope_end(&scope);
    return value;
}

TEST_LOOP(trains_as_in_f32, 0, WRAPPINGS)
{
    training exact = begin(ON_ONE), t = begin((wrapping)_i);
    ek_grad_scaler *off = ek_grad_scaler_new(.enabled = false);
    ek_grad_scaler *scaler =
        ek_grad_scaler_new(.init_scale = 0x1p40, .backoff_factor = 0.0625, .growth_interval = 3);
    double first;
    assert_ok(ek_item(loss_of(&exact, EK_F32), &first));
    double wanted = train(&exact, EK_F32, off), value = train(&t, EK_F16, scaler);
    ck_assert_double_lt(wanted, 0.7 * first);
    ck_assert_double_le(fabs(value - wanted), 0.01 * wanted);
    /* 2^40 is too large for f16, whatever the wrapper; 2^16 is not. */
    ck_assert_int_ge(ek_grad_scaler_skipped(scaler), 5);
    ck_assert_int_le(ek_grad_scaler_skipped(scaler), 9);
    ck_assert_double_ge(ek_grad_scaler_factor(scaler), 256);
    ek_grad_scaler_free(off);
    ek_grad_scaler_free(scaler);
    end(&exact);
    end(&t);
}

/* ek_minimize makes the single calls' steps to the bit, those that it skips, too. */
TEST_LOOP(minimize_is_the_single_calls, 0, WRAPPINGS)
{
    training trainings[] = {begin((wrapping)_i), begin((wrapping)_i)};
    ek_grad_scaler *scalers[2];
    char texts[2][65];
    for (int k = 0; k < 2; k++) {
        training *t = &trainings[k];
        scalers[k] = ek_grad_scaler_new(.init_scale = 0x1p40, .backoff_factor = 0.0625);
        for (int step = 0; step < 9; step++) {
            double value, wanted;
            ek_tensor *loss = loss_of(t, EK_F16);
            if (k == 0) {
                assert_ok(ek_backward(ek_grad_scaler_scale(scalers[k], loss)));
                assert_ok(ek_grad_scaler_unscale(scalers[k], t->optimizer));
                assert_ok(ek_clip_grad_norm(t->optimizer, 0.1));
                assert_ok(ek_grad_scaler_step(scalers[k], t->optimizer));
                assert_ok(ek_grad_scaler_update(scalers[k]));
            } else {
                assert_ok(ek_minimize(t->optimizer, loss, .max_norm = 0.1, .scaler = scalers[k],
                                      .value = &value));
                assert_ok(ek_item(loss, &wanted));
                ck_assert_double_eq(value, wanted);
            }
        }
        assert_ok(ek_module_sha256(t->net, texts[k]));
        ck_assert_int_ge(ek_grad_scaler_skipped(scalers[k]), 5);
    }
    ck_assert_str_eq(texts[0], texts[1]);
    ck_assert_int_eq(ek_grad_scaler_skipped(scalers[0]), ek_grad_scaler_skipped(scalers[1]));
    for (int k = 0; k < 2; k++) {
        ek_grad_scaler_free(scalers[k]);
        end(&trainings[k]);
    }
}

/* |a - b| / |b| over the gradients of all parameters. */
static double distance(training *a, training *b)
{
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    double difference = 0, size = 0;
    for (int p = 0; p < 4; p++) {
        ek_tensor *of_a =
            ek_to_device(ek_tensor_grad(ek_module_tensor(a->net, paths[p])), ek_cpu());
        ek_tensor *of_b =
            ek_to_device(ek_tensor_grad(ek_module_tensor(b->net, paths[p])), ek_cpu());
        for (int64_t i = 0; i < ek_tensor_count(of_b); i++) {
            difference += pow(element(of_a, i) - element(of_b, i), 2);
            size += pow(element(of_b, i), 2);
        }
    }
    return sqrt(difference / size);
}

/* Gradients that f16 loses are kept by the scale. */
TEST_LOOP(small_gradients, 0, IN_SHARDS)
{
    training exact = begin(ON_ONE), t = begin((wrapping)_i);
    assert_ok(ek_backward(ek_mul_scalar(loss_of(&exact, EK_F32), 1e-7)));
    assert_ok(ek_backward(ek_mul_scalar(loss_of(&t, EK_F16), 1e-7)));
    ck_assert_double_gt(distance(&t, &exact), 0.2);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 0x1p30);
    ek_tensor *loss = ek_mul_scalar(loss_of(&t, EK_F16), 1e-7);
    assert_ok(ek_backward(ek_grad_scaler_scale(scaler, loss)));
    assert_ok(ek_grad_scaler_unscale(scaler, t.optimizer));
    ck_assert_double_lt(distance(&t, &exact), 0.01);
    ek_grad_scaler_free(scaler);
    end(&exact);
    end(&t);
}
