/* memory.h: memory of a device, and pinned memory of the host, from which a GPU reads by itself. */
#ifndef EK_CUDA_MEMORY_H
#define EK_CUDA_MEMORY_H

#include "cuda/runtime.h"

/* The backend's slots of these names. The allocator drops its own cache if memory is short, and
 * asks again. */
int ek_cuda_memory_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_memory_free(ek_dev *dev, void *pointer, size_t nbytes);

/* Devices whose caches are dropped for others on the same GPU: from open to close. */
void ek_cuda_memory_open(ek_dev *dev);
void ek_cuda_memory_close(const ek_dev *dev);

/* ---- the pinned pool ----
 *
 * Pinning takes long and may wait for the GPU, so blocks are kept: one that is given back is
 * handed out again once the copies from it, which an event follows, are done. Blocks belong to a
 * physical device, not to a logical one, and outlive both if somebody still holds them. The
 * ledger counts none of them. */

/* The backend's slots of these names. */
int ek_cuda_locked_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_locked_free(void *pointer);

/* The event that follows copies from this block; NULL if the memory is no block of dev's GPU. */
cudaEvent_t ek_cuda_pinned_event(const ek_dev *dev, const void *memory);

/* Gives back the blocks of this device's GPU that nobody holds, after what is read from them. */
void ek_cuda_pinned_close(const ek_cuda_device *device);

/* Pinned memory without a pool, unless *pointer is some already. */
int ek_cuda_pinned_alloc(ek_dev *dev, size_t nbytes, void **pointer);

/* ---- rings: pinned buffers through which pageable memory travels to and from a device ----
 *
 * A slot is held by one thread while it fills or empties it. An upload lets go of its slot once the
 * copy is issued: the slot's event says when the buffer may be written again, and only who takes it
 * next waits for that. All are allocated with the ring's first use. */

enum { EK_CUDA_SLOTS = 32 };

typedef struct ek_cuda_slot {
    void *buffer;
    cudaEvent_t done;
    bool held; /* guarded by the ring's lock; the rest is the holder's */
} ek_cuda_slot;

typedef struct ek_cuda_ring {
    pthread_mutex_t lock;
    pthread_cond_t released;
    size_t nbytes; /* of a slot */
    int count, next;
    void *memory; /* of all slots; NULL before the first use */
    ek_cuda_slot slots[EK_CUDA_SLOTS];
} ek_cuda_ring;

void ek_cuda_ring_open(ek_cuda_ring *ring, int count, size_t nbytes);
void ek_cuda_ring_close(ek_cuda_ring *ring);

/* The slot that was taken longest ago, once its last copy is done. If other threads hold all
 * slots: waits for one, or without `wait` gives NULL. The device is current. */
int ek_cuda_ring_take(ek_cuda_ring *ring, ek_dev *dev, bool wait, ek_cuda_slot **slot);
void ek_cuda_ring_release(ek_cuda_ring *ring, ek_cuda_slot *slot);

#endif
