/* json.h: reading and writing JSON (RFC 8259). Nothing here allocates: no text, however long or
 * deep, needs more memory than itself. */
#ifndef EK_CORE_JSON_H
#define EK_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- reading ----
 *
 * The reader walks once over a text, from its first value:
 *
 *     ek_json_reader reader = {.text = text, .nbytes = nbytes};
 *     ek_json_value value;
 *     const char *key;
 *     EK_TRY(ek_json_read(&reader, &value));          (an object: its '{' has been read)
 *     while ((more = ek_json_next(&reader, &key)) > 0)
 *         EK_TRY(ek_json_read(&reader, &value));      (the member's value)
 *
 * Strings are decoded where they stand, so that the text must be writable and lives as long as they
 * do. UTF-8 is checked. Repeated keys are the caller's to find. On an error the functions return -1
 * and set no pending one; `at` and `error` say what is wrong. */

enum { EK_JSON_DEPTH = 128 }; /* arrays and objects nest at most so deep */

typedef struct ek_json_reader {
    char *text;
    size_t nbytes, at;
    int depth;                                /* how many arrays and objects are open */
    unsigned char objects[EK_JSON_DEPTH / 8]; /* a bit for each: it is an object */
    bool begun;                               /* the innermost one has elements before `at` */
    char error[100];
} ek_json_reader;

typedef enum ek_json_kind {
    EK_JSON_NULL,
    EK_JSON_BOOLEAN,
    EK_JSON_INTEGER, /* within int64_t */
    EK_JSON_REAL,    /* all numbers with a fraction or an exponent */
    EK_JSON_STRING,
    EK_JSON_ARRAY,
    EK_JSON_OBJECT
} ek_json_kind;

typedef struct ek_json_value {
    ek_json_kind kind;
    int64_t integer;  /* a boolean is 0 or 1 */
    const char *text; /* a string, with no NUL within; or the first character of a number */
    size_t nbytes;    /* the length of text */
} ek_json_value;

/* Reads a value. Of an array or object it reads the bracket: its elements follow. */
int ek_json_read(ek_json_reader *reader, ek_json_value *value);

/* Whether the innermost open array or object has another element: 1, and its key in an object, or
 * NULL; 0: it is closed. */
int ek_json_next(ek_json_reader *reader, const char **key);

/* Reads over what is left of a value that has been read: all of an array or object. */
int ek_json_skip(ek_json_reader *reader, const ek_json_value *value);

/* Nothing but space follows. */
int ek_json_end(ek_json_reader *reader);

/* ---- UTF-8 ---- */

bool ek_utf8_is_valid(const char *text);

/* ---- writing ----
 *
 * To a stream, whose errors its owner looks for, or to memory. Commas come by themselves. Within an
 * object every value has a key; elsewhere the key is NULL. */

typedef struct ek_json_writer {
    FILE *stream;  /* NULL: to memory */
    char *bytes;   /* at least as many as will be written; NULL: they are counted only */
    size_t nbytes; /* written so far */
    bool indented; /* a value on each line */
    bool in_html;  /* within a script element, which no text ends: '<' is written as \u003c */
    int depth;
    bool begun; /* a value stands before the next one */
} ek_json_writer;

void ek_json_begin(ek_json_writer *writer, const char *key, char bracket); /* '{' or '[' */
void ek_json_close(ek_json_writer *writer, char bracket);                  /* '}' or ']' */
/* "?" instead of a text that is not UTF-8. */
void ek_json_put_text(ek_json_writer *writer, const char *key, const char *text);
void ek_json_put_integer(ek_json_writer *writer, const char *key, int64_t value);
/* With so many digits; null if it is not finite. Whatever the locale. */
void ek_json_put_real(ek_json_writer *writer, const char *key, double value, int digits);

#endif
