/* Handles, geometry, elements in and out, and values. */
#include <limits.h>
#include <time.h>

#include "core/object.h"
#include "core/tensor.h"
#include "unit.h"

TEST(bad_shapes_and_dtypes)
{
    assert_refused(ek_empty(EK_SHAPE(2, -1)), EK_E_SHAPE, "[2, -1]");
    assert_refused(ek_empty(EK_SHAPE(INT64_MAX / 2, 8)), EK_E_SHAPE, "too large");
    assert_refused(ek_empty(((ek_shape){.ndim = 9})), EK_E_SHAPE, "9 dimensions");
    assert_refused(ek_empty(EK_SHAPE(2), .dtype = EK_I64, .requires_grad = true), EK_E_DTYPE,
                   "i64 cannot require a gradient");
    assert_refused(ek_empty(EK_SHAPE(2), .dtype = (ek_dtype)99), EK_E_DTYPE, "99 is no dtype");
    assert_refused(ek_empty(EK_SHAPE(2), .device = ek_cuda(0)), EK_E_DEVICE,
                   "there is no device cuda:0");
}

/* Shapes come from files and callers: sizes that no memory holds must not wrap to small ones. */
TEST(counts_and_strides_do_not_wrap)
{
    const int64_t half = (int64_t)1 << 32;
    ek_shape large = EK_SHAPE(half, half, half, 2), none = EK_SHAPE(half, half, half, 0);
    int64_t strides[EK_MAX_DIMS];
    ck_assert_int_eq(ek_shape_count(&large), INT64_MAX);
    ck_assert_int_eq(ek_shape_count(&none), 0);
    ek_strides_of(&large, EK_CONTIGUOUS, strides);
    ck_assert_int_eq(strides[0], INT64_MAX);
    ck_assert_int_eq(strides[1], 2 * half);
    ck_assert_int_eq(strides[2], 2);
    ek_strides_of(&large, EK_CHANNELS_LAST, strides);
    ck_assert_int_eq(strides[0], INT64_MAX);
    ck_assert_int_eq(strides[2], 2 * half);
    ek_shape beyond = {.ndim = INT_MAX}, below = {.ndim = INT_MIN};
    ck_assert_int_eq(ek_shape_count(&beyond), 0);
    ck_assert_int_eq(ek_shape_count(&below), 0);
    ck_assert(!ek_shape_equal(&beyond, &beyond));
    assert_refused(ek_empty(large), EK_E_SHAPE, "too large");
    assert_refused(ek_empty(none), EK_E_SHAPE, "too large");
}

TEST(elements_travel_in_row_major_order)
{
    double values[120];
    for (int i = 0; i < 120; i++)
        values[i] = i;
    for (int dtype = 0; dtype < EK_DTYPES; dtype++) {
        ek_tensor *rows = tensor_of(values, EK_SHAPE(2, 3, 4, 5), (ek_dtype)dtype, ek_host(0));
        ck_assert(element(rows, 77) == (dtype == EK_BOOL ? 1 : 77));
        ek_tensor *last =
            ek_empty(EK_SHAPE(2, 3, 4, 5), .dtype = (ek_dtype)dtype, .format = EK_CHANNELS_LAST);
        unsigned char data[120 * 8];
        size_t nbytes = 120 * ek_dtype_size((ek_dtype)dtype);
        assert_ok(ek_to_data(rows, data, nbytes));
        uint64_t version = ek_tensor_version(last);
        assert_ok(ek_set_data(last, data, nbytes));
        ck_assert_uint_eq(ek_tensor_version(last), version + 1);
        assert_close(last, rows, 0, 0);
        ck_assert(!ek_tensor_is_contiguous(last, EK_CONTIGUOUS));
        ck_assert(ek_is_dense(last));
        assert_refused(ek_to_data(last, data, nbytes - 1), EK_E_INVALID, "bytes given");
    }
    /* A view with gaps: every second column. */
    ek_tensor *base = tensor_of(values, EK_SHAPE(4, 6), EK_F64, ek_cpu());
    int64_t shape[2] = {4, 3}, stride[2] = {6, 2};
    ek_tensor *view = ek_tensor_view(base, 2, shape, stride, 1);
    ck_assert(!ek_is_dense(view));
    ck_assert(element(view, 4) == 9);
    double twelve[12] = {0};
    assert_ok(ek_set_data(view, twelve, sizeof twelve));
    ck_assert(element(base, 9) == 0 && element(base, 8) == 8);
    ck_assert_uint_eq(ek_tensor_version(base), ek_tensor_version(view));
    ck_assert(ek_is_dense(ek_tensor_like(view)));
    /* An expanded view can be read, not written; one without elements takes them all. */
    ek_tensor *expanded = ek_tensor_view(base, 2, (int64_t[]){6, 2}, (int64_t[]){0, 1}, 0);
    assert_ok(ek_to_data(expanded, twelve, sizeof twelve));
    assert_refused(ek_set_data(expanded, twelve, sizeof twelve), EK_E_INVALID,
                   "set_data: elements of f64[6, 2] on cpu share memory");
    ek_tensor *one = ek_tensor_view(base, 2, (int64_t[]){1, 2}, (int64_t[]){0, 1}, 0);
    assert_ok(ek_set_data(one, twelve, 2 * sizeof *twelve));
    ek_tensor *none = ek_tensor_view(base, 2, (int64_t[]){0, 2}, (int64_t[]){0, 0}, 0);
    assert_ok(ek_set_data(none, NULL, 0));
}

