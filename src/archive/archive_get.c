/* archive_get.c: names with dots as nested dictionaries. */
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/tensor.h"

/* ---- order ---- */

/* A number as list elements have it. */
static bool is_number(const char *part, size_t length)
{
    enum { DIGITS = 9 };
    return length > 0 && length <= DIGITS && strspn(part, "0123456789") >= length &&
           (length == 1 || part[0] != '0');
}

/* Numbers first and by their value, so that lists come in their order. */
static int compare_parts(const char *a, size_t length_a, const char *b, size_t length_b)
{
    bool number_a = is_number(a, length_a), number_b = is_number(b, length_b);
    if (number_a != number_b)
        return number_a ? -1 : 1;
    if (number_a && length_a != length_b)
        return length_a < length_b ? -1 : 1;
    int order = memcmp(a, b, length_a < length_b ? length_a : length_b);
    if (order != 0 || length_a == length_b)
        return order;
    return length_a < length_b ? -1 : 1;
}

static int compare_names(const void *left, const void *right)
{
    const char *a = *(const char *const *)left, *b = *(const char *const *)right;
    for (;;) {
        size_t length_a = strcspn(a, "."), length_b = strcspn(b, ".");
        int order = compare_parts(a, length_a, b, length_b);
        if (order != 0)
            return order;
        a += length_a;
        b += length_b;
        if (!*a || !*b)
            return (*a != 0) - (*b != 0);
        a++;
        b++;
    }
}

/* ---- nesting ---- */

/* Sorted names of the file that have their first `at` bytes in common. */
typedef struct level {
    const ek_archive *archive;
    const char *const *names;
    int count;
    size_t at;
} level;

static ek_value nest(const level *l);

/* What the next part of the level's first name holds: `count` names begin with it. */
static ek_value nest_part(const level *l, int first, int count, size_t length)
{
    const char *name = l->names[first];
    if (name[l->at + length])
        return nest(&(const level){l->archive, l->names + first, count, l->at + length + 1});
    if (count == 1)
        return ek_value_of_tensor(ek_safetensors_read(l->archive->file, name));
    EK_FAIL(EK_E_FORMAT, "archive_get: %s: \"%.200s\" is a tensor, and \"%.200s\" is below it",
            l->archive->path, name, l->names[first + 1]);
    return ek_value_error();
}

/* Fills `entries`, keys in `keys`, which are to be freed; returns how many, or an error. */
static int nest_parts(const level *l, ek_value_entry *entries, char **keys)
{
    int filled = 0;
    for (int i = 0, next; i < l->count; i = next) {
        const char *part = l->names[i] + l->at;
        size_t length = strcspn(part, ".");
        for (next = i + 1; next < l->count; next++) {
            const char *other = l->names[next] + l->at;
            if (strcspn(other, ".") != length || memcmp(other, part, length) != 0)
                break;
        }
        char *key = ek_calloc(1, length + 1);
        if (!key)
            return EK_E_NO_MEMORY;
        memcpy(key, part, length);
        keys[filled] = key;
        entries[filled].key = key;
        entries[filled].value = nest_part(l, i, next - i, length);
        if (entries[filled].value.kind == EK_VALUE_ERROR)
            return ek_error_pending();
        filled++;
    }
    return filled;
}

static ek_value nest(const level *l)
{
    ek_value value = ek_value_error();
    ek_value_entry *entries = ek_calloc((size_t)l->count, sizeof *entries);
    char **keys = ek_calloc((size_t)l->count, sizeof *keys);
    int count = entries && keys ? nest_parts(l, entries, keys) : EK_E_NO_MEMORY;
    if (count >= 0)
        value = ek_value_dict(entries, count);
    for (int i = 0; keys && i < l->count; i++)
        free(keys[i]);
    free(keys);
    free(entries);
    return value;
}

/* Files of others may nest without end: recursion may not. */
static int check_depth(const level *l)
{
    for (int i = 0; i < l->count; i++) {
        int parts = 1;
        for (const char *at = l->names[i]; (at = strchr(at, '.')); at++)
            parts++;
        if (parts > EK_ARCHIVE_DEPTH)
            return EK_FAIL(EK_E_FORMAT,
                           "archive_get: %s: \"%.80s...\" nests %d deep; at most %d are possible",
                           l->archive->path, l->names[i], parts, EK_ARCHIVE_DEPTH);
    }
    return 0;
}

static ek_value get_below(const ek_archive *archive, const char *name, ek_archive_range range)
{
    ek_value value = ek_value_error();
    int count = range.end - range.begin;
    const char **names = ek_calloc((size_t)count, sizeof *names);
    if (!names)
        return value;
    for (int i = 0; i < count; i++)
        names[i] = ek_safetensors_sorted(archive->file, range.begin + i);
    qsort(names, (size_t)count, sizeof *names, compare_names);
    level all = {archive, names, count, *name ? strlen(name) + 1 : 0};
    if (check_depth(&all) == 0)
        value = nest(&all);
    free(names);
    return value;
}

ek_value ek_archive_get(const ek_archive *archive, const char *name)
{
    static const char what[] = "archive_get";
    if (ek_archive_check_read(archive, what, name) < 0)
        return ek_value_error();
    ek_archive_range range = ek_archive_below(archive, name);
    bool is_tensor = *name && ek_archive_has_tensor(archive, name);
    if (range.begin == range.end && !is_tensor) {
        EK_FAIL(EK_E_INVALID, "%s: %s has no tensor \"%.200s\" and none below%s", what,
                archive->path, name,
                ek_safetensors_metadata(archive->file, name) ? "; it is a text" : "");
        return ek_value_error();
    }
    if (is_tensor && range.begin < range.end) {
        EK_FAIL(EK_E_FORMAT, "%s: %s: \"%.200s\" is a tensor, and \"%.200s\" is below it", what,
                archive->path, name, ek_safetensors_sorted(archive->file, range.begin));
        return ek_value_error();
    }
    if (is_tensor)
        return ek_value_of_tensor(ek_safetensors_read(archive->file, name));
    ek_scope scope = ek_scope_begin();
    return ek_scope_return_value(&scope, get_below(archive, name, range));
}
