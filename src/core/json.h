/* json.h: reading and writing JSON (RFC 8259). Nothing here allocates memory. */
#ifndef EK_CORE_JSON_H
#define EK_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- reading ----
 *
 * The reader walks over a text once, from its first value on:
 *
 *     ek_json_reader reader = {.text = text, .nbytes = nbytes};
 *     ek_json_value value;
 *     const char *key;
 *     EK_TRY(ek_json_read(&reader, &value));          (an object: its '{' has been read)
 *     while ((more = ek_json_next(&reader, &key)) > 0)
 *         EK_TRY(ek_json_read(&reader, &value));      (the member's value)
 *
 * Strings are decoded in place: the text must be writable, and its strings live as long as it does.
 * UTF-8 is checked. Repeated keys are not. On an error the functions return -1 and set no pending
 * error; the reader's `at` and `error` say what is wrong. */

enum { EK_JSON_DEPTH = 128 }; /* how deep arrays and objects may nest */

typedef struct ek_json_reader {
    char *text;
    size_t nbytes, at;
    int depth;                                /* how many arrays and objects are open */
    unsigned char objects[EK_JSON_DEPTH / 8]; /* bit i: what is open at depth i is an object */
    bool begun;                               /* an element precedes `at` */
    char error[100];
} ek_json_reader;

typedef enum ek_json_kind {
    EK_JSON_NULL,
    EK_JSON_BOOLEAN,
    EK_JSON_INTEGER, /* within int64_t */
    EK_JSON_REAL,    /* numbers with a fraction or an exponent */
    EK_JSON_STRING,
    EK_JSON_ARRAY,
    EK_JSON_OBJECT
} ek_json_kind;

typedef struct ek_json_value {
    ek_json_kind kind;
    int64_t integer;  /* the value of an integer; 0 or 1 for a boolean */
    const char *text; /* a string's text, which holds no NUL; a number's first character */
    size_t nbytes;    /* the length of text */
} ek_json_value;

/* Reads a value. Of an array or object, reads only the opening bracket; ek_json_next continues
 * inside. */
int ek_json_read(ek_json_reader *reader, ek_json_value *value);

/* Returns 1 if the innermost open array or object has another element; *key becomes its key, or
 * NULL in an array. Returns 0 once the closing bracket has been read. */
int ek_json_next(ek_json_reader *reader, const char **key);

/* Reads past the rest of a value that ek_json_read has read: all elements of an array or object. */
int ek_json_skip(ek_json_reader *reader, const ek_json_value *value);

/* Returns 0 if only white space follows. */
int ek_json_end(ek_json_reader *reader);

/* ---- UTF-8 ---- */

bool ek_utf8_is_valid(const char *text);

/* ---- writing ----
 *
 * Writes to a stream, whose errors the caller checks, or to memory. Commas are added between
 * values. Within an object every value has a key; elsewhere the key is NULL. */

typedef struct ek_json_writer {
    FILE *stream;  /* NULL: write to `bytes` */
    char *bytes;   /* has room for all that is written; NULL: bytes are only counted */
    size_t nbytes; /* written so far */
    bool indented; /* each value is on a separate line */
    bool in_html;  /* '<' is written as \u003c, so that no text ends a script element */
    int depth;
    bool begun; /* the next value needs a comma before it */
} ek_json_writer;

void ek_json_begin(ek_json_writer *writer, const char *key, char bracket); /* '{' or '[' */
void ek_json_close(ek_json_writer *writer, char bracket);                  /* '}' or ']' */
/* Writes a string; if the text is not UTF-8, writes "?". */
void ek_json_put_text(ek_json_writer *writer, const char *key, const char *text);
void ek_json_put_integer(ek_json_writer *writer, const char *key, int64_t value);
/* Writes a number with `digits` significant digits, at most 17, in any locale. Writes null if the
 * number is not finite. */
void ek_json_put_real(ek_json_writer *writer, const char *key, double value, int digits);

#endif
