/* test_conv_modules.c: convolution, transposed convolution and pooling as modules: initial values
 * as PyTorch's to the bit, forward against the operations, refused options. */
#include "unit.h"

/* NULL if there is none. */
static ek_tensor *bias_of(ek_module *module)
{
    ek_tensor *bias = ek_module_tensor(module, "bias");
    ek_error_clear();
    return bias;
}

static void assert_initial(ek_module *module, const char *name)
{
    char path[64];
    assert_made(module);
    snprintf(path, sizeof path, "initial/%s/weight", name);
    ek_tensor *weight = ek_module_tensor(module, "weight");
    assert_close(weight, golden("conv_nd.golden", path), 0, 0);
    ck_assert(ek_tensor_is_contiguous(weight, ek_tensor_ndim(weight) == 4 ? EK_CHANNELS_LAST
                                                                          : EK_CONTIGUOUS));
    snprintf(path, sizeof path, "initial/%s/bias", name);
    ek_tensor *bias = bias_of(module);
    ck_assert_int_eq(bias != NULL, golden_has("conv_nd.golden", path));
    if (bias)
        assert_close(bias, golden("conv_nd.golden", path), 0, 0);
    ek_module_free(module);
}

TEST(initial_values)
{
    ek_manual_seed(7);
    assert_initial(ek_conv1d(4, 6, 3, .groups = 2), "conv1d");
    assert_initial(ek_conv3d(3, 4, .kernels = {2, 3, 1}), "conv3d");
    assert_initial(ek_conv_transpose1d(3, 5, 4), "conv_transpose1d");
    assert_initial(ek_conv_transpose2d(4, 6, .kernels = {3, 2}, .groups = 2), "conv_transpose2d");
    assert_initial(ek_conv_transpose2d(5, 3, 4, .bias = false), "conv_transpose2d_no_bias");
    assert_initial(ek_conv_transpose3d(2, 3, 2), "conv_transpose3d");
}

/* The module gives what the operation gives with its weights. */
static void assert_forward(ek_module *module, ek_tensor *x, ek_tensor *expected)
{
    assert_made(module);
    ek_tensor *y = ek_apply(module, x);
    assert_made(y);
    assert_close(y, expected, 0, 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(module, "weight")));
    ek_module_free(module);
}

TEST(convolutions_forward)
{
    ek_manual_seed(1);
    ek_tensor *signal = ek_randn(EK_SHAPE(2, 4, 9)), *image = ek_randn(EK_SHAPE(2, 4, 5, 4)),
              *volume = ek_randn(EK_SHAPE(1, 4, 4, 5, 3));
#define ASSERT_FORWARD(x, made, function, ...)                                          \
    do {                                                                                \
        ek_module *module = (made);                                                     \
        assert_forward(module, x,                                                       \
                       function(x, ek_module_tensor(module, "weight"), bias_of(module), \
                                __VA_ARGS__));                                          \
    } while (0)
    ASSERT_FORWARD(signal, ek_conv1d(4, 6, 3, .stride = 2, .padding = 1, .groups = 2), ek_f_conv1d,
                   .stride = 2, .padding = 1, .groups = 2);
    ASSERT_FORWARD(volume,
                   ek_conv3d(4, 2, 2, .strides = {1, 2, 1}, .paddings = {1, 0, 0}, .dilation = 2),
                   ek_f_conv3d, .strides = {1, 2, 1}, .paddings = {1, 0, 0}, .dilation = 2);
    ASSERT_FORWARD(signal,
                   ek_conv_transpose1d(4, 3, 4, .stride = 3, .padding = 1, .output_padding = 2,
                                       .bias = false),
                   ek_f_conv_transpose1d, .stride = 3, .padding = 1, .output_padding = 2);
    ASSERT_FORWARD(image,
                   ek_conv_transpose2d(4, 6, 4, .strides = {2, 1}, .padding = 1, .groups = 2,
                                       .output_paddings = {1, 0}),
                   ek_f_conv_transpose2d, .strides = {2, 1}, .padding = 1, .groups = 2,
                   .output_paddings = {1, 0});
    ASSERT_FORWARD(volume, ek_conv_transpose3d(4, 2, .kernels = {1, 2, 3}, .dilations = {1, 1, 2}),
                   ek_f_conv_transpose3d, .dilations = {1, 1, 2});
    /* DCGAN's: an image of twice the size. */
    ek_module *twice = ek_conv_transpose2d(4, 3, 4, 2, 1, .bias = false);
    ek_tensor *y = ek_apply(twice, image);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_size(y, 2), 10);
    ck_assert_int_eq(ek_tensor_size(y, 3), 8);
    ck_assert(ek_tensor_is_contiguous(y, EK_CHANNELS_LAST));
    ek_module_free(twice);
}

