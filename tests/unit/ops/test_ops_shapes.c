/* Views, memory order, copies between dtypes and devices, pieces, positions. */
#include <limits.h>

#include "core/tensor.h"

#include "home.h"

static ek_tensor *ramp(ek_shape shape, ek_dtype dtype)
{
    return ek_reshape(ek_arange(ek_shape_count(&shape), dtype, test_home()), shape);
}

static ek_tensor *channels_last(ek_shape shape)
{
    ek_tensor *x = ek_contiguous(ramp(shape, EK_F32), EK_CHANNELS_LAST);
    assert_made(x);
    ck_assert(ek_tensor_is_contiguous(x, EK_CHANNELS_LAST));
    return x;
}

static void assert_shape(const ek_tensor *x, ek_shape wanted)
{
    assert_made(x);
    ek_shape shape = ek_tensor_shape(x);
    char text[160], text_wanted[160];
    if (!ek_shape_equal(&shape, &wanted))
        ck_abort_msg("shape %s, wanted %s", ek_shape_text(&shape, text),
                     ek_shape_text(&wanted, text_wanted));
}

static bool shares(const ek_tensor *x, const ek_tensor *y)
{
    const char *begin = ek_tensor_address(y);
    const char *at = ek_tensor_address(x);
    return at >= begin && at < begin + (size_t)ek_tensor_count(y) * 8;
}

/* ---- memory order ---- */

TEST(channels_last_stays)
{
    ek_tensor *x = channels_last(EK_SHAPE(2, 3, 4, 5)), *bias = ek_ones(EK_SHAPE(1, 3, 1, 1));
    ek_tensor *row_major = ramp(EK_SHAPE(2, 3, 4, 5), EK_F32);
    ek_tensor *results[] = {ek_f_relu(x),
                            ek_add(x, bias),
                            ek_add(bias, x),
                            ek_add(x, row_major),
                            ek_where(ek_gt(x, bias), bias, x),
                            ek_clone(x),
                            ek_to_dtype(x, EK_F64),
                            ek_to_device(x, test_device(0)),
                            ek_slice(x, 0, 1, 2, 1),
                            ek_clone(ek_slice(x, 2, 1, 3, 1)),
                            ek_cat((ek_tensor *const[]){x, x}, 2, 1)};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        assert_made(results[i]);
        ck_assert_msg(ek_tensor_is_contiguous(results[i], EK_CHANNELS_LAST), "result %zu", i);
    }
    ck_assert(ek_tensor_is_contiguous(ek_add(row_major, x), EK_CONTIGUOUS));
    ck_assert(
        ek_tensor_is_contiguous(ek_cat((ek_tensor *const[]){x, row_major}, 2, 1), EK_CONTIGUOUS));
    assert_close(ek_add(x, row_major), ek_mul_scalar(row_major, 2), 0, 0);
    ck_assert(ek_contiguous(x, EK_CHANNELS_LAST) == x);
    /* What has gaps decides last. */
    ek_tensor *gaps = ek_slice(ramp(EK_SHAPE(2, 3, 4, 10), EK_F32), 3, 0, 10, 2);
    ck_assert(ek_tensor_is_contiguous(ek_add(gaps, x), EK_CHANNELS_LAST));
    ck_assert(ek_tensor_is_contiguous(ek_add(gaps, bias), EK_CONTIGUOUS));
}

/* ---- views ---- */

TEST(views_share_memory_and_version)
{
    ek_tensor *x = ramp(EK_SHAPE(2, 3, 4), EK_F64);
    ek_tensor *views[] = {ek_reshape(x, EK_SHAPE(6, 4)),
                          ek_f_flatten(x, 0, -1),
                          ek_unsqueeze(x, -1),
                          ek_permute(x, EK_SHAPE(2, 0, 1)),
                          ek_slice(x, 1, 1, 3, 1),
                          ek_narrow(x, 2, 1, 2),
                          ek_select(x, 0, 1),
                          ek_expand(x, EK_SHAPE(5, 2, 3, 4)),
                          ek_reshape(ek_slice(x, 2, 0, 4, 2), EK_SHAPE(6, 2)),
                          ek_squeeze(ek_unsqueeze(x, 0), 0),
                          ek_transpose(x, 0, 1)};
    uint64_t before = ek_tensor_version(x);
    ek_fill_(x, 7);
    ck_assert_uint_eq(ek_tensor_version(x), before + 1);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        assert_made(views[i]);
        ck_assert_msg(shares(views[i], x), "view %zu", i);
        ck_assert_uint_eq(ek_tensor_version(views[i]), before + 1);
        ck_assert(element(views[i], 1) == 7);
    }
    ck_assert(!shares(ek_reshape(ek_transpose(x, 0, 2), EK_SHAPE(24)), x));
    ck_assert(!shares(ek_clone(x), x));
}

