/* finding.c: see finding.h. */
#include "finding.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int found(finding *f, finding_kind kind, const char *format, ...)
{
    va_list arguments;
    if (f->kind != FOUND_NOTHING)
        return -1;
    va_start(arguments, format);
    f->kind = kind;
    vsnprintf(f->sentence, sizeof f->sentence, format, arguments);
    va_end(arguments);
    return -1;
}

/* The next letter that is part of no number. */
static char next_letter(const char **at)
{
    while (**at && !isalpha((unsigned char)**at))
        ++*at;
    return **at ? *(*at)++ : '\0';
}

bool findings_alike(const finding *a, const finding *b)
{
    enum { LETTERS = 40 };
    const char *x = a->sentence, *y = b->sentence;
    if (a->kind != b->kind)
        return false;
    if (a->kind == FOUND_NUMBERS || a->kind == FOUND_LEAK || a->kind == FOUND_HANG)
        return true;
    for (int i = 0; i < LETTERS; i++) {
        char letter = next_letter(&x);
        if (letter != next_letter(&y))
            return false;
        if (letter == '\0')
            break;
    }
    return true;
}
