/* stream.h: streams and events: which GPU a thread's calls are for, who comes after whom, and how
 * the host waits. */
#ifndef EK_CUDA_STREAM_H
#define EK_CUDA_STREAM_H

#include "cuda/runtime.h"

/* ---- the device guard ----
 *
 * A GPU is current for the calling thread for a while, and then what was before. cudaSetDevice
 * makes a context on the GPU it names, some hundred megabytes of its memory, so that it cannot put
 * back the GPU that a thread without any context would begin with. The driver's stack of contexts
 * can: what is popped leaves the thread as it was. */

/* Makes the CUDA runtime's GPU `physical` current; *restore is what leave wants back. A
 * cudaError_t; after an error there is nothing to leave. They nest. */
int ek_cuda_guard_enter(int physical, int *restore);
int ek_cuda_guard_leave(int physical, int restore);

/* ---- order: streams, events, and memory that several streams use ----
 *
 * The rule. A block of memory is free in the order of one stream of its device: what is issued to
 * that stream may write to it. Blocks of the compute stream are so from when they are given back
 * on, since all kernels run there. Any other stream that uses a block does so between two waits:
 *
 * - before: it waits for the compute stream's work with the block (its last use, or its contents);
 * - after: the compute stream waits for it, before the block is used there or given back.
 *
 * So whatever other streams did, a block that is given back is free in the compute stream's order;
 * and one that another stream is to take (EK_QUEUE_UPLOAD) keeps an event of that moment, which the
 * stream waits for, and for nothing else that the compute stream does: its copies run beside
 * kernels. If a stream of another device uses a block, the waits are that device's (ek_dev_order
 * in both directions).
 *
 * Events that belong to a device are recorded again and again, by any thread without a lock. That
 * is sound because a wait takes the event's latest record at the time it is issued: if another
 * thread recorded it again in between, the wait is for more work than needed, all of it issued
 * already: waits only ever look back in the order of issue, so no circle can come of them (but with
 * collectives: the issue lock). A mark is an event of one owner's, who recorded it last. */

/* The backend's slots of these names. A mark is an event. */
int ek_cuda_order(ek_dev *waiter, ek_dev *awaited);
void ek_cuda_mark(ek_dev *dev, ek_queue queue, ek_mark **mark);
void ek_cuda_await(ek_dev *dev, ek_queue queue, ek_mark *mark);
void ek_cuda_mark_free(ek_dev *dev, ek_mark *mark);

/* An event that tells no time, unless *event is one already; of the GPU that is current. */
int ek_cuda_make_event(ek_dev *dev, cudaEvent_t *event);
int ek_cuda_record(ek_dev *dev, cudaEvent_t event, cudaStream_t stream);
int ek_cuda_stream_wait(ek_dev *dev, cudaStream_t stream, cudaEvent_t event);
/* The stream waits for what is issued to `awaited` now, by way of an event of the same device. */
int ek_cuda_wait_for(ek_dev *dev, cudaStream_t stream, cudaEvent_t event, cudaStream_t awaited);

/* ---- the issue lock: streams of several devices never wait for each other in a circle ----
 *
 * A wait looks back in the order of issue, and of such waits alone no circle can come. The parts of
 * a collective wait for each other in both directions, and are issued one after another: a wait of
 * the last device for the first that came between them would hold up the last part for ever. So a
 * collective is issued while nobody issues waits between devices. */

/* Around the issue of waits of one device's streams for another's; several threads at once. */
void ek_cuda_issue_waits(void);
/* Around the issue of all parts of a collective; one thread alone. */
void ek_cuda_issue_collective(void);
void ek_cuda_issue_end(void);

/* ---- the host waits for a device ----
 *
 * A collective whose member is lost never ends, nor does what its other members issued after it:
 * only the host can see that, and abort it. It does so where it waits anyway. While communicators
 * of NCCL live, these calls ask again and again how far the device is instead of sleeping in the
 * driver, and look now and then after the collectives of all devices, since what this one waits for
 * may wait for another one's. A wait that goes well costs an event more, and no thread watches. */

/* As cudaStreamSynchronize, of a stream of this device, and cudaEventSynchronize: a cudaError_t. An
 * event isn't recorded again while somebody waits for it. */
int ek_cuda_wait_stream(const ek_cuda_device *device, cudaStream_t stream);
int ek_cuda_wait_event(cudaEvent_t event);
/* For errors in the midst of a copy: waits until none of its parts runs. Keeps rc. */
int ek_cuda_settle(const ek_cuda_device *device, int rc);

/* `look` is called now and then by whoever waits; NULL: waits sleep. It doesn't wait itself. */
void ek_cuda_wait_watched(void (*look)(void));

#endif
