/* test_json.c: JSON that is read, refused and written. */
#include "core/json.h"

#include "json_tree.h"

/* ---- reading ---- */

/* All values of a text, each with a space behind: "[" and "]", "{" and "}", keys with a colon. */
static int walk(ek_json_reader *reader, char *trace)
{
    ek_json_value value;
    const char *key;
    int more = 0;
    if (ek_json_read(reader, &value) < 0)
        return -1;
    switch (value.kind) {
    case EK_JSON_NULL:
        strcat(trace, "null ");
        break;
    case EK_JSON_BOOLEAN:
        strcat(trace, value.integer ? "true " : "false ");
        break;
    case EK_JSON_INTEGER:
        sprintf(trace + strlen(trace), "%lld ", (long long)value.integer);
        break;
    case EK_JSON_REAL:
        sprintf(trace + strlen(trace), "real %.*s ", (int)value.nbytes, value.text);
        break;
    case EK_JSON_STRING:
        ck_assert_uint_eq(strlen(value.text), value.nbytes);
        sprintf(trace + strlen(trace), "\"%s\" ", value.text);
        break;
    default:
        strcat(trace, value.kind == EK_JSON_ARRAY ? "[ " : "{ ");
        while ((more = ek_json_next(reader, &key)) > 0) {
            ck_assert_int_eq(key != NULL, value.kind == EK_JSON_OBJECT);
            if (key)
                sprintf(trace + strlen(trace), "%s: ", key);
            if (walk(reader, trace) < 0)
                return -1;
        }
        strcat(trace, value.kind == EK_JSON_ARRAY ? "] " : "} ");
    }
    return more;
}

/* A copy of exactly this size, so that sanitizers see what is read behind it. */
static int parse(const char *text, size_t nbytes, ek_json_reader *reader, char *trace)
{
    char *copy = malloc(nbytes ? nbytes : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, nbytes);
    *reader = (ek_json_reader){.text = copy, .nbytes = nbytes};
    *trace = '\0';
    int status = walk(reader, trace);
    if (status == 0)
        status = ek_json_end(reader);
    free(copy);
    return status;
}

static const struct {
    const char *text, *trace;
} good[] = {
    {"null", "null "},
    {" \t\r\ntrue ", "true "},
    {"[false,0,-0,7]", "[ false 0 0 7 ] "},
    {"[9223372036854775807,-9223372036854775808]", "[ 9223372036854775807 -9223372036854775808 ] "},
    {"[0.5,-1.25e-7,1E5,1e+5,0e0]", "[ real 0.5 real -1.25e-7 real 1E5 real 1e+5 real 0e0 ] "},
    {"\"\"", "\"\" "},
    {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\"\\/\b\f\n\r\t\" "},
    {"\"\\u0041\\u00e4\\u4e2d\\ud83d\\uDE00\\u007f\\uffff\"",
     "\"A\u00e4\u4e2d\U0001f600\x7f\uffff\" "},
    {"\"\x7f\xc2\x80\u07ff\u0800\ud7ff\ue000\U00010000\U0010ffff\"",
     "\"\x7f\xc2\x80\u07ff\u0800\ud7ff\ue000\U00010000\U0010ffff\" "},
    {"[]", "[ ] "},
    {"{ }", "{ } "},
    {"{\"a\" : [ 1 , {\"b\":[[],{}]} ] ,\"\\u0063\":2}", "{ a: [ 1 { b: [ [ ] { } ] } ] c: 2 } "},
    {"{\"a\":1,\"a\":2}", "{ a: 1 a: 2 } "},
};

TEST_LOOP(what_is_read, 0, sizeof good / sizeof *good)
{
    ek_json_reader reader;
    char trace[400];
    int status = parse(good[_i].text, strlen(good[_i].text), &reader, trace);
    ck_assert_msg(status == 0, "%s: byte %zu: %s", good[_i].text, reader.at, reader.error);
    ck_assert_str_eq(trace, good[_i].trace);
}

