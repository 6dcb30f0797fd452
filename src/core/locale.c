/* locale.c: see locale.h. */
#include "core/locale.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t plain_once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the locale "C"; lives as long as the process */

static void locale_make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t ek_locale_begin(void)
{
    pthread_once(&plain_once, locale_make_plain);
    return uselocale(plain); /* if memory was short, `plain` is 0, which changes nothing */
}

void ek_locale_end(locale_t before)
{
    uselocale(before);
}

bool ek_same_letters(const char *a, const char *b)
{
    while (*a && ek_lower(*a) == ek_lower(*b))
        a++, b++;
    return ek_lower(*a) == ek_lower(*b);
}

/* Returns true if the format converts a real number. Flags, width and precision precede the
 * letter. */
static bool locale_formats_reals(const char *format)
{
    for (const char *at = strchr(format, '%'); at; at = strchr(at + 1, '%')) {
        at += 1 + strspn(at + 1, "-+ #0123456789.*l");
        if (!*at)
            return false;
        if (strchr("aAeEfFgG", *at))
            return true;
    }
    return false;
}

static bool locale_in_word(char c)
{
    return ek_is_digit(c) || (ek_lower(c) >= 'a' && ek_lower(c) <= 'z') || c == '_' || c == '/' ||
           c == '-';
}

/* Removes the sign of each "-nan" that is a separate word, because a NaN's sign says nothing.
 * Returns how many characters were removed. */
static size_t locale_drop_signs(char *text)
{
    size_t dropped = 0;
    for (char *at = strstr(text, "-nan"); at; at = strstr(at + 1, "-nan")) {
        if ((at > text && locale_in_word(at[-1])) || locale_in_word(at[4]))
            continue;
        memmove(at, at + 1, strlen(at));
        dropped++;
    }
    return dropped;
}

size_t ek_format_list(char *text, size_t room, const char *format, va_list arguments)
{
    if (!format)
        format = "";
    locale_t before = ek_locale_begin();
    int length = vsnprintf(text, room, format, arguments);
    ek_locale_end(before);
    if (length < 0)
        return 0;
    return (size_t)length - (locale_formats_reals(format) ? locale_drop_signs(text) : 0);
}

size_t ek_format(char *text, size_t room, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t length = ek_format_list(text, room, format, arguments);
    va_end(arguments);
    return length;
}
