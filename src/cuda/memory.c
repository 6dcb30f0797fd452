/* memory.c: see memory.h. */
#include "cuda/memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/stream.h"

/* ---- memory of a device ---- */

/* Devices by index. Guarded by open_lock, which may be taken while an allocator's lock is held. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static ek_dev *open_devices[EK_MAX_DEVICES];

static void memory_set_open(const ek_dev *dev, ek_dev *entry)
{
    pthread_mutex_lock(&open_lock);
    open_devices[dev->id.index] = entry;
    pthread_mutex_unlock(&open_lock);
}

void ek_cuda_memory_open(ek_dev *dev)
{
    memory_set_open(dev, dev);
}

void ek_cuda_memory_close(const ek_dev *dev)
{
    memory_set_open(dev, NULL);
}

void ek_cuda_memory_measure(ek_dev *dev)
{
    size_t available, total;
    ek_memory_stats own;
    ek_dev *others[EK_MAX_DEVICES];
    if (ek_cuda_is_lost(dev))
        return;
    int restore = ek_cuda_enter_anyway(dev);
    bool known = cudaMemGetInfo(&available, &total) == cudaSuccess;
    (void)cudaGetLastError(); /* the number only informs, so its absence is no error */
    ek_cuda_leave(dev, restore);
    if (!known)
        return;
    ek_ledger_read(dev, &own);
    uint64_t counted = own.reserved;
    if (!ek_cuda_of(dev)->memory) /* a constant, which other threads may read now */
        ek_cuda_of(dev)->memory = total;
    pthread_mutex_lock(&open_lock);
    memcpy(others, open_devices, sizeof others);
    pthread_mutex_unlock(&open_lock);
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        ek_memory_stats stats;
        if (!others[i] || others[i] == dev ||
            ek_cuda_of(others[i])->physical != ek_cuda_of(dev)->physical)
            continue;
        ek_ledger_read(others[i], &stats);
        counted += stats.reserved + stats.system;
    }
    uint64_t used = total - available;
    ek_ledger_count_system(dev, used > counted ? used - counted : 0);
}

enum { TRIM_ATTEMPTS = 50, TRIM_ROUNDS = 4 };

/* Frees the caches of other logical devices on the GPU. *busy counts the devices whose allocator is
 * in use by another thread. Returns true if memory was freed. */
static bool memory_trim_once(const ek_dev *dev, int *busy)
{
    bool some = false;
    *busy = 0;
    pthread_mutex_lock(&open_lock);
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        ek_dev *other = open_devices[i];
        if (!other || other == dev || ek_cuda_of(other)->physical != ek_cuda_of(dev)->physical)
            continue;
        int trimmed = ek_dev_trim_if_free(other);
        some = some || trimmed > 0;
        *busy += trimmed < 0;
    }
    pthread_mutex_unlock(&open_lock);
    return some;
}

/* Frees the caches of other logical devices on the GPU. Returns true if memory was freed. Busy
 * devices are tried again for a limited time, because a thread that allocates from one of them may
 * be waiting here for this device. */
static bool memory_trim_others(const ek_dev *dev)
{
    const struct timespec moment = {0, 1000000};
    bool some = false;
    int busy = 1;
    for (int i = 0; i < TRIM_ATTEMPTS && busy && !some; i++) {
        if (i > 0)
            nanosleep(&moment, NULL);
        some = memory_trim_once(dev, &busy);
    }
    return some;
}

/* Tries to allocate. Returns true if memory is short, without an error. */
static bool memory_try_alloc(ek_dev *dev, size_t nbytes, void **pointer, int *rc)
{
    cudaError_t error = cudaMalloc(pointer, nbytes);
    if (error != cudaSuccess)
        *pointer = NULL;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return true;
    }
    *rc = ek_cuda_check(dev, "allocating memory", (int)error);
    return false;
}

int ek_cuda_memory_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    int restore, rc = 0;
    *pointer = NULL;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    bool full = memory_try_alloc(dev, nbytes, pointer, &rc);
    for (int i = 0;
         i < TRIM_ROUNDS && full && ek_dev_takes_from_others(dev) && memory_trim_others(dev); i++)
        full = memory_try_alloc(dev, nbytes, pointer, &rc);
    ek_cuda_leave(dev, restore);
    return rc;
}

