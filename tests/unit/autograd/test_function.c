/* Functions of the user's own: their gradients to any order, and who owns what. */
#include "function_setup.h"

FIXTURE(four_devices, NULL)

static atomic_int destroyed;

static void count_destroyed(void *user)
{
    atomic_fetch_add(&destroyed, 1);
    if (user)
        ++*(int *)user;
}

static ek_tensor *cube_of(ek_tensor *const *x, int count, void *user)
{
    return apply(&cube, x[0]);
}

static ek_tensor *cube_of_exp(ek_tensor *const *x, int count, void *user)
{
    return toy_sum(toy_exp(apply(&cube, toy_scale(x[0], 0.5))));
}

TEST(differences_agree)
{
    static const double values[3] = {-1.5, 0.25, 2};
    ek_tensor *x = toy_leaf(values, 3, ek_cpu());
    assert_ok(ek_gradcheck(cube_of, &x, 1));
    assert_ok(ek_gradgradcheck(cube_of, &x, 1));
    x = toy_leaf((double[]){0.3, -0.8}, 2, ek_cpu());
    assert_ok(ek_gradcheck(cube_of_exp, &x, 1));
    assert_ok(ek_gradgradcheck(cube_of_exp, &x, 1));
}

TEST(every_derivative_of_a_cube)
{
    ek_tensor *x = toy_leaf((double[]){2}, 1, test_device(1));
    ek_tensor *y = apply(&cube, x);
    assert_made(y);
    ck_assert_double_eq(element(y, 0), 8);
    static const double derivatives[] = {12, 12, 6};
    for (int order = 0; order < 3; order++) {
        y = toy_grad(y, x, true);
        ck_assert_double_eq(element(y, 0), derivatives[order]);
    }
}

TEST(what_the_forward_makes_ends_with_it)
{
    ek_tensor *x = toy_full(2, EK_SHAPE(1000), test_device(0));
    uint64_t before = toy_memory(test_device(0)).in_use;
    ek_scope scope = ek_scope_begin();
    assert_made(apply(&cube, x));
    ck_assert_uint_le(toy_memory(test_device(0)).in_use - before, 8 * 1000 + 512);
    ek_scope_end(&scope);
    ck_assert_uint_eq(toy_memory(test_device(0)).in_use, before);
}

/* ---- x y and exp(x), saved as an output; NULL inputs ---- */

static bool pair_wanted; /* the first gradient, as the last forward knew */

static int pair_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = toy_mul(x[0], x[2]);
    y[1] = toy_exp(x[0]);
    ck_assert_ptr_null(x[1]);
    pair_wanted = ek_function_needs(call, 0);
    ck_assert(!ek_function_needs(call, 1));
    ck_assert(!ek_function_needs(call, 3) && !ek_function_needs(call, -1));
    return ek_function_save(call, (ek_tensor *const[]){x[0], NULL, x[2], y[1]}, 4);
}

static int pair_missing;

static int pair_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    pair_missing = !dy[0] + 2 * !dy[1];
    ck_assert_ptr_null(ek_function_saved(call, 1));
    ck_assert_int_eq(ek_error_status(), 0);
    if (ek_function_needs(call, 0)) {
        ek_tensor *a = dy[0] ? toy_mul(dy[0], ek_function_saved(call, 2)) : NULL;
        ek_tensor *b = dy[1] ? toy_mul(dy[1], ek_function_saved(call, 3)) : NULL;
        dx[0] = a && b ? ek_fold_add(a, b) : a ? a : b;
    }
    if (ek_function_needs(call, 2) && dy[0])
        dx[2] = toy_mul(dy[0], ek_function_saved(call, 0));
    return 0;
}

static const ek_function pair = {.name = "pair",
                                 .outputs = 2,
                                 .forward = pair_forward,
                                 .backward = pair_backward};

static ek_tensor *pair_product(ek_tensor *const *x, int count, void *user)
{
    ek_tensor *y[2], *const inputs[] = {x[0], NULL, x[1]};
    const int *which = user;
    if (ek_function_apply(&pair, inputs, 3, y) < 0)
        return NULL;
    return *which == 2 ? toy_mul(y[0], y[1]) : toy_mul(y[*which], y[*which]);
}

TEST(forwards_know_what_backward_may_want)
{
    ek_tensor *x = toy_leaf((double[]){2}, 1, ek_cpu()), *y[2];
    ek_tensor *const inputs[] = {x, NULL, ek_detach(x)};
    assert_ok(ek_function_apply(&pair, inputs, 3, y));
    ck_assert(pair_wanted);
    bool before = ek_set_grad_enabled(false);
    assert_ok(ek_function_apply(&pair, inputs, 3, y));
    ek_set_grad_enabled(before);
    ck_assert(!pair_wanted);
    ek_function constant = pair;
    constant.backward = NULL;
    pair_wanted = true;
    assert_ok(ek_function_apply(&constant, inputs, 3, y));
    ck_assert(!pair_wanted);
}

TEST_LOOP(several_outputs, 0, 3)
{
    ek_tensor *inputs[] = {toy_leaf((double[]){0.5, -1}, 2, test_device(0)),
                           toy_leaf((double[]){2, 3}, 2, test_device(0))};
    int which = _i;
    assert_ok(
        ek_gradcheck(.function = pair_product, .inputs = inputs, .input_count = 2, .user = &which));
    /* What arrives is NULL if the other output alone was used. */
    ck_assert_int_eq(pair_missing, which == 0 ? 2 : which == 1 ? 1 : 0);
    assert_ok(ek_gradgradcheck(.function = pair_product, .inputs = inputs, .input_count = 2,
                               .user = &which));
    ek_tensor_set_requires_grad(inputs[1], false);
    assert_ok(ek_gradgradcheck(.function = pair_product, .inputs = inputs, .input_count = 2,
                               .user = &which));
}

