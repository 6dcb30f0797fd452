/* Options of groups that are read and changed by name. */
#include <math.h>

#include "evenkeel/autograd.h"
#include "evenkeel/optim.h"
#include "kit/optimizers.h"
#include "unit.h"

static ek_tensor *leaf_with_gradient(double value, double gradient)
{
    ek_tensor *leaf = ek_full(value, EK_SHAPE(3), .requires_grad = true);
    assert_ok(ek_tensor_set_grad(leaf, ek_full(gradient, EK_SHAPE(3))));
    return leaf;
}

static double option(const ek_optimizer *optimizer, int group, const char *name)
{
    double value = NAN;
    assert_ok(ek_optimizer_get(optimizer, group, name, &value));
    return value;
}

TEST(a_group_changes)
{
    ek_tensor *p = leaf_with_gradient(1, 0), *q = leaf_with_gradient(1, 0);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.5, .momentum = 0.25);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    assert_ok(add_group_with(optimizer, &q, 1, "weight_decay", 0.5));
    ck_assert_double_eq(option(optimizer, 0, "momentum"), 0.25);
    ck_assert_double_eq(option(optimizer, 0, "weight_decay"), 0);
    ck_assert_double_eq(option(optimizer, 1, "weight_decay"), 0.5);
    ck_assert_double_eq(option(optimizer, 1, "nesterov"), 0);
    assert_ok(ek_optimizer_set(optimizer, 0, "weight_decay", 1));
    assert_ok(ek_optimizer_set(optimizer, 1, "weight_decay", 0));
    assert_ok(ek_optimizer_set(optimizer, 1, "nesterov", 1));
    assert_ok(ek_step(optimizer));
    ck_assert_double_eq(element(p, 0), 0.5);
    ck_assert_double_eq(element(q, 0), 1);
    ck_assert_double_eq(option(optimizer, 1, "nesterov"), 1);
    assert_ok(ek_optimizer_set(optimizer, 0, "lr", 0));
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 0), 0);
    ek_optimizer_free(optimizer);
}

TEST(refuses)
{
    double value = 7;
    ek_tensor *p = leaf_with_gradient(1, 1);
    ek_optimizer *optimizer = ek_adam(.lr = 0.5), *sgd = ek_sgd();
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    assert_ok(ek_optimizer_add_group(sgd, &p, 1));
    assert_refused(ek_optimizer_set(optimizer, 0, "momentum", 0.5), EK_E_INVALID,
                   "adam has no momentum; its options are lr, weight_decay, beta1, beta2, eps, "
                   "amsgrad, maximize");
    assert_refused(ek_optimizer_get(optimizer, 0, "betas", &value), EK_E_INVALID,
                   "adam has no betas");
    assert_refused(ek_optimizer_get(optimizer, 0, NULL, &value), EK_E_INVALID, "option NULL");
    assert_refused(ek_optimizer_get(optimizer, 0, "lr", NULL), EK_E_INVALID, "lr is NULL");
    assert_refused(ek_optimizer_get(optimizer, 1, "lr", &value), EK_E_INVALID, "none with index 1");
    assert_refused(ek_optimizer_set(optimizer, 0, "beta1", 1), EK_E_INVALID,
                   "adam: invalid beta1 1, it has to be in [0, 1)");
    assert_refused(ek_optimizer_set(optimizer, 0, "eps", NAN), EK_E_INVALID, "invalid eps");
    assert_refused(ek_optimizer_set(optimizer, 0, "amsgrad", 0.5), EK_E_INVALID,
                   "amsgrad is a switch, 0 or 1, not 0.5");
    assert_refused(ek_optimizer_set(sgd, 0, "nesterov", 1), EK_E_INVALID,
                   "requires a momentum and zero dampening");
    assert_refused(ek_optimizer_set(NULL, 0, "lr", 1), EK_E_INVALID, "optimizer is NULL");
    ck_assert_double_eq(value, 7);
    ck_assert_double_eq(option(optimizer, 0, "beta1"), 0.9);
    ck_assert_double_eq(option(sgd, 0, "nesterov"), 0);

    /* Before the first update states may change, then no more. */
    assert_ok(ek_optimizer_set(optimizer, 0, "amsgrad", 1));
    assert_ok(ek_step(optimizer));
    assert_made(ek_optimizer_state(optimizer, p, "max_exp_avg_sq"));
    assert_refused(ek_optimizer_set(optimizer, 0, "amsgrad", 0), EK_E_STATE,
                   "adam: amsgrad 0 needs other state than the parameters of group 0 have");
    ek_optimizer_free(optimizer);
    ek_optimizer_free(sgd);
}

TEST(options_of_each)
{
    assert_refused(ek_adagrad(.lr_decay = -1), EK_E_INVALID, "adagrad: invalid lr_decay -1");
    assert_refused(ek_adadelta(.rho = 1.5), EK_E_INVALID,
                   "invalid rho 1.5, it has to be in [0, 1]");
    assert_refused(ek_nadam(.momentum_decay = -1), EK_E_INVALID, "invalid momentum_decay");
    assert_refused(ek_radam(.beta2 = 1), EK_E_INVALID, "radam: invalid beta2 1");
    assert_refused(ek_rprop(.eta_minus = 1), EK_E_INVALID, "eta_minus 1, it has to be between");
    assert_refused(ek_rprop(.eta_plus = 1), EK_E_INVALID, "eta_plus 1, it has to be more than 1");
    assert_refused(ek_asgd(.t0 = NAN), EK_E_INVALID, "asgd: invalid t0 nan");
    /* A written zero is a zero. */
    ek_optimizer *optimizers[] = {ek_sgd(.lr = 0), ek_adam(.beta1 = 0), ek_rmsprop(.alpha = 0),
                                  ek_asgd(.lambd = 0)};
    static const char *const names[] = {"lr", "beta1", "alpha", "lambd"};
    for (int i = 0; i < 4; i++) {
        ek_tensor *p = ek_zeros(EK_SHAPE(1), .requires_grad = true);
        assert_ok(ek_optimizer_add_group(optimizers[i], &p, 1));
        ck_assert_double_eq(option(optimizers[i], 0, names[i]), 0);
        ek_optimizer_free(optimizers[i]);
    }
}
