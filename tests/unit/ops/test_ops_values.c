/* What neither goldens nor differences reach: kinks, NaN, in-place rules, saved tensors, dropout.
 */
#include "home.h"

static ek_tensor *vector(const double *values, int64_t count, bool requires_grad)
{
    ek_tensor *x = tensor_of(values, EK_SHAPE(count), EK_F64, test_home());
    if (requires_grad)
        assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static ek_tensor *gradient_of(ek_tensor *y, ek_tensor *x, bool create_graph)
{
    ek_tensor *gradient = NULL;
    assert_made(y);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = create_graph));
    return gradient;
}

TEST(infinite_slopes_are_infinite)
{
    ek_tensor *x = vector((const double[]){0, 4}, 2, true);
    ek_tensor *gradient = gradient_of(ek_sum(ek_sqrt(x)), x, false);
    ck_assert(isinf(element(gradient, 0)) && element(gradient, 1) == 0.25);
}

TEST(nan_passes_relu_and_stays_out_of_dead_gradients)
{
    ek_tensor *x = vector((const double[]){NAN, -1, 1}, 3, true);
    ek_tensor *y = ek_f_relu(x);
    ck_assert(isnan(element(y, 0)) && element(y, 1) == 0);
    ek_tensor *g = vector((const double[]){1, NAN, 1}, 3, false), *gradient = NULL;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .grad_outputs = &g));
    ck_assert(element(gradient, 0) == 1); /* nothing is hidden, as in PyTorch */
    ck_assert(element(gradient, 1) == 0);
    ck_assert(element(gradient, 2) == 1);
}

TEST(mean_of_ones_is_one)
{
    for (int64_t n = 1; n < 200; n++)
        ck_assert(element(ek_mean(ek_ones(EK_SHAPE(n))), 0) == 1);
    ck_assert(element(ek_mean(ek_ones(EK_SHAPE(1001), EK_BF16)), 0) == 1);
    ck_assert(isnan(element(ek_mean(ek_ones(EK_SHAPE(0))), 0)));
    ck_assert(element(ek_sum(ek_ones(EK_SHAPE(0))), 0) == 0);
    assert_refused(ek_max_dim(ek_ones(EK_SHAPE(2, 0)), 1, false), EK_E_SHAPE,
                   "max_dim: dimension 1 has no elements");
}

/* d^n tanh at 0.5, to the fourth order. */
TEST(any_order)
{
    ek_tensor *x = vector((const double[]){0.5}, 1, true);
    ek_tensor *y = ek_sum(ek_f_tanh(x));
    double t = tanh(0.5), s = 1 - t * t;
    const double wanted[] = {s, -2 * t * s, s * (6 * t * t - 2), s * t * (16 - 24 * t * t)};
    for (int order = 0; order < 4; order++) {
        y = ek_sum(gradient_of(y, x, true));
        ck_assert_double_eq_tol(element(y, 0), wanted[order], 1e-12);
    }
}

/* ---- in place ---- */

TEST(leaves_are_not_written)
{
    ek_tensor *x = vector((const double[]){1, 2}, 2, true);
    assert_refused(ek_mul_scalar_(x, 2), EK_E_AUTOGRAD, "mul_scalar_");
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_mul_scalar_(x, 2));
    ek_set_grad_enabled(before);
    ck_assert(element(x, 1) == 4);
    assert_refused(ek_add_(ek_expand(ek_ones(EK_SHAPE(1)), EK_SHAPE(3)), ek_ones(EK_SHAPE(3))),
                   EK_E_INVALID, "elements of x share memory");
    assert_refused(ek_add_(ek_ones(EK_SHAPE(1)), ek_ones(EK_SHAPE(3))), EK_E_SHAPE,
                   "add_: y of shape [3] does not broadcast to x's [1]");
}