/* Frees memory after waiting for the compute stream, whose kernels may still use it, and for the
 * exchange stream, in case the memory belongs to it. Other streams have finished with the memory
 * before (Note [Streams share memory]). */
void ek_cuda_memory_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    int restore = ek_cuda_enter_anyway(dev);
    (void)nbytes;
    ek_cuda_note(dev, "waiting for its work",
                 ek_cuda_wait_stream(ek_cuda_of(dev), ek_cuda_of(dev)->compute));
    ek_cuda_note(dev, "waiting for its work",
                 ek_cuda_wait_stream(ek_cuda_of(dev), ek_cuda_of(dev)->exchange));
    ek_cuda_note(dev, "freeing memory", ek_cuda_free(pointer));
    ek_cuda_leave(dev, restore);
}

/* ---- the pinned pool ---- */

int ek_cuda_make_pinned(ek_dev *dev, size_t nbytes, void **pointer)
{
    void *memory;
    if (*pointer)
        return 0;
    EK_TRY(ek_cuda_check(dev, "allocating pinned memory",
                         (int)cudaHostAlloc(&memory, nbytes, cudaHostAllocPortable)));
    *pointer = memory;
    return 0;
}

enum { GRAIN = 64 << 10 }; /* sizes of blocks are multiples of this */

typedef struct pinned_block {
    struct pinned_block *next;
    void *memory;
    size_t nbytes;
    int physical;
    bool held;
    /* Recorded after each copy from or to the block; complete if never recorded. */
    cudaEvent_t done;
} pinned_block;

/* All blocks. Guarded by pinned_lock. */
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static pinned_block *pinned_blocks;

/* Destroys a block. Waits for its copies first, because another logical device of the GPU may still
 * use the block. */
static void pinned_destroy(pinned_block *b)
{
    if (b->done) {
        (void)ek_cuda_wait_event(b->done);
        cudaEventDestroy(b->done);
    }
    if (b->memory)
        cudaFreeHost(b->memory);
    (void)cudaGetLastError();
    free(b);
}

/* Takes a free block that is large enough and at most twice as large, and whose copies are done.
 * Returns NULL if there is none. */
static pinned_block *pinned_reuse(int physical, size_t nbytes)
{
    pinned_block *best = NULL;
    pthread_mutex_lock(&pinned_lock);
    for (pinned_block *b = pinned_blocks; b; b = b->next)
        if (!b->held && b->physical == physical && b->nbytes >= nbytes && b->nbytes / 2 <= nbytes &&
            (!best || b->nbytes < best->nbytes) && cudaEventQuery(b->done) == cudaSuccess)
            best = b;
    if (best)
        best->held = true;
    pthread_mutex_unlock(&pinned_lock);
    (void)cudaGetLastError(); /* clears "not ready", which is no error */
    return best;
}

static int pinned_make(ek_dev *dev, size_t nbytes, pinned_block **made)
{
    pinned_block *b = ek_calloc(1, sizeof *b);
    if (!b)
        return EK_E_NO_MEMORY;
    *b = (pinned_block){.nbytes = nbytes, .physical = ek_cuda_of(dev)->physical, .held = true};
    int rc = ek_cuda_make_event(dev, &b->done);
    if (rc >= 0)
        rc = ek_cuda_make_pinned(dev, nbytes, &b->memory);
    if (rc < 0) {
        pinned_destroy(b);
        return rc;
    }
    pthread_mutex_lock(&pinned_lock);
    b->next = pinned_blocks;
    pinned_blocks = b;
    pthread_mutex_unlock(&pinned_lock);
    *made = b;
    return 0;
}

int ek_cuda_pinned_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    int restore, rc = 0;
    size_t rounded = (nbytes / GRAIN + 1) * GRAIN;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    pinned_block *b = pinned_reuse(ek_cuda_of(dev)->physical, rounded);
    if (!b)
        rc = pinned_make(dev, rounded, &b);
    ek_cuda_leave(dev, restore);
    *pointer = b ? b->memory : NULL;
    return rc;
}