static const struct {
    const char *text, *part;
    size_t at;
} bad[] = {
    {"", "it ends instead of a value", 0},
    {"  ", "it ends instead of a value", 2},
    {"nul", "there is 'n' instead of a value", 0},
    {"True", "there is 'T' instead of a value", 0},
    {"NaN", "there is 'N' instead of a value", 0},
    {"truefalse", "there is 'f' instead of the end", 4},
    {"1 2", "there is '2' instead of the end", 2},
    {"\xef\xbb\xbf{}", "there is byte 0xef instead of a value", 0},
    {"01", "there is '1' instead of the end of a number that begins with 0", 1},
    {"-", "it ends instead of a digit", 1},
    {"+1", "there is '+' instead of a value", 0},
    {".5", "there is '.' instead of a value", 0},
    {"1.", "it ends instead of a digit", 2},
    {"1.e5", "there is 'e' instead of a digit", 2},
    {"1e", "it ends instead of a digit", 2},
    {"1e+", "it ends instead of a digit", 3},
    {"0x10", "there is 'x' instead of the end", 1},
    {"9223372036854775808", "a whole number beyond 64 bits", 19},
    {"-9223372036854775809", "a whole number beyond 64 bits", 20},
    {"\"", "it ends within a string", 1},
    {"\"a", "it ends within a string", 2},
    {"\"\\", "it ends instead of an escape", 2},
    {"\"\\x41\"", "there is 'x' instead of an escape", 2},
    {"\"\\'\"", "there is ''' instead of an escape", 2},
    {"\"\\u12g4\"", "four hexadecimal digits follow \\u", 5},
    {"\"\\u123", "four hexadecimal digits follow \\u", 6},
    {"\"\\u0000\"", "\\u0000 is not allowed", 7},
    {"\"\\ud800\"", "\\ud800 is half a character", 7},
    {"\"\\ud800\\n\"", "\\ud800 is half a character", 7},
    {"\"\\ud800\\u0041\"", "\\ud800 is half a character", 13},
    {"\"\\ud800\\ud800\"", "\\ud800 is half a character", 13},
    {"\"\\udc00\"", "\\udc00 is half a character", 7},
    {"\"a\nb\"", "byte 0x0a stands in a string", 2},
    {"\"\x1f\"", "byte 0x1f stands in a string", 1},
    {"\"\x80\"", "byte 0x80 is not UTF-8", 1},
    {"\"\xc0\x80\"", "byte 0xc0 is not UTF-8", 1},
    {"\"\xc1\xbf\"", "byte 0xc1 is not UTF-8", 1},
    {"\"\xc3\"", "byte 0xc3 is not UTF-8", 1},
    {"\"\xe0\x9f\xbf\"", "byte 0xe0 is not UTF-8", 1},
    {"\"\xed\xa0\x80\"", "byte 0xed is not UTF-8", 1},
    {"\"\xf0\x8f\xbf\xbf\"", "byte 0xf0 is not UTF-8", 1},
    {"\"\xf4\x90\x80\x80\"", "byte 0xf4 is not UTF-8", 1},
    {"\"\xf5\x80\x80\x80\"", "byte 0xf5 is not UTF-8", 1},
    {"\"\xf0\x9f\x98", "byte 0xf0 is not UTF-8", 1},
    {"[", "it ends instead of a value", 1},
    {"[1", "it ends instead of ',' or ']'", 2},
    {"[1 2]", "there is '2' instead of ',' or ']'", 3},
    {"[,1]", "there is ',' instead of a value", 1},
    {"[1,]", "there is ']' instead of a value", 3},
    {"[1}", "there is '}' instead of ',' or ']'", 2},
    {"[[]1]", "there is '1' instead of ',' or ']'", 3},
    {"{", "it ends instead of a key", 1},
    {"{1:2}", "there is '1' instead of a key", 1},
    {"{\"a\"}", "there is '}' instead of ':'", 4},
    {"{\"a\":}", "there is '}' instead of a value", 5},
    {"{\"a\":1,}", "there is '}' instead of a key", 7},
    {"{\"a\":1]", "there is ']' instead of ',' or '}'", 6},
    {"{\"a\":1 \"b\":2}", "there is '\"' instead of ',' or '}'", 7},
    {"[1]]", "there is ']' instead of the end", 3},
    {"/**/1", "there is '/' instead of a value", 0},
};

TEST_LOOP(what_is_refused, 0, sizeof bad / sizeof *bad)
{
    ek_json_reader reader;
    char trace[400];
    int status = parse(bad[_i].text, strlen(bad[_i].text), &reader, trace);
    ck_assert_msg(status < 0, "%s is read", bad[_i].text);
    ck_assert_str_eq(reader.error, bad[_i].part);
    ck_assert_uint_eq(reader.at, bad[_i].at);
    ck_assert_int_eq(ek_error_status(), 0);
}

/* A NUL is no end. */
TEST(zero_bytes)
{
    static const char text[] = "{\"a\":[1,true,\"b\"]} ";
    ek_json_reader reader;
    char trace[100], changed[sizeof text];
    for (size_t at = 0; at < sizeof text - 1; at++) {
        memcpy(changed, text, sizeof text);
        changed[at] = '\0';
        ck_assert_msg(parse(changed, sizeof text - 1, &reader, trace) < 0, "NUL at %zu", at);
    }
}

