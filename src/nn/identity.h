/* identity.h: a map from addresses to addresses, for walks that meet shared objects once. */
#ifndef EK_NN_IDENTITY_H
#define EK_NN_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>

/* All zero is an empty map. */
typedef struct ek_identity_map {
    struct ek_identity_entry *entries; /* open addressing, a power of two */
    size_t capacity, count;
} ek_identity_map;

/* Where the value of `key` (not NULL) stands, NULL at first; NULL with EK_E_NO_MEMORY, which
 * can't be where the key is there already. Valid until the next call. */
void **ek_identity_at(ek_identity_map *map, const void *key);

/* The value of `key`; NULL where it isn't there. Takes no memory, so NULL is never an error. */
void *ek_identity_find(const ek_identity_map *map, const void *key);

/* True where `key` was not there yet; it is then. *status becomes EK_E_NO_MEMORY where it could not
 * be noted (and the result is false). */
bool ek_identity_add(ek_identity_map *map, const void *key, int *status);

void ek_identity_clear(ek_identity_map *map);

#endif
