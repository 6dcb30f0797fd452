/* test_safetensors_hostile.c: safetensors files in every way broken, each refused with a sentence
 * that says what is wrong. */
#include <unistd.h>

#include "kit/files.h"

FIXTURE(make_directory, remove_directory)

/* Writes a file whose header has `length` bytes but is said to have `claimed`. `elements` bytes of
 * zeros follow the header. */
static void write_claim(const char *header, size_t length, uint64_t claimed, size_t elements)
{
    unsigned char *bytes = calloc(1, 8 + length + elements + 1);
    ck_assert_ptr_nonnull(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(claimed >> 8 * i);
    memcpy(bytes + 8, header, length);
    write_file("file", bytes, 8 + length + elements);
    free(bytes);
}

static void write_header(const char *header, size_t elements)
{
    write_claim(header, strlen(header), strlen(header), elements);
}

static void assert_file_refused(const char *part)
{
    ek_safetensors *file = ek_safetensors_open(file_path);
    ck_assert_msg(!file, "a file is accepted, not refused with \"%s\"", part);
    ck_assert_msg(strstr(ek_error_message(), file_path), "\"%s\" does not name the file",
                  ek_error_message());
    assert_error(EK_E_FORMAT, part);
}

#define F32(shape, begin, end) \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

TEST(prefixes)
{
    write_file("file", "", 0);
    assert_file_refused("0 bytes; the length of the header alone takes 8");
    write_file("file", "\1\0\0\0\0\0\0", 7);
    assert_file_refused("7 bytes; the length");
    write_claim("", 0, 0, 0);
    assert_file_refused("of 0 bytes, does not begin with '{'");
    write_claim("{}", 2, 3, 0);
    assert_file_refused("truncated: a header of 3 bytes in a file of 10");
    write_claim("{}", 2, 100000001, 0);
    assert_file_refused("a header of 100000001 bytes; at most 100000000");
    write_claim("{}", 2, UINT64_MAX, 0);
    assert_file_refused("a header of 18446744073709551615 bytes");
    write_claim("{}", 2, (uint64_t)INT64_MAX - 5, 0);
    assert_file_refused("a header of 9223372036854775802 bytes");
    write_claim("{}", 2, 100000000, 0);
    assert_file_refused("truncated: a header of 100000000");
}

static const struct {
    const char *header, *part;
    int elements;
} broken[] = {
    {"[]", "does not begin with '{'", 0},
    {" {}", "does not begin with '{'", 0},
    {"null", "does not begin with '{'", 0},
    {"{", "no JSON object, at its byte", 0},
    {"{}{}", "at its byte 2: there is '{' instead of the end", 0},
    {"{\"a\":}", "no JSON object, at its byte 5: there is '}' instead of a value", 0},
    {"{\"a\xff\":1}", "at its byte 3: byte 0xff is not UTF-8", 0},
    {"{\"\xed\xa0\x80\":1}", "byte 0xed is not UTF-8", 0},
    {"{\"a\\u0000b\":" F32("[]", 0, 4) "}", "\\u0000", 4},
    {"{\"a\":" F32("[]", 0, 4) ",\"a\":" F32("[]", 4, 8) "}", "its header has \"a\" twice", 8},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "its header has \"dtype\" twice", 0},
    {"{\"a\":{\"shape\":[],\"shape\":[]}}", "its header has \"shape\" twice", 0},
    {"{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", "\"data_offsets\" twice", 0},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", "\"__metadata__\" twice", 0},
    {"{\"a\":1}", "tensor \"a\" is no object", 0},
    {"{\"a\":null}", "tensor \"a\" is no object", 0},
    {"{\"a\":{}}", "tensor \"a\": dtype is no string", 0},
    {"{\"a\":{\"dtype\":7}}", "tensor \"a\": dtype is no string", 0},
    {"{\"a\":{\"dtype\":\"F128\"}}", "the format has no dtype \"F128\"", 0},
    {"{\"a\":{\"dtype\":\"f32\"}}", "the format has no dtype \"f32\"", 0},
    {"{\"a\":{\"dtype\":\"F32\"}}", "tensor \"a\": shape is no array", 0},
    {"{\"a\":" F32("4", 0, 4) "}", "tensor \"a\": shape is no array", 4},
    {"{\"a\":" F32("[1.0]", 0, 4) "}", "tensor \"a\": a size is no whole number", 4},
    {"{\"a\":" F32("[\"1\"]", 0, 4) "}", "a size is no whole number", 4},
    {"{\"a\":" F32("[true]", 0, 4) "}", "a size is no whole number", 4},
    {"{\"a\":" F32("[[1]]", 0, 4) "}", "a size is no whole number", 4},
    {"{\"a\":" F32("[-1]", 0, 4) "}", "tensor \"a\": a size is negative: -1", 4},
    {"{\"a\":" F32("[99999999999999999999]", 0, 4) "}", "a whole number beyond 64 bits", 4},
    {"{\"a\":" F32("[4611686018427387904,4]", 0, 0) "}", "its sizes multiply to more than 2^63", 0},
    {"{\"a\":" F32("[4294967296,4294967296]", 0, 0) "}", "its sizes multiply to more than", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", "data_offsets is no array of two", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", "no array of two", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}", "no array of two", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":{}}}", "no array of two", 0},
    {"{\"a\":" F32("[]", 0.5, 4) "}", "an offset is no whole number", 4},
    {"{\"a\":" F32("[]", 0, null) "}", "an offset is no whole number", 4},
    {"{\"a\":" F32("[]", -4, 0) "}", "an offset is negative: -4", 4},
    {"{\"a\":" F32("[]", 4, 0) "}", "tensor \"a\" begins at 4 and ends before, at 0", 4},
    {"{\"a\":" F32("[]", 0, 4) "}", "truncated: tensor \"a\" ends at 4, the elements at 3", 3},
    {"{\"a\":" F32("[]", 9223372036854775803, 9223372036854775807) "}", "truncated", 4},
    {"{\"a\":" F32("[2]", 0, 4) "}",
     "tensor \"a\": offsets 0 to 4, but shape and dtype take 8 bytes", 4},
    {"{\"a\":" F32("[0]", 0, 4) "}", "shape and dtype take 0 bytes", 4},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}",
     "tensor \"a\": 12 bits of F4 are no whole bytes", 1},
    {"{\"a\":" F32("[2]", 0, 8) ",\"b\":" F32("[2]", 4, 12) "}",
     "tensor \"b\" begins at 4, within \"a\"", 12},
    {"{\"a\":" F32("[]", 0, 4) ",\"b\":" F32("[]", 0, 4) "}", "begins at 0, within", 4},
    {"{\"a\":" F32("[]", 0, 4) ",\"b\":" F32("[]", 8, 12) "}",
     "a gap: tensor \"b\" begins at 8, not at 4", 12},
    {"{\"a\":" F32("[]", 4, 8) "}", "a gap: tensor \"a\" begins at 4, not at 0", 8},
    {"{\"a\":" F32("[]", 0, 4) ",\"b\":" F32("[0]", 2, 2) "}", "begins at 2, within \"a\"", 4},
    {"{\"a\":" F32("[]", 0, 4) "}", "3 bytes follow the last tensor", 7},
    {"{}", "1 bytes follow the last tensor", 1},
    {"{\"__metadata__\":1}", "__metadata__ is no object", 0},
    {"{\"__metadata__\":[]}", "__metadata__ is no object", 0},
    {"{\"__metadata__\":{\"k\":1}}", "the value of metadata \"k\" is no string", 0},
    {"{\"__metadata__\":{\"k\":\"\\u0000\"}}", "\\u0000", 0},
    {"{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", "its header has \"k\" twice", 0},
};