static void assert_same(ek_module *module, ek_tensor *x, ek_tensor *expected)
{
    assert_made(module);
    assert_close(ek_apply(module, x), expected, 0, 0);
    ek_module_free(module);
}

TEST(pools_forward)
{
    ek_manual_seed(2);
    ek_tensor *signal = ek_randn(EK_SHAPE(2, 3, 9)), *image = ek_randn(EK_SHAPE(2, 3, 6, 7)),
              *volume = ek_randn(EK_SHAPE(1, 3, 4, 5, 6));
    assert_same(ek_max_pool1d(3, .stride = 2, .padding = 1, .dilation = 2), signal,
                ek_f_max_pool1d(signal, 3, .stride = 2, .padding = 1, .dilation = 2));
    assert_same(ek_avg_pool1d(4, .padding = 2, .count_include_pad = false), signal,
                ek_f_avg_pool1d(signal, 4, .padding = 2, .count_include_pad = false));
    assert_same(ek_max_pool2d(.kernels = {2, 3}, .strides = {1, 2}, .paddings = {1, 0}), image,
                ek_f_max_pool2d(image, .kernels = {2, 3}, .strides = {1, 2}, .paddings = {1, 0}));
    assert_same(ek_max_pool3d(.kernels = {2, 3, 1}, .ceil_mode = true), volume,
                ek_f_max_pool3d(volume, .kernels = {2, 3, 1}, .ceil_mode = true));
    assert_same(ek_avg_pool3d(2, .strides = {1, 2, 2}), volume,
                ek_f_avg_pool3d(volume, 2, .strides = {1, 2, 2}));
    assert_same(ek_adaptive_avg_pool1d(4), signal, ek_f_adaptive_avg_pool1d(signal, 4));
    assert_same(ek_adaptive_avg_pool3d(1, 2, 3), volume, ek_f_adaptive_avg_pool3d(volume, 1, 2, 3));
}

TEST(refusals)
{
    assert_refused(ek_conv1d(0, 1, 3), EK_E_INVALID, "conv1d: in_channels 0");
    assert_refused(ek_conv3d(1, 1, .kernels = {3, 3}), EK_E_INVALID,
                   "conv3d: kernel must be at least 1, got 3 x 3 x 0");
    assert_refused(ek_conv1d(1, 1, .kernels = {3, 3}), EK_E_INVALID,
                   "conv1d: kernels has an entry 2, 3, but");
    assert_refused(
        ek_conv_transpose2d(1, 1, 3, .stride = 2, .output_padding = 2), EK_E_INVALID,
        "conv_transpose2d: output_padding 2 has to be smaller than the stride, 2, or the "
        "dilation, 1");
    assert_refused(ek_conv_transpose1d(4, 6, 3, .groups = 4), EK_E_INVALID,
                   "conv_transpose1d: groups 4 has to");
    assert_refused(ek_conv_transpose3d(4, 6, 3, .padding = -1), EK_E_INVALID,
                   "padding must be at least 0");
    assert_refused(ek_max_pool1d(2, .padding = 2), EK_E_INVALID,
                   "max_pool1d: padding 2 has to be at most half");
    assert_refused(ek_max_pool3d(.kernels = {2, 2}), EK_E_INVALID,
                   "max_pool3d: kernel must be at least 1");
    assert_refused(ek_adaptive_avg_pool1d(0), EK_E_INVALID, "adaptive_avg_pool1d: length 0");
    assert_refused(ek_adaptive_avg_pool3d(2, -1, 2), EK_E_INVALID,
                   "adaptive_avg_pool3d: height -1");
}
