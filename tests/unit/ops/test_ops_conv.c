/* test_ops_conv.c: convolution and transposed convolution beside the table: memory, leaves, errors.
 */
#include "core/backend.h"
#include "core/tensor.h"
#include "kernels/kernels.h"

#include "home.h"

/* The order that the device prefers for f32. */
static ek_memory_format order_of(const ek_tensor *x)
{
    return ek_kernels_of(x)->conv_format(ek_tensor_dev(x), EK_F32);
}

TEST(output_has_the_devices_order)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 5, 5)), *w = ek_ones(EK_SHAPE(4, 3, 3, 3));
    ek_tensor *y = ek_f_conv2d(x, w, .stride = 2, .padding = 1);
    assert_made(y);
    ck_assert(ek_tensor_is_contiguous(y, order_of(x)));
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

TEST(only_the_bias_of_images_wants_a_gradient)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1, 3, 3), EK_F64),
              *w = ek_ones(EK_SHAPE(2, 1, 2, 2), EK_F64);
    ek_tensor *b = ek_zeros(EK_SHAPE(2), EK_F64, .requires_grad = true);
    assert_ok(ek_backward(ek_sum(ek_f_conv2d(x, w, b))));
    ck_assert_double_eq(element(ek_tensor_grad(b), 1), 8);
}

TEST(refusals_of_images)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 4, 4)), *w = ek_ones(EK_SHAPE(4, 3, 3, 3));
    assert_refused(ek_f_conv2d(NULL, w), EK_E_INVALID, "conv2d: x is NULL");
    assert_refused(ek_f_conv2d(ek_ones(EK_SHAPE(4, 4)), w), EK_E_SHAPE,
                   "expected x of 4 dimensions (N, C, H, W), got f32[4, 4]");
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
    assert_refused(ek_f_conv2d(x, w, .stride = 0), EK_E_INVALID,
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

#define CONVOLUTION(name)                                                    \
    static ek_tensor *name(ek_tensor *x, ek_tensor *weight, ek_tensor *bias) \
    {                                                                        \
        return ek_f_##name(x, weight, bias);                                 \
    }
CONVOLUTION(conv1d)
CONVOLUTION(conv3d)
CONVOLUTION(conv_transpose1d)
CONVOLUTION(conv_transpose2d)
CONVOLUTION(conv_transpose3d)

static const struct {
    const char *name;
    ek_tensor *(*function)(ek_tensor *x, ek_tensor *weight, ek_tensor *bias);
    int dims;
} convolutions[] = {
    {"conv1d", conv1d, 1},
    {"conv3d", conv3d, 3},
    {"conv_transpose1d", conv_transpose1d, 1},
    {"conv_transpose2d", conv_transpose2d, 2},
    {"conv_transpose3d", conv_transpose3d, 3},
};
enum { CONVOLUTIONS = sizeof convolutions / sizeof convolutions[0] };

static ek_memory_format rows_for_f32(ek_dev *dev, ek_dtype dtype)
{
    return dtype == EK_F32 ? EK_CONTIGUOUS : EK_CHANNELS_LAST;
}

static ek_memory_format images_for_all(ek_dev *dev, ek_dtype dtype)
{
    return EK_CHANNELS_LAST;
}

/* y, then the gradients of x, w and bias. */
static void convolve(ek_tensor *results[4])
{
    ek_manual_seed(5);
    ek_tensor *leaves[] = {ek_randn(EK_SHAPE(2, 3, 7, 6), .requires_grad = true),
                           ek_randn(EK_SHAPE(4, 3, 3, 3), .requires_grad = true),
                           ek_randn(EK_SHAPE(4), .requires_grad = true)};
    results[0] =
        ek_f_conv2d(ek_mul(leaves[0], leaves[0]), leaves[1], leaves[2], .stride = 2, .padding = 1);
    assert_ok(ek_backward(ek_sum(ek_mul(results[0], results[0]))));
    for (int i = 0; i < 3; i++)
        results[1 + i] = ek_tensor_grad(leaves[i]);
}

TEST(a_device_may_prefer_row_major_images)
{
    ek_dev *dev = ek_dev_get(test_home());
    assert_made(dev);
    const ek_backend *original = dev->backend;
    ek_backend backend = *original;
    ek_kernels kernels = *original->kernels;
    ek_tensor *wanted[4], *rows[4];
    convolve(wanted);
    backend.kernels = &kernels;
    kernels.conv_format = rows_for_f32;
    dev->backend = &backend;
    convolve(rows);
    ek_tensor *narrow = ek_f_conv2d(ek_to_dtype(ek_ones(EK_SHAPE(2, 3, 4, 4)), EK_BF16),
                                    ek_to_dtype(ek_ones(EK_SHAPE(4, 3, 3, 3)), EK_BF16));
    dev->backend = original;
    ck_assert(ek_tensor_is_contiguous(rows[0], EK_CONTIGUOUS));
    ck_assert(ek_tensor_is_contiguous(narrow, EK_CHANNELS_LAST));
    for (int i = 0; i < 4; i++)
        assert_close(rows[i], wanted[i], 1e-4, 1e-4); /* the two add in other orders */
}

/* No copy stands between a parameter, which is channels-last, and its convolution: the output alone
 * takes memory, and the gradient has the parameter's order. */
TEST(parameters_are_not_copied)
{
    ek_dev *dev = ek_dev_get(test_home());
    assert_made(dev);
    const ek_backend *original = dev->backend;
    ek_backend backend = *original;
    ek_kernels kernels = *original->kernels;
    ek_memory_stats before, after;
    for (int rows = 0; rows < 2; rows++) {
        backend.kernels = &kernels;
        kernels.conv_format = rows ? rows_for_f32 : images_for_all;
        dev->backend = &backend;
        ek_tensor *x =
            ek_contiguous(ek_ones(EK_SHAPE(2, 3, 7, 6)), rows ? EK_CONTIGUOUS : EK_CHANNELS_LAST);
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *w = ek_ones(EK_SHAPE(4, 3, 3, 3), EK_F32, .format = EK_CHANNELS_LAST,
                               .requires_grad = true);
        assert_ok(ek_memory_get_stats(test_home(), &before));
        ek_tensor *y = ek_f_conv2d(x, w, .padding = 1);
        assert_made(y);
        assert_ok(ek_memory_get_stats(test_home(), &after));
        ck_assert_uint_eq(after.in_use - before.in_use, (2 * 4 * 7 * 6 * 4 + 63) / 64 * 64);
        assert_ok(ek_backward(ek_sum(y)));
        dev->backend = original;
        ck_assert(ek_tensor_is_contiguous(y, rows ? EK_CONTIGUOUS : EK_CHANNELS_LAST));
        ck_assert(ek_tensor_is_contiguous(ek_tensor_grad(w), EK_CHANNELS_LAST));
        ck_assert_double_eq(element(ek_tensor_grad(w), 4), 2 * 7 * 6);
    }
}

TEST(images_keep_the_devices_order)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 4, 4)), *w = ek_ones(EK_SHAPE(3, 5, 4, 4));
    ek_tensor *y = ek_f_conv_transpose2d(x, w, .stride = 2, .padding = 1);
    assert_made(y);
    ck_assert(ek_tensor_is_contiguous(y, order_of(x)));
    ck_assert_int_eq(ek_tensor_size(y, 1), 5);
    ck_assert_int_eq(ek_tensor_size(y, 2), 8);
    /* Four taps of three channels reach inner positions, one corner's. */
    ck_assert_double_eq(element(y, 0), 3);
    ck_assert_double_eq(element(y, 9), 12);
}

