/* map.h: a map from addresses to addresses, for walks that visit shared objects once. */
#ifndef EK_CORE_MAP_H
#define EK_CORE_MAP_H

#include <stdbool.h>
#include <stddef.h>

/* All zero is an empty map. */
typedef struct ek_map {
    struct ek_map_entry *entries; /* open addressing; capacity is a power of two */
    size_t capacity, count;
} ek_map;

/* Returns the address of the value of `key` (not NULL), which is valid until the next call. A new
 * key is added with value NULL. Returns NULL with EK_E_NO_MEMORY if memory is short, but never for
 * a known key. */
void **ek_map_at(ek_map *map, const void *key);

/* Returns the value of `key`, or NULL if there is no such key. Sets no error. */
void *ek_map_find(const ek_map *map, const void *key);

/* Adds `key` and returns true. Returns false if the key is known, or, with *status EK_E_NO_MEMORY,
 * if memory is short. */
bool ek_map_add(ek_map *map, const void *key, int *status);

void ek_map_clear(ek_map *map);

#endif
