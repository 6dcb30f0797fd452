/* locale.h: numbers and letters that are the same in every program, whatever locale it has set.
 *
 * What is read (device lists) and what is written for files, logs and sentences has decimal points,
 * and knows ASCII's letters and spaces only: a Turkish "i" is the "i" of "512MiB". */
#ifndef EK_CORE_LOCALE_H
#define EK_CORE_LOCALE_H

#include <locale.h>
#include <stdarg.h>

#include "evenkeel/base.h"

/* From begin to end the calling thread formats and reads numbers as in the locale "C"; `end` takes
 * what `begin` returned. Cheap; they nest. */
locale_t ek_locale_begin(void);
void ek_locale_end(locale_t before);

/* As snprintf and vsnprintf in the locale "C"; a NaN is "nan", whatever its sign bit. Return the
 * length of what was to be written. */
size_t ek_format(char *text, size_t room, const char *format, ...) EK_PRINTF(3, 4);
size_t ek_format_list(char *text, size_t room, const char *format, va_list arguments);

static inline bool ek_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static inline bool ek_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline char ek_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* True if the texts are equal but for the case of ASCII's letters. */
bool ek_same_letters(const char *a, const char *b);

#endif
