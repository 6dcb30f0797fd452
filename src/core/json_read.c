/* json_read.c: the JSON reader. It keeps one bit for each open array or object. */
#include <stdarg.h>
#include <string.h>

#include "core/json.h"
#include "core/thread.h"

/* ---- errors ---- */

static int json_fail(ek_json_reader *reader, const char *format, ...) EK_PRINTF(2, 3);
static int json_fail(ek_json_reader *reader, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->error, sizeof reader->error, format, arguments);
    va_end(arguments);
    return -1;
}

/* ---- bytes ---- */

static bool json_at_end(const ek_json_reader *reader)
{
    return reader->at == reader->nbytes;
}

/* Skips white space and returns the next byte; at the end returns NUL, which no JSON text
 * contains. */
static char json_look(ek_json_reader *reader)
{
    while (!json_at_end(reader) && memchr(" \t\r\n", reader->text[reader->at], 4))
        reader->at++;
    return json_at_end(reader) ? '\0' : reader->text[reader->at];
}

static int json_fail_here(ek_json_reader *reader, const char *wanted)
{
    unsigned char byte = (unsigned char)json_look(reader);
    if (json_at_end(reader))
        return json_fail(reader, "it ends instead of %s", wanted);
    if (byte > ' ' && byte < 127)
        return json_fail(reader, "there is '%c' instead of %s", byte, wanted);
    return json_fail(reader, "there is byte 0x%02x instead of %s", byte, wanted);
}

static bool json_accept(ek_json_reader *reader, char wanted)
{
    if (json_look(reader) != wanted || json_at_end(reader))
        return false;
    reader->at++;
    return true;
}

/* ---- UTF-8 ---- */

static bool json_is_between(unsigned char byte, unsigned char low, unsigned char high)
{
    return byte >= low && byte <= high;
}

/* Returns the length of the UTF-8 character at `text`, where `nbytes` bytes are left. Returns 0 if
 * the character is cut off or invalid: not the shortest form, a surrogate, or beyond U+10FFFF
 * (Unicode, table 3-7). */
static size_t json_character_nbytes(const char *text, size_t nbytes)
{
    const unsigned char *byte = (const unsigned char *)text;
    size_t length = byte[0] < 0x80 ? 1 : byte[0] < 0xe0 ? 2 : byte[0] < 0xf0 ? 3 : 4;
    if (length == 1)
        return 1;
    if (!json_is_between(byte[0], 0xc2, 0xf4) || length > nbytes)
        return 0;
    unsigned char low = byte[0] == 0xe0 ? 0xa0 : byte[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = byte[0] == 0xed ? 0x9f : byte[0] == 0xf4 ? 0x8f : 0xbf;
    if (!json_is_between(byte[1], low, high))
        return 0;
    for (size_t i = 2; i < length; i++)
        if (!json_is_between(byte[i], 0x80, 0xbf))
            return 0;
    return length;
}

bool ek_utf8_is_valid(const char *text)
{
    size_t nbytes = strlen(text), length = 1;
    for (size_t at = 0; at < nbytes && length > 0; at += length)
        length = json_character_nbytes(text + at, nbytes - at);
    return length > 0;
}

/* Writes a character as UTF-8 and returns its length. */
static size_t json_encode(uint32_t code, char *to)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)(first[length] | code);
    return length;
}

/* ---- strings ---- */

/* Reads the four hexadecimal digits after "\u". */
static int json_read_unit(ek_json_reader *reader, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        char c = json_at_end(reader) ? '\0' : reader->text[reader->at];
        const char *digit = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c) : NULL;
        if (!digit)
            return json_fail(reader, "four hexadecimal digits follow \\u");
        *unit = 16 * *unit + (uint32_t)(digit - digits);
        reader->at++;
    }
    return 0;
}

