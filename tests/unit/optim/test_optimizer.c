/* Optimizers against PyTorch's trajectories; groups, skipped parameters, slabs, errors. */
#include "autograd/graph.h"
#include "core/slab.h"
#include "evenkeel/nn.h"
#include "evenkeel/optim.h"
#include "kit/optimizers.h"
#include "optim_setup.h"
#include "trajectories.h"

/* ---- trajectories ---- */

static ek_tensor *part(const char *name, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", name, what);
    return golden("optim.golden", path);
}

static void follow_trajectory(int i, ek_dtype dtype, double tolerance)
{
    const char *name = trajectories[i].name;
    ek_tensor *p = ek_clone(ek_to_dtype(part(name, "p0"), dtype));
    assert_ok(ek_tensor_set_requires_grad(p, true));
    ek_tensor *gradients = ek_to_dtype(part(name, "gradients"), dtype);
    ek_tensor *expected = ek_to_dtype(part(name, "p"), dtype);
    ek_optimizer *optimizer = trajectories[i].make(NULL);
    assert_made(optimizer);
    ck_assert_int_eq(ek_optimizer_add_group(optimizer, &p, 1), 0);
    for (int step = 0; step < ek_tensor_size(gradients, 0); step++) {
        assert_ok(ek_tensor_set_grad(p, ek_clone(ek_select(gradients, 0, step))));
        assert_ok(ek_step(optimizer));
        assert_close(ek_detach(p), ek_select(expected, 0, step), tolerance, tolerance);
    }
    static const char *const states[] = {"momentum_buffer",
                                         "exp_avg",
                                         "exp_avg_sq",
                                         "max_exp_avg_sq",
                                         "exp_inf",
                                         "square_avg",
                                         "grad_avg",
                                         "sum",
                                         "acc_delta",
                                         "prev",
                                         "step_size",
                                         "mu_product",
                                         "ax",
                                         "eta"};
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", name, states[s]);
        ek_tensor *state = ek_optimizer_state(optimizer, p, states[s]);
        if (golden_has("optim.golden", path))
            assert_close(ek_to_dtype(state, dtype),
                         ek_to_dtype(golden("optim.golden", path), dtype), tolerance, tolerance);
        else
            ck_assert_ptr_null(state);
    }
    ek_optimizer_free(optimizer);
}

TEST_LOOP(follows_pytorch_f64, 0, TRAJECTORIES)
{
    follow_trajectory(_i, EK_F64, 1e-13);
}

TEST_LOOP(follows_pytorch_f32, 0, TRAJECTORIES)
{
    follow_trajectory(_i, EK_F32, 2e-6);
}

/* ---- parameters without a gradient ---- */

static ek_tensor *leaf_of(double value, ek_shape shape)
{
    ek_tensor *leaf = ek_full(value, shape);
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    return leaf;
}

static void give_gradient(ek_tensor *leaf, double value)
{
    assert_ok(ek_tensor_set_grad(leaf, ek_full(value, ek_tensor_shape(leaf),
                                               .device = ek_tensor_device(leaf))));
}

TEST(skips_parameters_without_gradient)
{
    ek_tensor *p[2] = {leaf_of(1, EK_SHAPE(3)), leaf_of(1, EK_SHAPE(2, 2))};
    ek_optimizer *optimizer = ek_sgd(.lr = 0.5, .momentum = 0.5);
    assert_ok(ek_optimizer_add_group(optimizer, p, 2));
    give_gradient(p[0], 1);
    give_gradient(p[1], 1);
    assert_ok(ek_step(optimizer)); /* both 0.5, buffers 1 */
    ek_zero_grad(optimizer);
    ck_assert_ptr_null(ek_tensor_grad(p[0]));
    give_gradient(p[0], 0);
    uint64_t versions[2] = {ek_tensor_version(p[0]), ek_tensor_version(p[1])};
    assert_ok(ek_step(optimizer));
    ck_assert_double_eq(element(p[0], 0), 0.25); /* momentum alone moves it */
    ck_assert_double_eq(element(p[1], 0), 0.5);
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p[1], "momentum_buffer"), 3), 1);
    ck_assert_uint_eq(ek_tensor_version(p[0]), versions[0] + 1);
    ck_assert_uint_eq(ek_tensor_version(p[1]), versions[1]);
    ek_zero_grad(optimizer);
    assert_ok(ek_step(optimizer)); /* nothing to do */
    ck_assert_double_eq(element(p[0], 0), 0.25);
    ek_optimizer_free(optimizer);
}