/* Returns the block in which the memory lies. */
static pinned_block *pinned_find(const void *memory)
{
    pthread_mutex_lock(&pinned_lock);
    pinned_block *b = pinned_blocks;
    while (b && (uintptr_t)memory - (uintptr_t)b->memory >= b->nbytes)
        b = b->next;
    pthread_mutex_unlock(&pinned_lock);
    return b;
}

void ek_cuda_pinned_free(void *pointer)
{
    pinned_block *b = pinned_find(pointer);
    pthread_mutex_lock(&pinned_lock);
    if (b)
        b->held = false;
    pthread_mutex_unlock(&pinned_lock);
}

cudaEvent_t ek_cuda_pinned_event(const ek_dev *dev, const void *memory)
{
    const pinned_block *b = pinned_find(memory);
    return b && b->physical == ek_cuda_of(dev)->physical ? b->done : NULL;
}

void ek_cuda_pinned_close(const ek_cuda_device *device)
{
    pthread_mutex_lock(&pinned_lock);
    for (pinned_block **at = &pinned_blocks; *at;) {
        pinned_block *b = *at;
        if (b->held || b->physical != device->physical) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        pinned_destroy(b);
    }
    pthread_mutex_unlock(&pinned_lock);
}

/* ---- rings ---- */

void ek_cuda_ring_open(ek_cuda_ring *ring, int count, size_t nbytes)
{
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->released, NULL);
    ring->count = count;
    ring->nbytes = nbytes;
}

void ek_cuda_ring_close(ek_cuda_ring *ring)
{
    if (ring->memory)
        cudaFreeHost(ring->memory);
    for (int i = 0; i < ring->count; i++)
        if (ring->slots[i].done)
            cudaEventDestroy(ring->slots[i].done);
    pthread_cond_destroy(&ring->released);
    pthread_mutex_destroy(&ring->lock);
}

/* Allocates all slots at once, because pinning may wait for the device and should not happen within
 * a step. An event that was never recorded is complete. ring->lock is held. */
static int ring_make(ek_cuda_ring *ring, ek_dev *dev)
{
    if (ring->memory)
        return 0;
    for (int i = 0; i < ring->count; i++)
        EK_TRY(ek_cuda_make_event(dev, &ring->slots[i].done));
    EK_TRY(ek_cuda_make_pinned(dev, (size_t)ring->count * ring->nbytes, &ring->memory));
    for (int i = 0; i < ring->count; i++)
        ring->slots[i].buffer = (char *)ring->memory + (size_t)i * ring->nbytes;
    return 0;
}

static ek_cuda_slot *ring_find_free(ek_cuda_ring *ring)
{
    for (int i = 0; i < ring->count; i++) {
        int at = (ring->next + i) % ring->count;
        if (!ring->slots[at].held) {
            ring->next = (at + 1) % ring->count;
            return &ring->slots[at];
        }
    }
    return NULL;
}

int ek_cuda_ring_take(ek_cuda_ring *ring, ek_dev *dev, bool wait, ek_cuda_slot **slot)
{
    *slot = NULL;
    pthread_mutex_lock(&ring->lock);
    int rc = ring_make(ring, dev);
    while (rc >= 0 && !(*slot = ring_find_free(ring)) && wait)
        pthread_cond_wait(&ring->released, &ring->lock);
    if (*slot)
        (*slot)->held = true;
    pthread_mutex_unlock(&ring->lock);
    if (!*slot)
        return rc;
    rc = ek_cuda_check(dev, "waiting for a pinned buffer", ek_cuda_wait_event((*slot)->done));
    if (rc < 0) {
        ek_cuda_ring_release(ring, *slot);
        *slot = NULL;
    }
    return rc;
}

void ek_cuda_ring_release(ek_cuda_ring *ring, ek_cuda_slot *slot)
{
    pthread_mutex_lock(&ring->lock);
    slot->held = false;
    pthread_cond_signal(&ring->released);
    pthread_mutex_unlock(&ring->lock);
}
