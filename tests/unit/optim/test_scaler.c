/* The scale of losses: how it moves, which steps are skipped, and training under autocast to f16.
 */
#include "optim_setup.h"

static ek_tensor *leaf_of(int64_t count, ek_dtype dtype)
{
    ek_tensor *leaf = ek_full(1, EK_SHAPE(count), dtype, .device = test_home());
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    return leaf;
}

static ek_optimizer *sgd_of(ek_tensor **leaves, int count)
{
    ek_optimizer *optimizer = ek_sgd(.lr = 1);
    assert_made(optimizer);
    ck_assert_int_eq(ek_optimizer_add_group(optimizer, leaves, count), 0);
    return optimizer;
}

static void give(ek_tensor *leaf, double value)
{
    ek_shape shape = ek_tensor_shape(leaf);
    ek_tensor *gradient = ek_full(value, shape, ek_tensor_dtype(leaf), .device = test_home());
    assert_ok(ek_tensor_set_grad(leaf, gradient));
}

/* PyTorch's rule, in its types. */
static void move(float *scale, int64_t *tracker, bool finite)
{
    if (!finite) {
        *scale = (float)((double)*scale * 0.25);
        *tracker = 0;
    } else if (++*tracker == 3) {
        float grown = (float)((double)*scale * 3);
        *scale = isfinite(grown) ? grown : *scale;
        *tracker = 0;
    }
}

TEST(scale_moves_as_pytorchs)
{
    static const double gradients[] = {1, 1, 1, NAN, 1,         1, 1, 1, 1, 1, (double)INFINITY,
                                       1, 1, 1, 1,   -INFINITY, 1, 1, 1, 0, 1, 1};
    ek_tensor *leaf = leaf_of(5, EK_F32);
    ek_optimizer *optimizer = sgd_of(&leaf, 1);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 1e37, .growth_factor = 3,
                                                .backoff_factor = 0.25, .growth_interval = 3);
    float scale = 1e37f;
    int64_t tracker = 0, skipped = 0;
    for (int i = 0; i < (int)(sizeof gradients / sizeof *gradients); i++) {
        ek_scope scope = ek_scope_begin();
        give(leaf, gradients[i]);
        double before = element(leaf, 0);
        assert_ok(ek_grad_scaler_step(scaler, optimizer));
        bool finite = isfinite(gradients[i]);
        double share = (double)((float)gradients[i] * (float)(1 / (double)scale));
        ck_assert(element(leaf, 4) == (finite ? (double)(float)(before - share) : before));
        skipped += !finite;
        assert_ok(ek_grad_scaler_update(scaler));
        move(&scale, &tracker, finite);
        ck_assert(ek_grad_scaler_factor(scaler) == (double)scale);
        ck_assert_int_eq(ek_grad_scaler_tracker(scaler), tracker);
        ck_assert_int_eq(ek_grad_scaler_skipped(scaler), skipped);
        ek_scope_end(&scope);
    }
    ek_grad_scaler_free(scaler);
    ek_optimizer_free(optimizer);
}

/* One element of many, of either sign, in the last gradient; largest numbers are finite. */
TEST(one_element_spoils_a_step)
{
    const float values[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f};
    for (int v = 0; v < 5; v++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *leaves[] = {leaf_of(3, EK_F32), leaf_of(2, EK_F64), leaf_of(10001, EK_F32)};
        ek_optimizer *optimizer = sgd_of(leaves, 3);
        ek_grad_scaler *scaler = ek_grad_scaler_new();
        for (int i = 0; i < 3; i++)
            give(leaves[i], 65536);
        assert_made(ek_fill_(ek_narrow(ek_tensor_grad(leaves[2]), 0, 7000, 1), (double)values[v]));
        assert_ok(ek_grad_scaler_step(scaler, optimizer));
        ck_assert(element(leaves[0], 0) == (v < 3 ? 1 : 0));
        ck_assert(element(leaves[1], 1) == (v < 3 ? 1 : 0));
        ck_assert_int_eq(ek_optimizer_steps(optimizer, leaves[0]), v < 3 ? 0 : 1);
        assert_ok(ek_grad_scaler_update(scaler));
        ck_assert(ek_grad_scaler_factor(scaler) == (v < 3 ? 32768 : 65536));
        ek_grad_scaler_free(scaler);
        ek_optimizer_free(optimizer);
        ek_scope_end(&scope);
    }
}

