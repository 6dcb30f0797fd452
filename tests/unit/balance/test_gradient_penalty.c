/* ek_gradient_penalty: one device's value and gradients for every kind, wrapper and batch. */
#include "penalty_setup.h"

/* Its activations are computed again in backward. */
static ek_module *checkpointed_critic(void)
{
    return ek_sequential(ek_flatten(1, -1),
                         ek_checkpoint(ek_sequential(ek_linear(32, 6), ek_tanh())),
                         ek_linear(6, 1));
}

static make_critic *const critics[] = {smooth_critic, leaky_critic, conv_critic,
                                       checkpointed_critic};
enum { CRITICS = sizeof critics / sizeof *critics };

/* ---- one device, in closed form ---- */

static ek_module *linear_critic(void)
{
    return ek_linear(3, 1);
}

/* Of a linear critic g is its weight w at every point: the penalty is f(|w|), its gradient
 * f'(|w|) w / |w|, and the bias has none. */
TEST_LOOP(linear_critics, 0, KINDS)
{
    static const double weights[][3] = {{0.3, -0.4, 0}, {2, -1, 2}, {0, 0, 0}};
    static const double lengths[] = {0.5, 3, 0};
    ek_penalty_kind kind = (ek_penalty_kind)_i;
    for (int w = 0; w < 3; w++) {
        ek_module *critic = seeded(linear_critic, EK_F64);
        ek_tensor *weight = ek_module_tensor(critic, "weight");
        assert_ok(ek_set_data(weight, weights[w], sizeof weights[w]));
        ek_tensor *real = normal(1, EK_SHAPE(5, 3), EK_F64, ek_cpu()),
                  *fake = normal(2, EK_SHAPE(5, 3), EK_F64, ek_cpu());
        outcome o = run(critic, real, fake, kind, 3);
        double length = lengths[w], excess = length - 1, value = excess * excess,
               slope = 2 * excess;
        if (kind == EK_PENALTY_R1 || kind == EK_PENALTY_R2) {
            value = length * length;
            slope = 2 * length;
        } else if (kind == EK_PENALTY_WGAN_LP && excess < 0) {
            value = slope = 0;
        }
        assert_close(o.value, ek_scalar(10 * value, EK_F64, ek_cpu()), 1e-14, 1e-14);
        for (int i = 0; i < 3; i++) {
            double wanted = length > 0 ? 10 * slope * weights[w][i] / length : 0;
            ck_assert_double_eq_tol(element(o.gradients[0], i), wanted, 1e-13);
        }
        ck_assert_ptr_null(o.gradients[1]);
        ek_module_free(critic);
    }
}

TEST(weights_scale)
{
    ek_module *critic = held(seeded(smooth_critic, EK_F64));
    ek_tensor *real = normal(1, sample_shape(4), EK_F64, ek_cpu()),
              *fake = normal(2, sample_shape(4), EK_F64, ek_cpu());
    double values[3];
    const double weights[] = {10, 2.5, 0};
    for (int i = 0; i < 3; i++) {
        ek_generator *generator = ek_generator_new(3);
        ek_tensor *penalty =
            ek_gradient_penalty(critic, real, fake, .weight = weights[i], .generator = generator);
        values[i] = element(penalty, 0);
        ek_module_zero_grad(critic);
        assert_ok(ek_backward(penalty));
        double size = 0;
        ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(critic, "1.weight"));
        assert_made(gradient);
        size = element(ek_sum(ek_abs(gradient)), 0);
        ck_assert(i == 2 ? size == 0 : size > 0);
        /* Numbers are drawn for any weight: 4 of 64 bits. */
        ek_generator *same = ek_generator_new(3);
        for (int k = 0; k < 4; k++)
            ek_random_u64(same);
        ck_assert_uint_eq(ek_random_u32(generator), ek_random_u32(same));
        ek_generator_free(same);
        ek_generator_free(generator);
    }
    ck_assert_double_eq_tol(values[1], values[0] / 4, 1e-14 * values[0]);
    ck_assert_double_eq(values[2], 0);
}

/* ---- points ---- */

