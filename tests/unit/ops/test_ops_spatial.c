/* Convolution with "same" padding and of single samples, adaptive maxima, unpooling, LP pooling,
 * local response norm, bilinear forms, and dimension 0 of scalars: a row each, against PyTorch's
 * values and gradients and finite differences of first and second order. On GPUs too. */
#include "table.h"

FIXTURE(two_devices, NULL)

FROM(.file = "spatial.golden", .inputs = {"x0", "x1", "x2", "x3"}, .dy = "g", .tolerance = 4e-6)

#define BIAS(i) (count > (i) ? x[i] : NULL)

ROW(conv1d_same, BF16, ek_f_conv1d(x[0], x[1], x[2], .padding = EK_SAME))
ROW(conv1d_same_even, BF16, ek_f_conv1d(x[0], x[1], .padding = EK_SAME))
ROW(conv2d_same, BF16, ek_f_conv2d(x[0], x[1], x[2], .padding = EK_SAME, .dilations = {1, 2}))
ROW(conv2d_same_even, BF16, ek_f_conv2d(x[0], x[1], .padding = EK_SAME, .groups = 2))
ROW(conv2d_same_one, BF16, ek_f_conv2d(x[0], x[1], .padding = EK_SAME))
ROW(conv3d_same, BF16, ek_f_conv3d(x[0], x[1], .padding = EK_SAME))
ROW(conv1d_single, BF16, ek_f_conv1d(x[0], x[1], x[2], .padding = 1))
ROW(conv2d_single, BF16, ek_f_conv2d(x[0], x[1], .stride = 2))
ROW(conv_transpose2d_single, BF16, ek_f_conv_transpose2d(x[0], x[1], .stride = 2))
ROW(conv3d_single, BF16, ek_f_conv3d(x[0], x[1], .padding = EK_SAME))
ROW(max_pool1d_single, BF16, ek_f_max_pool1d(x[0], 2))
ROW(max_pool2d_single, BF16, ek_f_max_pool2d(x[0], 3, 2, 1))
ROW(avg_pool2d_single, BF16, ek_f_avg_pool2d(x[0], 2))
ROW(adaptive_avg_pool2d_single, BF16, ek_f_adaptive_avg_pool2d(x[0], 2, 3))
ROW(adaptive_max_pool1d, BF16, ek_f_adaptive_max_pool1d(x[0], 3, NULL))
ROW(adaptive_max_pool1d_more, BF16, ek_f_adaptive_max_pool1d(x[0], 5, NULL))
ROW(adaptive_max_pool2d, BF16, ek_f_adaptive_max_pool2d(x[0], 3, 2, NULL))
ROW(adaptive_max_pool2d_one, BF16, ek_f_adaptive_max_pool2d(x[0], 1, 1, NULL))
ROW(adaptive_max_pool2d_single, BF16, ek_f_adaptive_max_pool2d(x[0], 2, 4, NULL))
ROW(adaptive_max_pool3d, BF16, ek_f_adaptive_max_pool3d(x[0], 2, 3, 2, NULL))
ROW(max_unpool1d, BF16, ek_f_max_unpool1d(x[0], x[1], 2))
ROW(max_unpool2d, BF16, ek_f_max_unpool2d(x[0], x[1], 2))
ROW(max_unpool2d_sizes, BF16,
    ek_f_max_unpool2d(x[0], x[1], .kernels = {3, 2}, .paddings = {1, 0}, .sizes = {7, 7}))
