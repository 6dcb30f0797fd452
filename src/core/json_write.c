/* json_write.c: the JSON writer. It keeps nothing of the document but its depth. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/json.h"
#include "core/locale.h"

static void json_put(ek_json_writer *writer, const char *bytes, size_t nbytes)
{
    if (writer->stream)
        fwrite(bytes, 1, nbytes, writer->stream);
    else if (writer->bytes)
        memcpy(writer->bytes + writer->nbytes, bytes, nbytes);
    writer->nbytes += nbytes;
}

static void json_put_character(ek_json_writer *writer, char character)
{
    json_put(writer, &character, 1);
}

/* ---- texts ---- */

/* Writes a character as an escape, as the safetensors reference does. */
static void json_put_escaped(ek_json_writer *writer, char character)
{
    static const char names[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    char text[8];
    const char *found = strchr(meanings, character);
    if (found)
        snprintf(text, sizeof text, "\\%c", names[found - meanings]);
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned char)character);
    json_put(writer, text, strlen(text));
}

static void json_put_quoted(ek_json_writer *writer, const char *text)
{
    json_put_character(writer, '"');
    while (*text) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= ' ' && text[plain] != '"' && text[plain] != '\\' &&
               !(writer->in_html && text[plain] == '<'))
            plain++;
        json_put(writer, text, plain);
        text += plain;
        if (*text)
            json_put_escaped(writer, *text++);
    }
    json_put_character(writer, '"');
}

/* ---- values ---- */

static void json_new_line(ek_json_writer *writer)
{
    if (!writer->indented)
        return;
    json_put_character(writer, '\n');
    for (int i = 0; i < writer->depth; i++)
        json_put_character(writer, ' ');
}

static void json_begin_value(ek_json_writer *writer, const char *key)
{
    if (writer->begun)
        json_put_character(writer, ',');
    if (writer->depth > 0)
        json_new_line(writer);
    writer->begun = true;
    if (!key)
        return;
    json_put_quoted(writer, key);
    json_put(writer, ": ", writer->indented ? 2 : 1);
}

void ek_json_begin(ek_json_writer *writer, const char *key, char bracket)
{
    json_begin_value(writer, key);
    json_put_character(writer, bracket);
    writer->depth++;
    writer->begun = false;
}

void ek_json_close(ek_json_writer *writer, char bracket)
{
    writer->depth--;
    if (writer->begun)
        json_new_line(writer);
    json_put_character(writer, bracket);
    writer->begun = true;
}

void ek_json_put_text(ek_json_writer *writer, const char *key, const char *text)
{
    json_begin_value(writer, key);
    json_put_quoted(writer, ek_utf8_is_valid(text) ? text : "?");
}

void ek_json_put_integer(ek_json_writer *writer, const char *key, int64_t value)
{
    char text[32];
    json_begin_value(writer, key);
    json_put(writer, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

void ek_json_put_real(ek_json_writer *writer, const char *key, double value, int digits)
{
    char text[64];
    json_begin_value(writer, key);
    if (!isfinite(value)) {
        json_put(writer, "null", 4);
        return;
    }
    json_put(writer, text, ek_format(text, sizeof text, "%.*g", digits < 17 ? digits : 17, value));
}
