/* test_autocast_regions.c: where autocast begins and ends, what is remembered within, and what
 * backward does, of functions of the user's own too. */
#include "autocast_setup.h"
#include "ops/autocast.h"

/* ---- regions ---- */

TEST(regions_nest)
{
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast outer = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast inner = ek_autocast_begin(EK_F32);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast innermost = ek_autocast_begin(EK_BF16);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&innermost);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
    ek_autocast_end(&inner);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast wrong = ek_autocast_begin(EK_I64);
    assert_error(EK_E_DTYPE, "i64");
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&wrong);
    ck_assert_int_eq(ek_autocast_dtype(), EK_BF16);
    ek_autocast_end(&outer);
    ck_assert_int_eq(ek_autocast_dtype(), EK_F32);
}

/* Backward runs on the forward's dtypes, whether the region has ended or not. */
TEST(backward_in_the_region)
{
    ek_tensor *x = uniform(EK_SHAPE(6, 4), -1, 1), *gradients[2];
    for (int inside = 0; inside < 2; inside++) {
        ek_tensor *w = parameter(EK_SHAPE(3, 4));
        ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_tensor *y = ek_f_tanh(ek_f_linear(x, w, NULL));
        ek_tensor *loss = ek_mean(ek_square(ek_f_softmax(ek_matmul(y, w), 1)));
        if (!inside)
            ek_autocast_end(&region);
        assert_ok(ek_backward(loss));
        if (inside)
            ek_autocast_end(&region);
        gradients[inside] = ek_tensor_grad(w);
        ck_assert_int_eq(w->dtype, EK_F32);
        ck_assert_int_eq(gradients[inside]->dtype, EK_F32);
        ck_assert_int_eq(gradients[inside]->storage->category, EK_MEMORY_GRADIENT);
    }
    assert_close(gradients[0], gradients[1], 0, 0);
}

TEST(errors_end_the_scopes)
{
    ek_tensor *x = uniform(EK_SHAPE(2, 3, 5, 5), 0.2, 1);
    const size_t owned = ek_thread_self()->owned_count;
    const unsigned depth = ek_thread_self()->scope_depth;
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_refused(ek_f_conv2d(x, uniform(EK_SHAPE(4, 2, 3, 3), -1, 1), NULL), EK_E_SHAPE,
                   "channels");
    assert_refused(ek_matmul(x, uniform(EK_SHAPE(4, 2), -1, 1)), EK_E_SHAPE, "inner sizes");
    assert_refused(ek_f_linear(x, NULL, NULL), EK_E_INVALID, "weight is NULL");
    assert_refused(ek_f_mse_loss(x, uniform(EK_SHAPE(3), 0, 1)), EK_E_SHAPE, "mse_loss");
    assert_refused(ek_f_conv2d(ek_zeros(EK_SHAPE(2, 3, 5, 5), EK_I64, .device = test_home()),
                               uniform(EK_SHAPE(4, 3, 3, 3), -1, 1), NULL),
                   EK_E_DTYPE, "i64");
    assert_refused(ek_sum(NULL), EK_E_INVALID, "NULL");
    ek_autocast_end(&region);
    ck_assert_uint_eq(ek_thread_self()->scope_depth, depth);
    ck_assert_uint_le(ek_thread_self()->owned_count, owned + 5); /* the weights made above */
}

/* ---- what is remembered ---- */

