/* A causal language model, with dropout by Philox, trains on several devices as on one. */
#include "kit/devices.h"
#include "kit/models.h"
#include "kit/tensors.h"

enum { WORDS = 7, LENGTH = 6, FEATURES = 8, BATCH = 6, STEPS = 4 };

static void setup(void)
{
    assert_ok(test_devices_configure("4"));
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
}

FIXTURE(setup, NULL)

/* Words and learned positions. */
typedef struct places {
    ek_module module;
    ek_module *words;
    ek_tensor *positions;
} places;

static ek_value places_forward(ek_module *module, const ek_args *args)
{
    places *self = (places *)module;
    return EK_VALUE(ek_add(ek_apply(self->words, ek_arg_tensor(args, 0)), self->positions));
}

MODULE_TYPE(places, places)

static ek_module *model_new(void)
{
    ek_manual_seed(11);
    places *embed = new_module(&places_type);
    ek_register_module(&embed->module, "words", &embed->words, ek_embedding(WORDS, FEATURES));
    ek_register_parameter(&embed->module, "positions", &embed->positions,
                          ek_mul_scalar(ek_randn(EK_SHAPE(LENGTH, FEATURES)), 0.1));
    ek_module *layer =
        ek_transformer_encoder_layer(FEATURES, 2, .dim_feedforward = 16, .dropout = 0.1,
                                     .batch_first = true, .norm_first = true, .is_causal = true);
    ek_module *net = ek_sequential(&embed->module, ek_transformer_encoder(layer, 2),
                                   ek_rms_norm(EK_SHAPE(FEATURES)), ek_linear(FEATURES, WORDS));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

/* Losses per word of (BATCH, LENGTH, WORDS). */
typedef enum way { ONE, PARALLEL, BALANCED } way;

static void train(way how, int devices, double losses[STEPS])
{
    ek_module *net = model_new(), *criterion = NULL;
    if (how == ONE)
        assert_ok(ek_module_to_device(net, test_device(0)));
    else if (how == PARALLEL)
        net = ek_data_parallel(net, ek_devices(test_kind(), devices));
    else
        net = ek_data_parallel_model(net, ek_devices(test_kind(), devices));
    if (how == BALANCED)
        criterion = ek_data_parallel_criterion(ek_cross_entropy_loss());
    assert_made(net);
    ek_optimizer *optimizer = ek_adam(net, .lr = 0.01);
    ek_manual_seed(5);
    ek_tensor *words = ek_randint(0, WORDS, EK_SHAPE(BATCH, LENGTH + 1));
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(20 + (uint64_t)step);
        ek_zero_grad(optimizer);
        ek_tensor *x = ek_narrow(words, 1, 0, LENGTH), *target = ek_narrow(words, 1, 1, LENGTH);
        ek_tensor *loss;
        if (how == BALANCED) {
            /* (batch, words, length): classes are dimension 1. */
            ek_value out = ek_forward(net, x);
            ek_value turned[4];
            for (int i = 0; i < ek_value_length(out); i++)
                turned[i] = EK_VALUE(ek_transpose(ek_value_tensor(ek_value_at(out, i)), 1, 2));
            loss = ek_loss(criterion, ek_value_per_device(turned, ek_value_length(out)), target);
        } else {
            ek_tensor *out =
                ek_value_tensor(ek_forward(net, how == ONE ? ek_to_device(x, test_device(0)) : x));
            assert_made(out);
            loss =
                ek_f_cross_entropy(ek_transpose(out, 1, 2), ek_to_device(target, test_device(0)));
        }
        assert_made(loss);
        assert_ok(ek_item(loss, &losses[step]));
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(optimizer));
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(net);
    ek_module_free(criterion);
}

TEST(trains_on_several_devices_as_on_one)
{
    double one[STEPS], several[STEPS];
    train(ONE, 1, one);
    ck_assert_double_lt(one[STEPS - 1], one[0]);
    for (int devices = 2; devices <= 4; devices += 2)
        for (way how = PARALLEL; how <= BALANCED; how++) {
            train(how, devices, several);
            for (int step = 0; step < STEPS; step++)
                ck_assert_double_eq_tol(several[step], one[step], 1e-12);
        }
}