TEST(groups_have_their_own_options)
{
    ek_tensor *p = leaf_of(1, EK_SHAPE(3)), *q = leaf_of(1, EK_SHAPE(3)),
              *r = leaf_of(1, EK_SHAPE(1));
    ek_optimizer *optimizer = ek_sgd(.lr = 0.5, .weight_decay = 1);
    ck_assert_int_eq(ek_optimizer_add_group(optimizer, &p, 1), 0);
    ck_assert_int_eq(add_group_with(optimizer, &q, 1, "weight_decay", 0), 1);
    ck_assert_int_eq(add_group_with(optimizer, &r, 1, "lr", 0), 2);
    give_gradient(p, 0);
    give_gradient(q, 0);
    give_gradient(r, 1);
    assert_ok(ek_step(optimizer));
    ck_assert_double_eq(element(p, 0), 0.5);
    ck_assert_double_eq(element(q, 0), 1);
    ck_assert_double_eq(element(r, 0), 1);
    ck_assert_int_eq(ek_optimizer_group_count(optimizer), 3);
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 1), 0.5);
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 2), 0);
    assert_ok(ek_optimizer_set(optimizer, 2, "lr", 0.25));
    assert_ok(ek_step(optimizer));
    ck_assert_double_eq(element(r, 0), 1 - 0.25 * 2);

    assert_refused(ek_optimizer_add_group(optimizer, &q, 1), EK_E_INVALID, "in a group already");
    ek_tensor *fresh[2] = {leaf_of(1, EK_SHAPE(1)), p};
    assert_refused(ek_optimizer_add_group(optimizer, fresh, 2), EK_E_INVALID, "parameter 1");
    fresh[1] = fresh[0];
    assert_refused(ek_optimizer_add_group(optimizer, fresh, 2), EK_E_INVALID, "in a group already");
    ck_assert_int_eq(ek_optimizer_add_group(optimizer, fresh, 1), 3);
    assert_refused(ek_optimizer_set(optimizer, 4, "lr", 1), EK_E_INVALID, "none with index 4");
    assert_refused(ek_optimizer_set(optimizer, 0, "lr", NAN), EK_E_INVALID, "learning rate");
    ek_optimizer_free(optimizer);
}

TEST(refuses_what_cannot_be_stepped)
{
    ek_optimizer *optimizer = ek_adam();
    ek_tensor *leaf = leaf_of(1, EK_SHAPE(4, 4));
    ek_tensor *wrong[] = {ek_mul_scalar(leaf, 2), ek_ones(EK_SHAPE(2), .dtype = EK_I64),
                          ek_ones(EK_SHAPE(2), .dtype = EK_BF16),
                          ek_slice(ek_ones(EK_SHAPE(4, 4)), 1, 0, 2, 1), NULL};
    static const char *const reasons[] = {"result of an operation", "f32 or f64", "f32 or f64",
                                          "view with gaps", "NULL"};
    static const int statuses[] = {EK_E_INVALID, EK_E_DTYPE, EK_E_DTYPE, EK_E_INVALID,
                                   EK_E_INVALID};
    for (int i = 0; i < 5; i++) {
        assert_refused(ek_optimizer_add_group(optimizer, &wrong[i], 1), statuses[i], reasons[i]);
    }
    assert_refused(ek_optimizer_add_group(optimizer, NULL, 0), EK_E_INVALID,
                   "at least one parameter");
    ek_module *empty = ek_relu();
    assert_refused(ek_sgd(empty), EK_E_INVALID, "at least one parameter");
    assert_refused(ek_sgd(ek_linear(0, 0)), EK_E_INVALID, "in_features");
    assert_refused(ek_step(NULL), EK_E_INVALID, "optimizer is NULL");
    ck_assert_ptr_null(ek_optimizer_state(optimizer, leaf, "exp_avg"));
    ek_module_free(empty);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(NULL);
    ek_zero_grad(NULL);
}