TEST(reshape_keeps_the_order)
{
    ek_tensor *x = ramp(EK_SHAPE(2, 3, 4), EK_F64);
    ek_tensor *copied = ek_reshape(ek_permute(x, EK_SHAPE(2, 0, 1)), EK_SHAPE(4, -1));
    assert_shape(copied, EK_SHAPE(4, 6));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 6; j++)
            ck_assert(element(copied, 6 * i + j) == 4 * j + i);
    assert_shape(ek_reshape(ek_ones(EK_SHAPE(1, 1)), ek_scalar_shape()), ek_scalar_shape());
    assert_shape(ek_reshape(ek_ones(ek_scalar_shape()), EK_SHAPE(1, 1)), EK_SHAPE(1, 1));
    assert_shape(ek_reshape(ek_ones(EK_SHAPE(0, 3)), EK_SHAPE(3, 0, 2)), EK_SHAPE(3, 0, 2));
    assert_shape(ek_f_flatten(channels_last(EK_SHAPE(2, 3, 4, 5)), 1, -1), EK_SHAPE(2, 60));
    assert_close(ek_f_flatten(channels_last(EK_SHAPE(2, 3, 4, 5)), 1, -1),
                 ramp(EK_SHAPE(2, 60), EK_F32), 0, 0);
}

TEST(shape_errors_say_what)
{
    ek_tensor *x = ramp(EK_SHAPE(2, 3), EK_F64);
    assert_refused(ek_add(x, ek_ones(EK_SHAPE(4), EK_F64)), EK_E_SHAPE,
                   "add: shapes [2, 3] and [4] do not broadcast (dimension 1: 3 and 4)");
    assert_refused(ek_reshape(x, EK_SHAPE(4, -1)), EK_E_SHAPE,
                   "reshape: [2, 3] (6 elements) does not fit [4, -1]");
    assert_refused(ek_permute(x, EK_SHAPE(0, 0)), EK_E_SHAPE,
                   "order [0, 0] must name each of 2 dimensions once");
    assert_refused(ek_expand(x, EK_SHAPE(2, 4)), EK_E_SHAPE,
                   "expand: shape [2, 3] does not broadcast to [2, 4]");
    ek_tensor *one = ek_ones(EK_SHAPE(1, 1)), *many = ek_expand(one, EK_SHAPE(1, INT64_C(1) << 40));
    ck_assert_ptr_null(ek_expand(one, EK_SHAPE(3, 6148914691236517206))); /* 2 modulo 2^64 */
    assert_error(EK_E_SHAPE, "too large in dimension 1");
    assert_refused(ek_add(many, ek_transpose(many, 0, 1)), EK_E_SHAPE, "too large in dimension 1");
    assert_refused(ek_squeeze(x, 2), EK_E_SHAPE, "squeeze: dimension 2 is not in [-2, 1]");
    assert_refused(ek_narrow(x, 1, 2, 2), EK_E_INVALID,
                   "narrow: 2 elements from 2 on are not in dimension 1 of 3");
    assert_refused(ek_select(x, 0, 2), EK_E_INVALID, "select: index 2 is not in dimension 0 of 2");
    assert_refused(ek_slice(x, 0, 0, 2, 0), EK_E_INVALID, "slice: step is 0");
    assert_refused(ek_cat((ek_tensor *const[]){x, ek_ones(EK_SHAPE(2, 2), EK_F64)}, 2, 0),
                   EK_E_SHAPE, "cat: shapes [2, 3] and [2, 2] (tensor 1) differ");
    assert_refused(ek_stack((ek_tensor *const[]){x, x}, 2, -4), EK_E_SHAPE,
                   "stack: dimension -4 is not in [-3, 2]");
    assert_refused(ek_sum_to(x, EK_SHAPE(2, 2)), EK_E_SHAPE,
                   "sum_to: [2, 2] does not broadcast to [2, 3]");
    assert_refused(ek_sum(x, EK_DIMS(1, -1)), EK_E_INVALID, "sum: dimension 1 is named twice");
    assert_refused(ek_f_relu(NULL), EK_E_INVALID, "relu: x is NULL");
    assert_refused(ek_add(x, ek_exp(ek_select(x, 0, 9))), EK_E_INVALID, "select: index 9");
    ck_assert_int_eq(ek_error_status(), 0);
}

