/* test_ops_pool.c: pooling and upsampling beside the table: memory, NaN, errors. */
#include "home.h"

TEST(keep_the_order_of_memory)
{
    for (int format = EK_CONTIGUOUS; format <= EK_CHANNELS_LAST; format++) {
        ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 6, 6), .format = (ek_memory_format)format,
                               .requires_grad = true);
        ek_tensor *results[] = {ek_f_max_pool2d(x, 2), ek_f_avg_pool2d(x, 3),
                                ek_f_adaptive_avg_pool2d(x, 4, 5),
                                ek_f_upsample(x, 9, 8, EK_NEAREST, false)};
        for (int i = 0; i < 4; i++) {
            ek_tensor *gradient;
            assert_made(results[i]);
            ck_assert(ek_tensor_is_contiguous(results[i], (ek_memory_format)format));
            /* The gradient of a sum has zero strides. */
            ek_tensor *sum = ek_sum(results[i]);
            assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                              .gradients = &gradient));
            ck_assert(ek_tensor_is_contiguous(gradient, (ek_memory_format)format));
            double total;
            assert_ok(ek_item(ek_sum(gradient), &total));
            /* Every row of each of these maps sums to 1. */
            ck_assert_double_eq_tol(total, (double)ek_tensor_count(results[i]), 1e-3);
        }
    }
}

TEST(nan_and_infinity_reach_the_maximum)
{
    const double values[] = {1, NAN, 2, 3, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    ek_tensor *x = tensor_of(values, EK_SHAPE(1, 2, 2, 2), EK_F64, test_home());
    ek_tensor *y = ek_f_max_pool2d(x, 2);
    assert_made(y);
    ck_assert_double_nan(element(y, 0));
    ck_assert(element(y, 1) == -INFINITY);
}

TEST(refusals_of_images)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3, 4, 5));
    assert_refused(ek_f_max_pool2d(NULL, 2), EK_E_INVALID, "max_pool2d: x is NULL");
    assert_refused(ek_f_max_pool2d(ek_ones(EK_SHAPE(4, 5)), 2), EK_E_SHAPE,
                   "max_pool2d: expected x of 4 dimensions");
    assert_refused(ek_f_max_pool2d(ek_zeros(EK_SHAPE(1, 1, 4, 4), EK_I64), 2), EK_E_DTYPE,
                   "max_pool2d: expected a floating x");
    assert_refused(ek_f_avg_pool2d(x), EK_E_INVALID,
                   "avg_pool2d: kernel must be at least 1, got 0 x 0");
    assert_refused(ek_f_avg_pool2d(x, 3, .padding = 2), EK_E_INVALID,
                   "padding must be at most half of the kernel's size");
    assert_refused(ek_f_max_pool2d(x, 2, .stride = -1), EK_E_INVALID, "stride must be at least 1");
    assert_refused(ek_f_max_pool2d(x, 5), EK_E_SHAPE,
                   "a window of 5 with padding 0 and dilation 1 does not fit height 4");
    /* Taps at -1, 4 and 9 of four rows: there is no position that a gradient could go to. */
    assert_refused(ek_f_max_pool2d(x, 3, 8, .padding = 1, .dilation = 5, .ceil_mode = true),
                   EK_E_SHAPE,
                   "max_pool2d: a window of 3 with padding 1 and dilation 5 has only "
                   "padding in height 4");
    assert_refused(ek_f_max_pool2d(ek_ones(EK_SHAPE(1, 1, 0, 4)), 2, .padding = 1), EK_E_SHAPE,
                   "has only padding in height 0");
    assert_made(ek_f_max_pool2d(x, 3, 2, .padding = 1, .dilation = 3, .ceil_mode = true));
    assert_refused(ek_f_avg_pool2d(x, 2, .strides = {1, 1, 2}), EK_E_INVALID,
                   "avg_pool2d: strides has an entry 3, 2, but there are only two");
    assert_refused(ek_f_adaptive_avg_pool2d(x, 0, 1), EK_E_INVALID,
                   "the output must be at least 1, got 0 x 1");
    assert_refused(ek_f_upsample(x, 8, 0, EK_NEAREST, false), EK_E_INVALID,
                   "the output must be at least 1, got 8 x 0");
    assert_refused(ek_f_upsample(x, 8, 8, EK_NEAREST, true), EK_E_INVALID,
                   "align_corners is for EK_BILINEAR");
    assert_refused(ek_f_upsample(ek_zeros(EK_SHAPE(1, 1, 0, 4)), 8, 8, EK_NEAREST, false),
                   EK_E_SHAPE, "at least one pixel");
}

TEST(refusals)
{
    ek_tensor *x3 = ek_ones(EK_SHAPE(2, 3, 4, 5, 6)), *x1 = ek_ones(EK_SHAPE(2, 3, 4));
    assert_refused(ek_f_max_pool1d(NULL, 2), EK_E_INVALID, "max_pool1d: x is NULL");
    assert_refused(ek_f_max_pool1d(x3, 2), EK_E_SHAPE,
                   "max_pool1d: expected x of 3 dimensions (N, C, L), got f32[2, 3, 4");
    assert_refused(ek_f_avg_pool3d(x1, 2), EK_E_SHAPE,
                   "avg_pool3d: expected x of 5 dimensions (N, C, D, H, W), got f32[2");
    assert_refused(ek_f_avg_pool3d(x3), EK_E_INVALID,
                   "avg_pool3d: kernel must be at least 1, got 0 x 0 x 0");
    assert_refused(ek_f_max_pool3d(x3, .kernels = {2, 2, 7}), EK_E_SHAPE,
                   "max_pool3d: a window of 7 with padding 0 and dilation 1 does not fit "
                   "width 6");
    assert_refused(ek_f_max_pool3d(x3, 5), EK_E_SHAPE, "does not fit depth 4");
    assert_refused(ek_f_max_pool1d(x1, 5), EK_E_SHAPE, "does not fit length 4");
    assert_refused(ek_f_max_pool1d(x1, 2, .kernels = {2, 2}), EK_E_INVALID,
                   "max_pool1d: kernels has an entry 2, 2, but there is only one");
    assert_refused(ek_f_avg_pool1d(x1, 2, .padding = 2), EK_E_INVALID,
                   "avg_pool1d: padding must be at most half");
    assert_refused(ek_f_adaptive_avg_pool3d(x3, 1, 0, 2), EK_E_INVALID,
                   "adaptive_avg_pool3d: the output must be at least 1, got 1 x 0 x 2");
    assert_refused(ek_f_adaptive_avg_pool1d(x1, -1), EK_E_INVALID,
                   "adaptive_avg_pool1d: the output must be at least 1, got -1");
    assert_refused(ek_f_adaptive_avg_pool1d(ek_ones(EK_SHAPE(2, 3, 0)), 2), EK_E_SHAPE,
                   "adaptive_avg_pool1d: x must not have a length of 0, got f32[2, 3, 0]");
    assert_refused(ek_f_max_pool3d(ek_zeros(EK_SHAPE(1, 1, 4, 4, 4), EK_I64), 2), EK_E_DTYPE,
                   "max_pool3d: expected a floating x");
}
