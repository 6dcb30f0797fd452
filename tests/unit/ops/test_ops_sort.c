/* Order, choice and counting: positions, ties, NaN and infinities, long lines, drawn positions,
 * against PyTorch's; what is refused. */
#include <limits.h>

#include "kit/devices.h"
#include "kit/tensors.h"

#include "home.h"

FIXTURE(two_devices, NULL)

static ek_tensor *order(const char *name, const char *key)
{
    char text[64];
    snprintf(text, sizeof text, "%s/%s", name, key);
    return golden("rearrange.golden", text);
}

static bool alike(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

/* The same numbers; NaN is NaN. */
static void assert_same(ek_tensor *a, ek_tensor *b)
{
    ek_shape shape = ek_tensor_shape(b);
    assert_made(a);
    ek_shape own = ek_tensor_shape(a);
    ck_assert(ek_shape_equal(&own, &shape));
    for (int64_t i = 0; i < ek_tensor_count(b); i++)
        ck_assert_msg(alike(element(a, i), element(b, i)), "element %lld: %g, wanted %g",
                      (long long)i, element(a, i), element(b, i));
}

static const ek_dtype floats[] = {EK_F64, EK_F32, EK_BF16};

/* Whole numbers are the same in all dtypes. */
TEST_LOOP(ties_and_nans_are_in_the_order_of_pytorch, 0, 3)
{
    const char *names[] = {"order/ties", "order/many"};
    for (int n = 0; n < 2; n++) {
        char key[64];
        for (int descending = 0; descending < 2; descending++) {
            snprintf(key, sizeof key, "%s/%d", names[n], descending);
            ek_tensor *x = ek_to_dtype(order(key, "x"), floats[_i]), *index = NULL;
            ek_tensor *y = ek_sort(x, 1, descending, &index);
            assert_same(y, order(key, "y"));
            assert_same(index, order(key, "index"));
            assert_same(ek_argsort(ek_transpose(x, 0, 1), 0, descending),
                        ek_transpose(order(key, "index"), 0, 1));
            assert_same(ek_topk(x, 4, 1, true, &index), order(names[n], "top"));
            assert_same(ek_gather_dim(x, 1, index), order(names[n], "top"));
            assert_same(ek_topk(x, 4, 1, false, NULL), order(names[n], "least"));
            assert_same(ek_kthvalue(x, 4, 1, false, &index), order(names[n], "kth"));
            assert_same(ek_squeeze(ek_gather_dim(x, 1, ek_unsqueeze(index, 1)), 1),
                        order(names[n], "kth"));
        }
    }
}

/* Lines that take more than one tile of a GPU, and heaps. */
TEST_LOOP(long_lines_are_sorted, 0, 5)
{
    const int64_t lines = 2, sizes[] = {49, 2049};
    const ek_dtype dtypes[] = {EK_F64, EK_F32, EK_BF16, EK_I64, EK_U8};
    for (int s = 0; s < 2; s++)
        for (int descending = 0; descending < 2; descending++)
            for (int part = 0; part < 3; part++) {
                ek_scope scope = ek_scope_begin();
                ek_manual_seed(5);
                const int64_t n = sizes[s], k = part == 0 ? n : part == 1 ? 7 : n / 3;
                ek_tensor *x = ek_randint(0, 200, EK_SHAPE(lines, n)), *index = NULL;
                x = ek_to_dtype(ek_to_device(x, test_device(0)), dtypes[_i]);
                ek_tensor *y = ek_topk(x, k, 1, descending, &index);
                assert_made(y);
                for (int64_t line = 0; line < lines; line++)
                    for (int64_t i = 0; i < k; i++) {
                        double here = element(y, line * k + i), at = element(index, line * k + i);
                        ck_assert(element(x, line * n + (int64_t)at) == here);
                        if (i == 0)
                            continue;
                        double last = element(y, line * k + i - 1);
                        double last_at = element(index, line * k + i - 1);
                        ck_assert(descending ? here <= last : here >= last);
                        ck_assert(here != last || at > last_at);
                    }
                /* Nothing beyond the first k is better than the last of them. */
                ek_tensor *all = ek_sort(x, 1, descending, NULL);
                assert_same(ek_narrow(all, 1, 0, k), y);
                ek_scope_end(&scope);
                if (test_is_short())
                    break;
            }
}

TEST(numbers_far_apart_are_sorted)
{
    const double values[] = {-1e300, 5, -0.0, 1e-310, -1e-310, 0, INFINITY, -5, 1e300, -INFINITY};
    const double wanted[] = {9, 0, 7, 4, 2, 5, 3, 1, 8, 6};
    ek_tensor *x = tensor_of(values, EK_SHAPE(10), EK_F64, test_home());
    assert_same(ek_argsort(x, 0, false), tensor_of(wanted, EK_SHAPE(10), EK_I64, test_home()));
    ck_assert(signbit(element(ek_sort(x, 0, false, NULL), 4)));
    const int64_t whole[] = {INT64_MAX, -1, INT64_MIN, 0, INT64_MAX - 1};
    const double order_of_whole[] = {2, 1, 3, 4, 0};
    assert_same(ek_argsort(ek_from_data(whole, EK_SHAPE(5), EK_I64), 0, false),
                tensor_of(order_of_whole, EK_SHAPE(5), EK_I64, test_home()));
}

/* The difference of two numbers of i32 needs more than 32 bits. */
TEST(i32_of_both_signs_is_sorted)
{
    const int32_t values[] = {-1, 1, 0, INT32_MIN};
    const double down[] = {1, 2, 0, 3}, up[] = {3, 0, 2, 1};
    ek_tensor *x = ek_to_device(ek_from_data(values, EK_SHAPE(4), EK_I32), test_device(0)), *index;
    assert_same(ek_argsort(x, 0, true), tensor_of(down, EK_SHAPE(4), EK_I64, test_home()));
    assert_same(ek_argsort(x, 0, false), tensor_of(up, EK_SHAPE(4), EK_I64, test_home()));
    assert_made(ek_topk(x, 2, 0, true, &index));
    assert_same(index, tensor_of(down, EK_SHAPE(2), EK_I64, test_home()));
    /* Long lines are sorted by their bytes, and few positions of them by a heap. */
    x = ek_to_dtype(ek_add_scalar(ek_arange(1000, EK_I64, test_device(0)), -500), EK_I32);
    ek_tensor *sorted = ek_sort(x, 0, true, NULL);
    assert_same(sorted, ek_flip(x, EK_SHAPE(0)));
    assert_same(ek_topk(x, 7, 0, true, NULL), ek_narrow(sorted, 0, 0, 7));
}

TEST(empty_lines_are_sorted)
{
    ek_tensor *none = ek_zeros(EK_SHAPE(2, 0)), *index = NULL;
    assert_same(ek_sort(none, 1, false, &index), none);
    assert_same(index, ek_zeros(EK_SHAPE(2, 0), EK_I64));
    assert_same(ek_topk(ek_zeros(EK_SHAPE(2, 3)), 0, 1, true, NULL), none);
    assert_same(ek_nonzero(ek_zeros(EK_SHAPE(2, 3))), ek_zeros(EK_SHAPE(0, 2), EK_I64));
    assert_same(ek_unique(none, NULL, NULL), ek_zeros(EK_SHAPE(0)));
    assert_same(ek_bincount(ek_zeros(EK_SHAPE(0), EK_I64), NULL, 0), ek_zeros(EK_SHAPE(0), EK_I64));
    assert_same(ek_searchsorted(ek_zeros(EK_SHAPE(0)), ek_ones(EK_SHAPE(2)), false),
                ek_zeros(EK_SHAPE(2), EK_I64));
}

TEST(choices_are_pytorchs)
{
    ek_tensor *inverse, *counts, *x = order("unique", "x");
    assert_same(ek_unique(x, &inverse, &counts), order("unique", "y"));
    assert_same(inverse, order("unique", "inverse"));
    assert_same(counts, order("unique", "counts"));
    assert_same(ek_nonzero(order("nonzero", "x")), order("nonzero", "y"));
    x = order("bincount", "x");
    assert_same(ek_bincount(x, NULL, 0), order("bincount", "y"));
    assert_same(ek_bincount(x, NULL, 9), order("bincount", "longer"));
    assert_close(ek_bincount(x, order("bincount", "w"), 0), order("bincount", "weighted"), 1e-14,
                 0);
    for (int i = 0; i < 3; i++) {
        ek_tensor *lines = ek_to_dtype(order("searchsorted", "lines"), floats[i]);
        x = ek_to_dtype(order("searchsorted", "x"), floats[i]);
        assert_same(ek_searchsorted(lines, x, false), order("searchsorted", "left"));
        assert_same(ek_searchsorted(lines, x, true), order("searchsorted", "right"));
        assert_same(ek_bucketize(x, ek_select(lines, 0, 0), false),
                    order("searchsorted", "buckets"));
    }
    const double nans[] = {(double)NAN, 1, (double)NAN}, places[] = {1, 0, 2};
    ck_assert_int_eq(ek_tensor_count(ek_unique(tensor_of(nans, EK_SHAPE(3), EK_F32, test_home()),
                                               &inverse, NULL)),
                     3);
    assert_same(inverse, tensor_of(places, EK_SHAPE(3), EK_I64, test_home()));
}

TEST(rows_of_numbers_are_pytorchs)
{
    assert_close(ek_arange_step(1, 2.5, 0.3, EK_F64, test_home()), order("rows", "arange"), 1e-15,
                 0);
    assert_same(ek_arange_step(10, -3, -4, EK_I64, test_home()), order("rows", "whole"));
    assert_close(ek_linspace(-1, 2, 7, EK_F64, test_home()), order("rows", "linspace"), 1e-15, 0);
    ek_tensor *numbers = order("rows", "floats");
    for (int n = 2, at = 0; n < 16; at += n++) /* to the bit */
        assert_same(ek_linspace(-1, 0.1 * n, n, EK_F32, test_home()), ek_narrow(numbers, 0, at, n));
    assert_same(ek_eye(2, 3, EK_F64, test_home()), order("rows", "eye"));
    ek_tensor *x = ek_transpose(ek_ones(EK_SHAPE(2, 3), EK_F64), 0, 1);
    assert_same(ek_full_like(x, 2.5), ek_full(2.5, EK_SHAPE(3, 2), EK_F64));
    assert_same(ek_zeros_like(x), ek_zeros(EK_SHAPE(3, 2)));
    assert_same(ek_ones_like(x), x);
    ck_assert_int_eq(ek_tensor_strides(ek_ones_like(x)).dims[0], 1);
    ek_manual_seed(3);
    ek_tensor *uniform = ek_rand_like(x), *normal_numbers = ek_randn_like(x);
    ek_manual_seed(3);
    assert_same(uniform, ek_transpose(ek_rand(EK_SHAPE(2, 3), EK_F64), 0, 1));
    assert_same(normal_numbers, ek_transpose(ek_randn(EK_SHAPE(2, 3), EK_F64), 0, 1));
}

TEST(drawn_positions_are_pytorchs)
{
    const char *names[] = {"vector", "rows", "one", "replaced", "vector_replaced", "all"};
    ek_generator *generator = ek_generator_new(0);
    for (int i = 0; i < 12; i++) {
        char key[64];
        snprintf(key, sizeof key, "multinomial/%s/%s", names[i / 2], i % 2 ? "f64" : "f32");
        ek_generator_seed(generator, 77);
        ek_tensor *drawn = ek_multinomial(ek_to_device(order(key, "p"), test_device(0)),
                                          (int64_t)element(order(key, "options"), 0),
                                          element(order(key, "options"), 1) != 0, generator);
        for (int64_t k = 0; k < ek_tensor_count(drawn); k++)
            ck_assert_msg(element(drawn, k) == element(order(key, "drawn"), k), "%s: %lld", key,
                          (long long)k);
        ek_tensor *next = ek_zeros(EK_SHAPE(1), EK_F64);
        assert_ok(ek_uniform_(next, 0, 1, generator));
        assert_same(next, order(key, "next"));
    }
    ek_generator_free(generator);
}

/* Of many small numbers: a flip takes x's memory once more, and counts a part of it. */
TEST_LOOP(bytes_take_the_memory_of_bytes, 0, 2)
{
    const int64_t count = (1 << 21) + 5;
    ek_tensor *x =
        ek_to_device(ek_remainder_scalar(ek_arange(count, EK_I64, ek_cpu()), 251), test_home());
    x = ek_to_dtype(x, _i ? EK_I32 : EK_U8);
    assert_made(x);
    ek_memory_stats before, after;
    assert_ok(ek_memory_reset_peak(test_home()));
    assert_ok(ek_memory_get_stats(test_home(), &before));
    ek_tensor *y = ek_flip(x, EK_SHAPE(0));
    assert_ok(ek_memory_get_stats(test_home(), &after));
    ck_assert_uint_le(after.peak - before.in_use,
                      (uint64_t)count * ek_dtype_size(ek_tensor_dtype(x)) + 4096);
    ck_assert_double_eq(element(y, 0), (double)((count - 1) % 251));
    ck_assert_double_eq(element(y, count - 3), 2);
    assert_ok(ek_memory_reset_peak(test_home()));
    before = after;
    ek_tensor *counts = ek_bincount(x, NULL, 300);
    assert_ok(ek_memory_get_stats(test_home(), &after));
    ck_assert_int_eq(ek_tensor_size(counts, 0), 300);
    for (int i = 0; i < 300; i++)
        ck_assert_double_eq(element(counts, i),
                            (double)(i < 251 ? count / 251 + (i < count % 251) : 0));
    ck_assert_msg(after.peak - before.in_use < 18u << 20, "%llu bytes",
                  (unsigned long long)(after.peak - before.in_use));
}

/* With Philox: repeatable, by the uniforms of ek_uniform_, and in proportion. */
TEST(philox_draws_in_proportion)
{
    ek_generator *generator = ek_generator_new(9);
    assert_ok(ek_generator_set_engine(generator, EK_RANDOM_PHILOX));
    const double p[] = {1, 0, 3, 4};
    ek_tensor *mass = tensor_of(p, EK_SHAPE(4), EK_F32, test_device(0));
    ek_tensor *drawn = ek_multinomial(mass, 8000, true, generator);
    ek_tensor *counts = ek_bincount(drawn, NULL, 4);
    for (int i = 0; i < 4; i++)
        ck_assert(fabs(element(counts, i) - 1000 * p[i]) < 150);
    ck_assert(element(counts, 1) == 0);
    ek_generator_seed(generator, 9);
    assert_same(ek_multinomial(mass, 8000, true, generator), drawn);
    drawn = ek_multinomial(mass, 3, false, generator);
    assert_same(ek_bincount(drawn, NULL, 0),
                tensor_of((const double[]){1, 0, 1, 1}, EK_SHAPE(4), EK_I64, test_home()));
    ek_generator_free(generator);
}

/* Cumulative sums and quotients of 16 bits would favour the first classes. */
TEST_LOOP(sixteen_bits_are_drawn_in_proportion, 0, 2)
{
    const ek_dtype dtype = _i ? EK_F16 : EK_BF16;
    ek_generator *generator = ek_generator_new(3);
    ek_tensor *even = ek_ones(EK_SHAPE(4096), dtype);
    ek_tensor *drawn = ek_multinomial(even, 4000, true, generator);
    ek_tensor *upper = ek_sum(ek_ge_scalar(drawn, 2048));
    ck_assert(fabs(element(upper, 0) - 2000) < 150);
    drawn = ek_multinomial(ek_full(60000, EK_SHAPE(4000, 2), dtype), 1, false, generator);
    ck_assert(fabs(element(ek_sum(drawn), 0) - 2000) < 150);
    ek_generator_free(generator);
}

/* This seed's uniforms have one that is so small that f16 has 0 for it. */
TEST(classes_without_mass_are_not_drawn)
{
    ek_generator *generator = ek_generator_new(20524);
    assert_ok(ek_generator_set_engine(generator, EK_RANDOM_PHILOX));
    ek_generator_seed(generator, 20524);
    ek_tensor *p = ek_to_dtype(ek_lt_scalar(ek_arange(1024, EK_F32, test_home()), 1), EK_F16);
    ck_assert_double_eq(element(ek_multinomial(p, 1, false, generator), 0), 0);
    ek_generator_free(generator);
}

/* Of several elements for one place the last stays. */
TEST(the_last_of_written_elements_stays)
{
    ek_tensor *index = ek_from_data(((const int64_t[]){1, 1, 0, 1}), EK_SHAPE(4), EK_I64);
    ek_tensor *source = ek_reshape(ek_arange(8, EK_F32, test_home()), EK_SHAPE(4, 2));
    const double wanted[] = {4, 5, 6, 7, 0, 0};
    if (test_kind() == EK_HOST)
        assert_same(ek_index_copy(ek_zeros(EK_SHAPE(3, 2)), 0, index, source),
                    tensor_of(wanted, EK_SHAPE(3, 2), EK_F32, test_home()));
}

TEST(order_and_choice_refuse)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *whole = ek_to_dtype(x, EK_I64);
    assert_refused(ek_topk(x, 4, 1, true, NULL), EK_E_INVALID,
                   "topk: k is 4; dimension 1 has 3 elements, so that it must be from 0 to 3");
    assert_refused(ek_kthvalue(x, 0, 0, true, NULL), EK_E_INVALID, "kthvalue: k is 0");
    assert_refused(ek_sort(x, 2, false, NULL), EK_E_SHAPE, "sort: dimension 2");
    assert_refused(ek_masked_select(x, x), EK_E_DTYPE, "masked_select: mask has dtype f32");
    assert_refused(ek_masked_fill(whole, ek_gt(x, x), 0.5), EK_E_DTYPE, "masked_fill: the value");
    assert_refused(ek_searchsorted(x, ek_ones(EK_SHAPE(3, 3)), false), EK_E_SHAPE,
                   "searchsorted: sorted lines of shape [2, 3] for values of [3, 3]");
    assert_refused(ek_bucketize(x, x, false), EK_E_SHAPE, "bucketize: boundaries has 2");
    assert_refused(ek_bincount(x, NULL, 0), EK_E_DTYPE, "bincount: x has dtype f32");
    assert_refused(ek_bincount(whole, NULL, 0), EK_E_SHAPE, "bincount: x has 2 dimensions");
    whole = ek_select(whole, 0, 0);
    assert_refused(ek_bincount(whole, NULL, -1), EK_E_INVALID, "bincount: minlength is -1");
    assert_refused(ek_bincount(ek_neg(whole), NULL, 0), EK_E_INVALID, "bincount: x has -1");
    const int64_t far = INT64_MAX;
    assert_refused(ek_bincount(ek_from_data(&far, EK_SHAPE(1), EK_I64), NULL, 0), EK_E_INVALID,
                   "its elements must be below 2^53");
    assert_refused(ek_multinomial(x, 4, false, NULL), EK_E_INVALID,
                   "multinomial: 4 positions of 3 classes");
    assert_refused(ek_multinomial(ek_neg(x), 1, false, NULL), EK_E_INVALID,
                   "multinomial: p has -1 in row 0");
    assert_refused(ek_multinomial(ek_mul_scalar(x, NAN), 1, true, NULL), EK_E_INVALID,
                   "multinomial: p has");
    assert_refused(ek_multinomial(ek_mul_scalar(x, 0), 1, true, NULL), EK_E_INVALID,
                   "multinomial: row 0 of p has the sum 0");
    assert_refused(ek_arange_step(0, 1, -1, EK_F32, test_home()), EK_E_INVALID,
                   "arange: steps of -1 don't lead from 0 to 1");
    assert_refused(ek_arange_step(0, 300, 1, EK_U8, test_home()), EK_E_DTYPE, "arange: a number");
    assert_refused(ek_linspace(0, 1, -1, EK_F32, test_home()), EK_E_INVALID, "linspace: -1 steps");
}