ROW(max_unpool2d_single, BF16, ek_f_max_unpool2d(x[0], x[1], 2))
ROW(max_unpool3d, BF16, ek_f_max_unpool3d(x[0], x[1], 2))
ROW(lp_pool1d, 0, ek_f_lp_pool1d(x[0], 2, 3))
ROW(lp_pool2d, 0, ek_f_lp_pool2d(x[0], 2, 2, .stride = 1))
ROW(lp_pool2d_ceil, 0, ek_f_lp_pool2d(x[0], 3, .kernels = {2, 3}, .ceil_mode = true))
ROW(lp_pool2d_half, 0, ek_f_lp_pool2d(x[0], 0.5, 2))
ROW(lp_pool2d_zero, KINKED, ek_f_lp_pool2d(x[0], 2, 2))
ROW(local_response_norm, 0, ek_f_local_response_norm(x[0], 3, 0.3, 0.6, 1.5))
ROW(local_response_norm_even, 0, ek_f_local_response_norm(x[0], 4, 0.5, 0.75, 1))
ROW(local_response_norm_3d, 0, ek_f_local_response_norm(x[0], 2, 1e-4, 0.75, 1))
ROW(bilinear, BF16, ek_f_bilinear(x[0], x[1], x[2], BIAS(3)))
ROW(bilinear_more, BF16, ek_f_bilinear(x[0], x[1], x[2], BIAS(3)))
ROW(bilinear_vectors, BF16, ek_f_bilinear(x[0], x[1], x[2], BIAS(3)))
ROW(scalar_sum, BF16, ek_sum(x[0], EK_DIMS(0)))
ROW(scalar_mean_keepdim, BF16, ek_mean(x[0], EK_DIMS(-1), .keepdim = true))
ROW(scalar_softmax, BF16, ek_mul(ek_f_softmax(x[0], 0), x[0]))
ROW(scalar_log_softmax, BF16, ek_add(ek_f_log_softmax(x[0], -1), x[0]))
ROW(scalar_sort, BF16, ek_sort(x[0], -1, false, NULL))
ROW(scalar_topk, BF16, ek_topk(x[0], 1, 0, true, NULL))
ROW(scalar_kthvalue, BF16, ek_kthvalue(x[0], 1, 0, false, NULL))
ROW(scalar_max, BF16, ek_max_dim(x[0], 0, false))
ROW(scalar_amax, BF16, ek_amax(x[0], EK_DIMS(0)))
ROW(scalar_cumsum, BF16, ek_cumsum(x[0], 0))
ROW(scalar_cumprod, BF16, ek_cumprod(x[0], -1))
ROW(scalar_prod, BF16, ek_prod(x[0], EK_DIMS(0)))
ROW(scalar_logsumexp, BF16, ek_logsumexp(x[0], EK_DIMS(0)))
ROW(scalar_norm, BF16, ek_norm(x[0], EK_DIMS(0)))
ROW(scalar_var, 0, ek_add(ek_var(x[0], EK_DIMS(0), .correction = 0), x[0]))
ROW(scalar_squeeze, BF16, ek_squeeze(x[0], -1))
ROW(scalar_flatten, BF16, ek_f_flatten(x[0], 0, -1))
ROW(scalar_transpose, BF16, ek_transpose(x[0], 0, -1))
ROW(scalar_movedim, BF16, ek_movedim(x[0], 0, -1))
ROW(scalar_flip, BF16, ek_flip(x[0], EK_SHAPE(0)))
ROW(scalar_unfold, BF16, ek_unfold(x[0], 0, 1, 1))
ROW(scalar_normalize, 0, ek_f_normalize(x[0], .dim = 0))
ROW(scalar_cosine_similarity, 0, ek_f_cosine_similarity(x[0], x[1], .dim = 0))
ROW(scalar_index_select, BF16, ek_index_select(x[0], 0, x[1]))
ROW(scalar_index_select_scalar, BF16, ek_index_select(x[0], 0, x[1]))
ROW(scalar_gather, BF16, ek_gather_dim(x[0], 0, x[1]))
ROW(scalar_gather_row, BF16, ek_gather_dim(x[0], -1, x[1]))
ROW(scalar_scatter, BF16, ek_scatter_dim(x[0], 0, x[1], x[2]))
ROW(scalar_scatter_add, BF16, ek_scatter_add_dim(x[0], 0, x[1], ek_scalar_shape()))
ROW(scalar_scatter_fill, BF16, ek_scatter_fill(x[0], 0, x[1], 2))
ROW(scalar_index_add, BF16, ek_index_add(x[0], 0, x[1], x[2], 2))
ROW(scalar_index_copy, BF16, ek_index_copy(x[0], 0, x[1], x[2]))
ROW(scalar_index_fill, BF16, ek_index_fill(x[0], 0, x[1], 2))

