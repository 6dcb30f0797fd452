/* test_ops_softmax.c: softmax and log-softmax against PyTorch and finite differences. */
#include <math.h>

#include "cases.h"

#include "home.h"

/* options: dim, logarithm */
static ek_tensor *softmax(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = ((const golden_case *)user)->options;
    return o[1] != 0 ? ek_f_log_softmax(inputs[0], (int)o[0]) : ek_f_softmax(inputs[0], (int)o[0]);
}

static const case_family family = {.file = "nn_norm.golden",
                                   .name = "softmax",
                                   .inputs = {"x"},
                                   .function = softmax};

TEST(matches_pytorch_and_finite_differences)
{
    case_run_all(&family);
}

TEST(third_derivatives)
{
    case_check_third(&family, 0);
    case_check_third(&family, 1);
}

TEST(large_values_do_not_overflow)
{
    const double values[] = {1e4, 1e4 - 1, -1e4, 0, -INFINITY, 0};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 3), EK_F32, test_home());
    ek_tensor *p = ek_f_softmax(x, -1), *log_p = ek_f_log_softmax(x, -1);
    assert_made(p);
    assert_made(log_p);
    ck_assert_double_eq_tol(element(p, 0), 1 / (1 + exp(-1)), 1e-6);
    ck_assert_double_eq_tol(element(log_p, 2), -2e4 - log(1 + exp(-1)), 1e-2);
    ck_assert_double_eq_tol(element(p, 3), 0.5, 1e-6);
    ck_assert(element(p, 4) == 0);
    ck_assert(element(log_p, 4) == -INFINITY);
}

TEST(gradient_of_a_transposed_view)
{
    const double values[] = {0.5, -1, 2, 0.25, 1, -3};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 3), EK_F64, test_home());
    ek_tensor *view = ek_transpose(x, 0, 1);
    assert_close(ek_f_softmax(view, 0), ek_transpose(ek_f_softmax(x, 1), 0, 1), 1e-15, 1e-15);
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3));
    assert_refused(ek_f_softmax(NULL, 0), EK_E_INVALID, "softmax: x is NULL");
    assert_refused(ek_f_log_softmax(x, 2), EK_E_SHAPE,
                   "log_softmax: dimension 2 is not in [-2, 1]");
    assert_refused(ek_f_softmax(ek_zeros(EK_SHAPE(2, 3), EK_I64), 0), EK_E_DTYPE,
                   "softmax: x has dtype i64");
}