TEST_LOOP(points_are_drawn_in_order, 0, 2)
{
    ek_dtype dtype = _i ? EK_F32 : EK_F64;
    ek_tensor *real = normal(1, EK_SHAPE(5, 2, 3), dtype, ek_cpu()),
              *fake = normal(2, EK_SHAPE(5, 2, 3), dtype, ek_cpu());
    ek_manual_seed(9);
    ek_tensor *alpha = ek_rand(EK_SHAPE(5, 1, 1), .dtype = dtype);
    ek_manual_seed(9);
    ek_tensor *x = ek_penalty_points(real, fake, EK_PENALTY_WGAN_GP, NULL);
    assert_close(x, ek_add(real, ek_mul(alpha, ek_sub(fake, real))), 0, 0);
    ek_manual_seed(9);
    assert_close(ek_penalty_points(real, fake, EK_PENALTY_WGAN_LP, NULL), x, 0, 0);

    ek_manual_seed(9);
    ek_tensor *beta = ek_rand(EK_SHAPE(5, 2, 3), .dtype = dtype);
    alpha = ek_rand(EK_SHAPE(5, 1, 1), .dtype = dtype);
    double mean = 0, square = 0;
    for (int i = 0; i < 30; i++)
        mean += element(real, i) / 30;
    for (int i = 0; i < 30; i++)
        square += (element(real, i) - mean) * (element(real, i) - mean);
    ek_tensor *near = ek_add_scaled(real, beta, 0.5 * sqrt(square / 29));
    ek_manual_seed(9);
    x = ek_penalty_points(real, NULL, EK_PENALTY_DRAGAN, NULL);
    double tolerance = dtype == EK_F64 ? 1e-14 : 1e-6;
    assert_close(x, ek_add(real, ek_mul(alpha, ek_sub(near, real))), tolerance, tolerance);

    assert_close(ek_penalty_points(real, NULL, EK_PENALTY_R1, NULL), real, 0, 0);
    assert_close(ek_penalty_points(NULL, fake, EK_PENALTY_R2, NULL), fake, 0, 0);
}

/* Neither the device nor the order of memory changes a bit. */
TEST_LOOP(points_are_the_same_everywhere, 0, 2 * KINDS)
{
    ek_dtype dtype = _i % 2 ? EK_F32 : EK_F64;
    ek_penalty_kind kind = (ek_penalty_kind)(_i / 2);
    ek_tensor *real = normal(1, sample_shape(64), dtype, ek_cpu()),
              *fake = normal(2, sample_shape(64), dtype, ek_cpu());
    ek_tensor *points[3];
    for (int i = 0; i < 3; i++) {
        ek_device device = i == 1 ? test_device(1) : ek_cpu();
        ek_memory_format format = i == 2 ? EK_CHANNELS_LAST : EK_CONTIGUOUS;
        ek_manual_seed(9);
        points[i] =
            ek_penalty_points(ek_to_device(ek_contiguous(real, format), device),
                              ek_to_device(ek_contiguous(fake, format), device), kind, NULL);
        assert_made(points[i]);
        ck_assert(ek_device_equal(ek_tensor_device(points[i]), device));
    }
    assert_close(points[1], points[0], 0, 0);
    if (kind == EK_PENALTY_DRAGAN) /* the deviation is summed in another order */
        assert_close_norm(points[2], points[0], dtype == EK_F64 ? 1e-15 : 1e-7);
    else
        assert_close(points[2], points[0], 0, 0);
}

TEST(points_have_no_history)
{
    ek_tensor *real = normal(1, EK_SHAPE(5, 2), EK_F64, ek_cpu()),
              *seed = normal(2, EK_SHAPE(5, 2), EK_F64, ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(real, true));
    assert_ok(ek_tensor_set_requires_grad(seed, true));
    ek_tensor *fake = ek_f_tanh(seed);
    ek_module *critic = held(ek_linear(2, 1));
    assert_ok(ek_module_to_dtype(critic, EK_F64));
    for (int k = 0; k < KINDS; k++) {
        ek_tensor *x = ek_penalty_points(real, fake, (ek_penalty_kind)k, NULL);
        assert_made(x);
        ck_assert(!ek_tensor_requires_grad(x) && ek_tensor_is_leaf(x));
        ck_assert_ptr_ne(x, real);
        assert_ok(ek_backward(ek_gradient_penalty(critic, real, fake, .kind = (ek_penalty_kind)k)));
        ck_assert(ek_grad_enabled());
    }
    ck_assert(ek_tensor_requires_grad(real) && ek_tensor_requires_grad(fake));
    ck_assert_ptr_null(ek_tensor_grad(real));
    ck_assert_ptr_null(ek_tensor_grad(seed));
}

/* ---- every way is one device's ---- */

/* 4 devices: 10 is cut 3 3 3 1 (even: 3 3 2 2), 7 is cut 2 2 2 1, 5 is cut 2 2 1. */
static const int batches[] = {10, 7, 5, 1};