TEST(options_out_of_range)
{
    assert_refused(ek_sgd(.lr = -1), EK_E_INVALID, "sgd: invalid learning rate -1");
    assert_refused(ek_sgd(.lr = NAN), EK_E_INVALID, "learning rate");
    assert_refused(ek_sgd(.momentum = -0.5), EK_E_INVALID, "invalid momentum -0.5");
    assert_refused(ek_sgd(.weight_decay = -1), EK_E_INVALID, "invalid weight_decay");
    assert_refused(ek_sgd(.nesterov = true), EK_E_INVALID,
                   "requires a momentum and zero dampening");
    assert_refused(ek_sgd(.nesterov = true, .momentum = 0.9, .dampening = 0.1), EK_E_INVALID,
                   "requires a momentum and zero dampening");
    assert_refused(ek_adam(.lr = -1), EK_E_INVALID, "adam: invalid learning rate");
    assert_refused(ek_adam(.beta1 = 1), EK_E_INVALID, "invalid beta1 1");
    assert_refused(ek_adam(.beta2 = -0.1), EK_E_INVALID, "invalid beta2");
    assert_refused(ek_adam(.eps = -1), EK_E_INVALID, "invalid eps");
    assert_refused(ek_adamw(.weight_decay = -1), EK_E_INVALID, "adamw: invalid weight_decay");
}

/* ---- slabs ---- */

static void assert_equal_sets(ek_tensor **a, ek_tensor **b)
{
    for (int i = 0; i < MEMBERS; i++)
        assert_close(ek_detach(b[i]), ek_detach(a[i]), 0, 0);
}

/* Sums over whole slabs are only as good as what lies between the members. */
static void assert_padding_is_zero(ek_tensor **in_slabs)
{
    const float *data = in_slabs[0]->storage->data;
    for (int i = 0; i + 1 < MEMBERS; i++)
        for (int64_t k = in_slabs[i]->offset + ek_count(in_slabs[i]); k < in_slabs[i + 1]->offset;
             k++)
            ck_assert_msg(data[k] == 0, "behind member %d stands %g", i, (double)data[k]);
}

/* Parameters in slabs, put there before the first step (variant 0) or after the second (1), with
 * gradients that come and go and a group border in the middle: equal to the bit to parameters on
 * their own. */
static void run_in_slabs(ek_optimizer *(*make)(ek_module *module), int variant)
{
    static const unsigned absent[] = {0x4, 0x0, 0x1f, 0x0, 0x11, 0x0, 0x2};
    ek_tensor *apart[MEMBERS], *in_slabs[MEMBERS];
    ek_manual_seed(99);
    random_leaves(apart);
    ek_manual_seed(99);
    random_leaves(in_slabs);
    if (variant == 0)
        move_into_slabs(in_slabs);
    ek_optimizer *a = make(NULL), *b = make(NULL);
    for (int begin = 0; begin < MEMBERS; begin += 3) {
        int count = begin + 3 < MEMBERS ? 3 : MEMBERS - begin;
        const int group = ek_optimizer_add_group(a, apart + begin, count);
        ck_assert_int_eq(ek_optimizer_add_group(b, in_slabs + begin, count), group);
        for (int k = 0; k < 2 && begin; k++)
            assert_ok(ek_optimizer_set(k ? b : a, group, "lr", 0.01));
    }
    for (int step = 0; step < 7; step++) {
        give_gradients(apart, in_slabs, absent[step]);
        assert_ok(ek_step(a));
        assert_ok(ek_step(b));
        assert_equal_sets(apart, in_slabs);
        if (variant == 1 && step == 1)
            move_into_slabs(in_slabs);
    }
    assert_padding_is_zero(in_slabs);
    ek_optimizer_free(a);
    ek_optimizer_free(b);
}