/* ---- pieces ---- */

TEST(chunks_are_torchs)
{
    static const struct {
        int64_t n;
        int k, count;
        int64_t sizes[5];
    } table[] = {{10, 4, 4, {3, 3, 3, 1}},  {5, 4, 3, {2, 2, 1}}, {3, 5, 3, {1, 1, 1}},
                 {0, 3, 3, {0, 0, 0}},      {8, 2, 2, {4, 4}},    {7, 1, 1, {7}},
                 {9, 5, 5, {2, 2, 2, 2, 1}}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t sizes[5];
        ek_tensor *out[5];
        ck_assert_int_eq(ek_chunk_sizes(table[i].n, table[i].k, sizes), table[i].count);
        ck_assert_int_eq(ek_chunk(ek_ones(EK_SHAPE(2, table[i].n)), table[i].k, 1, out, 5),
                         table[i].count);
        for (int j = 0; j < table[i].count; j++) {
            ck_assert_int_eq(sizes[j], table[i].sizes[j]);
            assert_shape(out[j], EK_SHAPE(2, table[i].sizes[j]));
        }
    }
    int64_t sizes[1];
    assert_refused(ek_chunk_sizes(3, 0, sizes), EK_E_INVALID, "3 elements into 0 chunks");
}

TEST(split_says_when_there_is_no_room)
{
    ek_tensor *x = ramp(EK_SHAPE(7, 2), EK_F32), *out[4];
    ck_assert_int_eq(ek_split(x, 2, 0, out, 4), 4);
    assert_shape(out[3], EK_SHAPE(1, 2));
    ck_assert(shares(out[3], x) && element(out[3], 1) == 13);
    assert_refused(ek_split(x, 2, 0, out, 3), EK_E_INVALID,
                   "split: there are 4 pieces and room for 3");
    const int64_t sizes[] = {3, 3};
    assert_refused(ek_split_sizes(x, sizes, 2, 0, out), EK_E_SHAPE,
                   "2 sizes add up to 6, and dimension 0 is 7");
}

TEST(many_tensors_join)
{
    ek_tensor *parts[40], *gradients[40];
    for (int i = 0; i < 40; i++)
        parts[i] = ek_full(i, EK_SHAPE(2, i % 3), .requires_grad = true);
    ek_tensor *y = ek_cat(parts, 40, 1);
    assert_shape(y, EK_SHAPE(2, 39));
    y = ek_sum(ek_mul(y, y));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = parts, .input_count = 40,
                      .gradients = gradients));
    for (int i = 0; i < 40; i++)
        assert_close(gradients[i], ek_full(2 * i, EK_SHAPE(2, i % 3)), 0, 0);
}

/* ---- positions and integers ---- */

TEST(positions_are_checked)
{
    ek_tensor *x = ramp(EK_SHAPE(3, 2), EK_F32);
    const double out_of_range[] = {0, 3};
    ek_tensor *index = tensor_of(out_of_range, EK_SHAPE(2), EK_I64, test_home());
    assert_refused(settled_tensor(ek_index_select(x, 0, index)), EK_E_INVALID, "3");
    assert_refused(settled_tensor(ek_gather_dim(x, 0, ek_unsqueeze(index, 0))), EK_E_INVALID, "3");
    assert_refused(ek_scatter_add_dim(x, 0, ek_ones(EK_SHAPE(2, 2), EK_I64), EK_SHAPE(3, 2)),
                   EK_E_SHAPE, "index has shape [2, 2] and must have [3, 2]");
    assert_refused(ek_index_select(x, 0, ek_ones(EK_SHAPE(2))), EK_E_DTYPE,
                   "index has dtype f32 and must have i64");
}