TEST_LOOP(headers, 0, sizeof broken / sizeof *broken)
{
    write_header(broken[_i].header, (size_t)broken[_i].elements);
    assert_file_refused(broken[_i].part);
}

/* Nested too deep for any parser's stack: brackets, and objects. */
TEST(depth)
{
    enum { DEPTH = 10000000 };
    static const char *const levels[] = {"[", "{\"a\":"};
    char *header = malloc(DEPTH + 8);
    ck_assert_ptr_nonnull(header);
    for (int i = 0; i < 2; i++) {
        size_t step = strlen(levels[i]);
        memcpy(header, "{\"a\":{\"b\":", 10);
        for (size_t at = 10; at + step <= DEPTH; at += step)
            memcpy(header + at, levels[i], step);
        write_claim(header, DEPTH, DEPTH, 0);
        assert_file_refused("nested deeper than 128");
    }
    free(header);
}

/* Unusual, but whole: spaces at the end, members that are not known, empty tensors anywhere, names
 * out of order, elements in no aligned place, sizes that no memory holds but multiply to none. */
TEST(unusual_but_whole)
{
    write_header(
        "{\"b\":" F32("[1,1]", 1, 5) ",\"e\":" F32("[0]", 5, 5) ",\"f\":" F32(
            "[0]", 1,
            1) ",\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":[{}]},"
               "\"huge\":" F32("[4611686018427387904,4,0]", 5, 5) "}  \n ",
        5);
    ek_safetensors *file = ek_safetensors_open(file_path);
    assert_made(file);
    static const char *const names[] = {"", "f", "b", "e", "huge"};
    ck_assert_int_eq(ek_safetensors_count(file), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(ek_safetensors_name(file, i), names[i]);
    ck_assert_int_eq(ek_tensor_count(ek_safetensors_read(file, "b")), 1);
    ck_assert_int_eq(ek_tensor_count(ek_safetensors_read(file, "")), 1);
    ck_assert_int_eq(ek_tensor_count(ek_safetensors_read(file, "e")), 0);
    assert_refused(ek_safetensors_read(file, "huge"), EK_E_SHAPE, "too large");
    ek_safetensors_close(file);
}

TEST(unreadable)
{
    assert_refused(ek_safetensors_open("/nowhere/file"), EK_E_IO,
                   "cannot open /nowhere/file: No such file");
    assert_refused(ek_safetensors_open("/tmp"), EK_E_IO, "/tmp: Is a directory");
    assert_refused(ek_safetensors_open(NULL), EK_E_INVALID, "the path is NULL");
}