static void compare_ways(make_critic *make, int batch, ek_penalty_kind kind, ek_dtype dtype,
                         double relative)
{
    ek_tensor *real = normal(4, sample_shape(batch), dtype, ek_cpu());
    ek_tensor *fake = normal(5, sample_shape(batch), dtype, ek_cpu());
    ek_module *alone = seeded(make, dtype);
    outcome wanted = run(alone, real, fake, kind, 6);
    for (int h = 0; h < WAYS; h++)
        for (int devices = 1; devices <= (h == PLAIN ? 1 : 4); devices++) {
            ek_scope scope = ek_scope_begin();
            ek_module *critic = on_devices(seeded(make, dtype), (way)h, devices);
            /* Samples come from a loader, or lie on a device already. */
            ek_device from = h == PLAIN || devices % 2 ? test_device(0) : ek_cpu();
            outcome o = run(critic, ek_to_device(real, from), ek_to_device(fake, from), kind, 6);
            assert_same_outcome(&o, &wanted, relative);
            if (h != PLAIN)
                ck_assert(ek_device_equal(ek_tensor_device(o.value), home_of((way)h, devices)));
            ek_module_free(critic);
            ek_scope_end(&scope);
        }
    ek_module_free(alone);
}

TEST_LOOP(all_ways_agree, 0, (CRITICS * KINDS))
{
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        ek_scope scope = ek_scope_begin();
        compare_ways(critics[_i / KINDS], batches[b], (ek_penalty_kind)(_i % KINDS), EK_F64, 1e-12);
        ek_scope_end(&scope);
    }
}

TEST_LOOP(all_ways_agree_in_f32, 0, (CRITICS * KINDS))
{
    if (!test_is_short() || _i % KINDS == _i % CRITICS)
        compare_ways(critics[_i % CRITICS], 10, (ek_penalty_kind)(_i % KINDS), EK_F32, 1e-5);
}

static ek_module *batch_norm_critic(void)
{
    return ek_sequential(ek_conv2d(2, 5, 4, .stride = 2, .padding = 1, .bias = false),
                         ek_batch_norm2d(5), ek_tanh(), ek_conv2d(5, 1, 2));
}

/* Synchronised statistics: a sample's gradient has parts that come through other replicas. */
TEST_LOOP(all_replicas_count, 0, 4 * KINDS)
{
    static const way ways[] = {CLASSIC, BALANCED, BALANCED_EVEN};
    ek_penalty_kind kind = (ek_penalty_kind)(_i % KINDS);
    int batch = batches[_i / KINDS];
    ek_tensor *real = normal(4, sample_shape(batch), EK_F64, ek_cpu());
    ek_tensor *fake = normal(5, sample_shape(batch), EK_F64, ek_cpu());
    ek_module *alone = held(seeded(batch_norm_critic, EK_F64));
    outcome wanted = run(alone, real, fake, kind, 6);
    for (int w = 0; w < 3; w++)
        for (int devices = 2; devices <= 4; devices++) {
            ek_module *critic = ek_convert_sync_batch_norm(seeded(batch_norm_critic, EK_F64));
            critic = on_devices(critic, ways[w], devices);
            outcome o = run(critic, real, fake, kind, 6);
            assert_same_outcome(&o, &wanted, 1e-11);
            assert_close(ek_to_device(ek_module_tensor(critic, "1.running_var"), ek_cpu()),
                         ek_module_tensor(alone, "1.running_var"), 1e-13, 0);
            ek_module_free(critic);
        }
}

TEST(bf16)
{
    ek_tensor *real = normal(4, sample_shape(7), EK_BF16, ek_cpu()),
              *fake = normal(5, sample_shape(7), EK_BF16, ek_cpu());
    ek_module *wide = held(seeded(leaky_critic, EK_F32));
    for (int devices = 1; devices <= 4; devices += 3) {
        ek_module *critic = on_devices(seeded(leaky_critic, EK_BF16), BALANCED, devices);
        outcome o = run(critic, real, fake, EK_PENALTY_R1, 6);
        outcome wanted =
            run(wide, ek_to_dtype(real, EK_F32), ek_to_dtype(fake, EK_F32), EK_PENALTY_R1, 6);
        ck_assert_int_eq(ek_tensor_dtype(o.value), EK_BF16);
        ck_assert_double_eq_tol(element(o.value, 0), element(wanted.value, 0),
                                0.02 * element(wanted.value, 0));
        assert_close_norm(ek_to_dtype(o.gradients[0], EK_F32), wanted.gradients[0], 0.02);
        ek_module_free(critic);
    }
}

