/* ek_minimize: the numbers of the single calls, and what is unchanged after an error at each place.
 */
#include "optim_setup.h"

typedef struct fit {
    ek_module *net;
    ek_optimizer *optimizer;
    ek_grad_scaler *scaler;
} fit;

static fit fit_begin(ek_dtype dtype, bool scales)
{
    fit f = {.scaler =
                 scales ? ek_grad_scaler_new(.init_scale = 1024, .growth_interval = 2) : NULL};
    ek_manual_seed(4);
    f.net = ek_sequential(ek_linear(3, 5), ek_tanh(), ek_linear(5, 1));
    assert_made(f.net);
    assert_ok(ek_module_to_dtype(f.net, dtype));
    f.optimizer = ek_adam(f.net, .lr = 0.1);
    assert_made(f.optimizer);
    return f;
}

static void fit_end(fit *f)
{
    ek_grad_scaler_free(f->scaler);
    ek_optimizer_free(f->optimizer);
    ek_module_free(f->net);
}

/* The mean square of the outputs, times `factor`. */
static ek_tensor *fit_loss(const fit *f, double factor)
{
    ek_tensor *x = ek_from_data(((double[]){1, -2, 3, 0.5, 4, -1}), EK_SHAPE(2, 3), EK_F64);
    x = ek_to_dtype(x, ek_tensor_dtype(ek_module_tensor(f->net, "0.weight")));
    return ek_mul_scalar(ek_mean(ek_square(ek_apply(f->net, x))), factor);
}

static void assert_same_numbers(const fit *a, const fit *b)
{
    char of_a[65], of_b[65];
    assert_ok(ek_module_sha256(a->net, of_a));
    assert_ok(ek_module_sha256(b->net, of_b));
    ck_assert_str_eq(of_a, of_b);
    ck_assert(ek_grad_scaler_factor(a->scaler) == ek_grad_scaler_factor(b->scaler));
    ck_assert_int_eq(ek_grad_scaler_tracker(a->scaler), ek_grad_scaler_tracker(b->scaler));
    ck_assert_int_eq(ek_grad_scaler_skipped(a->scaler), ek_grad_scaler_skipped(b->scaler));
}

static void step_by_calls(fit *f, ek_tensor *loss, double max_norm, double *value)
{
    ek_zero_grad(f->optimizer);
    assert_ok(ek_backward(f->scaler ? ek_grad_scaler_scale(f->scaler, loss) : loss));
    if (f->scaler)
        assert_ok(ek_grad_scaler_unscale(f->scaler, f->optimizer));
    if (max_norm > 0)
        assert_ok(ek_clip_grad_norm(f->optimizer, max_norm));
    assert_ok(f->scaler ? ek_grad_scaler_step(f->scaler, f->optimizer) : ek_step(f->optimizer));
    if (f->scaler)
        assert_ok(ek_grad_scaler_update(f->scaler));
    assert_ok(ek_item(loss, value));
}

/* With and without a scaler, a limit, f64. */
TEST_LOOP(minimize_is_the_single_calls, 0, 8)
{
    const double max_norm = _i & 1 ? 0.05 : 0;
    const ek_dtype dtype = _i & 2 ? EK_F64 : EK_F32;
    fit calls = fit_begin(dtype, _i & 4), one = fit_begin(dtype, _i & 4);
    for (int step = 0; step < 5; step++) {
        double wanted, value;
        step_by_calls(&calls, fit_loss(&calls, 3), max_norm, &wanted);
        assert_ok(ek_minimize(one.optimizer, fit_loss(&one, 3), .max_norm = max_norm,
                              .scaler = one.scaler, .value = &value));
        ck_assert_double_eq(value, wanted);
        assert_same_numbers(&one, &calls);
    }
    fit_end(&calls);
    fit_end(&one);
}

TEST(gradients_from_before_are_dropped_or_added_to)
{
    fit calls = fit_begin(EK_F64, false), one = fit_begin(EK_F64, false);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        ek_zero_grad(calls.optimizer);
        assert_ok(ek_backward(fit_loss(&one, 1)));
        if (accumulate)
            assert_ok(ek_backward(fit_loss(&calls, 1)));
        assert_ok(ek_backward(fit_loss(&calls, 2)));
        assert_ok(ek_step(calls.optimizer));
        assert_ok(ek_minimize(one.optimizer, fit_loss(&one, 2), .accumulate = accumulate));
        assert_same_numbers(&one, &calls);
        ek_zero_grad(one.optimizer);
    }
    fit_end(&calls);
    fit_end(&one);
}

