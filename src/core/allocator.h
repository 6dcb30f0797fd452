/* allocator.h: the memory of one device, as the allocator and the ledger share it. */
#ifndef EK_CORE_ALLOCATOR_H
#define EK_CORE_ALLOCATOR_H

#include "core/device.h"
#include "core/segments.h"

enum { EK_MEMORY_UNIT = 64, EK_MEMORY_BUCKETS = 256 };

/* `lock` guards all members but `shares`, which is constant. */
struct ek_allocator {
    pthread_mutex_t lock;
    bool shares;     /* requests share segments */
    int compactions; /* how often allocator_compact gave idle segments back */
    bool warned;     /* a warning that segments were given back was logged */
    bool optional;   /* the request that is being served is ek_dev_try_alloc_for's */
    bool exhausted;  /* the system had no memory left for the request that is being served */
    ek_memory_stats stats;
    struct ek_memory_watch *watches;
    ek_segments segments;
    ek_block *buckets[EK_MEMORY_BUCKETS];    /* cached blocks by a hash of their size */
    uint64_t filled[EK_MEMORY_BUCKETS / 64]; /* bit i: buckets[i] has a block */
    uint64_t releases;                       /* counts releases with an event */
};

static inline size_t ek_memory_round_up(size_t nbytes, size_t unit)
{
    return nbytes == 0 ? unit : (nbytes + unit - 1) / unit * unit;
}

/* ---- ledger.c: the allocator's lock is held ---- */

/* Returns how many bytes the ledger counts for a request of nbytes. */
static inline size_t ek_ledger_counted(size_t nbytes)
{
    return ek_memory_round_up(nbytes, EK_MEMORY_UNIT);
}

/* Count bytes that a program begins to use, or no longer uses. */
void ek_ledger_add(ek_dev *dev, size_t counted, ek_memory_category category);
void ek_ledger_subtract(ek_dev *dev, size_t counted, ek_memory_category category);

/* Counts bytes that were obtained from the system, in a segment or otherwise. */
void ek_ledger_reserve(ek_dev *dev, uint64_t nbytes);

/* Adds the ledger and the largest holders to a request that found no memory, and tells the tracer
 * of it. */
void ek_ledger_note_shortage(ek_dev *dev, ek_shortage *lack);

/* ---- ledger.c: sentences, without the lock ---- */

/* Writes an amount of memory, as "512 B" or "1.50 MiB", to `text` and returns `text`. */
const char *ek_ledger_amount_text(uint64_t nbytes, char text[32]);
/* Fails with EK_E_OUT_OF_MEMORY for a request that found no memory. */
int ek_ledger_out_of_memory(const ek_dev *dev, const ek_shortage *lack);

#endif