#define SLAB_LIST(X)                                                                      \
    X(sgd, "", 0,                                                                         \
      ek_sgd(module, .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01)) \
    X(adam, "", 0, ek_adam(module, .lr = 0.1, .weight_decay = 0.1, .amsgrad = true))      \
    X(adamw, "", 0, ek_adamw(module, .lr = 0.1, .weight_decay = 0.1, .amsgrad = true))    \
    X(no_eps, "", 0, ek_adam(module, .lr = 0.1, .eps = 0))                                \
    X(nadam, "", 0, ek_nadam(module, .lr = 0.1))                                          \
    X(rmsprop, "", 0, ek_rmsprop(module, .centered = true, .momentum = 0.5))              \
    X(adagrad, "", 0, ek_adagrad(module, .initial_accumulator_value = 0.1))               \
    X(rprop, "", 0, ek_rprop(module, .lr = 0.1))                                          \
    X(asgd, "", 0, ek_asgd(module, .lambd = 0.1, .t0 = 2))
SLAB_LIST(OPTIMIZER_MAKER)
static const optimizer_row slab_optimizers[] = {SLAB_LIST(OPTIMIZER_ROW)};

TEST_LOOP(slabs_step_as_single_tensors, 0, 2)
{
    ek_scope scope = ek_scope_begin();
    for (size_t i = 0; i < sizeof slab_optimizers / sizeof *slab_optimizers; i++)
        run_in_slabs(slab_optimizers[i].make, _i);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

/* The state of neighbours is one storage in the parameters' order; handles survive a re-homing. */
TEST(state_is_laid_out_as_parameters)
{
    ek_tensor *apart[MEMBERS], *p[MEMBERS], *before[MEMBERS];
    ek_manual_seed(4);
    random_leaves(apart);
    random_leaves(p);
    ek_optimizer *optimizer = ek_adam();
    assert_ok(ek_optimizer_add_group(optimizer, p, MEMBERS));
    give_gradients(apart, p, 0);
    assert_ok(ek_step(optimizer));
    for (int i = 0; i < MEMBERS; i++) {
        before[i] = ek_optimizer_state(optimizer, p[i], "exp_avg");
        ck_assert(ek_same_layout(before[i], p[i]));
        ck_assert_int_eq(before[i]->storage->category, EK_MEMORY_OPTIMIZER);
    }
    ck_assert_ptr_ne(before[0]->storage, before[1]->storage);
    move_into_slabs(p);
    give_gradients(apart, p, 0x1d); /* all but 1 absent */
    assert_ok(ek_step(optimizer));
    ck_assert_ptr_ne(before[0]->storage, before[1]->storage); /* neighbours take no part yet */
    give_gradients(apart, p, 0);
    assert_ok(ek_step(optimizer));
    for (int i = 0; i < MEMBERS; i++) {
        ck_assert_ptr_eq(ek_optimizer_state(optimizer, p[i], "exp_avg"), before[i]);
        ck_assert_ptr_eq(before[i]->storage, before[0]->storage);
        ck_assert_int_eq(before[i]->offset - before[0]->offset, p[i]->offset - p[0]->offset);
    }
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    /* 16 + 48 + 16 + 16 + 32 elements, twice */
    ck_assert_uint_eq(stats.now[EK_MEMORY_OPTIMIZER], 2 * 4 * 128);
    ek_optimizer_free(optimizer);
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_OPTIMIZER], 0);
}