typedef struct operands {
    ek_tensor *x, *weight, *bias;
} operands;

/* Sizes 4 in each direction and a window of 3, four channels to four. */
static operands ones(int i, int64_t samples)
{
    ek_shape shape = {.ndim = convolutions[i].dims + 2, .dims = {samples, 4, 4, 4, 4}};
    ek_shape window = {.ndim = shape.ndim, .dims = {4, 4, 3, 3, 3}};
    return (operands){.x = ek_ones(shape, .requires_grad = true),
                      .weight = ek_ones(window, .requires_grad = true),
                      .bias = ek_ones(EK_SHAPE(4), .requires_grad = true)};
}

TEST_LOOP(only_the_bias_wants_a_gradient, 0, CONVOLUTIONS)
{
    operands o = ones(_i, 2);
    o.x = ek_detach(o.x);
    o.weight = ek_detach(o.weight);
    ek_tensor *y = convolutions[_i].function(o.x, o.weight, o.bias);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq(element(ek_tensor_grad(o.bias), 1), (double)ek_tensor_count(y) / 4);
    ck_assert_ptr_null(ek_tensor_grad(o.x));
}

TEST_LOOP(errors_name_the_operation, 0, CONVOLUTIONS)
{
    char text[96];
    operands o = ones(_i, 2);
    /* A window of 1 is saved as it is; others may be saved as copies in faster memory order. */
    ek_shape window = {.ndim = ek_tensor_ndim(o.x), .dims = {4, 4, 1, 1, 1}};
    o.weight = ek_mul_scalar(ek_ones(window, .requires_grad = true), 2);
    ek_tensor *y = convolutions[_i].function(o.x, o.weight, o.bias);
    assert_made(ek_mul_scalar_(o.weight, 2));
    ck_assert_int_lt(ek_backward(ek_sum(y)), 0);
    snprintf(text, sizeof text, "%s", convolutions[_i].name);
    assert_error(EK_E_MODIFIED, text);
    ck_assert_ptr_null(convolutions[_i].function(o.x, NULL, NULL));
    snprintf(text, sizeof text, "%s: weight is NULL", convolutions[_i].name);
    assert_error(EK_E_INVALID, text);
}