TEST(a_scaler_skips_steps)
{
    fit start = fit_begin(EK_F32, false), one = fit_begin(EK_F32, true);
    char before[65], after[65];
    double value;
    assert_ok(ek_module_sha256(start.net, before));
    for (int max_norm = 0; max_norm < 2; max_norm++)
        assert_ok(ek_minimize(one.optimizer, fit_loss(&one, (double)INFINITY), .scaler = one.scaler,
                              .max_norm = max_norm, .value = &value));
    ck_assert(isinf(value));
    assert_ok(ek_module_sha256(one.net, after));
    ck_assert_str_eq(before, after);
    ck_assert_int_eq(ek_grad_scaler_skipped(one.scaler), 2);
    ck_assert(ek_grad_scaler_factor(one.scaler) == 256);
    fit_end(&start);
    fit_end(&one);
}

/* ---- errors ---- */

/* The call is refused, changes nothing, and the next one is as if it had not been made. */
#define REFUSED(status, words, loss, ...)                                                          \
    do {                                                                                           \
        double value = 7, wanted;                                                                  \
        fit calls = fit_begin(EK_F64, true), one = fit_begin(EK_F64, true);                        \
        assert_refused(ek_minimize(one.optimizer, (loss), .value = &value, __VA_ARGS__), (status), \
                       words);                                                                     \
        ck_assert_double_eq(value, 7);                                                             \
        assert_same_numbers(&one, &calls);                                                         \
        step_by_calls(&calls, fit_loss(&calls, 1), 0, &wanted);                                    \
        assert_ok(ek_minimize(one.optimizer, fit_loss(&one, 1), .scaler = one.scaler));            \
        assert_same_numbers(&one, &calls);                                                         \
        fit_end(&calls);                                                                           \
        fit_end(&one);                                                                             \
    } while (0)

TEST(errors_change_nothing)
{
    REFUSED(EK_E_INVALID, "minimize: the loss is NULL", NULL, .max_norm = 1);
    REFUSED(EK_E_SHAPE, "", ek_add(ek_ones(EK_SHAPE(2)), ek_ones(EK_SHAPE(3))), .max_norm = 1);
    REFUSED(EK_E_INVALID, "minimize: max_norm has to be 0 (no limit) or more, not -1",
            fit_loss(&one, 1), .max_norm = -1);
    REFUSED(EK_E_INVALID, "not nan", fit_loss(&one, 1), .max_norm = (double)NAN);
    REFUSED(EK_E_SHAPE, "or sum it", ek_expand(fit_loss(&one, 1), EK_SHAPE(2)),
            .scaler = one.scaler);
    REFUSED(EK_E_INVALID, "skip this step", fit_loss(&one, (double)INFINITY), .max_norm = 1);
    /* Elements are finite, and their norm is not. */
    REFUSED(EK_E_INVALID, "skip this step", fit_loss(&one, 1e200), .max_norm = 1,
            .scaler = one.scaler);
    assert_refused(ek_minimize(NULL, ek_ones(EK_SHAPE(1))), EK_E_INVALID, "optimizer is NULL");
}

TEST(lbfgs_needs_a_closure)
{
    fit f = fit_begin(EK_F64, false);
    ek_optimizer *lbfgs = ek_lbfgs(f.net);
    assert_refused(ek_minimize(lbfgs, fit_loss(&f, 1)), EK_E_INVALID,
                   "minimize: lbfgs evaluates the loss several times in a step; call "
                   "ek_step_closure");
    ek_optimizer_free(lbfgs);
    fit_end(&f);
}

/* A scaler whose gradients the caller has unscaled is left so. */
TEST(gradients_that_are_unscaled_already_are_refused)
{
    fit f = fit_begin(EK_F32, true);
    assert_ok(ek_backward(ek_grad_scaler_scale(f.scaler, fit_loss(&f, 1))));
    assert_ok(ek_grad_scaler_unscale(f.scaler, f.optimizer));
    assert_refused(ek_minimize(f.optimizer, fit_loss(&f, 1), .scaler = f.scaler), EK_E_STATE,
                   "unscaled since the last update");
    assert_refused(ek_grad_scaler_unscale(f.scaler, f.optimizer), EK_E_STATE, "unscaled");
    fit_end(&f);
}