TEST(saved_tensors_are_guarded)
{
    ek_tensor *x = vector((const double[]){1, 2}, 2, true);
    ek_tensor *y = ek_exp(x), *loss = ek_sum(y);
    assert_made(ek_add_(y, ek_ones(EK_SHAPE(2), EK_F64)));
    ek_tensor *gradient = NULL;
    assert_refused(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                           .gradients = &gradient),
                   EK_E_MODIFIED, "add_");
}

TEST(operands_may_overlap)
{
    /* Large enough that a kernel writes before it has read everything. */
    ek_tensor *x = ek_arange(10000, EK_F64, test_home());
    assert_made(ek_add_(x, ek_select(x, 0, 1)));
    assert_close(x, ek_add_scalar(ek_arange(10000, EK_F64, test_home()), 1), 0, 0);
    x = ek_reshape(ek_arange(10000, EK_F64, test_home()), EK_SHAPE(100, 100));
    ek_tensor *wanted = ek_add(x, ek_transpose(x, 0, 1));
    assert_made(ek_add_(x, ek_transpose(x, 0, 1)));
    assert_close(x, wanted, 0, 0);
    x = ek_arange(10000, EK_F64, test_home());
    wanted = ek_add_scalar(ek_mul_scalar(ek_arange(9999, EK_F64, test_home()), 2), 1);
    assert_made(ek_add_(ek_slice(x, 0, 1, 10000, 1), ek_slice(x, 0, 0, 9999, 1)));
    assert_close(ek_slice(x, 0, 1, 10000, 1), wanted, 0, 0);

    const double ramp[] = {1, 2, 3, 4};
    ek_tensor *leaf = vector(ramp, 4, true), *y = ek_mul_scalar(leaf, 2);
    assert_made(ek_mul_(y, y));
    ek_tensor *gradient = gradient_of(ek_sum(y), leaf, false);
    assert_close(gradient, vector((const double[]){8, 16, 24, 32}, 4, false), 0, 0);
}

/* ---- dropout ---- */

static const struct dropout_type {
    ek_dtype dtype;
    const char *name;
} dropout_types[] = {{EK_F32, "f32"}, {EK_F64, "f64"}};

TEST_LOOP(dropout_in_any_layout_is_pytorchs, 0, 2)
{
    ek_dtype dtype = dropout_types[_i].dtype;
    const struct {
        const char *name;
        ek_tensor *x;
    } layouts[] = {
        {"transposed", ek_transpose(ek_ones(EK_SHAPE(4, 5), dtype), 0, 1)},
        {"gaps", ek_slice(ek_ones(EK_SHAPE(6, 8), dtype), 1, 1, 8, 2)},
        {"permuted",
         ek_permute(ek_narrow(ek_ones(EK_SHAPE(2, 3, 7), dtype), 2, 0, 5), EK_SHAPE(2, 0, 1))},
        {"row", ek_select(ek_ones(EK_SHAPE(17, 2), dtype), 1, 0)},
    };
    for (int i = 0; i < 4; i++) {
        ek_manual_seed(42);
        for (int turn = 1; turn <= 2; turn++) {
            char name[100];
            snprintf(name, sizeof name, "strided/dropout/%s/%s/%d", dropout_types[_i].name,
                     layouts[i].name, turn);
            assert_close(ek_f_dropout(layouts[i].x, 0.4, true), golden("random.golden", name), 0,
                         0);
        }
    }
}