TEST(shapes_and_indices_refuse)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *i = ek_zeros(EK_SHAPE(2), EK_I64), *out[2];
    assert_refused(ek_flip(x, EK_SHAPE(0, -2)), EK_E_SHAPE, "flip: dimension 0 is given twice");
    assert_refused(ek_roll(x, EK_SHAPE(1), EK_SHAPE(0, 1)), EK_E_INVALID,
                   "roll: 1 shifts for 2 dimensions");
    assert_refused(ek_repeat(x, EK_SHAPE(2)), EK_E_SHAPE, "repeat: numbers [2]");
    assert_refused(ek_tile(x, EK_SHAPE(-1)), EK_E_SHAPE, "tile: numbers [1, -1]");
    assert_refused(ek_repeat_interleave(x, -1, 0), EK_E_INVALID, "repeat_interleave: -1 times");
    assert_refused(ek_repeat_interleave_by(x, ek_add_scalar(i, -1), 0), EK_E_INVALID,
                   "element 0 -1 times");
    assert_refused(ek_repeat_interleave_by(x, i, 1), EK_E_SHAPE, "times has shape [2]");
    assert_refused(ek_tril(ek_select(x, 0, 0), 0), EK_E_SHAPE, "tril: x has 1 dimensions");
    assert_refused(ek_diag(ek_unsqueeze(x, 0), 0), EK_E_SHAPE, "diag: x has 3 dimensions");
    assert_refused(ek_f_unflatten(x, 1, EK_SHAPE(2, 2)), EK_E_SHAPE, "unflatten: dimension 1 of 3");
    assert_refused(ek_f_unflatten(x, 1, EK_SHAPE(-1, -1)), EK_E_SHAPE,
                   "unflatten: dimension 1 of 3");
    const int64_t half = (int64_t)1 << 32, wide = half + 1;
    assert_refused(ek_f_unflatten(x, 1, EK_SHAPE(-1, INT64_MIN, INT64_MIN)), EK_E_SHAPE,
                   "unflatten: dimension 1 of 3");
    ek_tensor *none = ek_zeros(EK_SHAPE(0));
    assert_refused(ek_f_unflatten(none, 0, (ek_shape){.ndim = INT_MAX}), EK_E_SHAPE,
                   "unflatten: 2147483647 dimensions for one");
    assert_refused(ek_repeat(x, EK_SHAPE(1, INT64_MAX)), EK_E_SHAPE,
                   "repeat: dimension 1 of 3 elements 9223372036854775807 times is too large");
    assert_refused(ek_repeat_interleave(x, INT64_MAX, 0), EK_E_SHAPE,
                   "repeat_interleave: dimension 0 of 2 elements");
    assert_refused(ek_flip(x, EK_SHAPE(half)), EK_E_SHAPE, "flip: dimension 4294967296 is not in");
    assert_refused(ek_roll(x, EK_SHAPE(1), EK_SHAPE(wide)), EK_E_SHAPE,
                   "roll: dimension 4294967297 is not in");
    assert_refused(ek_diag(ek_select(x, 0, 0), INT64_MIN), EK_E_SHAPE,
                   "diag: diagonal -9223372036854775808 is too far");
    assert_refused(ek_diag(ek_select(x, 0, 0), INT64_MAX), EK_E_SHAPE, "is too far");
    ck_assert_int_eq(ek_tensor_count(ek_diag(x, INT64_MIN)), 0);
    ck_assert_int_eq(ek_tensor_count(ek_diagonal(x, INT64_MAX, 0, 1)), 0);
    assert_refused(ek_unbind(x, 1, out, 2), EK_E_INVALID, "there are 3 pieces and room for 2");
    assert_refused(ek_meshgrid((ek_tensor *[]){x}, 1, EK_IJ, out), EK_E_SHAPE,
                   "meshgrid: tensor 0 has 2 dimensions");
    const int64_t pad[] = {3, 0, 1, 1};
    assert_refused(ek_f_pad(x, pad, 2, EK_PAD_REFLECT, 0), EK_E_SHAPE,
                   "pad: 3 before and 0 after dimension 1 of size 3; a reflection must be smaller");
    assert_refused(ek_f_pad(x, ((const int64_t[]){0, 4}), 2, EK_PAD_CIRCULAR, 0), EK_E_SHAPE,
                   "circular padding can't exceed the size");
    assert_refused(ek_f_pad(x, ((const int64_t[]){-2, -2}), 2, EK_PAD_CONSTANT, 0), EK_E_SHAPE,
                   "pad: -2 before and -2 after");
    assert_refused(ek_f_pad(x, pad, 3, EK_PAD_CONSTANT, 0), EK_E_INVALID, "pad: 3 numbers");
    assert_refused(ek_unfold(x, 1, 4, 1), EK_E_INVALID, "unfold: windows of 4 elements");
    assert_refused(ek_f_unfold(x, 2), EK_E_SHAPE, "unfold: x has shape [2, 3]");
    assert_refused(ek_f_unfold(ek_ones(EK_SHAPE(1, 1, 2, 2)), 3), EK_E_INVALID, "no window of 3");
    assert_refused(ek_f_fold(x, 2, .height = 3, .width = 3), EK_E_SHAPE,
                   "fold: x has shape [2, 3] and must be (N, C * 4, 4)");
    assert_refused(ek_f_pixel_shuffle(ek_ones(EK_SHAPE(3, 2, 2)), 2), EK_E_SHAPE, "pixel_shuffle");
    assert_refused(ek_f_pixel_unshuffle(ek_ones(EK_SHAPE(3, 2, 3)), 2), EK_E_SHAPE,
                   "pixel_unshuffle");
    assert_refused(ek_f_channel_shuffle(ek_ones(EK_SHAPE(1, 3, 2)), 2), EK_E_SHAPE,
                   "channel_shuffle");
    assert_refused(ek_scatter_dim(x, 0, ek_zeros(EK_SHAPE(3, 3), EK_I64), x), EK_E_SHAPE,
                   "source of shape [2, 3] is smaller than index's [3, 3]");
    assert_refused(ek_index_copy(x, 1, i, x), EK_E_SHAPE, "index_copy: source has shape [2, 3]");
    assert_refused(ek_index_add(x, 0, x, x, 1), EK_E_DTYPE, "index_add: index has dtype f32");
    assert_refused(settled_tensor(ek_index_fill(x, 0, ek_add_scalar(i, 2), 1)), EK_E_INVALID, "2");
    assert_refused(ek_index(x, NULL, 0), EK_E_INVALID, "index: there are no indices");
    assert_refused(ek_index(x, (ek_tensor *[]){NULL}, 1), EK_E_INVALID,
                   "index: all indices are NULL");
    assert_refused(ek_index(x, (ek_tensor *[]){i, i, i}, 3), EK_E_SHAPE, "index: more indices");
    assert_refused(settled_tensor(ek_index(x, (ek_tensor *[]){ek_add_scalar(i, -3)}, 1)),
                   EK_E_INVALID, "-1");
    assert_refused(ek_index(x, (ek_tensor *[]){ek_zeros(EK_SHAPE(3), EK_U8)}, 1), EK_E_SHAPE,
                   "index: a mask of shape [3] for dimensions 0 on of x, which has [2, 3]");
    assert_refused(ek_slice_scatter(x, x, 1, 0, 2, 1), EK_E_SHAPE, "slice_scatter: source");
    assert_refused(ek_select_scatter(x, ek_select(x, 0, 0), 0, 2), EK_E_INVALID,
                   "select_scatter: index 2 is not in dimension 0 of 2");
}