TEST(refusals)
{
    ek_tensor *x1 = ek_ones(EK_SHAPE(2, 4, 5)), *x2 = ek_ones(EK_SHAPE(2, 4, 5, 6)),
              *x3 = ek_ones(EK_SHAPE(2, 4, 5, 6, 7)), *w1 = ek_ones(EK_SHAPE(4, 4, 3)),
              *w2 = ek_ones(EK_SHAPE(4, 4, 3, 3)), *w3 = ek_ones(EK_SHAPE(4, 4, 3, 3, 3));
    assert_refused(ek_f_conv2d(ek_ones(EK_SHAPE(2, 4, 5)), w2), EK_E_SHAPE,
                   "expects x to have 4 channels, got f32[1, 2, 4, 5]");
    assert_refused(ek_f_conv1d(x2, w1), EK_E_SHAPE,
                   "conv1d: expected x of 3 dimensions (N, C, L), got f32[2, 4, 5, 6]");
    assert_refused(ek_f_conv3d(x3, w2), EK_E_SHAPE,
                   "conv3d: expected a weight of 5 dimensions (O, C / groups, kd, kh, kw)");
    assert_refused(ek_f_conv_transpose2d(x2, w3), EK_E_SHAPE,
                   "conv_transpose2d: expected a weight of 4 dimensions (C, O / groups, kh, kw)");
    assert_refused(ek_f_conv1d(x1, w1, .dilation = 3), EK_E_SHAPE,
                   "conv1d: a kernel of size 3 with dilation 3 does not fit a padded "
                   "length of 5");
    assert_refused(ek_f_conv3d(x3, w3, .dilations = {3, 1, 1}), EK_E_SHAPE,
                   "does not fit a padded depth of 5");
    assert_refused(ek_f_conv3d(x3, w3, .strides = {1, 1, -1}), EK_E_INVALID,
                   "conv3d: stride must be at least 1, got 1 x 1 x -1");
    assert_refused(ek_f_conv1d(x1, w1, .paddings = {1, 1}), EK_E_INVALID,
                   "conv1d: paddings has an entry 2, 1, but there is only one");
    assert_refused(ek_f_conv_transpose2d(x2, w2, .stride = 2, .output_padding = 2), EK_E_INVALID,
                   "conv_transpose2d: output_padding must be smaller than the stride or "
                   "the dilation, got output_padding 2, stride 2 and dilation 1");
    assert_refused(ek_f_conv_transpose1d(x1, w1, .output_padding = -1), EK_E_INVALID,
                   "output_padding must be at least 0, got -1");
    assert_refused(ek_f_conv_transpose2d(x2, w2, .groups = 3), EK_E_SHAPE,
                   "conv_transpose2d: the weight's input channels must be a positive "
                   "multiple of groups 3");
    assert_refused(ek_f_conv_transpose2d(ek_ones(EK_SHAPE(2, 3, 5, 5)), w2), EK_E_SHAPE,
                   "expects x to have 4 channels");
    assert_refused(ek_f_conv_transpose2d(x2, w2, ek_ones(EK_SHAPE(3))), EK_E_SHAPE,
                   "conv_transpose2d: bias has shape [3] and must have [4]");
    assert_refused(ek_f_conv_transpose1d(x1, w1, .padding = 4), EK_E_SHAPE,
                   "conv_transpose1d: padding 4 on both sides leaves nothing of a length of 7");
    assert_refused(ek_f_conv_transpose3d(ek_ones(EK_SHAPE(2, 4, 5, 0, 5)), w3), EK_E_SHAPE,
                   "conv_transpose3d: x has a height of 0");
    assert_refused(ek_f_conv_transpose2d(x2, ek_ones(EK_SHAPE(4, 4, 3, 0))), EK_E_SHAPE,
                   "conv_transpose2d: the weight must have no dimension of size 0");
    assert_refused(ek_f_conv_transpose1d(x1, ek_ones(EK_SHAPE(4, 4, 3), EK_F64)), EK_E_DTYPE,
                   "conv_transpose1d");
}
