/* test_ops_conv.c: convolution against PyTorch and finite differences; what it refuses. */
#include "cases.h"

#include "home.h"

/* options: stride, padding, dilation of height and width, groups */
static ek_tensor *conv(ek_tensor *const *inputs, int count, void *user)
{
    const double *o = ((const golden_case *)user)->options;
    return ek_f_conv2d(inputs[0], inputs[1], count > 2 ? inputs[2] : NULL,
                       .strides = {(int)o[0], (int)o[1]}, .paddings = {(int)o[2], (int)o[3]},
                       .dilations = {(int)o[4], (int)o[5]}, .groups = (int)o[6]);
}

static const case_family conv_family = {.file = "nn_conv.golden",
                                        .name = "conv",
                                        .inputs = {"x", "w", "b"},
                                        .function = conv};

TEST(matches_pytorch_and_finite_differences)
{
    case_run_all(&conv_family);
}

TEST(third_derivatives)
{
    case_check_third(&conv_family, 7);
    case_check_third(&conv_family, 9);
}

TEST(output_is_channels_last)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 5, 5)), *w = ek_ones(EK_SHAPE(4, 3, 3, 3));
    ek_tensor *y = ek_f_conv2d(x, w, .stride = 2, .padding = 1);
    assert_made(y);
    ck_assert(ek_tensor_is_contiguous(y, EK_CHANNELS_LAST));
    /* 3 x 3 ones over 3 channels, at the corner 2 x 2. */
    ck_assert_double_eq(element(y, 0), 12);
    ck_assert_double_eq(element(y, 4), 27);
}

TEST(gradient_goes_to_leaves)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1, 3, 3), EK_F64);
    ek_tensor *w =
        ek_ones(EK_SHAPE(1, 1, 3, 3), EK_F64, .format = EK_CHANNELS_LAST, .requires_grad = true);
    ek_tensor *b = ek_zeros(EK_SHAPE(1), EK_F64, .requires_grad = true);
    for (int pass = 1; pass <= 2; pass++) {
        assert_ok(ek_backward(ek_sum(ek_f_conv2d(x, w, b))));
        ck_assert_double_eq(element(ek_tensor_grad(w), 4), 2.0 * pass);
        ck_assert_double_eq(element(ek_tensor_grad(b), 0), 2.0 * pass);
    }
    ck_assert_ptr_null(ek_tensor_grad(x));
}

TEST(only_the_bias_wants_a_gradient)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1, 3, 3), EK_F64),
              *w = ek_ones(EK_SHAPE(2, 1, 2, 2), EK_F64);
    ek_tensor *b = ek_zeros(EK_SHAPE(2), EK_F64, .requires_grad = true);
    assert_ok(ek_backward(ek_sum(ek_f_conv2d(x, w, b))));
    ck_assert_double_eq(element(ek_tensor_grad(b), 1), 8);
}

TEST(empty_batch)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 2, 4, 4), .requires_grad = true);
    ek_tensor *w = ek_ones(EK_SHAPE(3, 2, 3, 3), .requires_grad = true);
    ek_tensor *b = ek_ones(EK_SHAPE(3), .requires_grad = true);
    ek_tensor *y = ek_f_conv2d(x, w, b);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_size(y, 0), 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq(element(ek_tensor_grad(w), 0), 0);
    ck_assert_double_eq(element(ek_tensor_grad(b), 2), 0);
    ck_assert_int_eq(ek_tensor_count(ek_tensor_grad(x)), 0);
}

TEST(gradients_go_to_slots)
{
    case_check_slots(&conv_family, 0);
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 4, 4)), *w = ek_ones(EK_SHAPE(4, 3, 3, 3));
    assert_refused(ek_f_conv2d(NULL, w), EK_E_INVALID, "conv2d: x is NULL");
    assert_refused(ek_f_conv2d(ek_ones(EK_SHAPE(3, 4, 4)), w), EK_E_SHAPE,
                   "expected x of 4 dimensions (N, C, H, W), got f32[3, 4, 4]");
    assert_refused(ek_f_conv2d(x, ek_ones(EK_SHAPE(4, 3))), EK_E_SHAPE,
                   "expected a weight of 4 dimensions");
    assert_refused(ek_f_conv2d(x, ek_ones(EK_SHAPE(4, 2, 3, 3))), EK_E_SHAPE,
                   "expects x to have 2 channels");
    assert_refused(ek_f_conv2d(x, ek_ones(EK_SHAPE(4, 1, 3, 3)), .groups = 3), EK_E_SHAPE,
                   "multiple of groups 3");
    assert_refused(ek_f_conv2d(x, w, ek_ones(EK_SHAPE(3))), EK_E_SHAPE,
                   "conv2d: bias has shape [3] and must have [4]");
    assert_refused(ek_f_conv2d(x, w, .dilation = 2), EK_E_SHAPE,
                   "a kernel of size 3 with dilation 2 does not fit a padded height of 4");
    assert_refused(ek_f_conv2d(x, w, .stride = EK_ZERO), EK_E_INVALID,
                   "stride must be at least 1, got 0 x 0");
    assert_refused(ek_f_conv2d(x, w, .padding = -1), EK_E_INVALID,
                   "padding must be at least 0, got -1 x -1");
    assert_refused(ek_f_conv2d(x, w, .groups = -1), EK_E_INVALID,
                   "groups must be at least 1, got -1");
    assert_refused(ek_f_conv2d(x, ek_ones(EK_SHAPE(4, 3, 3, 3), EK_F64)), EK_E_DTYPE,
                   "f32 and f64");
    /* An optional operand that failed is an error, not an absent one. */
    ek_tensor *bias = ek_reshape(ek_ones(EK_SHAPE(3)), EK_SHAPE(4));
    ck_assert_ptr_null(bias);
    ck_assert_ptr_null(ek_f_conv2d(x, w, bias));
    ck_assert_int_lt(ek_error_status(), 0);
    ek_error_clear();
    assert_made(ek_f_conv2d(x, w));
}
