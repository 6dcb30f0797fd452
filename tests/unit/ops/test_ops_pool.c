/* test_ops_pool.c: pooling and upsampling against PyTorch and finite differences; what they refuse.
 */
#include <math.h>

#include "cases.h"

#include "home.h"

static const double *options_of(void *user)
{
    return ((const golden_case *)user)->options;
}

/* options: kernel, stride, padding of height and width, dilation, ceil_mode */
static ek_tensor *max_pool(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = options_of(user);
    return ek_f_max_pool2d(inputs[0], .kernels = {(int)o[0], (int)o[1]},
                           .strides = {(int)o[2], (int)o[3]}, .paddings = {(int)o[4], (int)o[5]},
                           .dilation = (int)o[6], .ceil_mode = o[7] != 0);
}

/* options: kernel, stride, padding of height and width, ceil_mode, count_include_pad */
static ek_tensor *avg_pool(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = options_of(user);
    return ek_f_avg_pool2d(inputs[0], .kernels = {(int)o[0], (int)o[1]},
                           .strides = {(int)o[2], (int)o[3]}, .paddings = {(int)o[4], (int)o[5]},
                           .ceil_mode = o[6] != 0,
                           .count_include_pad = o[7] != 0 ? EK_DEFAULT : EK_OFF);
}

/* options: height, width */
static ek_tensor *adaptive(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = options_of(user);
    return ek_f_adaptive_avg_pool2d(inputs[0], (int64_t)o[0], (int64_t)o[1]);
}

/* options: height, width, bilinear, align_corners */
static ek_tensor *upsample(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = options_of(user);
    return ek_f_upsample(inputs[0], (int64_t)o[0], (int64_t)o[1],
                         o[2] != 0 ? EK_BILINEAR : EK_NEAREST, o[3] != 0);
}

#define FAMILY(name_, ...)                                                    \
    {                                                                         \
        .file = "nn_pool.golden", .name = name_, .inputs = {"x"}, __VA_ARGS__ \
    }

static const case_family families[] = {
    FAMILY("max_pool", .function = max_pool),
    FAMILY("max_pool_ties", .function = max_pool, .kinked = true),
    FAMILY("avg_pool", .function = avg_pool),
    FAMILY("adaptive_avg_pool", .function = adaptive),
    FAMILY("upsample", .function = upsample),
};
enum { FAMILIES = sizeof families / sizeof families[0] };

TEST_LOOP(match_pytorch_and_finite_differences, 0, FAMILIES)
{
    case_run_all(&families[_i]);
}

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

TEST(strided_input)
{
    /* Every other column of a wider image. */
    ek_tensor *wide =
        ek_reshape(ek_arange(2 * 2 * 4 * 8, EK_F64, test_home()), EK_SHAPE(2, 2, 4, 8));
    ek_tensor *x = ek_slice(wide, 3, 0, 8, 2);
    ek_tensor *dense = ek_contiguous(ek_clone(x), EK_CONTIGUOUS);
    assert_close(ek_f_max_pool2d(x, 2), ek_f_max_pool2d(dense, 2), 0, 0);
    assert_close(ek_f_avg_pool2d(x, 2), ek_f_avg_pool2d(dense, 2), 0, 0);
    assert_close(ek_f_adaptive_avg_pool2d(x, 3, 3), ek_f_adaptive_avg_pool2d(dense, 3, 3), 0, 0);
    assert_close(ek_f_upsample(x, 5, 5, EK_BILINEAR, true),
                 ek_f_upsample(dense, 5, 5, EK_BILINEAR, true), 0, 0);
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

TEST(empty_batch)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 2, 4, 4), .requires_grad = true);
    ek_tensor *results[] = {ek_f_max_pool2d(x, 2), ek_f_avg_pool2d(x, 2),
                            ek_f_adaptive_avg_pool2d(x, 1, 1),
                            ek_f_upsample(x, 8, 8, EK_BILINEAR, false)};
    for (int i = 0; i < 4; i++) {
        assert_made(results[i]);
        ck_assert_int_eq(ek_tensor_count(results[i]), 0);
        assert_ok(ek_backward(ek_sum(results[i])));
    }
}

TEST(refusals)
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
    assert_refused(ek_f_avg_pool2d(x, 2, .dilation = 2), EK_E_INVALID,
                   "avg_pool2d: dilation is for max pooling only, got 2");
    /* Taps at -1, 4 and 9 of four rows: there is no position that a gradient could go to. */
    assert_refused(ek_f_max_pool2d(x, 3, 8, .padding = 1, .dilation = 5, .ceil_mode = true),
                   EK_E_SHAPE,
                   "max_pool2d: a window of 3 with padding 1 and dilation 5 has only "
                   "padding in height 4");
    assert_refused(ek_f_max_pool2d(ek_ones(EK_SHAPE(1, 1, 0, 4)), 2, .padding = 1), EK_E_SHAPE,
                   "has only padding in height 0");
    assert_made(ek_f_max_pool2d(x, 3, 2, .padding = 1, .dilation = 3, .ceil_mode = true));
    assert_refused(ek_f_max_pool2d(x, 2, .count_include_pad = EK_OFF), EK_E_INVALID,
                   "max_pool2d: count_include_pad is for average pooling only");
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
