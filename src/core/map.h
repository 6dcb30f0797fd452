/* map.h: a map from addresses to addresses, for walks that meet shared objects once. */
#ifndef EK_CORE_MAP_H
#define EK_CORE_MAP_H

#include <stdbool.h>
#include <stddef.h>

/* All zero is an empty map. */
typedef struct ek_map {
    struct ek_map_entry *entries; /* open addressing, a power of two */
    size_t capacity, count;
} ek_map;

/* The address of the value of `key` (not NULL); the value of a new key is NULL. Returns NULL with
 * EK_E_NO_MEMORY, but never for a key that is there already. Valid until the next call. */
void **ek_map_at(ek_map *map, const void *key);

/* The value of `key`, or NULL if it isn't there. Takes no memory, so NULL is never an error. */
void *ek_map_find(const ek_map *map, const void *key);

/* Adds `key` and returns true, or returns false if it is there already. Without memory it returns
 * false and sets *status to EK_E_NO_MEMORY. */
bool ek_map_add(ek_map *map, const void *key, int *status);

void ek_map_clear(ek_map *map);

#endif
