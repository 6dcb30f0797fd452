/* keywords.c: which options a call names. The text is what the # operator gives. */
#include "evenkeel/base.h"

#include <string.h>

#include "core/error.h"
#include "core/keywords.h"
#include "core/locale.h"

static bool keyword_continues_name(char c)
{
    return c == '_' || ek_is_digit(c) || (ek_lower(c) >= 'a' && ek_lower(c) <= 'z');
}

static const char *keyword_skip_spaces(const char *at)
{
    while (ek_is_space(*at))
        at++;
    return at;
}

/* The character behind a string or character constant that begins at `at`. */
static const char *keyword_skip_quoted(const char *at)
{
    const char quote = *at++;
    while (*at && *at != quote)
        at += *at == '\\' && at[1] ? 2 : 1;
    return *at ? at + 1 : at;
}

/* The character behind a name or number. Single quotes may separate a number's digits. */
static const char *keyword_skip_word(const char *at)
{
    const bool number = ek_is_digit(*at);
    while (keyword_continues_name(*at) || *at == '.' ||
           (number && *at == '\'' && keyword_continues_name(at[1])))
        at++;
    return at;
}

/* The comma that ends the argument at `at`, or the end of the text. */
static const char *keyword_argument_end(const char *at)
{
    for (int depth = 0; *at && (depth > 0 || *at != ',');) {
        switch (*at) {
        case '"':
        case '\'':
            at = keyword_skip_quoted(at);
            break;
        case '(':
        case '[':
        case '{':
            depth++;
            at++;
            break;
        case ')':
        case ']':
        case '}':
            depth--;
            at++;
            break;
        default:
            at = keyword_continues_name(*at) ? keyword_skip_word(at) : at + 1;
        }
    }
    return at;
}

bool ek_keyword_is_written(const char *keywords, const char *name, int position)
{
    if (!keywords || !name)
        return false;
    const size_t length = strlen(name);
    bool designated = false; /* an argument before this one is designated */
    const char *at = keywords;
    for (int i = 0;; i++) {
        at = keyword_skip_spaces(at);
        if (*at == '.') {
            designated = true;
            const char *word = keyword_skip_spaces(at + 1);
            if (strncmp(word, name, length) == 0 && !keyword_continues_name(word[length]))
                return true;
        } else if (*at && *at != ',' && !designated && i == position) {
            return true;
        }
        at = keyword_argument_end(at);
        if (!*at)
            return false;
        at++;
    }
}

int ek_second_name_read(const char *what, const char *name, int *value, const char *second_name,
                        int second)
{
    if (second && *value && *value != second)
        return EK_FAIL(EK_E_INVALID, "%s: %s is %d and %s is %d; they are one option, give one",
                       what, name, *value, second_name, second);
    *value = second ? second : *value;
    return 0;
}

int ek_switch_read(const char *what, const char *name, bool written, ek_switch fallback,
                   ek_switch *given)
{
    const int value = (int)*given;
    if (value != 0 && value != EK_ON && value != EK_OFF && value != EK_DEFAULT)
        return EK_FAIL(EK_E_INVALID, "%s: %s can be EK_ON or EK_OFF, not %d", what, name, value);
    if (value == 0 || value == EK_DEFAULT)
        *given = value == 0 && written ? EK_OFF : fallback;
    return 0;
}
