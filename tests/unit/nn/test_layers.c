/* Layers: initial values as PyTorch's to the bit, forward against the operations, refused options.
 */
#include "unit.h"

static void assert_initial(ek_module *module, const char *name)
{
    char path[64];
    assert_made(module);
    snprintf(path, sizeof path, "initial/%s/weight", name);
    assert_close(ek_module_tensor(module, "weight"), golden("nn.golden", path), 0, 0);
    snprintf(path, sizeof path, "initial/%s/bias", name);
    if (golden_has("nn.golden", path)) {
        assert_close(ek_module_tensor(module, "bias"), golden("nn.golden", path), 0, 0);
    } else {
        ck_assert_ptr_null(ek_module_tensor(module, "bias"));
        ek_error_clear();
    }
    ek_module_free(module);
}

TEST(initial_values)
{
    ek_manual_seed(42);
    assert_initial(ek_linear(20, 7), "linear");
    assert_initial(ek_linear(3, 5, .bias = false), "linear_no_bias");
    assert_initial(ek_conv2d(3, 8, 3), "conv");
    assert_initial(ek_conv2d(4, 6, .kernels = {3, 2}, .groups = 2), "conv_groups");
    assert_initial(ek_conv2d(5, 4, 1), "conv_1x1");
    ek_tensor *t = ek_empty(EK_SHAPE(6, 3, 2, 2), .format = EK_CHANNELS_LAST);
    assert_ok(ek_init_kaiming_uniform(t, 0.2));
    assert_close(t, golden("nn.golden", "initial/kaiming_uniform"), 0, 0);
    t = ek_empty(EK_SHAPE(6, 3, 2, 2));
    assert_ok(ek_init_kaiming_normal(t, 0));
    assert_close(t, golden("nn.golden", "initial/kaiming_normal"), 0, 0);
    assert_ok(ek_init_xavier_uniform(t, 1.5));
    assert_close(t, golden("nn.golden", "initial/xavier_uniform"), 0, 0);
    assert_refused(ek_init_xavier_uniform(ek_ones(EK_SHAPE(3)), 1), EK_E_SHAPE, "2 dimensions");
}

TEST(initialisation_in_place)
{
    ek_tensor *leaf = ek_ones(EK_SHAPE(4, 5), .requires_grad = true);
    uint64_t version = ek_tensor_version(leaf);
    assert_ok(ek_init_uniform(leaf, 2, 3));
    for (int i = 0; i < 20; i++)
        ck_assert(element(leaf, i) >= 2 && element(leaf, i) < 3);
    assert_ok(ek_init_normal(leaf, 100, 1));
    ck_assert(element(leaf, 7) > 90 && element(leaf, 7) < 110);
    assert_ok(ek_init_constant(leaf, -1));
    ck_assert_double_eq(element(leaf, 19), -1);
    ck_assert(ek_tensor_is_leaf(leaf) && ek_grad_enabled());
    ck_assert_uint_eq(ek_tensor_version(leaf), version + 3);
}

TEST(linear_and_conv_forward)
{
    ek_manual_seed(1);
    ek_module *linear = ek_linear(4, 3);
    ek_tensor *x = ek_randn(EK_SHAPE(2, 5, 4));
    ek_tensor *by_hand =
        ek_add(ek_matmul(x, ek_transpose(ek_module_tensor(linear, "weight"), 0, 1)),
               ek_module_tensor(linear, "bias"));
    assert_close(ek_apply(linear, x), by_hand, 1e-5, 1e-6);

    ek_module *conv = ek_conv2d(4, 6, 3, .stride = 2, .paddings = {1, 0}, .dilation = 2,
                                .groups = 2, .bias = false);
    assert_made(conv);
    ek_tensor *image = ek_randn(EK_SHAPE(2, 4, 9, 8));
    ek_tensor *y = ek_apply(conv, image);
    assert_close(y,
                 ek_f_conv2d(image, ek_module_tensor(conv, "weight"), .stride = 2,
                             .paddings = {1, 0}, .dilation = 2, .groups = 2),
                 0, 0);
    ck_assert_int_eq(ek_tensor_size(y, 2), (9 + 2 - 4 - 1) / 2 + 1);
    ck_assert_int_eq(ek_tensor_size(y, 3), (8 - 4 - 1) / 2 + 1);
    ck_assert(ek_tensor_is_contiguous(ek_module_tensor(conv, "weight"), EK_CHANNELS_LAST));
    ek_module_free(linear);
    ek_module_free(conv);
}

