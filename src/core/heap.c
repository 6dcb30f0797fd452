/* heap.c: see error.h. */
#include "core/error.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void *ek_calloc_at(size_t count, size_t size, const char *file, int line)
{
    void *pointer = calloc(count ? count : 1, size ? size : 1);
    if (!pointer)
        ek_error_set(EK_E_NO_MEMORY, file, line,
                     "the process has no memory left for %zu x %zu bytes", count, size);
    return pointer;
}

void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line)
{
    void *grown = realloc(pointer, nbytes ? nbytes : 1);
    if (!grown)
        ek_error_set(EK_E_NO_MEMORY, file, line, "the process has no memory left for %zu bytes",
                     nbytes);
    return grown;
}

int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line)
{
    void *items;
    if (count <= *room)
        return 0;
    int larger = *room > INT_MAX / 2 ? INT_MAX : 2 * *room;
    if (larger < count)
        larger = count < 8 ? 8 : count;
    memcpy(&items, array, sizeof items);
    items = ek_realloc_at(items, (size_t)larger * item_nbytes, file, line);
    if (!items)
        return EK_E_NO_MEMORY;
    memcpy(array, &items, sizeof items);
    *room = larger;
    return 0;
}

char *ek_strdup_at(const char *text, const char *file, int line)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = ek_calloc_at(1, nbytes, file, line);
    if (copy)
        memcpy(copy, text, nbytes);
    return copy;
}
