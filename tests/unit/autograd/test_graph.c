/* Graphs on one device: gradients to third order, saved tensors, versions, in-place, release. */
#include "core/tensor.h"
#include "kit/devices.h"
#include "toy.h"

static const double values[3] = {0.5, -1.25, 2};

FIXTURE(one_device, NULL)

/* x^3 */
static ek_tensor *cube(ek_tensor *x)
{
    return toy_mul(toy_mul(x, x), x);
}

TEST(gradients_to_third_order)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *first = toy_grad(toy_sum(cube(x)), x, true);
    ek_tensor *second = toy_grad(toy_sum(first), x, true);
    ek_tensor *third = toy_grad(toy_sum(second), x, false);
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(element(first, i), 3 * values[i] * values[i], 1e-12);
        ck_assert_double_eq_tol(element(second, i), 6 * values[i], 1e-12);
        ck_assert_double_eq_tol(element(third, i), 6, 1e-12);
    }
    ck_assert(ek_tensor_requires_grad(second));
    ck_assert(!ek_tensor_requires_grad(third));
    ck_assert_ptr_null(ek_tensor_grad(x));

    /* A saved output keeps its place in the graph. */
    ek_tensor *e = toy_exp(x);
    for (int order = 0; order < 4; order++) {
        e = toy_grad(toy_sum(e), x, true);
        for (int i = 0; i < 3; i++)
            ck_assert_double_eq_tol(element(e, i), exp(values[i]), 1e-12);
    }
}

TEST(backward_accumulates_and_retains)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *y = toy_sum(cube(x));
    assert_ok(ek_backward(y, .retain_graph = true));
    ek_tensor *grad = ek_tensor_grad(x);
    assert_made(grad);
    ck_assert_double_eq_tol(element(grad, 1), 3 * values[1] * values[1], 1e-12);
    uint64_t version = ek_tensor_version(grad);
    assert_ok(ek_backward(y));
    ck_assert_ptr_eq(ek_tensor_grad(x), grad);
    ck_assert_uint_gt(ek_tensor_version(grad), version);
    ck_assert_double_eq_tol(element(grad, 1), 6 * values[1] * values[1], 1e-12);

    assert_refused(ek_backward(y), EK_E_STATE, "retain_graph");

    assert_ok(ek_tensor_set_grad(x, NULL));
    ck_assert_ptr_null(ek_tensor_grad(x));
    /* What saves nothing can run again. */
    y = toy_sum(toy_scale(x, 3));
    assert_ok(ek_backward(y));
    assert_ok(ek_backward(y));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 6);
}

/* The way to it isn't computed either. */
TEST(leaves_that_no_longer_require_a_gradient)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0)), *y = toy_leaf(values, 3, test_device(0));
    ek_tensor *loss = toy_sum(toy_mul(toy_exp(x), y));
    assert_ok(ek_tensor_set_requires_grad(x, false));
    int before = atomic_load(&toy_exp_runs);
    assert_ok(ek_backward(loss, .retain_graph = true));
    ck_assert_int_eq(atomic_load(&toy_exp_runs), before);
    ck_assert_ptr_null(ek_tensor_grad(x));
    ck_assert_double_eq_tol(element(ek_tensor_grad(y), 1), exp(values[1]), 1e-15);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_backward(loss));
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 1), values[1] * exp(values[1]), 1e-15);
}

TEST(create_graph_leaves_gradients_that_can_be_differentiated)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    assert_ok(ek_backward(toy_sum(cube(x)), .create_graph = true));
    assert_ok(ek_backward(toy_sum(cube(x)), .create_graph = true));
    ek_tensor *second = toy_grad(toy_sum(ek_tensor_grad(x)), x, false);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(element(second, i), 12 * values[i], 1e-12);
    assert_ok(ek_tensor_set_grad(x, NULL)); /* else leaf and graph own each other */
}