TEST(layouts_ignore_dimensions_of_one)
{
    ek_tensor *a = ek_empty(EK_SHAPE(8, 1, 5, 5));
    ck_assert(ek_tensor_is_contiguous(a, EK_CHANNELS_LAST));
    ek_tensor *b = ek_empty(EK_SHAPE(8, 1, 5, 5), .format = EK_CHANNELS_LAST);
    ck_assert(ek_same_layout(a, b));
    ek_tensor *c = ek_empty(EK_SHAPE(8, 2, 5, 5), .format = EK_CHANNELS_LAST);
    ck_assert(!ek_tensor_is_contiguous(c, EK_CONTIGUOUS));
    ck_assert(ek_same_layout(ek_tensor_like(c), c));
    ck_assert_int_eq(ek_tensor_size(c, -3), 2);
    assert_refused(ek_tensor_size(c, 4), EK_E_SHAPE, "f32[8, 2, 5, 5] on cpu has no dimension 4");
}

TEST(items_and_printing)
{
    double value, pi = 3.25;
    assert_ok(ek_item(tensor_of(&pi, ek_scalar_shape(), EK_BF16, ek_host(0)), &value));
    ck_assert(value == 3.25);
    assert_refused(ek_item(ek_empty(EK_SHAPE(2)), &value), EK_E_SHAPE, "2 elements, one is wanted");
    ck_assert_int_eq(ek_item(NULL, &value), EK_E_INVALID);
    ek_error_clear();
    char *text;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    double two[2] = {1.5, -2};
    assert_ok(ek_tensor_print(tensor_of(two, EK_SHAPE(2), EK_F32, ek_cpu()), stream));
    fclose(stream);
    ck_assert_str_eq(text, "f32[2] on cpu: [1.5, -2]\n");
    free(text);
    ek_tensor *empty = ek_empty(EK_SHAPE(3, 0));
    assert_ok(ek_to_data(empty, NULL, 0));
    ck_assert_int_eq(ek_tensor_count(empty), 0);
}

