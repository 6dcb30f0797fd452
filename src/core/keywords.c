/* keywords.c: see keywords.h. The text is that of C expressions, as the preprocessor writes it. */
#include "core/keywords.h"

#include <string.h>

static bool keyword_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

static bool keyword_is_letter(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static const char *keyword_skip_spaces(const char *at)
{
    while (keyword_is_space(*at))
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

/* The comma that ends the argument at `at`, or the end of the text. */
static const char *keyword_argument_end(const char *at)
{
    int depth = 0;
    while (*at && (depth > 0 || *at != ',')) {
        if (*at == '"' || *at == '\'') {
            at = keyword_skip_quoted(at);
            continue;
        }
        if (strchr("([{", *at))
            depth++;
        else if (strchr(")]}", *at))
            depth--;
        at++;
    }
    return at;
}

bool ek_keyword_is_written(const char *keywords, const char *name, int position)
{
    if (!keywords)
        return false;
    const size_t length = strlen(name);
    bool designated = false; /* an argument before this one has a name */
    const char *at = keywords;
    for (int i = 0;; i++) {
        at = keyword_skip_spaces(at);
        if (*at == '.') {
            designated = true;
            const char *word = keyword_skip_spaces(at + 1);
            if (strncmp(word, name, length) == 0 && !keyword_is_letter(word[length]))
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
