/* holders.h: who holds a device's memory: sums of bytes by module and category. Paths are those of
 * core/path.h, which are compared by address. */
#ifndef EK_CORE_HOLDERS_H
#define EK_CORE_HOLDERS_H

#include "evenkeel/device.h"

/* Who holds a block of memory. */
typedef struct ek_held {
    const char *path;
    size_t nbytes;  /* as the ledger counts; 0: nobody holds the block */
    uint64_t since; /* a number that grows with each new holder of the device's memory */
    ek_memory_category category;
} ek_held;

/* A request that found no memory, and the ledger and the largest holders at that time. */
typedef struct ek_shortage {
    const char *path;
    ek_memory_category category;
    uint64_t nbytes;
    bool exhausted; /* the system had no memory left for the request */
    ek_memory_stats stats;
    int count;
    ek_memory_holder holders[EK_MEMORY_HOLDERS];
} ek_shortage;

/* All zero is empty. */
typedef struct ek_holders {
    ek_memory_holder *entries; /* open addressing; an entry without a path is free */
    int count, room;           /* `room` is a power of two */
    bool lost;                 /* memory was short, and bytes were left out */
} ek_holders;

/* Adds bytes to a holder's sum, or sets `lost`. Sets no error, because the user's work that is
 * going on needs no list of holders. */
void ek_holders_add(ek_holders *holders, ek_memory_holder more);
/* Forgets all holders, and keeps the memory for the next ones. */
void ek_holders_empty(ek_holders *holders);
void ek_holders_clear(ek_holders *holders);

/* Copies at most `room` holders to `largest`, those with the most bytes first. Returns how many
 * were copied. */
int ek_holders_largest(const ek_holders *holders, ek_memory_holder *largest, int room);

#endif