/* ---- positions of maxima ---- */

static ek_tensor *position_input(const char *name, bool last)
{
    char path[64];
    snprintf(path, sizeof path, "indices/%s/x", name);
    ek_tensor *x = ek_to_device(golden("spatial.golden", path), test_device(0));
    assert_made(x);
    return last && ek_tensor_ndim(x) == 4 ? ek_contiguous(x, EK_CHANNELS_LAST) : x;
}

static void assert_positions(const char *name, ek_tensor *y, ek_tensor *index)
{
    char path[64];
    assert_made(y);
    assert_made(index);
    ck_assert_int_eq(ek_tensor_dtype(index), EK_I64);
    ck_assert(!ek_tensor_requires_grad(index));
    snprintf(path, sizeof path, "indices/%s/y", name);
    assert_close(y, golden("spatial.golden", path), 0, 0);
    snprintf(path, sizeof path, "indices/%s/index", name);
    assert_close(index, golden("spatial.golden", path), 0, 0);
}

TEST(positions_of_maxima)
{
    for (int last = 0; last < 2; last++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *i = NULL, *y;
        y = ek_f_max_pool1d(position_input("max_pool1d", last), 3, 2, 1, .indices = &i);
        assert_positions("max_pool1d", y, i);
        y = ek_f_max_pool2d(position_input("max_pool2d", last), 3, 2, 1, .indices = &i);
        assert_positions("max_pool2d", y, i);
        y = ek_f_max_pool3d(position_input("max_pool3d", last), 2, .indices = &i);
        assert_positions("max_pool3d", y, i);
        y = ek_f_max_pool2d(position_input("single", last), 2, .indices = &i);
        assert_positions("single", y, i);
        y = ek_f_max_pool2d(position_input("ties", last), 3, 2, .indices = &i);
        assert_positions("ties", y, i);
        y = ek_f_adaptive_max_pool1d(position_input("adaptive_max_pool1d", last), 3, &i);
        assert_positions("adaptive_max_pool1d", y, i);
        y = ek_f_adaptive_max_pool2d(position_input("adaptive_max_pool2d", last), 4, 2, &i);
        assert_positions("adaptive_max_pool2d", y, i);
        ck_assert(!last || ek_tensor_is_contiguous(y, EK_CHANNELS_LAST));
        y = ek_f_adaptive_max_pool3d(position_input("adaptive_max_pool3d", last), 3, 2, 2, &i);
        assert_positions("adaptive_max_pool3d", y, i);
        y = ek_f_adaptive_max_pool2d(position_input("adaptive_ties", last), 3, 2, &i);
        assert_positions("adaptive_ties", y, i);
        ek_scope_end(&scope);
    }
}

/* A NaN is the largest of its window, as in all pooling. */
TEST(adaptive_maxima_show_nan)
{
    ek_tensor *x = ek_ones(EK_SHAPE(1, 1, 6));
    x = ek_slice_scatter(x, ek_full(NAN, EK_SHAPE(1, 1, 1)), 2, 4, 5, 1);
    ek_tensor *y = ek_f_adaptive_max_pool1d(x, 2, NULL);
    assert_made(y);
    ck_assert_double_eq(element(y, 0), 1);
    ck_assert_double_nan(element(y, 1));
}

TEST(positions_of_scalars)
{
    ek_tensor *x = ek_full(3, ek_scalar_shape()), *index = NULL;
    assert_made(ek_sort(x, 0, true, &index));
    ck_assert_int_eq(ek_tensor_ndim(index), 0);
    assert_made(ek_topk(x, 1, -1, true, &index));
    ck_assert_int_eq(ek_tensor_ndim(index), 0);
    ck_assert_int_eq(ek_tensor_ndim(ek_argmax(x, 0, true)), 0);
    ck_assert_int_eq(ek_tensor_ndim(ek_argsort(x, -1, false)), 0);
    assert_refused(ek_sum(x, EK_DIMS(1)), EK_E_SHAPE, "sum: dimension 1 of a tensor of zero");
    assert_refused(ek_sum(x, EK_DIMS(0, -1)), EK_E_INVALID, "sum: dimension 0 is named twice");
    assert_refused(ek_select(x, 0, 0), EK_E_SHAPE, "select: dimension 0 of a tensor of zero");
    assert_refused(ek_narrow(x, 0, 0, 1), EK_E_SHAPE, "narrow: dimension 0 of a tensor of zero");
    assert_refused(ek_f_softmax(x, 1), EK_E_SHAPE, "softmax: dimension 1 of a tensor of zero");
}