/* Unscaled gradients are the loss's own, zeros with their signs, and may be clipped. */
TEST(unscaling)
{
    ek_tensor *leaf = leaf_of(3, EK_F32);
    ek_optimizer *optimizer = sgd_of(&leaf, 1);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 1024);
    ek_tensor *loss = ek_sum(ek_mul_scalar(leaf, 3));
    ek_tensor *scaled = ek_grad_scaler_scale(scaler, loss);
    ck_assert(element(scaled, 0) == 9 * 1024);
    assert_ok(ek_backward(scaled));
    assert_ok(ek_grad_scaler_unscale(scaler, optimizer));
    ck_assert(element(ek_tensor_grad(leaf), 2) == 3);
    assert_refused(ek_grad_scaler_unscale(scaler, optimizer), EK_E_STATE, "unscaled since");
    assert_ok(ek_clip_grad_value(optimizer, 2));
    assert_ok(ek_grad_scaler_step(scaler, optimizer));
    ck_assert(element(leaf, 1) == -1);
    assert_refused(ek_grad_scaler_step(scaler, optimizer), EK_E_STATE, "has stepped since");
    assert_refused(ek_grad_scaler_unscale(scaler, optimizer), EK_E_STATE, "stepped with");
    assert_ok(ek_grad_scaler_update(scaler));
    assert_refused(ek_grad_scaler_update(scaler), EK_E_STATE, "since the last update");
    give(leaf, -0.0);
    assert_ok(ek_grad_scaler_unscale(scaler, optimizer));
    ck_assert(signbit(element(ek_tensor_grad(leaf), 0)));
    ek_grad_scaler_free(scaler);
    ek_optimizer_free(optimizer);
}

/* One optimizer's bad gradients don't keep the other from its step. */
TEST(two_optimizers)
{
    ek_tensor *a = leaf_of(2, EK_F32), *b = leaf_of(2, EK_F32);
    ek_optimizer *first = sgd_of(&a, 1), *second = sgd_of(&b, 1);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 2);
    give(a, NAN);
    give(b, 2);
    assert_ok(ek_grad_scaler_step(scaler, first));
    assert_ok(ek_grad_scaler_step(scaler, second));
    ck_assert(element(a, 0) == 1);
    ck_assert(element(b, 0) == 0);
    assert_ok(ek_grad_scaler_update(scaler));
    ck_assert(ek_grad_scaler_factor(scaler) == 1);
    ek_grad_scaler_free(scaler);
    ek_optimizer_free(first);
    ek_optimizer_free(second);
}

TEST(switched_off)
{
    ek_tensor *leaf = leaf_of(2, EK_F32);
    ek_optimizer *optimizer = sgd_of(&leaf, 1);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.enabled = false);
    ck_assert_ptr_eq(ek_grad_scaler_scale(scaler, leaf), leaf);
    give(leaf, 0.5);
    assert_ok(ek_grad_scaler_step(scaler, optimizer));
    assert_ok(ek_grad_scaler_update(scaler));
    ck_assert(element(leaf, 0) == 0.5 && ek_grad_scaler_factor(scaler) == 1);
    ek_grad_scaler_free(scaler);
    ek_optimizer_free(optimizer);
}

TEST(bad_options)
{
    assert_refused(ek_grad_scaler_new(.init_scale = 0), EK_E_INVALID, "init_scale is 0");
    assert_refused(ek_grad_scaler_new(.init_scale = 1e39), EK_E_INVALID, "init_scale is inf");
    assert_refused(ek_grad_scaler_new(.growth_factor = 1), EK_E_INVALID, "growth_factor is 1");
    assert_refused(ek_grad_scaler_new(.backoff_factor = 1), EK_E_INVALID, "backoff_factor is 1");
    assert_refused(ek_grad_scaler_new(.growth_interval = -1), EK_E_INVALID,
                   "growth_interval is -1");
    ek_grad_scaler *scaler = ek_grad_scaler_new();
    assert_refused(ek_grad_scaler_set(scaler, NAN, 0), EK_E_INVALID, "scale nan");
    assert_refused(ek_grad_scaler_set(scaler, 1, -1), EK_E_INVALID, "after -1 updates");
    assert_refused(ek_grad_scaler_set(scaler, 1, INT64_MAX), EK_E_INVALID, "below 2^63 - 1");
    assert_ok(ek_grad_scaler_set(scaler, 4, 7));
    ck_assert(ek_grad_scaler_factor(scaler) == 4 && ek_grad_scaler_tracker(scaler) == 7);
    ek_grad_scaler_free(scaler);
}
