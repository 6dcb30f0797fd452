/* heap.h: memory for the library's own bookkeeping. */
#ifndef EK_CORE_HEAP_H
#define EK_CORE_HEAP_H

#include <stddef.h>

/* calloc, realloc and strdup that set EK_E_NO_MEMORY with the caller's place. Free with free(). */
void *ek_calloc_at(size_t count, size_t size, const char *file, int line);
void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line);
char *ek_strdup_at(const char *text, const char *file, int line);
/* Makes room for `count` items in an array that has room for *room. A new room is at least twice
 * the old one and at least 8. `array` is the address of the pointer to the items. Returns 0, or
 * EK_E_NO_MEMORY with both unchanged. */
int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line);
#define ek_grow(array, room, count) \
    ek_grow_at((array), sizeof **(array), (room), (count), __FILE__, __LINE__)
#define ek_calloc(count, size) ek_calloc_at((count), (size), __FILE__, __LINE__)
#define ek_realloc(pointer, nbytes) ek_realloc_at((pointer), (nbytes), __FILE__, __LINE__)
#define ek_strdup(text) ek_strdup_at((text), __FILE__, __LINE__)

#endif