TEST(batch_norm_tracks)
{
    const double values[] = {1, 3, 5, 7};
    ek_tensor *x = tensor_of(values, EK_SHAPE(4, 1), EK_F32, ek_cpu());
    ek_module *norm = ek_batch_norm1d(1, .momentum = 0.5);
    ek_tensor *y = ek_apply(norm, x);
    double mean = 4, biased = 5, unbiased = 20.0 / 3;
    ck_assert_double_eq_tol(element(y, 0), (1 - mean) / __builtin_sqrt(biased + 1e-5), 1e-6);
    ck_assert_double_eq_tol(element(ek_module_tensor(norm, "running_mean"), 0), 2, 1e-6);
    ck_assert_double_eq_tol(element(ek_module_tensor(norm, "running_var"), 0), (1 + unbiased) / 2,
                            1e-6);
    assert_made(ek_apply(norm, x));
    ck_assert_double_eq(element(ek_module_tensor(norm, "num_batches_tracked"), 0), 2);
    ek_module_train(norm, false);
    y = ek_apply(norm, x);
    ck_assert_double_eq(element(ek_module_tensor(norm, "num_batches_tracked"), 0), 2);
    double running_mean = element(ek_module_tensor(norm, "running_mean"), 0);
    double running_var = element(ek_module_tensor(norm, "running_var"), 0);
    ck_assert_double_eq_tol(element(y, 3), (7 - running_mean) / __builtin_sqrt(running_var + 1e-5),
                            1e-6);
    ek_module_free(norm);

    /* momentum 0 is not the default */
    norm = ek_batch_norm1d(1, .momentum = 0, .affine = false);
    assert_made(ek_apply(norm, x));
    ck_assert_double_eq(element(ek_module_tensor(norm, "running_mean"), 0), 0);
    ck_assert_int_eq(ek_module_numel(norm), 0);
    ek_module_free(norm);

    /* Without running statistics, evaluation uses the batch's too. */
    norm = ek_batch_norm1d(1, .track_running_stats = false);
    ek_tensor *training = ek_apply(norm, x);
    ek_module_train(norm, false);
    assert_close(ek_apply(norm, x), training, 0, 0);
    ek_module_free(norm);

    norm = ek_batch_norm2d(1);
    assert_refused(ek_apply(norm, x), EK_E_SHAPE, "4 dimensions");
    ek_module_free(norm);
    norm = ek_batch_norm1d(1);
    assert_refused(ek_apply(norm, ek_ones(EK_SHAPE(1, 1, 2, 2))), EK_E_SHAPE, "2 or 3 dimensions");
    ek_module_free(norm);
}

static void assert_same(ek_module *module, ek_tensor *x, ek_tensor *expected)
{
    assert_made(module);
    assert_close(ek_apply(module, x), expected, 0, 0);
    ek_module_free(module);
}