/* Reads the character after "\u", which may be written as two surrogates. */
static int json_read_code(ek_json_reader *reader, uint32_t *code)
{
    uint32_t low = 0;
    EK_TRY(json_read_unit(reader, code));
    if (*code == 0)
        return json_fail(reader, "\\u0000 is not allowed");
    if (*code < 0xd800 || *code > 0xdfff)
        return 0;
    if (*code > 0xdbff || reader->nbytes - reader->at < 2 ||
        memcmp(reader->text + reader->at, "\\u", 2) != 0)
        return json_fail(reader, "\\u%04x is half a character", (unsigned)*code);
    reader->at += 2;
    EK_TRY(json_read_unit(reader, &low));
    if (low < 0xdc00 || low > 0xdfff)
        return json_fail(reader, "\\u%04x is half a character", (unsigned)*code);
    *code = 0x10000 + ((*code & 0x3ff) << 10 | (low & 0x3ff));
    return 0;
}

/* Reads the escape after a backslash and writes its character, which is shorter, to `to`. */
static int json_read_escape(ek_json_reader *reader, char *to, size_t *nbytes)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    uint32_t code = 0;
    char name = json_at_end(reader) ? '\0' : reader->text[reader->at];
    const char *found = name ? strchr(names, name) : NULL;
    if (!found && name != 'u')
        return json_fail_here(reader, "an escape");
    reader->at++;
    if (found)
        code = (unsigned char)meanings[found - names];
    else
        EK_TRY(json_read_code(reader, &code));
    *nbytes = json_encode(code, to);
    return 0;
}

/* Decodes a string in place, which is possible because no character is longer than its escape. A
 * NUL replaces the closing quote. */
static int json_read_string(ek_json_reader *reader, ek_json_value *value)
{
    char *begin = reader->text + ++reader->at, *to = begin;
    while (!json_at_end(reader) && reader->text[reader->at] != '"') {
        const char *from = reader->text + reader->at;
        size_t nbytes = 0;
        if (*from == '\\') {
            reader->at++;
            EK_TRY(json_read_escape(reader, to, &nbytes));
        } else {
            nbytes = json_character_nbytes(from, reader->nbytes - reader->at);
            if (nbytes == 0)
                return json_fail(reader, "byte 0x%02x is not UTF-8", (unsigned char)*from);
            if ((unsigned char)*from < ' ')
                return json_fail(reader, "byte 0x%02x stands in a string", (unsigned char)*from);
            memmove(to, from, nbytes);
            reader->at += nbytes;
        }
        to += nbytes;
    }
    if (json_at_end(reader))
        return json_fail(reader, "it ends within a string");
    reader->at++;
    *to = '\0';
    *value = (ek_json_value){EK_JSON_STRING, 0, begin, (size_t)(to - begin)};
    return 0;
}

/* ---- numbers and words ---- */

static bool json_is_digit(const ek_json_reader *reader)
{
    return !json_at_end(reader) && reader->text[reader->at] >= '0' &&
           reader->text[reader->at] <= '9';
}

static int json_read_digits(ek_json_reader *reader)
{
    if (!json_is_digit(reader))
        return json_fail_here(reader, "a digit");
    while (json_is_digit(reader))
        reader->at++;
    return 0;
}

static bool json_accept_any(ek_json_reader *reader, const char *wanted)
{
    bool found = !json_at_end(reader) && memchr(wanted, reader->text[reader->at], strlen(wanted));
    reader->at += found;
    return found;
}

/* Reads the digits from `begin` to the reader's position as an int64_t. */
static int json_take_integer(ek_json_reader *reader, size_t begin, int64_t *integer)
{
    bool negative = reader->text[begin] == '-';
    *integer = 0;
    for (size_t at = begin + negative; at < reader->at; at++) {
        int digit = reader->text[at] - '0';
        if (__builtin_mul_overflow(*integer, 10, integer) ||
            __builtin_add_overflow(*integer, negative ? -digit : digit, integer))
            return json_fail(reader, "a whole number beyond 64 bits");
    }
    return 0;
}