/* A penalty counts like any other part of a loss, and goes on from the gradients that are there. */
TEST(penalties_add_to_a_loss)
{
    outcome wanted = {0};
    for (int h = 0; h < 3; h++) {
        way how = h == 0 ? PLAIN : h == 1 ? CLASSIC : BALANCED;
        ek_device_list devices = ek_devices(test_kind(), how == PLAIN ? 1 : 3);
        ek_module *critic = on_devices(seeded(leaky_critic, EK_F64), how, devices.count);
        ek_module *on_real =
            ek_data_parallel_criterion(ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_REAL),
                                       devices);
        ek_module *on_fake =
            ek_data_parallel_criterion(ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_FAKE),
                                       devices);
        ek_tensor *real =
            ek_to_device(normal(4, sample_shape(10), EK_F64, ek_cpu()), test_device(0));
        ek_tensor *fake =
            ek_to_device(normal(5, sample_shape(10), EK_F64, ek_cpu()), test_device(0));
        outcome o = {0};
        for (int step = 0; step < 2; step++) {
            ek_manual_seed(8);
            ek_tensor *loss = ek_add(ek_loss(on_real, ek_forward(critic, real)),
                                     ek_loss(on_fake, ek_forward(critic, fake)));
            o.value = ek_add(loss, ek_gradient_penalty(critic, real, fake));
            assert_made(o.value);
            assert_ok(ek_backward(o.value));
        }
        assert_ok(ek_module_parameters(critic, note_gradient, &o));
        if (h == 0)
            wanted = o;
        assert_same_outcome(&o, &wanted, 1e-12);
        ek_module_free(critic);
        ek_module_free(on_real);
        ek_module_free(on_fake);
    }
}

TEST(own_gradients_stay)
{
    for (int h = 0; h < WAYS; h++) {
        ek_module *critic = on_devices(seeded(smooth_critic, EK_F64), (way)h, h == PLAIN ? 1 : 3);
        ek_tensor *real =
            ek_to_device(normal(4, sample_shape(5), EK_F64, ek_cpu()), test_device(0));
        assert_made(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1));
        outcome before = {0}, after = {0};
        assert_ok(ek_module_parameters(critic, note_gradient, &before));
        for (int i = 0; i < before.count; i++)
            ck_assert_ptr_null(before.gradients[i]);
        before.count = 0;
        assert_ok(ek_backward(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1)));
        assert_ok(ek_module_parameters(critic, note_gradient, &before));
        assert_made(ek_gradient_penalty(critic, real, .kind = EK_PENALTY_R1));
        assert_ok(ek_module_parameters(critic, note_gradient, &after));
        for (int i = 0; i < before.count; i++)
            if (before.gradients[i])
                assert_close(after.gradients[i], before.gradients[i], 0, 0);
        ek_module_free(critic);
    }
}

/* ---- norms of zero ---- */

/* The first layer is dead for samples 0, 3, 6, ...: their gradient is 0, the others' are not. */
static ek_module *half_dead_critic(void)
{
    return ek_sequential(ek_flatten(1, -1), ek_linear(32, 1), ek_relu(), ek_linear(1, 1));
}

static ek_tensor *half_dead_samples(void)
{
    double values[9 * 32] = {0};
    for (int i = 0; i < 9 * 32; i++)
        values[i] = i / 32 % 3 == 0 ? -1 : 1;
    return tensor_of(values, sample_shape(9), EK_F64, test_device(0));
}

TEST(norms_of_zero)
{
    for (int h = 0; h < WAYS; h++) {
        ek_module *critic =
            on_devices(seeded(half_dead_critic, EK_F64), (way)h, h == PLAIN ? 1 : 4);
        ek_tensor *first = ek_module_tensor(critic, "1.weight");
        ek_tensor *second = ek_module_tensor(critic, "3.weight");
        bool enabled = ek_set_grad_enabled(false);
        ek_fill_(first, 0.5);
        ek_fill_(second, 2);
        ek_fill_(ek_module_tensor(critic, "1.bias"), 0);
        ek_set_grad_enabled(enabled);
        /* |g| is 2 (0.5^2 32)^(1/2) = 2 sqrt(8) where alive. */
        double length = 2 * sqrt(8), share = 2.0 / 3;
        ek_tensor *real = half_dead_samples();
        outcome o = run(critic, real, real, EK_PENALTY_WGAN_GP, 1);
        double value = 10 * (share * (length - 1) * (length - 1) + (1 - share));
        ck_assert_double_eq_tol(element(o.value, 0), value, 1e-11);
        /* d |g| / d second = |g| / 2, d |g| / d first[i] = 2 first[i] / sqrt(8). */
        double slope = 10 * share * 2 * (length - 1);
        ck_assert_double_eq_tol(element(o.gradients[2], 0), slope * length / 2, 1e-10);
        for (int i = 0; i < 32; i++)
            ck_assert_double_eq_tol(element(o.gradients[0], i), slope / sqrt(8), 1e-10);
        ek_module_free(critic);
    }
}

