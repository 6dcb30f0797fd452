#include "cuda/ring.h"

#include "cuda/wait.h"

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

/* All slots at once: pinned memory is not to be asked for in the midst of a step, if it may wait
 * for the device. An event that was never recorded is done. The lock is held. */
static int make(ek_cuda_ring *ring, ek_dev *dev)
{
    if (ring->memory)
        return 0;
    for (int i = 0; i < ring->count; i++)
        if (!ring->slots[i].done)
            EK_TRY(ek_cuda_check(dev, "making an event",
                                 (int)cudaEventCreateWithFlags(&ring->slots[i].done,
                                                               cudaEventDisableTiming)));
    void *memory;
    EK_TRY(ek_cuda_check(dev, "allocating pinned memory",
                         (int)cudaHostAlloc(&memory, (size_t)ring->count * ring->nbytes,
                                            cudaHostAllocPortable)));
    ring->memory = memory;
    for (int i = 0; i < ring->count; i++)
        ring->slots[i].buffer = (char *)memory + (size_t)i * ring->nbytes;
    return 0;
}

static ek_cuda_slot *find_free(ek_cuda_ring *ring)
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
    int rc = make(ring, dev);
    while (rc >= 0 && !(*slot = find_free(ring)) && wait)
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
