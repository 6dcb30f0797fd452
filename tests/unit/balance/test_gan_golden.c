/* Critics of Wasserstein GANs with gradient penalties, trained from a seed: PyTorch's losses,
 * penalties, gradients and parameters, on one device and on several, where batch normalisation is
 * synchronised. */
#include "penalty_setup.h"

enum { STEPS = 5, IMAGES = 6, LARGEST = 1024 };

static const char *const kinds[] = {"wgan_gp", "wgan_lp", "dragan", "r1"};
static const char *const norms[] = {"none", "layer", "instance", "batch"};
enum { NONE, LAYER, INSTANCE, BATCH, NORMS };
enum { GOLDEN_KINDS = sizeof kinds / sizeof *kinds };

static ek_module *normalisation(int norm, int64_t channels)
{
    if (norm == LAYER)
        return ek_group_norm(1, channels);
    if (norm == INSTANCE)
        return ek_instance_norm2d(channels, .affine = true);
    return norm == BATCH ? ek_batch_norm2d(channels) : ek_identity();
}

static ek_module *dcgan_critic(int norm, ek_dtype dtype)
{
    bool bias = norm == NONE || norm == LAYER;
    ek_module *first = ek_conv2d(2, 4, 4, .stride = 2, .padding = 1);
    ek_module *second = ek_conv2d(4, 6, 4, .stride = 2, .padding = 1, .bias = bias);
    ek_module *third = ek_conv2d(6, 1, 2);
    ek_module *critic = ek_sequential(first, ek_leaky_relu(0.2), second, normalisation(norm, 6),
                                      ek_leaky_relu(0.2), third);
    assert_made(critic);
    bool enabled = ek_set_grad_enabled(false);
    assert_made(ek_mul_scalar_(ek_module_tensor(critic, "5.weight"), norm == NONE ? 11 : 1.5));
    ek_set_grad_enabled(enabled);
    assert_ok(ek_module_to_dtype(critic, dtype));
    return critic;
}

/* ---- a vector of all parameters, gradients or buffers ---- */

typedef struct vector {
    double values[LARGEST];
    int64_t count;
} vector;

static int append(vector *v, const ek_tensor *tensor)
{
    assert_made(tensor);
    ek_tensor *wide = ek_to_dtype(ek_to_device(ek_detach((ek_tensor *)tensor), ek_cpu()), EK_F64);
    int64_t count = ek_tensor_count(wide);
    ck_assert_int_le(v->count + count, LARGEST);
    assert_ok(ek_to_data(wide, v->values + v->count, (size_t)count * sizeof(double)));
    v->count += count;
    return 0;
}

static int append_parameter(const char *path, ek_tensor *parameter, void *user)
{
    return append((vector *)user, parameter);
}

static int append_gradient(const char *path, ek_tensor *parameter, void *user)
{
    return append((vector *)user, ek_tensor_grad(parameter));
}

static int append_running(const char *path, ek_tensor *buffer, void *user)
{
    return strstr(path, "running") ? append((vector *)user, buffer) : 0;
}

static void assert_golden(const char *prefix, const char *name, const vector *v, double relative)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%s", prefix, name);
    ek_tensor *wanted = ek_to_dtype(golden("gan.golden", path), EK_F64);
    ek_tensor *got = tensor_of(v->values, EK_SHAPE(v->count), EK_F64, ek_cpu());
    assert_close_norm(got, wanted, relative);
}

/* ---- training ---- */

static ek_tensor *mean_on(ek_device_list devices, ek_gan_role role, ek_value outputs)
{
    ek_module *criterion =
        ek_data_parallel_criterion(ek_gan_loss(EK_GAN_WASSERSTEIN, role), devices);
    ek_tensor *loss = ek_loss(criterion, outputs);
    ek_module_free(criterion);
    return loss;
}

typedef struct curve {
    vector losses, penalties, gradients;
} curve;

static void train(ek_module *critic, ek_penalty_kind kind, ek_device_list devices, ek_tensor *real,
                  ek_tensor *fake, curve *c)
{
    ek_optimizer *optimizer = ek_adam(critic, .lr = 2e-4, .beta1 = 0.5, .beta2 = 0.9);
    assert_made(optimizer);
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *penalty = ek_gradient_penalty(critic, real, fake, .kind = kind, .weight = 1);
        /* In PyTorch's order, in which running statistics move. */
        ek_tensor *on_fake = mean_on(devices, EK_GAN_CRITIC_FAKE, ek_forward(critic, fake));
        ek_tensor *on_real = mean_on(devices, EK_GAN_CRITIC_REAL, ek_forward(critic, real));
        ek_tensor *loss = ek_add(on_fake, on_real);
        loss = ek_add_scaled(loss, penalty, 10);
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(loss));
        if (step == 0)
            assert_ok(ek_module_parameters(critic, append_gradient, &c->gradients));
        assert_ok(ek_step(optimizer));
        append(&c->losses, loss);
        append(&c->penalties, penalty);
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
}

static void follow(int kind, int norm, ek_dtype dtype, way how, int devices)
{
    char prefix[60];
    double relative = dtype == EK_F64 ? 1e-10 : 1e-5;
    snprintf(prefix, sizeof prefix, "%s/%s/%s", kinds[kind], norms[norm], ek_dtype_name(dtype));
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(159);
    ek_module *critic = dcgan_critic(norm, dtype);
    if (how != PLAIN)
        critic = ek_convert_sync_batch_norm(critic);
    critic = on_devices(critic, how, devices);
    const ek_shape shape = EK_SHAPE(IMAGES, 2, 8, 8);
    ek_tensor *real = ek_randn(shape, .dtype = dtype);
    ek_tensor *fake = ek_mul_scalar(ek_randn(shape, .dtype = dtype), 0.5);
    static curve c;
    c = (curve){0};
    train(critic, (ek_penalty_kind)kind, ek_devices(test_kind(), devices),
          ek_to_device(real, test_device(0)), ek_to_device(fake, test_device(0)), &c);
    assert_golden(prefix, "losses", &c.losses, relative);
    assert_golden(prefix, "penalties", &c.penalties, relative);
    assert_golden(prefix, "gradients", &c.gradients, relative);
    static vector v;
    v.count = 0;
    assert_ok(ek_module_parameters(critic, append_parameter, &v));
    assert_golden(prefix, "parameters", &v, relative);
    if (norm == BATCH) {
        v.count = 0;
        assert_ok(ek_module_buffers(critic, append_running, &v));
        assert_golden(prefix, "running", &v, relative);
    }
    ek_module_free(critic);
    ek_scope_end(&scope);
}

TEST_LOOP(one_device_follows_pytorch, 0, (GOLDEN_KINDS * NORMS))
{
    if (!test_is_short() || _i % 2 == 0)
        follow(_i / NORMS, _i % NORMS, EK_F64, PLAIN, 1);
    if (!test_is_short() || _i % 5 == 1)
        follow(_i / NORMS, _i % NORMS, EK_F32, PLAIN, 1);
}

/* 6 samples on 4 devices are cut 2 2 2, on 3 devices evenly: one device is left out, or none. */
TEST_LOOP(several_devices_follow_pytorch, 0, GOLDEN_KINDS)
{
    for (int norm = test_is_short() ? _i % NORMS : NONE; norm < NORMS; norm++) {
        follow(_i, norm, EK_F64, BALANCED, 4);
        if (test_is_short())
            break;
        follow(_i, norm, EK_F64, CLASSIC, 4);
        follow(_i, norm, EK_F64, BALANCED_EVEN, 4);
        follow(_i, norm, EK_F32, BALANCED, 3);
    }
}