TEST(grad_of_intermediates_and_unused_inputs)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0)),
              *other = toy_leaf(values, 3, test_device(0));
    ek_tensor *e = toy_exp(x);
    ek_tensor *y = toy_sum(toy_mul(e, e));
    ek_tensor *inputs[] = {e, x, other, e, y}, *gradients[5];
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 5,
                      .gradients = gradients, .allow_unused = true, .retain_graph = true));
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(element(gradients[0], i), 2 * exp(values[i]), 1e-12);
        ck_assert_double_eq_tol(element(gradients[1], i), 2 * exp(2 * values[i]), 1e-9);
    }
    ck_assert_ptr_null(gradients[2]);
    ck_assert_ptr_eq(gradients[3], gradients[0]);
    ck_assert_double_eq(element(gradients[4], 0), 1);

    /* Only nodes on the way to an input run. */
    toy_exp_runs = 0;
    ek_tensor *gradient = toy_grad(y, e, false);
    ck_assert_double_eq_tol(element(gradient, 0), 2 * exp(values[0]), 1e-12);
    ck_assert_int_eq(toy_exp_runs, 0);

    y = toy_sum(toy_exp(x));
    assert_refused(ek_grad(.outputs = &y, .output_count = 1, .inputs = &other, .input_count = 1,
                           .gradients = gradients),
                   EK_E_AUTOGRAD, "allow_unused");
    ek_tensor *constant = ek_detach(x);
    assert_refused(ek_grad(.outputs = &y, .output_count = 1, .inputs = &constant, .input_count = 1,
                           .gradients = gradients),
                   EK_E_AUTOGRAD, "does not require a gradient");
    assert_refused(ek_backward(toy_sum(constant)), EK_E_AUTOGRAD, "output 0");
    assert_refused(ek_backward(toy_exp(x)), EK_E_SHAPE, "give its gradient");
    assert_refused(ek_backward(NULL), EK_E_INVALID, "NULL");
}

TEST(several_outputs_with_weights)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *weights = tensor_of((double[]){1, 10, 100}, EK_SHAPE(3), EK_F64, test_device(0));
    ek_tensor *outputs[] = {toy_exp(x), toy_sum(x), x}, *gradient;
    ek_tensor *grad_outputs[] = {weights, NULL, weights};
    assert_ok(ek_grad(.outputs = outputs, .output_count = 3, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .grad_outputs = grad_outputs));
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(element(gradient, i),
                                element(weights, i) * (exp(values[i]) + 1) + 1, 1e-9);
}

TEST(no_gradient_mode_records_nothing)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ck_assert(ek_set_grad_enabled(false));
    ek_tensor *y = toy_exp(x);
    ck_assert(!ek_set_grad_enabled(true));
    ck_assert(!ek_tensor_requires_grad(y) && ek_tensor_is_leaf(y));
    y = toy_exp(x);
    ck_assert(ek_tensor_requires_grad(y) && !ek_tensor_is_leaf(y));
    assert_refused(ek_tensor_set_requires_grad(y, false), EK_E_AUTOGRAD, "ek_detach");
    ek_tensor *whole = ek_empty(EK_SHAPE(2), .dtype = EK_I64);
    assert_refused(ek_tensor_set_requires_grad(whole, true), EK_E_DTYPE, "i64");
    assert_refused(ek_tensor_set_grad(x, toy_full(0, EK_SHAPE(4), ek_cpu())), EK_E_INVALID,
                   "f64[4] on cpu");
}

TEST(modified_saved_tensors_are_noticed)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *a = toy_scale(x, 2);
    ek_tensor *y = toy_sum(toy_mul(a, a));
    assert_made(toy_scale_(a, 3));
    ck_assert_int_eq(ek_backward(y), EK_E_MODIFIED);
    ck_assert_ptr_nonnull(
        strstr(ek_error_message(), device_text("in backward of toy_mul on host:0")));
    ck_assert_ptr_nonnull(
        strstr(ek_error_message(), device_text("toy_mul saved f64[3] on host:0")));
    assert_error(EK_E_MODIFIED, "toy_scale_ modified");

    a = toy_exp(x); /* an output */
    assert_made(toy_scale_(a, 3));
    assert_refused(ek_backward(toy_sum(a)), EK_E_MODIFIED, "toy_exp saved");

    /* A leaf, as an optimizer does it; x is in nobody's way. */
    y = toy_sum(toy_mul(x, x));
    ek_set_grad_enabled(false);
    assert_made(toy_scale_(x, 2));
    ek_set_grad_enabled(true);
    assert_refused(ek_backward(y), EK_E_MODIFIED, "toy_scale_ modified");
}