TEST(parameters_are_cast_once)
{
    ek_tensor *w = parameter(EK_SHAPE(3, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *first = ek_autocast_narrow(w);
    ck_assert_int_eq(first->dtype, EK_BF16);
    ck_assert(first->requires_grad);
    ck_assert_ptr_eq(ek_autocast_narrow(w), first);

    /* Another one without gradients, which doesn't replace it. */
    bool before = ek_set_grad_enabled(false);
    ek_tensor *constant = ek_autocast_narrow(w);
    ck_assert_ptr_ne(constant, first);
    ck_assert(!constant->requires_grad);
    ck_assert_ptr_eq(ek_autocast_narrow(w), constant);
    /* A change. */
    assert_made(ek_mul_scalar_(w, 2));
    ek_tensor *changed = ek_autocast_narrow(w);
    ck_assert_ptr_ne(changed, constant);
    assert_close(changed, ek_to_dtype(w, EK_BF16), 0, 0);
    ek_set_grad_enabled(before);
    ek_tensor *second = ek_autocast_narrow(w);
    ck_assert_ptr_ne(second, first);
    ck_assert(second->requires_grad);
    assert_close(second, changed, 0, 0);

    /* Inner regions don't end it. */
    ek_autocast inner = ek_autocast_begin(EK_F32);
    ck_assert_ptr_eq(ek_autocast_narrow(w), w);
    ek_autocast_end(&inner);
    ck_assert_ptr_eq(ek_autocast_narrow(w), second);

    /* Another handle on the same memory: as good without history, and no place for its gradient. */
    ek_tensor *alias = ek_detach(w);
    ck_assert_ptr_eq(ek_autocast_narrow(alias), changed);
    assert_ok(ek_tensor_set_requires_grad(alias, true));
    ck_assert_ptr_ne(ek_autocast_narrow(alias), second);
    ek_autocast_end(&region);
    ck_assert_ptr_null(ek_thread_self()->casts);
    ek_autocast_end(&region); /* one too many does nothing */
    ck_assert_ptr_eq(ek_autocast_narrow(w), w);
}

/* Inputs are many; they are not kept. */
TEST(only_parameters_are_remembered)
{
    ek_tensor *x = uniform(EK_SHAPE(3, 4), -1, 1);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *w = parameter(EK_SHAPE(3, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ck_assert_ptr_ne(ek_autocast_narrow(x), ek_autocast_narrow(x));
    ck_assert_ptr_ne(ek_autocast_narrow(ek_mul_scalar(w, 2)), ek_autocast_narrow(w));
    assert_made(ek_thread_self()->casts);
    bool before = ek_set_grad_enabled(false);
    ek_tensor *view = ek_transpose(w, 0, 1);
    assert_close(ek_autocast_narrow(view), ek_transpose(ek_autocast_narrow(w), 0, 1), 0, 0);
    ck_assert_ptr_ne(ek_autocast_narrow(view), ek_autocast_narrow(view));
    ek_set_grad_enabled(before);
    ek_autocast_end(&region);
}

/* One pass gives what two do. */
TEST(images_are_cast_and_turned)
{
    ek_tensor *x = uniform(EK_SHAPE(2, 3, 5, 4), -1, 1), *w = parameter(EK_SHAPE(4, 3, 2, 2));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ck_assert_ptr_eq(ek_autocast_image(x), x);
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *y = ek_autocast_image(x);
    ck_assert_int_eq(y->dtype, EK_BF16);
    ck_assert(ek_tensor_is_contiguous(y, EK_CHANNELS_LAST));
    assert_close(y, ek_autocast_narrow(x), 0, 0);
    ck_assert(ek_same_layout(ek_autocast_image(w), w));
    ck_assert_ptr_eq(ek_autocast_image(w), ek_autocast_narrow(w));
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    ek_autocast_end(&region);
    assert_close(ek_tensor_grad(x), ek_to_dtype(ek_mul_scalar(y, 2), EK_F32), 0, 0);
}

/* A weight used twice: one cast, whose gradient is the sum; again after a backward. */
TEST(one_cast_several_uses)
{
    ek_tensor *x = uniform(EK_SHAPE(6, 4), -1, 1), *w = parameter(EK_SHAPE(4, 4)), *gradient[2];
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int step = 0; step < 2; step++) {
        ek_tensor *y = ek_f_linear(ek_f_tanh(ek_f_linear(x, w, NULL)), w, NULL);
        assert_ok(ek_backward(ek_sum(ek_square(y))));
        gradient[step] = ek_clone(ek_tensor_grad(w));
        assert_ok(ek_tensor_set_grad(w, NULL));
    }
    ek_autocast_end(&region);
    assert_close(gradient[0], gradient[1], 0, 0);
    ek_tensor *y = ek_f_linear(ek_f_tanh(ek_f_linear(x, w, NULL)), w, NULL);
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    ck_assert(close_in_norm(gradient[0], ek_tensor_grad(w), 0.02));
}

/* Everything is given back, also when the library ends within a region. */
TEST_LOOP(nothing_is_left, 0, 2)
{
    ek_memory_stats stats;
    ek_scope scope = ek_scope_begin();
    ek_tensor *w = parameter(EK_SHAPE(16, 4));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_made(ek_f_linear(uniform(EK_SHAPE(3, 4), 0, 1), w, NULL));
    ek_scope_end(&scope);
    if (_i == 0)
        ek_autocast_end(&region);
    else
        assert_ok(ek_shutdown());
    assert_ok(ek_memory_get_stats(test_home(), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_PARAMETER], 0);
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 0);
}

/* ---- second order ---- */

/* The norm of the input's gradient, minimised: as a gradient penalty. */
static ek_tensor *penalty_gradient(bool autocast)
{
    ek_tensor *x = uniform(EK_SHAPE(2, 3, 6, 6), -1, 1);
    ek_tensor *w = parameter(EK_SHAPE(4, 3, 3, 3)), *v = parameter(EK_SHAPE(1, 64)), *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    ek_tensor *hidden = ek_f_tanh(ek_f_conv2d(x, w, NULL));
    ek_tensor *d = ek_f_linear(ek_f_flatten(hidden, 1, 3), v, NULL);
    ek_tensor *ones = ek_to_dtype(ek_add_scalar(ek_mul_scalar(ek_detach(d), 0), 1), d->dtype);
    assert_ok(ek_grad(.outputs = &d, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .grad_outputs = &ones, .create_graph = true));
    ck_assert_int_eq(dx->dtype, EK_F32);
    ek_tensor *norms = ek_norm(dx, EK_DIMS(1, 2, 3));
    assert_ok(ek_backward(ek_mean(ek_square(ek_add_scalar(norms, -1)))));
    ek_autocast_end(&region);
    ck_assert_int_eq(ek_tensor_grad(w)->dtype, EK_F32);
    ck_assert_int_eq(ek_tensor_grad(v)->dtype, EK_F32);
    return ek_tensor_grad(w);
}

TEST(second_order)
{
    ek_tensor *exact = penalty_gradient(false);
    /* About ten roundings to 2^-9 in a row. */
    ck_assert(close_in_norm(penalty_gradient(true), exact, 0.02));
}

/* ---- functions of the user's own ---- */

/* x w' by hand, which saves what it was given. */
static int product_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_matmul(x[0], ek_transpose(x[1], 0, 1));
    return ek_function_save(call, x, 2);
}

static int product_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_matmul(dy[0], ek_function_saved(call, 1));
    dx[1] = ek_matmul(ek_transpose(dy[0], 0, 1), ek_function_saved(call, 0));
    return 0;
}