TEST_LOOP(dropout_is_pytorchs, 0, 2)
{
    char name[100];
    snprintf(name, sizeof name, "dropout/%s", dropout_types[_i].name);
    ek_tensor *expected = golden("random.golden", name), *gradient;
    ek_tensor *x = ek_full(3, EK_SHAPE(3, 7), .dtype = dropout_types[_i].dtype,
                           .device = test_device(0), .requires_grad = true);
    ek_manual_seed(42);
    ek_tensor *y = ek_f_dropout(x, 0.4, true);
    assert_close(y, expected, 0, 0);
    assert_ok(ek_backward(ek_sum(y)));
    gradient = ek_tensor_grad(x);
    for (int i = 0; i < 21; i++)
        ck_assert_double_eq_tol(element(gradient, i), element(expected, i) / 3, 1e-6);
    ck_assert(ek_f_dropout(x, 0.4, false) == x);
    ck_assert(ek_f_dropout(x, 0, true) == x);
    assert_close(ek_f_dropout(x, 1, true), ek_zeros(EK_SHAPE(3, 7), dropout_types[_i].dtype), 0, 0);
    assert_refused(ek_f_dropout(x, 1.5, true), EK_E_INVALID,
                   "dropout: p is 1.5; it must lie between 0 and 1");
}

TEST(dropout_draws_alike_for_bf16)
{
    ek_tensor *y[2];
    for (int type = 0; type < 2; type++) {
        ek_manual_seed(7);
        y[type] = ek_f_dropout(ek_ones(EK_SHAPE(9, 9), type ? EK_BF16 : EK_F32), 0.4, true);
        assert_made(y[type]);
    }
    for (int i = 0; i < 81; i++)
        ck_assert((element(y[0], i) == 0) == (element(y[1], i) == 0));
}

/* ---- what is left after an operation ---- */

TEST(gradients_are_tensors_of_their_own)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), .requires_grad = true);
    ek_tensor *halves[2];
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(ek_chunk(x, 2, 0, halves, 2), 2);
        ek_tensor *loss = ek_sum(ek_add(halves[0], ek_mean(halves[1])));
        assert_ok(ek_backward(loss));
        assert_close(ek_tensor_grad(x), ek_full(i, EK_SHAPE(2, 3)), 1e-6, 0);
    }
    ck_assert(ek_tensor_is_contiguous(ek_tensor_grad(x), EK_CONTIGUOUS));
    assert_made(ek_mul_(ek_tensor_grad(x), ek_tensor_grad(x)));
    assert_close(ek_tensor_grad(x), ek_full(9, EK_SHAPE(2, 3)), 1e-6, 0);
}

TEST(without_memory_the_operation_is_all_that_fails)
{
    assert_ok(ek_memory_set_capacity(test_device(0), 1 << 20));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_ones(EK_SHAPE(300, 300), .device = test_device(0), .requires_grad = true);
    ek_tensor *y = ek_mul(x, x);
    assert_made(y);
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(test_device(0), &before));
    assert_refused(ek_f_relu(ek_exp(y)), EK_E_OUT_OF_MEMORY, "host:0");
    assert_ok(ek_memory_get_stats(test_device(0), &after));
    ck_assert_uint_eq(before.in_use, after.in_use);
    assert_close(ek_sum(y), ek_full(90000, ek_scalar_shape(), .device = test_device(0)), 0, 0);
    ek_scope_end(&scope);
    assert_made(ek_exp(ek_ones(EK_SHAPE(300, 300), .device = test_device(0))));
}

TEST(bf16_rounds_once)
{
    const double a[] = {1, 2, 3}, b[] = {0.00390625, 0.5, 1.0078125};
    ek_tensor *x = tensor_of(a, EK_SHAPE(3), EK_BF16, test_home());
    ek_tensor *y = tensor_of(b, EK_SHAPE(3), EK_BF16, test_home());
    assert_close(ek_add(x, y),
                 tensor_of((const double[]){1, 2.5, 4}, EK_SHAPE(3), EK_BF16, test_home()), 0, 0);
    ek_tensor *leaf = ek_ones(EK_SHAPE(3), .requires_grad = true);
    assert_ok(ek_backward(ek_sum(ek_to_dtype(ek_mul(ek_to_dtype(leaf, EK_BF16), x), EK_F32))));
    assert_close(ek_tensor_grad(leaf), tensor_of(a, EK_SHAPE(3), EK_F32, test_home()), 0, 0);
}