TEST(in_place_operations)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *a = toy_scale(x, 2);
    ek_tensor *before = toy_sum(a);
    ck_assert_ptr_eq(toy_scale_(a, 5), a);
    ck_assert_double_eq(element(toy_grad(toy_sum(a), x, false), 0), 10);
    ck_assert_double_eq(element(toy_grad(before, x, false), 0), 2);

    assert_refused(toy_scale_(x, 2), EK_E_AUTOGRAD, "leaf");
    ek_tensor *view = toy_spread(toy_sum(x), EK_SHAPE(3));
    assert_refused(toy_scale_(view, 2), EK_E_AUTOGRAD, "view");

    /* A view from before its base was changed would have the wrong history. */
    ek_tensor *base = toy_sum(x);
    view = toy_spread(base, EK_SHAPE(3));
    assert_made(toy_scale_(base, 2));
    assert_refused(toy_sum(view), EK_E_MODIFIED, "view made by toy_spread before toy_scale_");
    assert_made(toy_sum(toy_spread(base, EK_SHAPE(3))));
}

TEST(parameters_may_be_rehomed_under_a_live_graph)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *y = toy_sum(cube(x));
    ek_tensor *home = tensor_of(values, EK_SHAPE(3), EK_F64, test_device(0));
    ek_tensor_rebind(x, home);
    ek_tensor *first = toy_grad(y, x, true);
    ek_tensor *second = toy_grad(toy_sum(first), x, false);
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(element(first, i), 3 * values[i] * values[i], 1e-12);
        ck_assert_double_eq_tol(element(second, i), 6 * values[i], 1e-12);
    }
}

TEST(saved_tensors_are_freed_as_backward_goes)
{
    enum { COUNT = 1 << 14, DEPTH = 8 };
    const uint64_t nbytes = COUNT * sizeof(double);
    ek_tensor *x = toy_full(1, EK_SHAPE(COUNT), test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_scope inner = ek_scope_begin();
    ek_tensor *y = toy_scale(x, 1e-3);
    for (int i = 0; i < DEPTH; i++)
        y = toy_exp(y);
    y = ek_scope_return(&inner, toy_sum(y));
    uint64_t before = toy_memory(test_device(0)).in_use;
    ck_assert_uint_ge(before, (DEPTH + 1) * nbytes);
    assert_ok(ek_memory_reset_peak(test_device(0)));
    assert_ok(ek_backward(y));
    ek_memory_stats after = toy_memory(test_device(0));
    /* A gradient and the next one, the saved outputs going away. */
    ck_assert_uint_le(after.peak, before + 2 * nbytes + 1024);
    ck_assert_uint_le(after.in_use, 2 * nbytes + 1024);
    /* What became x's gradient counts as such. */
    ck_assert_uint_eq(after.now[EK_MEMORY_GRADIENT], nbytes);
    /* The same for a second one, which is added. */
    assert_ok(ek_backward(toy_sum(toy_exp(x))));
    ck_assert_uint_eq(toy_memory(test_device(0)).now[EK_MEMORY_GRADIENT], nbytes);
    assert_ok(ek_tensor_set_grad(x, NULL));
    ck_assert_uint_eq(toy_memory(test_device(0)).now[EK_MEMORY_GRADIENT], 0);
}

TEST(a_shared_gradient_is_not_stolen)
{
    /* Both leaves get the same tensor from one node. */
    ek_tensor *x = toy_leaf(values, 3, test_device(0)), *y = toy_leaf(values, 3, test_device(0));
    ek_tensor *given = tensor_of(values, EK_SHAPE(3), EK_F64, test_device(0));
    assert_ok(ek_backward(ek_fold_add(x, y), .gradient = given));
    assert_ok(ek_backward(toy_sum(x)));
    ck_assert_ptr_ne(ek_tensor_address(ek_tensor_grad(x)), ek_tensor_address(ek_tensor_grad(y)));
    ck_assert_ptr_ne(ek_tensor_address(ek_tensor_grad(x)), ek_tensor_address(given));
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq(element(ek_tensor_grad(x), i), values[i] + 1);
        ck_assert_double_eq(element(ek_tensor_grad(y), i), values[i]);
        ck_assert_double_eq(element(given, i), values[i]);
    }
}

