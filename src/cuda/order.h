/* order.h: who comes after whom: streams, events, and memory that several streams use.
 *
 * The rule. A block of memory is free in the order of one stream of its device: what is issued to
 * that stream may write to it. Blocks of the compute stream are so from when they are given back
 * on, since all kernels run there. Any other stream that uses a block does so between two waits:
 *
 * - before: it waits for the compute stream's work with the block (its last use, or its contents);
 * - after: the compute stream waits for it, before the block is used there or given back.
 *
 * So whatever other streams did, a block that is given back is free in the compute stream's order;
 * and one that another stream is to take (EK_QUEUE_UPLOAD) keeps a mark of that moment, which the
 * stream waits for, and for nothing else that the compute stream does: its copies run beside
 * kernels. If a stream of another device uses a block, the waits are that device's (ek_dev_order
 * in both directions).
 *
 * Events that belong to a device are recorded again and again, by any thread without a lock. That
 * is sound because a wait takes the event's latest record at the time it is issued: where another
 * thread recorded it again in between, the wait is for more work than needed, all of it issued
 * already: waits only ever look back in the order of issue, so no circle can come of them (but with
 * collectives: between.h). A mark is an event of one owner's, who recorded it last. */
#ifndef EK_CUDA_ORDER_H
#define EK_CUDA_ORDER_H

#include "cuda/runtime.h"

/* The backend's slots of these names. A mark is an event. */
int ek_cuda_order(ek_dev *waiter, ek_dev *awaited);
void ek_cuda_mark(ek_dev *dev, ek_queue queue, ek_mark **mark);
void ek_cuda_await(ek_dev *dev, ek_queue queue, ek_mark *mark);
void ek_cuda_mark_free(ek_dev *dev, ek_mark *mark);

/* The stream waits for what is issued to `awaited` now, by way of an event of the same device. */
int ek_cuda_wait_for(ek_dev *dev, cudaStream_t stream, cudaEvent_t event, cudaStream_t awaited);

/* For errors in the midst of a copy: waits until none of its parts runs. Keeps rc. */
int ek_cuda_settle(const ek_cuda_device *device, int rc);

#endif