TEST(layers_without_weights)
{
    ek_manual_seed(5);
    ek_tensor *x = ek_randn(EK_SHAPE(2, 3, 6, 7));
    assert_same(ek_relu(), x, ek_f_relu(x));
    assert_same(ek_leaky_relu(0.2), x, ek_f_leaky_relu(x, 0.2));
    assert_same(ek_sigmoid(), x, ek_f_sigmoid(x));
    assert_same(ek_tanh(), x, ek_f_tanh(x));
    assert_same(ek_gelu(EK_GELU_TANH), x, ek_f_gelu(x, EK_GELU_TANH));
    assert_same(ek_silu(), x, ek_f_silu(x));
    assert_same(ek_mish(), x, ek_f_mish(x));
    assert_same(ek_elu(0.5), x, ek_f_elu(x, 0.5));
    assert_same(ek_celu(0.5), x, ek_f_celu(x, 0.5));
    assert_same(ek_selu(), x, ek_f_selu(x));
    assert_same(ek_relu6(), x, ek_f_relu6(x));
    assert_same(ek_hardtanh(-0.5, 1), x, ek_f_hardtanh(x, -0.5, 1));
    assert_same(ek_hardsigmoid(), x, ek_f_hardsigmoid(x));
    assert_same(ek_hardswish(), x, ek_f_hardswish(x));
    assert_same(ek_hardshrink(0.5), x, ek_f_hardshrink(x, 0.5));
    assert_same(ek_softshrink(0.5), x, ek_f_softshrink(x, 0.5));
    assert_same(ek_tanhshrink(), x, ek_f_tanhshrink(x));
    assert_same(ek_softsign(), x, ek_f_softsign(x));
    assert_same(ek_log_sigmoid(), x, ek_f_log_sigmoid(x));
    assert_same(ek_threshold(0.1, 2), x, ek_f_threshold(x, 0.1, 2));
    assert_same(ek_glu(-2), x, ek_f_glu(x, 2));
    assert_same(ek_softmax(1), x, ek_f_softmax(x, 1));
    assert_same(ek_log_softmax(-1), x, ek_f_log_softmax(x, 3));
    assert_same(ek_softmin(1), x, ek_f_softmax(ek_neg(x), 1));
    assert_same(ek_softplus(), x, ek_f_softplus(x));
    assert_same(ek_softplus(.beta = 3, .threshold = 0), x,
                ek_f_softplus(x, .beta = 3, .threshold = 0));
    assert_same(ek_prelu(), x, ek_f_leaky_relu(x, 0.25));
    assert_same(ek_prelu(3, .init = 0), x, ek_f_relu(x));
    assert_same(ek_identity(), x, x);
    assert_same(ek_flatten(1, -1), x, ek_f_flatten(x, 1, -1));
    assert_same(ek_max_pool2d(3, .stride = 2, .padding = 1, .ceil_mode = true), x,
                ek_f_max_pool2d(x, 3, .stride = 2, .padding = 1, .ceil_mode = true));
    assert_same(ek_max_pool2d(2, .dilation = 2), x, ek_f_max_pool2d(x, 2, .dilation = 2));
    assert_same(ek_avg_pool2d(2, .padding = 1, .count_include_pad = false), x,
                ek_f_avg_pool2d(x, 2, .padding = 1, .count_include_pad = false));
    assert_same(ek_adaptive_avg_pool2d(2, 3), x, ek_f_adaptive_avg_pool2d(x, 2, 3));
    assert_same(ek_upsample(.sizes = {9, 8}, .mode = EK_BILINEAR, .align_corners = true), x,
                ek_f_upsample(x, 9, 8, EK_BILINEAR, true));
    assert_same(ek_upsample(.scale_factor = 1.5, .mode = EK_BICUBIC), x,
                ek_f_interpolate(x, .scale_factor = 1.5, .mode = EK_BICUBIC));
    assert_refused(ek_upsample(), EK_E_INVALID, "neither a size nor a scale_factor");
    assert_refused(ek_upsample(2, .scale_factor = 2), EK_E_INVALID, "only one of them");
    assert_same(ek_upsample(.sizes = {12, 14}), x, ek_f_upsample(x, 12, 14, EK_NEAREST, false));
}

TEST(dropout2d_drops_channels)
{
    ek_module *module = ek_dropout2d(0.4);
    ek_tensor *x = ek_full(3, EK_SHAPE(4, 5, 2, 3), .device = test_device(0)), *y;
    for (int type = 0; type < 2; type++) {
        ek_manual_seed(42);
        y = ek_apply(module, type ? ek_to_dtype(x, EK_F64) : x);
        assert_close(y, golden("random.golden", type ? "dropout2d/f64" : "dropout2d/f32"), 0, 0);
    }
    assert_made(ek_apply(module, ek_zeros(EK_SHAPE(0, 5, 2, 3), .device = test_device(0))));
    assert_refused(ek_apply(module, ek_ones(EK_SHAPE(4, 5, 2))), EK_E_SHAPE, "4 dimensions");
    ek_module_train(module, false);
    ck_assert(ek_apply(module, x) == x);
    ek_module_free(module);
}