static int json_read_number(ek_json_reader *reader, ek_json_value *value)
{
    size_t begin = reader->at;
    bool real = false;
    json_accept_any(reader, "-");
    if (!json_accept_any(reader, "0"))
        EK_TRY(json_read_digits(reader));
    else if (json_is_digit(reader))
        return json_fail_here(reader, "the end of a number that begins with 0");
    if (json_accept_any(reader, ".")) {
        real = true;
        EK_TRY(json_read_digits(reader));
    }
    if (json_accept_any(reader, "eE")) {
        real = true;
        json_accept_any(reader, "+-");
        EK_TRY(json_read_digits(reader));
    }
    *value = (ek_json_value){real ? EK_JSON_REAL : EK_JSON_INTEGER, 0, reader->text + begin,
                             reader->at - begin};
    return real ? 0 : json_take_integer(reader, begin, &value->integer);
}

static int json_read_word(ek_json_reader *reader, ek_json_value *value)
{
    static const struct {
        const char *name;
        ek_json_value value;
    } words[] = {{"null", {EK_JSON_NULL, 0, NULL, 0}},
                 {"true", {EK_JSON_BOOLEAN, 1, NULL, 0}},
                 {"false", {EK_JSON_BOOLEAN, 0, NULL, 0}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t nbytes = strlen(words[i].name);
        if (reader->nbytes - reader->at >= nbytes &&
            memcmp(reader->text + reader->at, words[i].name, nbytes) == 0) {
            reader->at += nbytes;
            *value = words[i].value;
            return 0;
        }
    }
    return json_fail_here(reader, "a value");
}

/* ---- arrays and objects ---- */

static bool json_in_object(const ek_json_reader *reader)
{
    int innermost = reader->depth - 1;
    return reader->objects[innermost / 8] >> innermost % 8 & 1;
}

static int json_open_nest(ek_json_reader *reader, ek_json_value *value, bool object)
{
    if (reader->depth == EK_JSON_DEPTH)
        return json_fail(reader, "nested deeper than %d", EK_JSON_DEPTH);
    unsigned char bit = (unsigned char)(1u << reader->depth % 8);
    unsigned char *bits = &reader->objects[reader->depth / 8];
    *bits = (unsigned char)(object ? *bits | bit : *bits & ~bit);
    reader->depth++;
    reader->at++;
    reader->begun = false;
    *value = (ek_json_value){object ? EK_JSON_OBJECT : EK_JSON_ARRAY, 0, NULL, 0};
    return 0;
}

int ek_json_read(ek_json_reader *reader, ek_json_value *value)
{
    char first = json_look(reader);
    if (first == '{' || first == '[')
        return json_open_nest(reader, value, first == '{');
    reader->begun = true;
    if (first == '"')
        return json_read_string(reader, value);
    if (first == '-' || json_is_digit(reader))
        return json_read_number(reader, value);
    return json_read_word(reader, value);
}

static int json_read_key(ek_json_reader *reader, const char **key)
{
    ek_json_value string;
    if (json_look(reader) != '"')
        return json_fail_here(reader, "a key");
    EK_TRY(json_read_string(reader, &string));
    *key = string.text;
    return json_accept(reader, ':') ? 0 : json_fail_here(reader, "':'");
}

int ek_json_next(ek_json_reader *reader, const char **key)
{
    bool object = json_in_object(reader);
    *key = NULL;
    if (json_accept(reader, object ? '}' : ']')) {
        reader->depth--;
        reader->begun = true;
        return 0;
    }
    if (reader->begun && !json_accept(reader, ','))
        return json_fail_here(reader, object ? "',' or '}'" : "',' or ']'");
    if (object)
        EK_TRY(json_read_key(reader, key));
    return 1;
}

int ek_json_skip(ek_json_reader *reader, const ek_json_value *value)
{
    int outside = reader->depth - 1;
    ek_json_value element;
    const char *key;
    if (value->kind != EK_JSON_ARRAY && value->kind != EK_JSON_OBJECT)
        return 0;
    while (reader->depth > outside) {
        int more = ek_json_next(reader, &key);
        EK_TRY(more);
        if (more)
            EK_TRY(ek_json_read(reader, &element));
    }
    return 0;
}

int ek_json_end(ek_json_reader *reader)
{
    json_look(reader);
    return json_at_end(reader) ? 0 : json_fail_here(reader, "the end");
}
