/* Balanced training, adversarial losses and gradient penalties under autocast. */
#include "balance/balance.h"
#include "core/tensor.h"
#include "penalty_setup.h"

/* |a - b| / |b| over all parameters' gradients. */
static double gradient_distance(ek_module *a, ek_module *b, const char *const *paths)
{
    double difference = 0, size = 0;
    for (int p = 0; paths[p]; p++) {
        ek_tensor *of_a = ek_tensor_grad(ek_module_tensor(a, paths[p]));
        ek_tensor *of_b = ek_tensor_grad(ek_module_tensor(b, paths[p]));
        assert_made(of_a);
        assert_made(of_b);
        ck_assert_int_eq(of_a->dtype, EK_F32);
        ck_assert_int_eq(of_b->dtype, EK_F32);
        of_a = ek_to_device(of_a, ek_cpu());
        of_b = ek_to_device(of_b, ek_cpu());
        for (int64_t i = 0; i < ek_count(of_b); i++) {
            difference += pow(element(of_a, i) - element(of_b, i), 2);
            size += pow(element(of_b, i), 2);
        }
    }
    return sqrt(difference / size);
}

static double value_of(ek_tensor *loss)
{
    double value;
    assert_made(loss);
    ck_assert_int_eq(loss->dtype, EK_F32);
    assert_ok(ek_item(loss, &value));
    return value;
}

/* ---- the balanced criterion ---- */

static ek_module *make_classifier(void)
{
    ek_manual_seed(5);
    ek_module *net = ek_sequential(ek_linear(6, 16), ek_tanh(), ek_linear(16, 4));
    assert_made(net);
    return net;
}

static const char *const classifier_paths[] = {"0.weight", "0.bias", "2.weight", "2.bias", NULL};

/* With a different number of ignored targets on each device. */
static double balanced_step(ek_module *model, ek_module *criterion, bool autocast)
{
    enum { N = 11 };
    int64_t classes[N] = {0, 255, 255, 3, 1, 2, 255, 0, 1, 3, 2};
    ek_tensor *x = normal(3, EK_SHAPE(N, 6), EK_F32, ek_cpu());
    ek_tensor *target = ek_from_data(classes, EK_SHAPE(N), .dtype = EK_I64);
    ek_module_zero_grad(model);
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    ek_tensor *loss = ek_loss(criterion, ek_forward(model, x), target);
    ek_autocast_end(&region);
    double value = value_of(loss);
    assert_ok(ek_backward(loss));
    return value;
}

TEST_LOOP(balanced_losses, 0, 4)
{
    ek_module *one = held(make_classifier());
    ek_module *plain = held(ek_cross_entropy_loss(.ignore_index = 255));
    double exact = balanced_step(one, plain, false);
    const ek_device_list devices = ek_devices(test_kind(), 1 + _i);
    ek_module *model = held(ek_data_parallel_model(make_classifier(), .device_ids = devices));
    ek_module *criterion =
        held(ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = 255),
                                        .device_ids = devices));
    double value = balanced_step(model, criterion, true);
    ck_assert_double_le(fabs(value - exact), 0.004 * exact);
    ck_assert_double_ne(value, exact);
    ck_assert_double_le(gradient_distance(model, one, classifier_paths), 0.02);
}

/* ---- adversarial losses: of a critic's bf16 ---- */

TEST(adversarial_losses)
{
    for (ek_gan_loss_kind kind = EK_GAN_WASSERSTEIN; kind <= EK_GAN_LOGISTIC; kind++) {
        ek_module *loss = ek_gan_loss(kind, EK_GAN_CRITIC_FAKE);
        ek_tensor *d = ek_to_dtype(normal(4, EK_SHAPE(9, 1), EK_F32, ek_cpu()), EK_BF16);
        double exact = value_of(ek_loss(loss, ek_to_dtype(d, EK_F32)));
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ck_assert_double_eq(value_of(ek_loss(loss, d)), exact);
        ek_autocast_end(&region);
        ek_module_free(loss);
    }
}

