/* gelu's digits far below 0, and the approximations that it refuses; test_ops_table.c has its
 * values and gradients. */
#include "kit/tensors.h"

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