TEST(integers_compute)
{
    const double a[] = {3, -1, 2, 2}, b[] = {1, -1, 5, 0};
    ek_tensor *x = tensor_of(a, EK_SHAPE(4), EK_I64, test_home());
    ek_tensor *y = tensor_of(b, EK_SHAPE(4), EK_I64, test_home());
    const double sum[] = {4, -2, 7, 2}, product[] = {3, 1, 10, 0}, equal[] = {0, 1, 0, 0};
    assert_close(ek_add(x, y), tensor_of(sum, EK_SHAPE(4), EK_I64, test_home()), 0, 0);
    assert_close(ek_mul(x, y), tensor_of(product, EK_SHAPE(4), EK_I64, test_home()), 0, 0);
    assert_close(ek_eq(x, y), tensor_of(equal, EK_SHAPE(4), EK_BOOL, test_home()), 0, 0);
    ek_tensor *total = ek_sum(ek_eq(x, x));
    ck_assert_int_eq(ek_tensor_dtype(total), EK_I64);
    ck_assert(element(total, 0) == 4);
    ck_assert(element(ek_argmax(x, 0, false), 0) == 0);
    ck_assert(element(ek_max_dim(y, 0, false), 0) == 5);
    assert_shape(ek_argmax(ramp(EK_SHAPE(2, 3), EK_F32), 1, true), EK_SHAPE(2, 1));
    assert_refused(ek_div(x, y), EK_E_DTYPE,
                   "div: x has dtype i64; convert it to a floating dtype");
    assert_refused(ek_add(x, ek_ones(EK_SHAPE(4))), EK_E_DTYPE,
                   "add: operands of dtype i64 and f32");
}

TEST(created_tensors_have_their_values)
{
    assert_close(ek_full(2.5, EK_SHAPE(2, 2), EK_BF16),
                 tensor_of((const double[]){2.5, 2.5, 2.5, 2.5}, EK_SHAPE(2, 2), EK_BF16,
                           test_home()),
                 0, 0);
    ek_tensor *count = ek_arange(5, EK_F64, test_device(0));
    for (int i = 0; i < 5; i++)
        ck_assert(element(count, i) == i);
    ck_assert_int_eq(ek_tensor_device(count).kind, test_kind());
    ck_assert(element(ek_scalar(-3, EK_I64, test_home()), 0) == -3);
    ek_tensor *leaf = ek_zeros(EK_SHAPE(3), .requires_grad = true);
    ck_assert(ek_tensor_requires_grad(leaf) && ek_tensor_is_leaf(leaf));
    assert_refused(ek_arange(-1, EK_F32, test_home()), EK_E_INVALID, "arange: count is -1");
}

/* ---- devices ---- */

TEST(devices_are_crossed_and_come_back)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), .requires_grad = true);
    ek_tensor *moved = ek_to_device(ek_transpose(ek_mul_scalar(x, 3), 0, 1), test_device(0));
    assert_shape(moved, EK_SHAPE(3, 2));
    ck_assert_int_eq(ek_tensor_device(moved).kind, test_kind());
    ek_tensor *scaled = ek_mul(moved, ek_scalar(2, EK_F32, test_home()));
    assert_made(scaled);
    assert_ok(ek_backward(ek_sum(ek_slice(scaled, 0, 0, 2, 1))));
    const double wanted[] = {6, 6, 0, 6, 6, 0};
    assert_close(ek_tensor_grad(x), tensor_of(wanted, EK_SHAPE(2, 3), EK_F32, test_home()), 0, 0);
    ck_assert(ek_to_device(x, test_home()) == x);
    ek_tensor *one = ek_scalar(1, EK_F32, test_home());
    ek_tensor *chosen = ek_where(ek_gt(moved, one), one, ek_mul_scalar(one, 0));
    ck_assert_int_eq(ek_tensor_device(chosen).kind, test_kind());
    ck_assert(element(chosen, 0) == 1);
    assert_refused(ek_add(moved, ek_to_device(ek_ones(EK_SHAPE(3, 2)), ek_cpu())), EK_E_DEVICE,
                   "add: operands on host:0 and cpu");
    /* A slice with gaps, into a tensor of another dtype on another device. */
    ek_tensor *target = ek_zeros(EK_SHAPE(2, 2), EK_F64, test_device(0));
    assert_made(ek_copy_(target, ek_slice(ramp(EK_SHAPE(2, 4), EK_F32), 1, 0, 4, 2)));
    const double copied[] = {0, 2, 4, 6};
    assert_close(target, tensor_of(copied, EK_SHAPE(2, 2), EK_F64, test_home()), 0, 0);
}

