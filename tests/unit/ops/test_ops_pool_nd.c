/* test_ops_pool_nd.c: pooling over one and three dimensions against PyTorch and finite differences;
 * memory order, bf16, empty batches and refusals. */
#include "cases.h"

#include <string.h>

#include "home.h"

typedef ek_tensor *pooling(ek_pool_options options);

/* options: kernel, stride, padding and dilation of each direction, ceil_mode, count_include_pad */
static ek_tensor *pool(pooling *function, int dims, ek_tensor *x, const golden_case *which)
{
    const double *from = which->options;
    ek_pool_options o = {.x = x};
    int *const to[] = {o.kernels, o.strides, o.paddings, o.dilations};
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < dims; d++)
            to[k][d] = (int)*from++;
    o.ceil_mode = from[0] != 0;
    o.count_include_pad = from[1] != 0 ? EK_DEFAULT : EK_OFF;
    return function(o);
}

#define POOL(NAME, DIMS)                                                           \
    static ek_tensor *NAME##_case(ek_tensor *const *inputs, int count, void *user) \
    {                                                                              \
        (void)count;                                                               \
        return pool(ek_f_##NAME##_with, DIMS, inputs[0], user);                    \
    }
POOL(max_pool1d, 1)
POOL(max_pool3d, 3)
POOL(avg_pool1d, 1)
POOL(avg_pool3d, 3)

static ek_tensor *adaptive_case(ek_tensor *const *inputs, int count, void *user)
{
    (void)count;
    const double *o = ((const golden_case *)user)->options;
    return ek_tensor_ndim(inputs[0]) == 3
               ? ek_f_adaptive_avg_pool1d(inputs[0], (int64_t)o[0])
               : ek_f_adaptive_avg_pool3d(inputs[0], (int64_t)o[0], (int64_t)o[1], (int64_t)o[2]);
}

#define FAMILY(NAME, FUNCTION, KINKED)                                                 \
    {                                                                                  \
        .file = "conv_nd.golden", .name = NAME, .inputs = {"x"}, .function = FUNCTION, \
        .kinked = KINKED                                                               \
    }

static const case_family families[] = {FAMILY("max_pool1d", max_pool1d_case, false),
                                       FAMILY("max_pool3d", max_pool3d_case, false),
                                       FAMILY("max_pool_ties", max_pool3d_case, true),
                                       FAMILY("avg_pool1d", avg_pool1d_case, false),
                                       FAMILY("avg_pool3d", avg_pool3d_case, false),
                                       FAMILY("adaptive_avg_pool1d", adaptive_case, false),
                                       FAMILY("adaptive_avg_pool3d", adaptive_case, false)};
enum { FAMILIES = sizeof families / sizeof families[0] };

TEST_LOOP(match_pytorch_and_finite_differences, 0, FAMILIES)
{
    case_run_all(&families[_i]);
}

/* f32 that bf16 holds exactly. */
static ek_tensor *integers(ek_shape shape)
{
    return ek_to_dtype(ek_randint(-8, 8, shape), EK_F32);
}

TEST(any_memory_and_bf16)
{
    ek_manual_seed(3);
    /* (N, C, ...) as a view of (N, ..., C), of every second position. */
    ek_tensor *volume = ek_permute(integers(EK_SHAPE(2, 4, 6, 4, 3)), EK_SHAPE(0, 4, 1, 2, 3));
    ek_tensor *signal = ek_permute(integers(EK_SHAPE(2, 8, 3)), EK_SHAPE(0, 2, 1));
    volume = ek_slice(volume, 3, 0, 6, 2);
    ek_tensor *dense3 = ek_contiguous(ek_clone(volume), EK_CONTIGUOUS);
    ek_tensor *dense1 = ek_contiguous(ek_clone(signal), EK_CONTIGUOUS);
    const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    for (int i = 0; i < 3; i++) {
        ek_tensor *x3 = ek_to_dtype(volume, dtypes[i]), *x1 = ek_to_dtype(signal, dtypes[i]);
        ek_tensor *results[] = {
            ek_f_max_pool3d(x3, 2), ek_f_avg_pool3d(x3, 2), ek_f_adaptive_avg_pool3d(x3, 2, 1, 2),
            ek_f_max_pool1d(x1, 2), ek_f_avg_pool1d(x1, 2), ek_f_adaptive_avg_pool1d(x1, 4)};
        ek_tensor *wanted[] = {ek_f_max_pool3d(dense3, 2),
                               ek_f_avg_pool3d(dense3, 2),
                               ek_f_adaptive_avg_pool3d(dense3, 2, 1, 2),
                               ek_f_max_pool1d(dense1, 2),
                               ek_f_avg_pool1d(dense1, 2),
                               ek_f_adaptive_avg_pool1d(dense1, 4)};
        double tolerance = dtypes[i] == EK_BF16 ? 1.0 / 256 : 1e-6;
        for (int k = 0; k < 6; k++) {
            assert_made(results[k]);
            ck_assert_int_eq(ek_tensor_dtype(results[k]), dtypes[i]);
            assert_close(ek_to_dtype(results[k], EK_F32), wanted[k], tolerance, tolerance);
        }
    }
}

TEST(empty_batch)
{
    ek_tensor *x3 = ek_zeros(EK_SHAPE(0, 2, 4, 4, 4), .requires_grad = true);
    ek_tensor *x1 = ek_zeros(EK_SHAPE(0, 2, 4), .requires_grad = true);
    ek_tensor *results[] = {
        ek_f_max_pool3d(x3, 2), ek_f_avg_pool3d(x3, 2), ek_f_adaptive_avg_pool3d(x3, 2, 1, 2),
        ek_f_max_pool1d(x1, 2), ek_f_avg_pool1d(x1, 2), ek_f_adaptive_avg_pool1d(x1, 4)};
    for (int i = 0; i < 6; i++) {
        assert_made(results[i]);
        ck_assert_int_eq(ek_tensor_count(results[i]), 0);
        assert_ok(ek_backward(ek_sum(results[i])));
    }
    ck_assert_int_eq(ek_tensor_ndim(results[0]), 5);
    ck_assert_int_eq(ek_tensor_ndim(results[3]), 3);
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
    assert_refused(ek_f_avg_pool3d(x3, 2, .dilations = {1, 2, 1}), EK_E_INVALID,
                   "avg_pool3d: dilation is for max pooling only, got 2");
    assert_refused(ek_f_adaptive_avg_pool3d(x3, 1, 0, 2), EK_E_INVALID,
                   "adaptive_avg_pool3d: the output must be at least 1, got 1 x 0 x 2");
    assert_refused(ek_f_adaptive_avg_pool1d(x1, -1), EK_E_INVALID,
                   "adaptive_avg_pool1d: the output must be at least 1, got -1");
    assert_refused(ek_f_adaptive_avg_pool1d(ek_ones(EK_SHAPE(2, 3, 0)), 2), EK_E_SHAPE,
                   "adaptive_avg_pool1d: x must not have a length of 0, got f32[2, 3, 0]");
    assert_refused(ek_f_max_pool3d(ek_zeros(EK_SHAPE(1, 1, 4, 4, 4), EK_I64), 2), EK_E_DTYPE,
                   "max_pool3d: expected a floating x");
}
