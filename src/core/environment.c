/* environment.c: see environment.h. */
#include "core/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/locale.h"

int ek_environment_switch(const char *name, bool *on)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return 0;
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return EK_FAIL(EK_E_INVALID, "%s is \"%.80s\"; it can be 0 or 1", name, text);
    *on = *text == '1';
    return 0;
}

int ek_environment_count(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return 0;
    long number = ek_is_digit(*text) ? strtol(text, &end, 10) : 0;
    return number < 1 || number > EK_MOST_COUNT || *end ? -1 : (int)number;
}

/* Reads the next word of a list and moves *at past it. Empty words are skipped. Returns false at
 * the end of the list. */
static bool environment_next_word(const char **at, const char **word, size_t *length)
{
    if (*at)
        *at += strspn(*at, ",");
    if (!*at || !**at)
        return false;
    *word = *at;
    *length = strcspn(*at, ",");
    *at += *length + ((*at)[*length] == ',');
    return true;
}

static bool environment_is_word(const char *known, const char *word, size_t length)
{
    size_t same = 0;
    while (same < length && ek_lower(known[same]) == ek_lower(word[same]))
        same++;
    return same == length && !known[same];
}

bool ek_environment_lists(const char *name, const char *wanted)
{
    const char *at = getenv(name), *word;
    size_t length;
    while (environment_next_word(&at, &word, &length))
        if (environment_is_word(wanted, word, length))
            return true;
    return false;
}

int ek_environment_check_list(const char *name, const char *const *known, int count)
{
    const char *at = getenv(name), *word;
    size_t length;
    while (environment_next_word(&at, &word, &length)) {
        char all[200] = "";
        bool found = false;
        for (int i = 0; i < count; i++) {
            size_t used = strlen(all);
            found = found || environment_is_word(known[i], word, length);
            snprintf(all + used, sizeof all - used, "%s%s",
                     i == 0          ? ""
                     : i < count - 1 ? ", "
                                     : " or ",
                     known[i]);
        }
        if (!found)
            return EK_FAIL(EK_E_INVALID, "%s names \"%.*s\", which is not %s", name,
                           (int)(length < 80 ? length : 80), word, all);
    }
    return 0;
}