TEST(products_refuse)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *two[] = {x, x};
    assert_refused(ek_bmm(x, x), EK_E_SHAPE, "bmm: [2, 3] and [2, 3]");
    assert_refused(ek_outer(x, x), EK_E_SHAPE, "outer");
    assert_refused(ek_einsum("ij,jk->ik", two, 2), EK_E_SHAPE, "3 elements in one");
    assert_refused(ek_einsum("ij,ij->iz", two, 2), EK_E_INVALID, "one that no operand has");
    assert_refused(ek_einsum("ij,ij->ii", two, 2), EK_E_INVALID, "a letter twice");
    assert_refused(ek_einsum("ijk,ij", two, 2), EK_E_SHAPE, "2 dimensions and \"ijk,ij\" names 3");
    assert_refused(ek_einsum("i1,ij", two, 2), EK_E_INVALID, "'1' in \"i1,ij\"");
    assert_refused(ek_einsum("ij", two, 2), EK_E_INVALID, "2 operands, and \"ij\" has 1");
    assert_refused(ek_einsum("ij,ij,ij", two, 2), EK_E_INVALID, "goes on");
    assert_refused(ek_einsum("ij,ij->i,j", two, 2), EK_E_INVALID, "goes on after the result");
    assert_refused(ek_einsum("ii,ij->i", two, 2), EK_E_SHAPE, "elements");
    assert_refused(ek_einsum(NULL, two, 2), EK_E_INVALID, "equation is NULL");
    assert_refused(ek_cdist(x, x, 3), EK_E_INVALID, "cdist: p is 3 and must be 1 or 2");
    assert_refused(ek_cdist(x, ek_ones(EK_SHAPE(2, 4)), 2), EK_E_SHAPE, "cdist: [2, 3] and [2, 4]");
}

