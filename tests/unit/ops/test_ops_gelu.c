/* gelu's values, which PyTorch's documentation defines: x Phi(x), and with `tanh` 0.5 x (1 +
 * tanh(sqrt(2 / pi) (x + 0.044715 x^3))), computed by Python's math in f64. */
#include "evenkeel/ops.h"
#include "kit/tensors.h"

#include "home.h"

static const double points[] = {-10, -3, -1, -0.5, 0, 0.5, 1, 2, 10};
enum { POINTS = sizeof points / sizeof *points };

static const double values[2][POINTS] = {
    {-7.619853024160593e-23, -0.004049694094890287, -0.15865525393145707, -0.15426876936299344, 0,
     0.34573123063700656, 0.8413447460685429, 1.9544997361036416, 10},
    {0, -0.0036373920817729943, -0.15880800939172324, -0.15428599017485606, 0, 0.34571400982514394,
     0.8411919906082768, 1.954597694087775, 10}};

static void check_values(ek_dtype dtype, double tolerance)
{
    for (int i = 0; i < 2; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_from_data(points, EK_SHAPE(POINTS), EK_F64);
        ek_tensor *wanted = ek_from_data(values[i], EK_SHAPE(POINTS), EK_F64);
        x = ek_to_device(ek_to_dtype(x, dtype), test_home());
        ek_tensor *y = ek_f_gelu(x, i ? EK_GELU_TANH : EK_GELU_NONE);
        assert_close(ek_to_device(ek_to_dtype(y, EK_F64), ek_cpu()), wanted, tolerance, tolerance);
        ek_scope_end(&scope);
    }
}

TEST(gelu_is_pytorchs)
{
    check_values(EK_F64, 1e-14);
    check_values(EK_F32, 1e-6);
    check_values(EK_BF16, 1e-2);
}

/* Far below 0 the exact one keeps its digits, in f32 too. */
TEST(gelu_of_a_tail_keeps_its_digits)
{
    double tail;
    assert_ok(ek_item(ek_f_gelu(ek_full(-5, ek_scalar_shape(), EK_F32), EK_GELU_NONE), &tail));
    ck_assert_double_eq_tol(tail / -1.4332578593959731e-06, 1, 1e-6);
}

TEST(gelu_refuses_other_approximations)
{
    assert_refused(ek_f_gelu(ek_ones(EK_SHAPE(2)), (ek_gelu_approximate)2), EK_E_INVALID,
                   "gelu: approximate must be");
}
