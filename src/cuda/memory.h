/* memory.h: memory of a device, and pinned memory of the host, from which a GPU reads by itself. */
#ifndef EK_CUDA_MEMORY_H
#define EK_CUDA_MEMORY_H

#include "cuda/runtime.h"

/* The backend's slots memory_alloc and memory_free. If memory is short, the allocator frees its
 * cache and retries. */
int ek_cuda_memory_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_memory_free(ek_dev *dev, void *pointer, size_t nbytes);

/* Between these two calls the device's cache may be freed for other devices on the same GPU. */
void ek_cuda_memory_open(ek_dev *dev);
void ek_cuda_memory_close(const ek_dev *dev);

/* Notes the GPU's memory, and tells the ledger what the GPU, which is current, has in use beside
 * the memory of its logical devices: its context, libraries, other processes. What an earlier
 * device has counted isn't counted again. Called while no other device is opened or closed. */
void ek_cuda_memory_count_system(ek_dev *dev);

/* ---- the pinned pool ----
 *
 * Pinning takes long and may wait for the GPU, so blocks are kept for reuse. An event follows the
 * copies from and to each block. A block that is given back is handed out again once its event is
 * over. Blocks belong to a physical GPU and not to a logical device, and outlive both while
 * somebody holds them. The ledger counts those that a storage holds (tensor.c). */

/* The backend's slots pinned_alloc and pinned_free. */
int ek_cuda_pinned_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_pinned_free(void *pointer);

/* The event that follows copies from and to the block in which the memory lies, borrowed. NULL if
 * dev's GPU has no such block. */
cudaEvent_t ek_cuda_pinned_event(const ek_dev *dev, const void *memory);

/* Frees the blocks of this device's GPU that nobody holds, once copies from them are done. */
void ek_cuda_pinned_close(const ek_cuda_device *device);

/* Allocates pinned memory outside of the pool. Does nothing if *pointer is not NULL. */
int ek_cuda_make_pinned(ek_dev *dev, size_t nbytes, void **pointer);

/* ---- rings: pinned buffers through which pageable memory travels to and from a device ----
 *
 * One thread holds a slot while it fills or empties it. An upload releases its slot once the copy
 * is issued. The slot's event then says when the buffer may be written again, and the next holder
 * waits for this event. All slots are allocated with the ring's first use. */

enum { EK_CUDA_SLOTS = 32 };

typedef struct ek_cuda_slot {
    void *buffer;
    cudaEvent_t done;
    bool held; /* guarded by the ring's lock; the holder owns the rest */
} ek_cuda_slot;

typedef struct ek_cuda_ring {
    pthread_mutex_t lock;
    pthread_cond_t released;
    size_t nbytes; /* bytes of one slot */
    int count, next;
    void *memory; /* buffers of all slots; NULL before the first use */
    ek_cuda_slot slots[EK_CUDA_SLOTS];
} ek_cuda_ring;

void ek_cuda_ring_open(ek_cuda_ring *ring, int count, size_t nbytes);
void ek_cuda_ring_close(ek_cuda_ring *ring);

/* Takes the slot that was taken longest ago, once its last copy is done. If other threads hold all
 * slots, it waits for one; without `wait` it gives NULL. The device is current. */
int ek_cuda_ring_take(ek_cuda_ring *ring, ek_dev *dev, bool wait, ek_cuda_slot **slot);
void ek_cuda_ring_release(ek_cuda_ring *ring, ek_cuda_slot *slot);

#endif