TEST(autocast_narrows_products_and_widens_distances)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *narrow = ek_to_dtype(x, EK_BF16);
    ek_tensor *mask = ek_ones(EK_SHAPE(2, 3), EK_U8), *one = ek_ones(EK_SHAPE(1));
    ek_autocast autocast = ek_autocast_begin(EK_BF16);
    ek_tensor *product = ek_einsum("ij,kj->ik", (ek_tensor *[]){x, narrow}, 2);
    ek_tensor *distance = ek_cdist(narrow, narrow, 2);
    ek_tensor *cosine = ek_f_cosine_similarity(narrow, x);
    ek_tensor *put = ek_index_put(narrow, &mask, 1, one, false);
    ek_autocast_end(&autocast);
    ck_assert_int_eq(ek_tensor_dtype(product), EK_BF16);
    ck_assert_int_eq(ek_tensor_dtype(distance), EK_F32);
    ck_assert_int_eq(ek_tensor_dtype(cosine), EK_F32);
    ck_assert_int_eq(ek_tensor_dtype(put), EK_F32);
}

/* Squares of 16 bits would be infinite, or lose digits. Under autocast the result is f32. */
TEST_LOOP(distances_of_sixteen_bits_are_made_in_f32, 0, 2)
{
    const ek_dtype dtype = _i ? EK_F16 : EK_BF16;
    ek_tensor *x = ek_full(512, EK_SHAPE(30, 4), dtype), *y = ek_full(500, EK_SHAPE(30, 4), dtype);
    ek_tensor *distance = ek_cdist(x, y, 2), *cosine = ek_f_cosine_similarity(x, y);
    ck_assert_int_eq(ek_tensor_dtype(distance), dtype);
    ck_assert_int_eq(ek_tensor_dtype(cosine), dtype);
    ck_assert_double_eq(element(distance, 7), 24);
    ck_assert_double_eq(element(cosine, 7), 1);
    ek_autocast autocast = ek_autocast_begin(dtype);
    distance = ek_cdist(x, y, 2);
    ek_autocast_end(&autocast);
    ck_assert_int_eq(ek_tensor_dtype(distance), EK_F32);
    ck_assert_double_eq(element(distance, 7), 24);
}

/* Distances of 0 have no gradient; those of many rows are PyTorch's by products. */
TEST(distances_of_zero_have_no_gradient)
{
    for (int64_t rows = 2; rows < 40; rows += 30) {
        ek_tensor *x = leaf(1, EK_SHAPE(rows, 3)), *gradient;
        ek_tensor *sum = ek_sum(ek_cdist(x, ek_detach(x), 2));
        assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradient));
        for (int64_t i = 0; i < rows * 3; i++)
            ck_assert(isfinite(element(gradient, i)));
    }
}