TEST(critics_of_zeros)
{
    /* |g| = 0 everywhere: (0 - 1)^2, or 0; all gradients are 0. */
    static const double values[KINDS] = {10, 0, 10, 0, 0};
    for (int h = 0; h < WAYS; h++) {
        ek_module *critic = on_devices(seeded(conv_critic, EK_F32), (way)h, h == PLAIN ? 1 : 3);
        bool enabled = ek_set_grad_enabled(false);
        ek_fill_(ek_module_tensor(critic, "0.weight"), 0);
        ek_fill_(ek_module_tensor(critic, "2.weight"), 0);
        ek_set_grad_enabled(enabled);
        ek_tensor *real =
            ek_to_device(normal(4, sample_shape(7), EK_F32, ek_cpu()), test_device(0));
        for (int k = 0; k < KINDS; k++) {
            outcome o = run(critic, real, real, (ek_penalty_kind)k, 1);
            ck_assert_double_eq(element(o.value, 0), values[k]);
            for (int i = 0; i < o.count; i++)
                if (o.gradients[i])
                    assert_close(o.gradients[i], ek_zeros(ek_tensor_shape(o.gradients[i])), 0, 0);
        }
        ek_module_free(critic);
    }
}

/* ---- memory ---- */

TEST_LOOP(nothing_grows, 0, 3)
{
    way how = _i == 0 ? PLAIN : _i == 1 ? CLASSIC : BALANCED;
    ek_module *critic = held(on_devices(seeded(conv_critic, EK_F32), how, how == PLAIN ? 1 : 4));
    ek_tensor *real = ek_to_device(normal(4, sample_shape(10), EK_F32, ek_cpu()), test_device(0));
    ek_tensor *fake = ek_to_device(normal(5, sample_shape(10), EK_F32, ek_cpu()), test_device(0));
    uint64_t in_use[4] = {0};
    for (int call = 0; call < 50; call++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *penalty =
            ek_gradient_penalty(critic, real, fake, .kind = (ek_penalty_kind)(call % KINDS));
        if (call % 3)
            assert_ok(ek_backward(penalty));
        assert_made(penalty);
        ek_module_zero_grad(critic);
        ek_scope_end(&scope);
        for (int d = 0; d < 4; d++) {
            if (call > 4)
                ck_assert_uint_eq(bytes_in_use(test_device(d)), in_use[d]);
            in_use[d] = bytes_in_use(test_device(d));
        }
    }
}

/* No chunk holds on to the whole batch, and no point gets a gradient of its own. */
TEST(chunks_are_all_that_stays)
{
    ek_module *critic = held(on_devices(seeded(smooth_critic, EK_F64), BALANCED, 4));
    ek_tensor *real = ek_to_device(normal(4, sample_shape(256), EK_F64, ek_cpu()), test_device(0));
    ek_tensor *fake = ek_to_device(normal(5, sample_shape(256), EK_F64, ek_cpu()), test_device(0));
    ek_memory_stats before[4], after[4];
    assert_ok(ek_backward(ek_gradient_penalty(critic, real, fake))); /* replicas and gradients */
    for (int d = 0; d < 4; d++)
        assert_ok(ek_memory_get_stats(test_device(d), &before[d]));
    ek_tensor *penalty = ek_gradient_penalty(critic, real, fake);
    assert_made(penalty);
    uint64_t held[4];
    for (int d = 0; d < 4; d++) {
        assert_ok(ek_memory_get_stats(test_device(d), &after[d]));
        held[d] = after[d].in_use - before[d].in_use;
    }
    for (int d = 1; d < 4; d++)
        ck_assert_uint_le(held[0], held[d] + held[d] / 20);
    assert_ok(ek_backward(penalty, .retain_graph = true));
    for (int d = 0; d < 4; d++) {
        assert_ok(ek_memory_get_stats(test_device(d), &after[d]));
        ck_assert_uint_eq(after[d].now[EK_MEMORY_GRADIENT], before[d].now[EK_MEMORY_GRADIENT]);
    }
}