TEST(depth)
{
    for (int deep = EK_JSON_DEPTH; deep <= EK_JSON_DEPTH + 1; deep++) {
        char text[2 * EK_JSON_DEPTH + 2], trace[8 * EK_JSON_DEPTH];
        ek_json_reader reader;
        memset(text, '[', (size_t)deep);
        memset(text + deep, ']', (size_t)deep);
        int status = parse(text, 2 * (size_t)deep, &reader, trace);
        ck_assert_int_eq(status, deep > EK_JSON_DEPTH ? -1 : 0);
        if (status < 0)
            ck_assert_str_eq(reader.error, "nested deeper than 128");
    }
}

TEST(skipping)
{
    char text[] = "[{\"a\":[1,{\"b\":[]}],\"c\":\"d\"},7,[],[2,3]]";
    ek_json_reader reader = {.text = text, .nbytes = sizeof text - 1};
    ek_json_value value;
    const char *key;
    ck_assert_int_eq(ek_json_read(&reader, &value), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ek_json_next(&reader, &key), 1);
        ck_assert_int_eq(ek_json_read(&reader, &value), 0);
        if (i == 3) { /* the rest of what has been begun */
            ek_json_value first;
            ck_assert_int_eq(ek_json_next(&reader, &key), 1);
            ck_assert_int_eq(ek_json_read(&reader, &first), 0);
            ck_assert_int_eq((int)first.integer, 2);
        }
        ck_assert_int_eq(ek_json_skip(&reader, &value), 0);
    }
    ck_assert_int_eq(ek_json_next(&reader, &key), 0);
    ck_assert_int_eq(ek_json_end(&reader), 0);
}

/* ---- writing ---- */

static void put_all(ek_json_writer *json)
{
    ek_json_begin(json, NULL, '{');
    ek_json_put_text(json, "a \"\\\b\f\n\r\t\x01\x1f\x7f\u00e4", "/\U0001f600");
    ek_json_put_text(json, "no UTF-8", "a\xff");
    ek_json_begin(json, "empty", '[');
    ek_json_close(json, ']');
    ek_json_begin(json, "numbers", '[');
    ek_json_put_integer(json, NULL, INT64_MIN);
    ek_json_put_integer(json, NULL, INT64_MAX);
    ek_json_put_real(json, NULL, 0.1, 17);
    ek_json_put_real(json, NULL, -2.5e-300, 12);
    ek_json_put_real(json, NULL, 3, 12);
    ek_json_put_real(json, NULL, 1e100, 12);
    ek_json_put_real(json, NULL, (double)NAN, 12);
    ek_json_put_real(json, NULL, -(double)INFINITY, 12);
    ek_json_close(json, ']');
    ek_json_close(json, '}');
}

static const char compact[] =
    "{\"a \\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u00e4\":\"/\U0001f600\",\"no UTF-8\":\"?\","
    "\"empty\":[],\"numbers\":[-9223372036854775808,9223372036854775807,0.10000000000000001,"
    "-2.5e-300,3,1e+100,null,null]}";

TEST(what_is_written_compactly)
{
    char bytes[sizeof compact + 100];
    ek_json_writer counting = {.bytes = NULL}, writing = {.bytes = bytes};
    put_all(&counting);
    ck_assert_uint_eq(counting.nbytes, sizeof compact - 1);
    put_all(&writing);
    ck_assert_uint_eq(writing.nbytes, sizeof compact - 1);
    ck_assert_mem_eq(bytes, compact, sizeof compact - 1);
    ek_json_reader reader;
    char trace[800];
    ck_assert_int_eq(parse(bytes, writing.nbytes, &reader, trace), 0);
}

TEST(what_is_written)
{
    char text[100] = "";
    FILE *stream = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(stream);
    ek_json_writer json = {.stream = stream, .indented = true};
    ek_json_begin(&json, NULL, '{');
    ek_json_put_integer(&json, "a", 1);
    ek_json_begin(&json, "b", '[');
    ek_json_put_text(&json, NULL, "c");
    ek_json_close(&json, ']');
    ek_json_begin(&json, "d", '{');
    ek_json_close(&json, '}');
    ek_json_close(&json, '}');
    fclose(stream);
    ck_assert_str_eq(text, "{\n \"a\": 1,\n \"b\": [\n  \"c\"\n ],\n \"d\": {}\n}");
}