/* ---- gradient penalties: second order, through casts ---- */

static ek_module *conv_critic_tanh(void)
{
    return ek_sequential(ek_conv2d(2, 5, 4, .stride = 2, .padding = 1), ek_tanh(),
                         ek_conv2d(5, 1, 2));
}

static const char *const critic_paths[] = {"0.weight", "2.weight", NULL};

/* With gradients that are longer than 1. */
static ek_module *steep(make_critic *make)
{
    ek_module *critic = seeded(make, EK_F32);
    bool before = ek_set_grad_enabled(false);
    for (int p = 0; critic_paths[p]; p++)
        assert_made(ek_mul_scalar_(ek_module_tensor(critic, critic_paths[p]), 4));
    ek_set_grad_enabled(before);
    return critic;
}

/* Real samples of f32, generated ones of bf16. */
static double penalty_step(ek_module *critic, ek_penalty_kind kind, bool autocast)
{
    ek_tensor *real = normal(1, sample_shape(6), EK_F32, ek_cpu());
    ek_tensor *fake = ek_to_dtype(normal(2, sample_shape(6), EK_F32, ek_cpu()), EK_BF16);
    ek_generator *generator = ek_generator_new(9);
    ek_module_zero_grad(critic);
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    ek_tensor *penalty = ek_gradient_penalty(.critic = critic, .real = real,
                                             .fake = autocast ? fake : ek_to_dtype(fake, EK_F32),
                                             .kind = kind, .generator = generator);
    ek_autocast_end(&region);
    double value = value_of(penalty);
    assert_ok(ek_backward(penalty));
    ek_generator_free(generator);
    return value;
}

TEST_LOOP(penalties, 0, 6)
{
    static make_critic *const critics[] = {conv_critic, conv_critic_tanh};
    for (int kind = 0; kind < KINDS; kind++) {
        ek_module *one = steep(critics[_i % 2]);
        double exact = penalty_step(one, (ek_penalty_kind)kind, false);
        ek_module *several =
            ek_data_parallel_model(steep(critics[_i % 2]),
                                   .device_ids = ek_devices(test_kind(), 1 + _i / 2));
        assert_made(several);
        double value = penalty_step(several, (ek_penalty_kind)kind, true);
        /* The norm less 1 and squared: twice its rounding, and more if it is near 1. */
        ck_assert_msg(fabs(value - exact) <= 0.02 * exact, "%s: %g instead of %g",
                      ek_penalty_name((ek_penalty_kind)kind), value, exact);
        ck_assert_double_ne(value, exact);
        double distance = gradient_distance(several, one, critic_paths);
        ck_assert_msg(distance <= 0.03, "%s: %g away", ek_penalty_name((ek_penalty_kind)kind),
                      distance);
        ek_module_free(one);
        ek_module_free(several);
    }
}

/* ---- training ---- */

/* Weights stay f32 and memory in use where it was. */
TEST(master_weights)
{
    const ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *model = held(ek_data_parallel_model(make_classifier(), .device_ids = devices));
    ek_module *criterion =
        held(ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = 255),
                                        .device_ids = devices));
    ek_optimizer *optimizer = held(ek_sgd(model, .lr = 1e-4));
    uint64_t in_use = 0;
    double first = 0, last = 0;
    for (int i = 0; i < 6; i++) {
        ek_scope inner = ek_scope_begin();
        last = balanced_step(model, criterion, true);
        first = i == 0 ? last : first;
        assert_ok(ek_step(optimizer));
        ek_scope_end(&inner);
        if (i > 1)
            ck_assert_uint_eq(bytes_in_use(test_device(0)), in_use);
        in_use = bytes_in_use(test_device(0));
    }
    /* Steps that bf16 weights would swallow: the loss falls all the same. */
    ck_assert_double_lt(last, first);
    for (int p = 0; classifier_paths[p]; p++)
        ck_assert_int_eq(ek_module_tensor(model, classifier_paths[p])->dtype, EK_F32);
}
