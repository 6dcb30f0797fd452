/* memory.h: memory of a device, and pinned memory of the host, which a GPU reads directly. */
#ifndef EK_CUDA_MEMORY_H
#define EK_CUDA_MEMORY_H

#include "cuda/runtime.h"

/* The backend's slots memory_alloc and memory_free. If memory is short, the allocator frees its
 * cache and retries. */
int ek_cuda_memory_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_memory_free(ek_dev *dev, void *pointer, size_t nbytes);

/* Between ek_cuda_memory_open and ek_cuda_memory_close the device's cache may be freed for other
 * devices on its GPU. */
void ek_cuda_memory_open(ek_dev *dev);
void ek_cuda_memory_close(const ek_dev *dev);

/* The backend's slot memory_measure. Stores the size of the GPU's memory, and counts in the ledger
 * the memory in use outside of logical devices: contexts, modules, communicators, other processes.
 * Memory that another device has counted isn't counted again. No device is being closed. */
void ek_cuda_memory_measure(ek_dev *dev);

/* ---- the pinned pool ----
 *
 * Pinning takes long and may wait for the GPU, so that blocks are kept for reuse. An event is
 * recorded after the copies from and to each block. A block that was given back is handed out again
 * once its event is complete. Blocks belong to a physical GPU, not to a logical device, and outlive
 * both while someone holds them. The ledger counts the blocks that storages hold (tensor.c). */

/* The backend's slots pinned_alloc and pinned_free. */
int ek_cuda_pinned_alloc(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_pinned_free(void *pointer);

/* Returns the event (borrowed) that is recorded after copies from and to the block in which the
 * memory lies. NULL if dev's GPU has no such block. */
cudaEvent_t ek_cuda_pinned_event(const ek_dev *dev, const void *memory);

/* Frees the blocks of this device's GPU that nobody holds, once their copies are done. */
void ek_cuda_pinned_close(const ek_cuda_device *device);

/* Allocates pinned memory outside of the pool. Does nothing if *pointer is not NULL. */
int ek_cuda_make_pinned(ek_dev *dev, size_t nbytes, void **pointer);

/* ---- rings: pinned buffers through which pageable memory is copied to and from a device ----
 *
 * One thread holds a slot while it fills or empties the slot's buffer. An upload releases its slot
 * once the copy is issued. The next holder waits for the slot's event, after which the buffer may
 * be written again. All slots are allocated with the ring's first use. */

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

/* Takes the slot that was taken longest ago, and waits until its last copy is done. If other
 * threads hold all slots, waits until one is released, or sets *slot to NULL if `wait` is false.
 * The device is current. */
int ek_cuda_ring_take(ek_cuda_ring *ring, ek_dev *dev, bool wait, ek_cuda_slot **slot);
void ek_cuda_ring_release(ek_cuda_ring *ring, ek_cuda_slot *slot);

#endif
