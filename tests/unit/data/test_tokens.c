/* test_tokens.c: windows of tokens, of tensors and of files. */
#include "kit/files.h"

FIXTURE(make_directory, remove_directory)

/* Tokens 0, 7, 14, ... of a dtype. */
static ek_tensor *sevens(int64_t count, ek_dtype dtype)
{
    ek_tensor *x = ek_empty(EK_SHAPE(count), dtype);
    assert_made(x);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == EK_U8)
            ((uint8_t *)ek_tensor_data(x))[i] = (uint8_t)(7 * i);
        else
            ((int64_t *)ek_tensor_data(x))[i] = 7 * i;
    }
    return x;
}

/* A list of two tensors has tokens 7 first, 7 (first + 1), ..., and the same one later. */
static void check_pair(ek_value pair, int row, int64_t first, int64_t length)
{
    ck_assert_int_eq(ek_value_length(pair), 2);
    for (int k = 0; k < 2; k++) {
        ek_tensor *x = ek_value_tensor(ek_value_at(pair, k));
        assert_made(x);
        ck_assert_int_eq(ek_tensor_dtype(x), EK_I64);
        const int64_t *tokens = (const int64_t *)ek_tensor_data(x) + row * length;
        for (int64_t i = 0; i < length; i++)
            ck_assert_int_eq(tokens[i], 7 * (first + i + k));
    }
}

/* 11 tokens have two samples of 5; with a stride of 2 they have three of 5. */
static void check_set(ek_dataset *set, int64_t stride)
{
    const int64_t count = stride == 5 ? 2 : 3, order[] = {1, 0};
    assert_made(set);
    ck_assert_int_eq(ek_dataset_length(set), count);
    for (int64_t i = 0; i < count; i++)
        check_pair(ek_dataset_get(set, i), 0, i * stride, 5);
    ek_value batch = ek_dataset_get_batch(set, order, 2, ek_cpu());
    check_pair(batch, 0, stride, 5);
    check_pair(batch, 1, 0, 5);
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(batch, 0)), 0), 2);
    ek_dataset_free(set);
}

TEST(windows_of_tensors)
{
    check_set(ek_token_dataset(sevens(11, EK_I64), 5), 5);
    check_set(ek_token_dataset(sevens(11, EK_U8), 5, .stride = 2), 2);
}

#define WRITE(type_, sign)                                                            \
    do {                                                                              \
        type_ numbers[11];                                                            \
        for (int i = 0; i < 11; i++)                                                  \
            numbers[i] = (type_)(7 * i);                                              \
        write_file("file", numbers, sizeof numbers);                                  \
        check_set(ek_token_dataset(.path = file_path, .length = 5, .type = sign), 5); \
    } while (0)

TEST(windows_of_files)
{
    WRITE(uint8_t, "u8");
    WRITE(int8_t, "i8");
    WRITE(uint16_t, NULL);
    WRITE(int16_t, "i16");
    WRITE(uint32_t, "u32");
    WRITE(int32_t, "i32");
    WRITE(int64_t, "i64");
}

TEST(large_numbers_keep_their_value)
{
    const uint32_t numbers[] = {UINT32_MAX, 1};
    write_file("file", numbers, sizeof numbers);
    ek_dataset *set = ek_token_dataset(.path = file_path, .length = 1, .type = "u32");
    assert_made(set);
    ek_tensor *x = ek_value_tensor(ek_value_at(ek_dataset_get(set, 0), 0));
    ck_assert_int_eq(*(const int64_t *)ek_tensor_data(x), (int64_t)UINT32_MAX);
    ek_dataset_free(set);
}

TEST(what_has_no_windows_is_refused)
{
    ck_assert_ptr_null(ek_token_dataset(sevens(5, EK_I64), 5));
    assert_error(EK_E_SHAPE, "5 tokens; a sample of length 5 and its target need one more");
    ck_assert_ptr_null(ek_token_dataset(sevens(5, EK_I64), 0));
    assert_error(EK_E_INVALID, "length 0");
    ck_assert_ptr_null(ek_token_dataset(sevens(5, EK_I64), 2, .stride = 0));
    assert_error(EK_E_INVALID, "stride 0");
    ck_assert_ptr_null(ek_token_dataset(ek_empty(EK_SHAPE(4)), 2));
    assert_error(EK_E_DTYPE, "tokens are whole numbers");
    ck_assert_ptr_null(ek_token_dataset(ek_empty(EK_SHAPE(4, 4), EK_U8), 2));
    assert_error(EK_E_SHAPE, "tokens have one dimension");
    ck_assert_ptr_null(ek_token_dataset(.path = "/nowhere/at/all", .length = 2));
    assert_error(EK_E_IO, "/nowhere/at/all");
    ck_assert_ptr_null(ek_token_dataset(sevens(5, EK_I64), 2, .path = "/nowhere"));
    assert_error(EK_E_INVALID, "tokens and the path /nowhere");
    ck_assert_ptr_null(ek_token_dataset(sevens(5, EK_I64), 2, .type = "i32"));
    assert_error(EK_E_INVALID, "the type \"i32\" is of a file");
    write_file("file", "abc", 3);
    ck_assert_ptr_null(ek_token_dataset(.path = file_path, .length = 1));
    assert_error(EK_E_FORMAT, "has 3 bytes, no multiple of 2");
    ck_assert_ptr_null(ek_token_dataset(.path = file_path, .length = 1, .type = "f32"));
    assert_error(EK_E_INVALID, "the type \"f32\"");
    write_file("file", "", 0);
    ck_assert_ptr_null(ek_token_dataset(.path = file_path, .length = 1));
    assert_error(EK_E_SHAPE, "0 tokens");
}