TEST(an_entry_of_a_direction_counts_before_the_option_for_all)
{
    ek_module *conv = ek_conv2d(1, 1, 3, .kernels = {0, 5});
    ek_shape shape = ek_tensor_shape(ek_module_tensor(conv, "weight"));
    ck_assert_int_eq(shape.dims[2], 3);
    ck_assert_int_eq(shape.dims[3], 5);
    ek_module_free(conv);
}

TEST(a_prelu_learns_a_slope_for_each_channel)
{
    ek_module *module = ek_prelu(2);
    ek_tensor *x = ek_full(-3, EK_SHAPE(4, 2));
    ek_tensor *weight = ek_module_tensor(module, "weight");
    assert_close(weight, ek_full(0.25, EK_SHAPE(2)), 0, 0);
    assert_ok(ek_backward(ek_sum(ek_apply(module, x))));
    assert_close(ek_tensor_grad(weight), ek_full(-12, EK_SHAPE(2)), 0, 0);
    ek_module_free(module);
}

TEST(options_out_of_range)
{
    assert_refused(ek_prelu(-1), EK_E_INVALID, "num_parameters is -1");
    assert_refused(ek_prelu(0), EK_E_INVALID, "num_parameters is 0");
    assert_refused(ek_hardtanh(1, 1), EK_E_INVALID, "low must be below high");
    assert_refused(ek_linear(3, -1), EK_E_INVALID, "out_features -1");
    assert_refused(ek_conv2d(0, 1, 3), EK_E_INVALID, "in_channels 0");
    assert_refused(ek_conv2d(1, 1), EK_E_INVALID, "kernel must be at least 1, got 0 x 0");
    assert_refused(ek_conv2d(1, 1, .kernels = {3, 0}), EK_E_INVALID, "kernel");
    assert_refused(ek_conv2d(1, 1, 3, .stride = 0), EK_E_INVALID,
                   "stride must be at least 1, got 0 x 0");
    assert_refused(ek_conv2d(1, 1, 3, .padding = -1), EK_E_INVALID, "padding");
    assert_refused(ek_conv2d(1, 1, 3, .dilation = -2), EK_E_INVALID, "dilation");
    assert_refused(ek_conv2d(4, 6, 3, .groups = 4), EK_E_INVALID, "groups 4");
    assert_refused(ek_batch_norm2d(0), EK_E_INVALID, "features");
    assert_refused(ek_batch_norm2d(3, .eps = -1), EK_E_INVALID, "eps -1");
    assert_refused(ek_batch_norm1d(3, .momentum = 1.5), EK_E_INVALID, "momentum 1.5");
    assert_refused(ek_dropout(1.5), EK_E_INVALID, "1.5");
    assert_refused(ek_dropout(__builtin_nan("")), EK_E_INVALID, "probability");
    assert_refused(ek_dropout2d(-0.1), EK_E_INVALID, "dropout2d: the probability");
    assert_refused(ek_max_pool2d(0), EK_E_INVALID, "kernel must be at least 1, got 0 x 0");
    assert_refused(ek_max_pool2d(2, .padding = 2), EK_E_INVALID, "padding 2");
    assert_refused(ek_max_pool2d(2, .stride = 0), EK_E_INVALID,
                   "stride must be at least 1, got 0 x 0");
    assert_refused(ek_avg_pool2d(2, .stride = 0), EK_E_INVALID,
                   "stride must be at least 1, got 0 x 0");
    assert_refused(ek_adaptive_avg_pool2d(0, 1), EK_E_INVALID, "height 0");
    assert_refused(ek_upsample(2, .align_corners = true), EK_E_INVALID, "align_corners");
    assert_refused(ek_upsample(2, .mode = (ek_upsample_mode)9), EK_E_INVALID, "mode 9");
}