/* Gradients of a slab are marked absent, and their memory stays what it is. */
TEST(zero_grad_keeps_slots)
{
    ek_tensor *apart[MEMBERS], *p[MEMBERS];
    random_leaves(apart);
    random_leaves(p);
    move_into_slabs(p);
    ek_optimizer *optimizer = ek_sgd();
    assert_ok(ek_optimizer_add_group(optimizer, p, MEMBERS));
    give_gradients(apart, p, 0);
    double value = element(p[1]->grad_buffer, 5);
    ek_zero_grad(optimizer);
    ck_assert_ptr_null(ek_tensor_grad(p[1]));
    ck_assert_ptr_nonnull(p[1]->grad_buffer);
    ck_assert_double_eq(element(p[1]->grad_buffer, 5), value);
    ek_optimizer_free(optimizer);
}

/* ---- all or nothing ---- */

TEST(no_update_on_an_error)
{
    assert_ok(test_devices_configure("4K"));
    ek_tensor *p[2] = {leaf_of(1, EK_SHAPE(8)), leaf_of(1, EK_SHAPE(256))};
    for (int i = 0; i < 2; i++) {
        p[i] = ek_to_device(ek_detach(p[i]), test_device(0));
        assert_ok(ek_tensor_set_requires_grad(p[i], true));
    }
    ek_optimizer *optimizer = ek_sgd(.lr = 0.5, .momentum = 0.5);
    assert_ok(ek_optimizer_add_group(optimizer, p, 2));
    give_gradient(p[0], 1);
    give_gradient(p[1], 1);
    {
        ek_scope full = ek_scope_begin();
        assert_made(ek_empty(EK_SHAPE(400), .device = test_device(0)));
        assert_refused(ek_step(optimizer), EK_E_OUT_OF_MEMORY, "host:0");
        ek_scope_end(&full);
    }
    ck_assert_double_eq(element(p[0], 0), 1);
    ck_assert_double_eq(element(p[1], 0), 1);
    assert_ok(ek_step(optimizer));
    ck_assert_double_eq(element(p[0], 0), 0.5);
    ck_assert_double_eq(element(p[1], 255), 0.5);
    ek_optimizer_free(optimizer);
}

/* A gradient in another order of memory, and state that follows its parameter to another device. */
TEST(layouts_and_devices)
{
    assert_ok(test_devices_configure("2"));
    ek_manual_seed(8);
    ek_module *net = ek_conv2d(2, 3, 2, .bias = false);
    ek_tensor *w = ek_module_tensor(net, "weight");
    ek_tensor *start = ek_clone(ek_detach(w));
    ek_tensor *gradient = ek_randn(EK_SHAPE(3, 2, 2, 2));
    ek_optimizer *optimizer = ek_sgd(net, .lr = 1, .momentum = 0.5);
    assert_ok(ek_tensor_set_grad(w, gradient));
    assert_ok(ek_step(optimizer));
    assert_close(ek_detach(w), ek_sub(start, gradient), 1e-6, 1e-6);
    assert_ok(ek_module_to_device(net, test_device(1)));
    ek_tensor *moved = ek_to_device(gradient, test_device(1));
    assert_ok(ek_tensor_set_grad(w, moved));
    assert_ok(ek_step(optimizer));
    ek_tensor *buffer = ek_optimizer_state(optimizer, w, "momentum_buffer");
    ck_assert(ek_device_equal(ek_tensor_device(buffer), test_device(1)));
    assert_close(ek_detach(w),
                 ek_to_device(ek_sub(start, ek_mul_scalar(gradient, 2.5)), test_device(1)), 1e-5,
                 1e-5);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* A graph that read the parameter before the step must not be differentiated after it. */
TEST(step_is_seen_by_graphs)
{
    ek_tensor *p = leaf_of(2, EK_SHAPE(3));
    ek_optimizer *optimizer = ek_sgd();
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    ek_tensor *loss = ek_sum(ek_mul(p, p));
    assert_ok(ek_backward(loss, .retain_graph = true));
    assert_ok(ek_step(optimizer));
    assert_refused(ek_backward(loss), EK_E_MODIFIED, "step");
    ek_optimizer_free(optimizer);
}