TEST(long_chains_need_no_deep_stack)
{
#ifdef EK_SANITIZED
    enum { LENGTH = 100000 };
#else
    enum { LENGTH = 1000000 };
#endif
    ek_tensor *x = toy_leaf(values, 1, test_device(0));
    ek_tensor *y = ek_keep(x);
    int length = test_is_short() ? LENGTH / 10 : LENGTH;
    for (int i = 0; i < length; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *next = ek_keep(i % 500 ? toy_scale(y, 1) : toy_exp(toy_scale(y, 0)));
        ek_scope_end(&scope);
        assert_made(next);
        ek_release(y);
        y = next;
    }
    ek_tensor *gradient = toy_grad(y, x, true); /* twice as long */
    ck_assert_double_eq(element(gradient, 0), 0);
    assert_ok(ek_backward(y));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 0);
    ek_release(y); /* the gradient's graph goes at the end */
}

/* ---- slots for gradients ---- */

/* c x whose gradient is written where it will end, if that is known */
static ek_tensor *last_destination;

static int direct_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    last_destination = ek_node_destination(node, 0);
    results[0] = last_destination ? last_destination : ek_tensor_like(gradients[0]);
    return results[0] ? ek_kernels_of(results[0])
                            ->unary(ek_tensor_dev(results[0]), EK_UNARY_AFFINE, results[0],
                                    gradients[0], 4, 0)
                      : ek_error_pending();
}

static ek_tensor *direct(ek_tensor *x)
{
    static const ek_operation operation = {.name = "direct", .backward = direct_backward};
    ek_tensor *y = ek_tensor_like(x);
    assert_ok(ek_kernels_of(y)->unary(ek_tensor_dev(y), EK_UNARY_AFFINE, y, x, 4, 0));
    return EK_RECORD(y, &operation, EK_INPUTS(x));
}

TEST(gradients_can_have_a_home)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    ek_tensor *slot = toy_full(NAN, EK_SHAPE(3), test_device(0));
    assert_ok(ek_leaf_set_grad_buffer(x, slot));
    ck_assert_ptr_null(ek_tensor_grad(x));

    for (int round = 0; round < 2; round++) {
        /* The first contribution overwrites, whether it was written there or has to be copied. */
        assert_ok(ek_backward(round ? toy_sum(toy_scale(x, 4)) : toy_sum(direct(x))));
        ck_assert(round || last_destination == slot);
        ck_assert_ptr_eq(ek_tensor_grad(x), slot);
        ck_assert_double_eq(element(slot, 2), 4);
        /* The next is added. */
        assert_ok(ek_backward(toy_sum(direct(x))));
        ck_assert_ptr_null(last_destination);
        ck_assert_double_eq(element(slot, 2), 8);
        /* Gone, but not touched. */
        assert_ok(ek_tensor_set_grad(x, NULL));
        ck_assert_ptr_null(ek_tensor_grad(x));
        ck_assert_double_eq(element(slot, 2), 8);
    }

    /* Two contributions: no destination. */
    assert_ok(ek_backward(toy_sum(ek_fold_add(direct(x), toy_scale(x, 2)))));
    ck_assert_ptr_null(last_destination);
    ck_assert_double_eq(element(slot, 2), 6);
    assert_ok(ek_tensor_set_grad(x, NULL));

    /* ek_grad leaves it alone. */
    ck_assert_double_eq(element(toy_grad(toy_sum(direct(x)), x, false), 0), 4);
    ck_assert_ptr_null(last_destination);
    ck_assert_double_eq(element(slot, 2), 6);

    /* With create_graph the gradient lies outside, until it is removed. */
    assert_ok(ek_backward(toy_sum(cube(x)), .create_graph = true));
    ek_tensor *outside = ek_tensor_grad(x);
    ck_assert_ptr_ne(ek_tensor_address(outside), ek_tensor_address(slot));
    ck_assert_double_eq_tol(element(outside, 2), 12, 1e-12);
    ck_assert_double_eq(element(slot, 2), 6);
    ck_assert_double_eq_tol(element(toy_grad(toy_sum(outside), x, false), 2), 12, 1e-12);
    assert_ok(ek_tensor_set_grad(x, NULL));
    ck_assert_ptr_null(ek_tensor_grad(x));
    assert_ok(ek_backward(toy_sum(direct(x))));
    ck_assert_ptr_eq(ek_tensor_grad(x), slot);
    ck_assert_double_eq(element(slot, 2), 4);

    /* A gradient that is there already moves in. */
    ek_tensor *y = toy_leaf(values, 3, test_device(0));
    assert_ok(ek_backward(toy_sum(y)));
    ek_tensor *second = toy_full(NAN, EK_SHAPE(3), test_device(0));
    assert_ok(ek_leaf_set_grad_buffer(y, second));
    ck_assert_ptr_eq(ek_tensor_grad(y), second);
    ck_assert_double_eq(element(second, 0), 1);
}