TEST(local_response_norm_of_nothing)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 3, 2), .requires_grad = true);
    ek_tensor *y = ek_f_local_response_norm(x, 2, 1e-4, 0.75, 1);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_ndim(y), 3);
    ck_assert_int_eq(ek_tensor_shape(y).dims[1], 3);
    ck_assert_int_eq(ek_tensor_count(y), 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_ptr_nonnull(ek_tensor_grad(x));
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(1, 2, 4, 4)), *w = ek_ones(EK_SHAPE(2, 2, 3, 3));
    ek_tensor *index = ek_zeros(EK_SHAPE(1, 2, 4, 4), EK_I64);
    assert_refused(ek_f_conv2d(x, w, .padding = EK_SAME, .stride = 2), EK_E_INVALID,
                   "conv2d: EK_SAME goes with a stride of 1");
    assert_refused(ek_f_conv2d(x, w, .padding = EK_SAME, .paddings = {1, 0}), EK_E_INVALID,
                   "conv2d: EK_SAME goes with a stride of 1, no other padding");
    assert_refused(ek_f_conv_transpose2d(x, w, .padding = EK_SAME), EK_E_INVALID,
                   "conv_transpose2d: EK_SAME is not for transposed convolution");
    assert_refused(ek_f_conv2d(x, w, .padding = -2), EK_E_INVALID, "padding must be at least 0");
    assert_refused(ek_f_adaptive_max_pool2d(x, 0, 2, NULL), EK_E_INVALID,
                   "adaptive_max_pool2d: the output must be at least 1, got 0 x 2");
    assert_refused(ek_f_adaptive_max_pool1d(ek_ones(EK_SHAPE(2, 2, 0)), 2, NULL), EK_E_SHAPE,
                   "adaptive_max_pool1d: x must have a length from 1");
    assert_refused(ek_f_max_unpool2d(x, ek_zeros(EK_SHAPE(1, 2, 4, 3), EK_I64), 2), EK_E_SHAPE,
                   "max_unpool2d: indices has shape");
    assert_refused(ek_f_max_unpool2d(x, index, 2, .sizes = {8, 10}), EK_E_INVALID,
                   "max_unpool2d: the result's width is 10; it must be positive, and differ from 8 "
                   "by less than the stride, 2");
    assert_refused(settled_tensor(ek_f_max_unpool2d(x, ek_add_scalar(index, 64), 2)), EK_E_INVALID,
                   "64");
    assert_refused(ek_f_max_unpool2d(x, x, 2), EK_E_DTYPE, "scatter_dim: index has dtype f32");
    ek_tensor *volume = ek_ones(EK_SHAPE(1, 1, 1, 1, 1)), *first = ek_zeros_like(volume);
    assert_refused(
        ek_f_max_unpool3d(volume, ek_to_dtype(first, EK_I64), 1 << 22), EK_E_SHAPE,
        "max_unpool3d: shape [1, 1, 4194304, 4194304, 4194304] is negative or too large");
    assert_refused(ek_f_lp_pool2d(x, 0, 2), EK_E_INVALID, "lp_pool2d: norm_type is 0");
    assert_refused(ek_f_lp_pool1d(x, 2, 0), EK_E_INVALID, "lp_pool1d: kernel must be at least 1");
    assert_refused(ek_f_local_response_norm(x, 0, 1, 1, 1), EK_E_SHAPE, "and size 0");
    assert_refused(ek_f_bilinear(x, x, w, NULL), EK_E_SHAPE, "bilinear: expected x (..., in1)");
}