TEST(values_nest_and_are_released)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *a = ek_empty(EK_SHAPE(2)), *b = ek_empty(EK_SHAPE(3));
    ek_value list = EK_LIST(a, EK_LIST(b, ek_value_of_int(5)));
    ck_assert_int_eq(list.kind, EK_VALUE_LIST);
    ck_assert(!list.per_device);
    ck_assert_int_eq(ek_value_length(list), 2);
    ck_assert_ptr_eq(ek_value_tensor(ek_value_at(list, 0)), a);
    ck_assert_int_eq(ek_value_at(ek_value_at(list, 1), 1).as.integer, 5);
    ck_assert(EK_SCATTERED(a, b).per_device);
    ek_value_entry entries[2] = {{"logits", EK_VALUE(a)}, {"scale", ek_value_of_float(0.5)}};
    ek_value dict = ek_value_dict(entries, 2);
    ck_assert_str_eq(ek_value_key(dict, 1), "scale");
    ck_assert(ek_value_get(dict, "scale").as.floating == 0.5);
    ck_assert_int_eq(ek_value_get(dict, "other").kind, EK_VALUE_NONE);
    dict = ek_scope_return_value(&scope, dict);
    ck_assert_ptr_eq(ek_value_tensor(ek_value_get(dict, "logits")), a);

    entries[1].key = "logits";
    assert_refused(ek_value_dict(entries, 2), EK_E_INVALID, "stands twice");
    assert_refused(ek_value_tensor(ek_value_of_int(1)), EK_E_INVALID,
                   "but the value is an integer");
    assert_refused(ek_value_tensor(EK_SCATTERED(a, a)), EK_E_INVALID,
                   "a list with one element per device; ek_value_to_device joins them");
    ck_assert_int_eq(ek_value_at(dict, 7).kind, EK_VALUE_ERROR);
    ek_error_clear();
    ek_value marked = ek_value_batched(EK_LIST(a, EK_LIST(a, ek_value_of_int(5))), -1);
    ck_assert_int_eq(ek_value_batch_dim(ek_value_at(marked, 0), 3), 0);
    ck_assert_int_eq(ek_value_batch_dim(ek_value_at(ek_value_at(marked, 1), 0), 3), 0);
    ck_assert_int_eq(ek_value_batch_dim(ek_value_at(ek_value_at(marked, 1), 1), 3), 3);
    ck_assert_int_eq(ek_value_batch_dim(EK_VALUE(a), 3), 3);
    assert_refused(ek_value_batched(EK_LIST(a), 1), EK_E_SHAPE,
                   "f32[2] on cpu has no dimension 1 that could be its batch");
    assert_refused(ek_value_batched(EK_VALUE(a), -2), EK_E_SHAPE, "has no dimension -2");
    ck_assert_int_eq(ek_value_of_tensor(NULL).kind, EK_VALUE_NONE);
    ek_error(EK_E_USER, "pending");
    ck_assert_int_eq(ek_value_of_tensor(NULL).kind, EK_VALUE_ERROR);
    ek_error_clear();
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_eq(stats.in_use, 64); /* b is gone, a lives in the dictionary */
}

/* Files of others may have very many names: comparing each with each would take minutes. */
TEST(large_dictionaries_are_made_fast)
{
    enum { COUNT = 100000, LENGTH = 12 };
    ek_value_entry *entries = calloc(COUNT, sizeof *entries);
    char(*keys)[LENGTH] = calloc(COUNT, sizeof *keys);
    ck_assert(entries && keys);
    for (int i = 0; i < COUNT; i++) {
        snprintf(keys[i], LENGTH, "%d", i);
        entries[i] = (ek_value_entry){keys[i], ek_value_of_int(i)};
    }
    clock_t begin = clock();
    ek_value dict = ek_value_dict(entries, COUNT);
    ck_assert_int_lt((clock() - begin) / CLOCKS_PER_SEC, 4);
    ck_assert_int_eq(ek_value_length(dict), COUNT);
    ck_assert_str_eq(ek_value_key(dict, 99999), "99999"); /* entries stay in their order */
    for (int twice = 1; twice < COUNT; twice *= 40) {     /* in small ones and in large ones */
        snprintf(keys[twice], LENGTH, "0");
        assert_refused(ek_value_dict(entries, twice + 1), EK_E_INVALID,
                       "key \"0\" stands twice in a dictionary");
        snprintf(keys[twice], LENGTH, "%d", twice);
        ck_assert_int_eq(ek_value_dict(entries, twice + 1).kind, EK_VALUE_DICT);
    }
    entries[4000].key = NULL;
    assert_refused(ek_value_dict(entries, COUNT), EK_E_INVALID,
                   "entry 4000 of a dictionary has no key");
    free(keys);
    free(entries);
}