/* Many gradients meet in one element: more than bf16 could count one by one. */
TEST(bf16_gradients_meet_at_an_index)
{
    enum { COUNT = 1000 };
    ek_tensor *index = ek_zeros(EK_SHAPE(COUNT, 1), EK_I64);
    for (int i = 0; i < 3; i++) {
        ek_tensor *x = ek_ones(EK_SHAPE(2, 1), EK_BF16, .requires_grad = true);
        ek_tensor *y = i == 0   ? ek_index_select(x, 0, ek_reshape(index, EK_SHAPE(COUNT)))
                       : i == 1 ? ek_gather_dim(x, 0, index)
                                : ek_max_dim(ek_expand(x, EK_SHAPE(2, COUNT)), 0, false);
        assert_ok(ek_backward(ek_sum(y)));
        const double wanted[] = {COUNT, 0};
        assert_close(ek_tensor_grad(x), tensor_of(wanted, EK_SHAPE(2, 1), EK_BF16, test_home()), 0,
                     0);
    }
    ek_tensor *x = ek_ones(EK_SHAPE(COUNT, 1), EK_BF16, .requires_grad = true);
    ek_tensor *y = ek_scatter_add_dim(x, 0, index, EK_SHAPE(2, 1));
    assert_made(y);
    ck_assert(element(y, 0) == COUNT);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert(element(ek_tensor_grad(x), 7) == 1);
}

TEST(sizes_beyond_64_bits_are_refused)
{
    const int64_t huge = (int64_t)1 << 32;
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *empty = ek_ones(EK_SHAPE(0, 3)), *parts[2];
    /* Products of sizes that wrap to 0, and a sum that wraps to 2. */
    assert_refused(ek_reshape(empty, EK_SHAPE(huge, huge)), EK_E_SHAPE,
                   "reshape: [0, 3] (0 elements) does not fit");
    assert_refused(ek_reshape(empty, EK_SHAPE(0, huge, huge)), EK_E_SHAPE,
                   "reshape: [0, 3] (0 elements) does not fit");
    assert_refused(ek_split_sizes(x, (const int64_t[]){INT64_MAX, INT64_MAX, 4}, 3, 0, parts),
                   EK_E_SHAPE, "split_sizes: 3 sizes add up to");
    assert_shape(ek_slice(x, 0, 0, 2, INT64_MAX), EK_SHAPE(1, 3));
    assert_refused(ek_sum_to(x, (ek_shape){.ndim = -1}), EK_E_SHAPE, "sum_to");
}

TEST(pieces_need_a_place)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *parts[2];
    assert_refused(ek_split(x, 1, 0, NULL, 2), EK_E_INVALID, "split: out is NULL");
    assert_refused(ek_chunk(x, 2, 0, NULL, 2), EK_E_INVALID, "chunk: out is NULL");
    assert_refused(ek_split_sizes(x, NULL, 2, 0, parts), EK_E_INVALID,
                   "split_sizes: sizes is NULL");
    assert_refused(ek_chunk_sizes(2, 2, NULL), EK_E_INVALID, "chunk: sizes is NULL");
}

/* Sizes and strides of views that repeat elements, or were cut again and again. */
TEST(nothing_overflows)
{
    ek_tensor *longest = ek_expand(ek_ones(EK_SHAPE(1)), EK_SHAPE(1LL << 58)), *many[64];
    for (int i = 0; i < 64; i++)
        many[i] = longest;
    ck_assert_ptr_null(ek_cat(many, 64, 0)); /* 2^64 */
    assert_error(EK_E_SHAPE, "cat: 64 tensors are too long in dimension 0");
    assert_refused(ek_cat(many, 4, 0), EK_E_SHAPE, "too large in dimension 0");

    ek_shape none = {.ndim = INT_MIN};
    ek_tensor *y = ek_ones(EK_SHAPE(4, 3));
    assert_refused(ek_sum_to(y, none), EK_E_SHAPE, "does not broadcast");
    assert_refused(ek_expand(y, none), EK_E_SHAPE, "does not broadcast");
    assert_refused(ek_f_layer_norm(y, INT_MIN, NULL, NULL, 1e-5), EK_E_SHAPE, "cannot normalise");
    assert_refused(ek_f_affine_grid(y, none, true), EK_E_SHAPE, "the size must be");
    ek_tensor *first = ek_slice_scatter(y, ek_zeros(EK_SHAPE(1, 3)), 0, 0, 4, INT64_MAX);
    const float column[] = {0, 1, 1, 1};
    ek_tensor *rows = ek_from_data(column, EK_SHAPE(4, 1), EK_F32);
    assert_close(first, ek_expand(rows, EK_SHAPE(4, 3)), 0, 0);

    ek_tensor *x = ek_ones(EK_SHAPE(3, 2));
    for (int i = 0; i < 70; i++)
        x = ek_slice(x, 0, 0, 1, 2);
    assert_made(x);
    ck_assert_int_eq(ek_tensor_strides(x).dims[0], 2);
    assert_close(x, ek_ones(EK_SHAPE(1, 2)), 0, 0);
}
