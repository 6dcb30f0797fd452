/* ring.h: pinned buffers through which pageable memory travels to and from a device.
 *
 * A slot is held by one thread while it fills or empties it. An upload lets go of its slot once the
 * copy is issued: the slot's event says when the buffer may be written again, and only who takes it
 * next waits for that. All are allocated with the ring's first use. */
#ifndef EK_CUDA_RING_H
#define EK_CUDA_RING_H

#include "cuda/runtime.h"

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