static const ek_function product = {.name = "product",
                                    .forward = product_forward,
                                    .backward = product_backward};

/* Of the norm of x's gradient, by w. */
static ek_tensor *function_gradient(bool autocast)
{
    ek_tensor *x = uniform(EK_SHAPE(5, 4), -1, 1), *w = parameter(EK_SHAPE(3, 4)), *y, *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(autocast ? EK_BF16 : EK_F32);
    assert_ok(ek_function_apply(&product, ((ek_tensor *[]){x, w}), 2, &y));
    ck_assert_int_eq(y->dtype, autocast ? EK_BF16 : EK_F32);
    ek_tensor *loss = ek_sum(ek_square(y));
    ek_autocast_end(&region);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    ck_assert_int_eq(dx->dtype, EK_F32);
    assert_ok(ek_backward(ek_sum(ek_square(dx))));
    return ek_tensor_grad(w);
}

TEST(functions_backward_as_forward)
{
    ek_tensor *exact = function_gradient(false), *narrow = function_gradient(true);
    ck_assert_int_eq(narrow->dtype, EK_F32);
    ck_assert(close_in_norm(narrow, exact, 0.02));
    ck_assert(!close_in_norm(narrow, exact, 1e-6));
}

/* Views and handles on parameters that come and go, in forward and backward. */
TEST(remembered_once_per_parameter)
{
    ek_tensor *w = parameter(EK_SHAPE(64, 4)), *x = uniform(EK_SHAPE(5, 4), -1, 1), *y;
    ek_memory_stats before = {0}, stats;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    for (int step = 0; step < 3; step++) {
        ek_scope inner = ek_scope_begin();
        assert_ok(ek_function_apply(&product, ((ek_tensor *[]){x, w}), 2, &y));
        assert_ok(ek_backward(ek_sum(ek_square(y))));
        assert_made(ek_matmul(ek_detach(w), ek_transpose(x, 0, 1)));
        ek_scope_end(&inner);
        assert_ok(ek_memory_get_stats(test_home(), &stats));
        if (step > 0)
            ck_assert_uint_eq(stats.in_use, before.in_use);
        before = stats;
    }
    ek_autocast_end(&region);
}
