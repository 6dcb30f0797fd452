/* json.h: writes JSON: objects and arrays are begun and ended, commas and indents come by
 * themselves.
 *
 * Inside an object every value has a key; inside an array the key is NULL. */
#ifndef COMMON_JSON_H
#define COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json_writer {
    FILE *stream;
    int depth;
    bool follows; /* a value stands before the next at this depth */
    bool flat;    /* within an array of numbers: on one line */
} json_writer;

void json_begin(json_writer *json, const char *key, char bracket); /* '{' or '[' */
void json_begin_flat(json_writer *json, const char *key);          /* '[' on one line */
void json_end(json_writer *json, char bracket);                    /* '}' or ']' */
void json_put_text(json_writer *json, const char *key, const char *text);
void json_put_integer(json_writer *json, const char *key, int64_t value);
void json_put_real(json_writer *json, const char *key,
                   double value); /* null where it is not finite */

#endif
