#include "cuda/locked.h"

#include <stdlib.h>

#include "cuda/transfer.h"
#include "cuda/wait.h"

enum { GRAIN = 64 << 10 }; /* blocks are multiples of this */

typedef struct block {
    struct block *next;
    void *memory;
    size_t nbytes;
    int physical;
    bool held;
    cudaEvent_t done; /* what was last read from it; one that was never recorded is done */
} block;

/* All blocks there are, guarded by the lock. */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;

/* Another logical device of the GPU may still read from it. */
static void destroy(block *b)
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

/* A block that is free, large enough and not twice as large, of which nothing is read any more;
 * held from now on. */
static block *reuse(int physical, size_t nbytes)
{
    block *best = NULL;
    pthread_mutex_lock(&blocks_lock);
    for (block *b = blocks; b; b = b->next)
        if (!b->held && b->physical == physical && b->nbytes >= nbytes && b->nbytes / 2 <= nbytes &&
            (!best || b->nbytes < best->nbytes) && cudaEventQuery(b->done) == cudaSuccess)
            best = b;
    if (best)
        best->held = true;
    pthread_mutex_unlock(&blocks_lock);
    (void)cudaGetLastError(); /* "not ready" is an answer */
    return best;
}

static int make(ek_dev *dev, size_t nbytes, block **made)
{
    block *b = ek_calloc(1, sizeof *b);
    if (!b)
        return EK_E_NO_MEMORY;
    *b = (block){.nbytes = nbytes, .physical = ek_cuda_of(dev)->physical, .held = true};
    int rc = ek_cuda_check(dev, "making an event",
                           (int)cudaEventCreateWithFlags(&b->done, cudaEventDisableTiming));
    if (rc >= 0)
        rc = ek_cuda_check(dev, "allocating page-locked memory",
                           (int)cudaHostAlloc(&b->memory, nbytes, cudaHostAllocPortable));
    if (rc < 0) {
        destroy(b);
        return rc;
    }
    pthread_mutex_lock(&blocks_lock);
    b->next = blocks;
    blocks = b;
    pthread_mutex_unlock(&blocks_lock);
    *made = b;
    return 0;
}

int ek_cuda_locked_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    int restore, rc = 0;
    size_t rounded = (nbytes / GRAIN + 1) * GRAIN;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    block *b = reuse(ek_cuda_of(dev)->physical, rounded);
    if (!b)
        rc = make(dev, rounded, &b);
    ek_cuda_leave(dev, restore);
    *pointer = b ? b->memory : NULL;
    return rc;
}

static block *find(const void *memory)
{
    pthread_mutex_lock(&blocks_lock);
    block *b = blocks;
    while (b && b->memory != memory)
        b = b->next;
    pthread_mutex_unlock(&blocks_lock);
    return b;
}

void ek_cuda_locked_free(void *pointer)
{
    block *b = find(pointer);
    pthread_mutex_lock(&blocks_lock);
    if (b)
        b->held = false;
    pthread_mutex_unlock(&blocks_lock);
}

int ek_cuda_send(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes)
{
    const block *b = find(from_data);
    int restore, rc;
    /* Faults stay for a call that needs what was computed: who sends ahead drops errors. */
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    if (b && b->physical == ek_cuda_of(dev)->physical)
        rc = ek_cuda_upload_locked(dev, to_data, from_data, nbytes, b->done);
    else /* events of another GPU's block can't follow it */
        rc = ek_cuda_upload(dev, ek_cuda_of(dev)->upload, to_data, from_data, nbytes);
    ek_cuda_leave(dev, restore);
    return rc;
}

void ek_cuda_locked_close(const ek_cuda_device *device)
{
    pthread_mutex_lock(&blocks_lock);
    for (block **at = &blocks; *at;) {
        block *b = *at;
        if (b->held || b->physical != device->physical) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        destroy(b);
    }
    pthread_mutex_unlock(&blocks_lock);
}