/* ---- ownership of `user` ---- */

static int user_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    ck_assert_int_eq(*(int *)ek_function_user(call), 0);
    y[0] = toy_scale(x[0], 2);
    return 0;
}

static int user_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ck_assert_int_eq(*(int *)ek_function_user(call), 0);
    dx[0] = toy_scale(dy[0], 2);
    return 0;
}

static int failing_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    return EK_E_USER;
}

static const ek_function owner = {.name = "owner",
                                  .forward = user_forward,
                                  .backward = user_backward,
                                  .destroy = count_destroyed};

TEST(user_is_freed_once)
{
    int freed = 0;
    ek_tensor *y, *x = toy_leaf((double[]){2}, 1, ek_cpu());
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_function_apply_user(&owner, &x, 1, &y, &freed));
    assert_ok(ek_backward(y, .retain_graph = true));
    assert_ok(ek_backward(y));
    ck_assert_int_eq(freed, 0); /* with the graph */
    ek_scope_end(&scope);
    ck_assert_int_eq(freed, 1);

    freed = 0; /* nothing recorded */
    bool before = ek_set_grad_enabled(false);
    assert_ok(ek_function_apply_user(&owner, &x, 1, &y, &freed));
    ek_set_grad_enabled(before);
    ck_assert_int_eq(freed, 1);
    ck_assert(!ek_tensor_requires_grad(y));

    freed = 0; /* failures: of the forward, of the call, an error from before */
    ek_function failing = owner;
    failing.forward = failing_forward;
    assert_refused(ek_function_apply_user(&failing, &x, 1, &y, &freed), EK_E_USER,
                   "in forward of owner: it failed with");
    ck_assert_int_eq(freed, 1);
    ck_assert_ptr_null(y);
    assert_refused(ek_function_apply_user(&owner, &x, 65, &y, &freed), EK_E_INVALID,
                   "owner: 65 inputs; there can be 0 to 64");
    ck_assert_int_eq(freed, 2);
    ek_error(EK_E_USER, "from before");
    assert_refused(ek_function_apply_user(&owner, &x, 1, &y, &freed), EK_E_USER, "from before");
    ck_assert_int_eq(freed, 3);

    /* Recording refused: the view shows what a recorded write has changed. */
    freed = 0;
    ek_tensor *base = toy_scale(x, 1), *view = toy_spread(base, EK_SHAPE(1));
    assert_made(toy_scale_(base, 3));
    assert_refused(ek_function_apply_user(&owner, &view, 1, &y, &freed), EK_E_MODIFIED,
                   "owner: input 0 is a view");
    ck_assert_int_eq(freed, 1);
}

/* ---- no gradient ---- */

TEST(without_a_backward_there_is_no_gradient)
{
    int freed = 0;
    ek_function constant = owner;
    constant.backward = NULL;
    ek_tensor *y, *x = toy_leaf((double[]){2}, 1, ek_cpu());
    assert_ok(ek_function_apply_user(&constant, &x, 1, &y, &freed));
    ck_assert(!ek_tensor_requires_grad(y));
    ck_assert_int_eq(freed, 1);
    assert_refused(ek_backward(y), EK_E_AUTOGRAD, "has no gradient");
}
/* ---- workers ---- */

enum { DEVICES = 3 };
static ek_dev *ran_on[DEVICES];

static int witness_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = toy_scale(x[0], 2);
    return 0;
}

static int witness_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    *(ek_dev **)ek_function_user(call) = ek_thread_self()->own_device;
    dx[0] = toy_scale(dy[0], 2);
    return 0;
}

TEST(backwards_run_on_the_worker_of_their_device)
{
    static const ek_function witness = {.name = "witness",
                                        .forward = witness_forward,
                                        .backward = witness_backward};
    ek_tensor *x = toy_leaf((double[]){2}, 1, ek_cpu()), *sum = NULL;
    ek_dev *devs[DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        devs[d] = ek_dev_get(test_device(d));
        ek_tensor *y, *there = toy_to(x, devs[d], 0);
        assert_ok(ek_function_apply_user(&witness, &there, 1, &y, &ran_on[d]));
        y = toy_to(apply(&cube, y), ek_tensor_dev(x), 0);
        sum = sum ? ek_fold_add(sum, y) : y;
    }
    assert_ok(ek_backward(sum));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), DEVICES * 8 * 12);
    for (int d = 0; d < DEVICES; d++)
        ck_assert_ptr_eq(ran_on[d], devs[d]);
}

static int apply_in_job(void *user, int index)
{
    ek_tensor *x = toy_leaf((double[]){index + 1}, 1, test_device(index));
    ek_tensor *y = toy_grad(toy_grad(apply(&cube, x), x, true), x, false);
    ((double *)user)[index] = element(y, 0);
    return 0;
}

TEST(functions_work_inside_of_jobs)
{
    ek_dev *devs[DEVICES];
    double results[DEVICES];
    for (int d = 0; d < DEVICES; d++)
        devs[d] = ek_dev_get(test_device(d));
    assert_ok(ek_jobs_run(devs, DEVICES, apply_in_job, results, NULL));
    for (int d = 0; d < DEVICES; d++)
        ck_assert_double_eq(results[d], 6 * (d + 1));
}
