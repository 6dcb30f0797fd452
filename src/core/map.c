/* map.c: see map.h. */
#include "core/map.h"

#include <stdint.h>
#include <stdlib.h>

#include "core/thread.h"

typedef struct ek_map_entry {
    const void *key;
    void *value;
} ek_map_entry;

/* Returns the entry of `key`, or a free entry if the key is new. At least one entry is always free.
 * `capacity` is a power of 2. */
static ek_map_entry *map_find(ek_map_entry *entries, size_t capacity, const void *key)
{
    /* Fibonacci hashing, because addresses share their low bits. */
    size_t i = (size_t)(((uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
    for (i &= capacity - 1; entries[i].key && entries[i].key != key;)
        i = (i + 1) & (capacity - 1);
    return &entries[i];
}

static int map_grow(ek_map *map)
{
    size_t capacity = map->capacity ? 4 * map->capacity : 64;
    ek_map_entry *entries = ek_calloc(capacity, sizeof *entries);
    if (!entries)
        return EK_E_NO_MEMORY;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].key)
            *map_find(entries, capacity, map->entries[i].key) = map->entries[i];
    free(map->entries);
    map->entries = entries;
    map->capacity = capacity;
    return 0;
}

void **ek_map_at(ek_map *map, const void *key)
{
    ek_map_entry *known = map->capacity ? map_find(map->entries, map->capacity, key) : NULL;
    if (known && known->key)
        return &known->value;
    if (2 * (map->count + 1) > map->capacity && map_grow(map) < 0)
        return NULL;
    ek_map_entry *entry = map_find(map->entries, map->capacity, key);
    entry->key = key;
    map->count++;
    return &entry->value;
}

void *ek_map_find(const ek_map *map, const void *key)
{
    return map->capacity ? map_find(map->entries, map->capacity, key)->value : NULL;
}

bool ek_map_add(ek_map *map, const void *key, int *status)
{
    size_t before = map->count;
    if (!ek_map_at(map, key)) {
        *status = EK_E_NO_MEMORY;
        return false;
    }
    return map->count != before;
}

void ek_map_clear(ek_map *map)
{
    free(map->entries);
    *map = (ek_map){0};
}