/* The hook of a leaf: gives another leaf, `user`, its first gradient, 3. */
static ek_tensor *hook_with_a_pass(ek_tensor *gradient, void *user)
{
    (void)gradient;
    bool enabled = ek_set_grad_enabled(true);
    assert_ok(ek_backward(toy_sum(toy_scale(user, 3))));
    ek_set_grad_enabled(enabled);
    return NULL;
}

/* A nested pass doesn't overwrite a sum that lies in the leaf's grad buffer already. */
TEST_LOOP(nested_passes_keep_sums_in_grad_buffers, 0, 2)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0)), *y = toy_leaf(values, 3, test_device(0));
    ek_tensor *slot = toy_full(NAN, EK_SHAPE(3), test_device(0));
    assert_ok(ek_leaf_set_grad_buffer(y, slot));
    ck_assert_int_gt(ek_tensor_register_hook(x, hook_with_a_pass, y), 0);
    ek_tensor *product = _i ? toy_mul(x, y) : toy_mul(y, x);
    assert_ok(ek_backward(toy_sum(toy_mul(product, toy_scale(y, 4)))));
    for (int i = 0; i < 3; i++) /* of 4 x y^2, and of 3 y */
        ck_assert_double_eq(element(ek_tensor_grad(y), i), 8 * values[i] * values[i] + 3);
}

TEST(gradients_take_the_layout_of_their_leaf)
{
    ek_tensor *x = ek_empty(EK_SHAPE(2, 3, 4, 5), .dtype = EK_F64, .device = test_device(0),
                            .format = EK_CHANNELS_LAST, .requires_grad = true);
    assert_ok(ek_backward(toy_sum(x))); /* a gradient with strides of zero */
    ek_tensor *grad = ek_tensor_grad(x);
    ck_assert(ek_tensor_is_contiguous(grad, EK_CHANNELS_LAST));
    assert_ok(ek_backward(toy_sum(x)));
    ck_assert_double_eq(element(grad, 119), 2);
}

TEST(failures_say_where)
{
    static const struct {
        toy_failure failure;
        int status;
        const char *part;
    } cases[] = {
        {TOY_FAIL_STATUS, EK_E_USER, "in backward of toy_fail on host:0: the toy is broken"},
        {TOY_FAIL_SILENT, EK_E_BACKEND, "in backward of toy_fail on host:0: it failed with"},
        {TOY_FAIL_NULL, EK_E_USER, "in backward of toy_fail on host:0: the toy gave nothing"},
        {TOY_FAIL_SHAPE, EK_E_AUTOGRAD, "gradient of input 0 is f64[7, 7] on host:0, but"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = toy_leaf(values, 3, test_device(0));
        ek_tensor *y = toy_sum(toy_mul(toy_fail(toy_exp(x), cases[i].failure), x));
        assert_refused(ek_backward(y), cases[i].status, cases[i].part);
        ck_assert(ek_grad_enabled());
        assert_ok(ek_backward(toy_sum(toy_exp(x))));
        ek_scope_end(&scope);
        ck_assert_uint_eq(toy_memory(test_device(0)).in_use, 0);
    }
}
