/* locale.h: reads and writes numbers and letters independently of the program's locale.
 *
 * Device lists, files, logs and sentences have decimal points. Letters and spaces are ASCII's, so
 * that the "i" of "512MiB" is an "i" in a Turkish locale, too. */
#ifndef EK_CORE_LOCALE_H
#define EK_CORE_LOCALE_H

#include <locale.h>
#include <stdarg.h>

#include "evenkeel/base.h"

/* Between ek_locale_begin and ek_locale_end the calling thread reads and writes numbers as in the
 * locale "C". ek_locale_end gets what ek_locale_begin returned. Pairs of calls may nest, and are
 * cheap. */
locale_t ek_locale_begin(void);
void ek_locale_end(locale_t before);

/* Do what snprintf and vsnprintf do in the locale "C", but write every NaN as "nan". Return the
 * length of the whole text, even if the text was cut. */
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

/* Returns true if the texts are equal when the case of ASCII letters is ignored. */
bool ek_same_letters(const char *a, const char *b);

#endif
