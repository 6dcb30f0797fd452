/* gelu's digits far below 0, and the approximations that it refuses; test_ops_table.c has its
 * values and gradients. */
#include "kit/tensors.h"
#include "ops/linear.h"

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

/* A linear layer and gelu in one pass give the bits of both, one after the other: forward and
 * gradients, and without a graph; for weights of either order in memory, and for sums of no
 * products. */
TEST(gelu_in_a_linear_layer_is_gelu_after_it)
{
    static const int64_t sizes[][3] = {{70, 130, 90}, {5, 3, 2}, {200, 64, 33},
                                       {5, 300, 90},  {3, 0, 4}, {0, 4, 2}};
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    enum { SIZES = sizeof sizes / sizeof *sizes, DTYPES = sizeof dtypes / sizeof *dtypes };
    for (int i = 0; i < SIZES * DTYPES * 4; i++) {
        ek_scope scope = ek_scope_begin();
        const int64_t *size = sizes[i % SIZES], rows = size[0], in = size[1], out = size[2];
        const ek_dtype dtype = dtypes[i / SIZES % DTYPES];
        const ek_gelu_approximate approximate =
            i / (SIZES * DTYPES) % 2 ? EK_GELU_TANH : EK_GELU_NONE;
        const bool turned = i / (SIZES * DTYPES) / 2;
        ek_tensor *x = normal(1, EK_SHAPE(rows, in), dtype, test_home());
        ek_tensor *w =
            normal(2, turned ? EK_SHAPE(in, out) : EK_SHAPE(out, in), dtype, test_home());
        ek_tensor *leaves[3] = {x, w, normal(3, EK_SHAPE(out), dtype, test_home())};
        for (int k = 0; k < 3; k++)
            assert_ok(ek_tensor_set_requires_grad(leaves[k], true));
        ek_tensor *weight = turned ? ek_transpose(w, 0, 1) : w, *y[2], *g[2][3];
        y[0] = ek_linear_gelu(x, weight, leaves[2], approximate);
        y[1] = ek_f_gelu(ek_f_linear(x, weight, leaves[2]), approximate);
        assert_close(y[0], y[1], 0, 0);
        for (int k = 0; k < 2; k++)
            assert_ok(ek_grad(.outputs = &y[k], .output_count = 1, .inputs = leaves,
                              .input_count = 3, .gradients = g[k], .grad_outputs = &y[1]));
        for (int k = 0; k < 3; k++)
            assert_close(g[0][k], g[1][k], 0, 0);
        const bool before = ek_set_grad_enabled(false);
        assert_close(ek_linear_gelu(x, weight, leaves[2], approximate), ek_detach(y[1]), 0, 0);
        ek_set_grad_enabled(before);
        ek_scope_end(&scope);
    }
}
