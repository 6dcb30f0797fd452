#include "common/json.h"

#include <inttypes.h>
#include <math.h>

static void quote(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(stream, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(stream, "\\u%04x", *c);
        else
            fputc(*c, stream);
    }
    fputc('"', stream);
}

static void begin_value(json_writer *json, const char *key)
{
    if (json->follows)
        fputs(json->flat ? ", " : ",", json->stream);
    if (!json->flat && json->depth > 0)
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    json->follows = true;
    if (key) {
        quote(json->stream, key);
        fputs(": ", json->stream);
    }
}

void json_begin(json_writer *json, const char *key, char bracket)
{
    begin_value(json, key);
    fputc(bracket, json->stream);
    json->depth++;
    json->follows = false;
}

void json_begin_flat(json_writer *json, const char *key)
{
    json_begin(json, key, '[');
    json->flat = true;
}

void json_end(json_writer *json, char bracket)
{
    json->depth--;
    if (!json->flat)
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->stream);
    json->flat = false;
    json->follows = true;
    if (json->depth == 0)
        fputc('\n', json->stream);
}

void json_put_text(json_writer *json, const char *key, const char *text)
{
    begin_value(json, key);
    quote(json->stream, text);
}

void json_put_integer(json_writer *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->stream, "%" PRId64, value);
}

void json_put_real(json_writer *json, const char *key, double value)
{
    begin_value(json, key);
    if (isfinite(value))
        fprintf(json->stream, "%.17g", value);
    else
        fputs("null", json->stream);
}
