/* logsumexp: PyTorch's numbers where exp overflows or vanishes, infinities, and its gradient, which
 * is softmax. */
#include "kit/tensors.h"

#include "home.h"

static double item(ek_tensor *x)
{
    double value;
    assert_ok(ek_item(x, &value));
    return value;
}

#define ROW_OF(...) tensor_of((const double[]){__VA_ARGS__}, EK_SHAPE(3), EK_F64, test_home())

TEST(logsumexp_is_stable)
{
    ck_assert_double_eq_tol(item(ek_logsumexp(ROW_OF(1, 2, 3))), 3.40760596444438, 1e-13);
    ck_assert_double_eq_tol(item(ek_logsumexp(ROW_OF(1000, 1000, 999))), 1000.8620, 1e-4);
    ck_assert_double_eq_tol(item(ek_logsumexp(ROW_OF(-1000, -1000, -999))), -998.4486, 1e-4);
    ek_tensor *narrow = ek_to_dtype(ROW_OF(200, 201, 202), EK_BF16);
    ck_assert_int_eq(ek_tensor_dtype(ek_logsumexp(narrow)), EK_BF16);
    ck_assert_double_eq_tol(item(ek_logsumexp(narrow)), 202.4076, 0.6);
}

TEST(logsumexp_of_infinities_is_what_they_are)
{
    ck_assert_double_eq(item(ek_logsumexp(ROW_OF(-INFINITY, -INFINITY, -INFINITY))), -INFINITY);
    ck_assert_double_eq(item(ek_logsumexp(ROW_OF(1, INFINITY, -INFINITY))), INFINITY);
    ck_assert_double_eq(item(ek_logsumexp(ROW_OF(-INFINITY, 5, -INFINITY))), 5);
    ck_assert(isnan(item(ek_logsumexp(ROW_OF(NAN, 1, INFINITY)))));
    ck_assert_double_eq(item(ek_logsumexp(ek_zeros(EK_SHAPE(0), EK_F64))), -INFINITY);
    ck_assert_int_eq(ek_tensor_count(ek_logsumexp(ek_zeros(EK_SHAPE(0, 2)), EK_DIMS(1))), 0);
}

TEST(logsumexps_gradient_is_softmax)
{
    ek_tensor *x = ROW_OF(1000, -INFINITY, 998), *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_logsumexp(x);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx));
    assert_close(ek_to_device(dx, ek_cpu()), ek_to_device(ek_f_softmax(ek_detach(x), 0), ek_cpu()),
                 1e-12, 1e-12);
}

TEST(logsumexp_refuses_integers)
{
    assert_refused(ek_logsumexp(ek_ones(EK_SHAPE(2), EK_I64)), EK_E_DTYPE,
                   "logsumexp: x has dtype");
    assert_refused(ek_logsumexp(ek_ones(EK_SHAPE(2)), EK_DIMS(1)), EK_E_SHAPE,
                   "logsumexp: dimension 1");
}
