/* test_ops_matmul.c: matrix products and linear beside the table: leaves, empty sizes, errors. */
#include "home.h"
#include "ops/linear.h"

TEST(gradients_accumulate_in_leaves)
{
    const double values[] = {1, 2, 3, 4, 5, 6};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 3), EK_F64, test_home());
    ek_tensor *w = ek_ones(EK_SHAPE(2, 3), EK_F64, .requires_grad = true);
    ek_tensor *b = ek_ones(EK_SHAPE(2), EK_F64, .requires_grad = true);
    for (int pass = 1; pass <= 2; pass++) {
        assert_ok(ek_backward(ek_sum(ek_f_linear(x, w, b))));
        ck_assert_double_eq(element(ek_tensor_grad(w), 0), 5.0 * pass);
        ck_assert_double_eq(element(ek_tensor_grad(w), 5), 9.0 * pass);
        ck_assert_double_eq(element(ek_tensor_grad(b), 1), 2.0 * pass);
    }
}

TEST(empty_sizes)
{
    /* A sum of no products is zero, or the bias. */
    ek_tensor *x = ek_ones(EK_SHAPE(2, 0)), *w = ek_ones(EK_SHAPE(3, 0));
    const double values[] = {1, 2, 3};
    ek_tensor *b = tensor_of(values, EK_SHAPE(3), EK_F32, test_home());
    ek_tensor *y = ek_f_linear(x, w, b), *zero = ek_matmul(x, ek_transpose(w, 0, 1));
    assert_made(y);
    assert_made(zero);
    ck_assert_double_eq(element(y, 5), 3);
    ck_assert_double_eq(element(zero, 5), 0);

    const double signs[] = {-1, 0, 2};
    ek_tensor *signed_bias = tensor_of(signs, EK_SHAPE(3), EK_F32, test_home());
    y = ek_linear_activated(x, w, signed_bias, true);
    assert_made(y);
    ck_assert(element(y, 0) == 0 && element(y, 5) == 2);

    /* No rows: no output, and zero gradients. */
    ek_tensor *weight = ek_ones(EK_SHAPE(3, 4), .requires_grad = true);
    ek_tensor *none = ek_f_linear(ek_ones(EK_SHAPE(0, 4)), weight, NULL);
    assert_made(none);
    assert_ok(ek_backward(ek_sum(none)));
    ck_assert_double_eq(element(ek_tensor_grad(weight), 11), 0);
    ek_tensor *bias = ek_ones(EK_SHAPE(3), .requires_grad = true);
    none = ek_linear_activated(ek_ones(EK_SHAPE(0, 4)), weight, bias, true);
    assert_made(none);
    assert_ok(ek_backward(ek_sum(none)));
    ck_assert_double_eq(element(ek_tensor_grad(bias), 2), 0);
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *w = ek_ones(EK_SHAPE(4, 3));
    assert_refused(ek_matmul(x, NULL), EK_E_INVALID, "matmul: y is NULL");
    assert_refused(ek_matmul(x, w), EK_E_SHAPE, "matmul: the inner sizes differ: f32[2, 3]");
    assert_refused(ek_matmul(x, ek_scalar(1, EK_F32, test_home())), EK_E_SHAPE,
                   "must have one dimension or more");
    assert_refused(ek_matmul(ek_ones(EK_SHAPE(2, 2, 3)), ek_ones(EK_SHAPE(3, 3, 2))), EK_E_SHAPE,
                   "matmul: shapes [2] and [3] do not broadcast");
    assert_refused(ek_matmul(x, ek_ones(EK_SHAPE(3, 2), EK_F64)), EK_E_DTYPE,
                   "matmul: operands of dtype f32 and f64");
    assert_refused(ek_f_linear(x, ek_ones(EK_SHAPE(4, 2)), NULL), EK_E_SHAPE,
                   "expects x's last dimension to be 2, got f32[2, 3]");
    assert_refused(ek_f_linear(x, ek_ones(EK_SHAPE(3)), NULL), EK_E_SHAPE,
                   "expected a weight of 2 dimensions (out, in)");
    assert_refused(ek_f_linear(x, w, ek_ones(EK_SHAPE(3))), EK_E_SHAPE,
                   "linear: bias has shape [3] and must have [4]");
}

/* The gradient of a weight that is a transposed leaf lies in the leaf's order, and is that of a
 * weight that isn't. */
TEST(transposed_weights)
{
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *g = ek_randn(EK_SHAPE(5, 4));
    ek_tensor *turned = ek_randn(EK_SHAPE(3, 4), .requires_grad = true);
    ek_tensor *plain = ek_contiguous(ek_transpose(ek_detach(turned), 0, 1), EK_CONTIGUOUS);
    ek_tensor *bias = ek_randn(EK_SHAPE(4), .requires_grad = true);
    assert_made(plain);
    assert_ok(ek_tensor_set_requires_grad(plain, true));
    ek_tensor *weight = ek_transpose(turned, 0, 1), *view_gradient;
    ek_tensor *loss = ek_sum(ek_mul(ek_f_linear(x, weight, bias), g));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &weight, .input_count = 1,
                      .gradients = &view_gradient, .retain_graph = true));
    ck_assert(ek_tensor_is_contiguous(ek_transpose(view_gradient, 0, 1), EK_CONTIGUOUS));
    assert_ok(ek_backward(loss));
    ck_assert(ek_tensor_is_contiguous(ek_tensor_grad(turned), EK_CONTIGUOUS));
    assert_ok(ek_backward(ek_sum(ek_mul(ek_f_linear(x, plain, NULL), g))));
    assert_close(ek_to_device(ek_transpose(ek_tensor_grad(turned), 0, 1), ek_cpu()),
                 ek_to_device(ek_tensor_grad(plain), ek_cpu()), 1e-5, 1e-6);
    assert_close(ek_to_device(ek_tensor_grad(bias), ek_cpu()),
                 ek_to_device(ek_sum(g, EK_DIMS(0)), ek_cpu()), 1e-5, 1e-6);
}
