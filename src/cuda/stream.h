/* stream.h: streams and events: the current GPU of a thread, waits between streams, and waits of
 * the host for a device. */
#ifndef EK_CUDA_STREAM_H
#define EK_CUDA_STREAM_H

#include "cuda/runtime.h"

/* ---- the device guard ----
 *
 * The guard makes a GPU current for the calling thread, and later restores the GPU that was current
 * before. It uses the driver's stack of contexts, because a pop restores even a thread without a
 * context.
 * cudaSetDevice can't do this: it makes a context on the GPU that it names, which costs some
 * hundred megabytes of that GPU's memory. */

/* Make GPU `physical` (the CUDA runtime's number) current, and restore the GPU that was current
 * before, for which *restore is kept. Both return a cudaError_t; after an error of enter there is
 * nothing to leave. Pairs may nest. */
int ek_cuda_guard_enter(int physical, int *restore);
int ek_cuda_guard_leave(int physical, int restore);

/* ---- order: streams, events, and memory that several streams use ----
 *
 * Note [Streams share memory]. A block of memory is free in the order of one stream of its device
 * if work that is issued to this stream may write to it. A block that is given back is free in the
 * compute stream's order, because kernels run there; a block of EK_STREAM_EXCHANGE in the order of
 * the exchange stream, which alone uses it. Any other stream uses a block between two waits:
 *
 * - before its use, the stream waits for the compute stream's earlier work with the block;
 * - after its use, the compute stream waits for this stream, before the block is used in the
 *   compute stream or given back.
 *
 * A block for EK_STREAM_UPLOAD keeps an event that was recorded when the block was given back. The
 * upload stream waits for this event and for nothing else of the compute stream, so that its copies
 * are concurrent with kernels. If a stream of another device uses a block, ek_dev_wait issues both
 * waits, one per direction. It orders the devices' streams of the calling thread's work: compute
 * streams; within a section (core/lane.h), exchange streams.
 *
 * Note [Waits never form a circle]. A wait takes the latest record of its event at the time when
 * the wait is issued. So it waits only for work that was issued earlier, and such waits can't form
 * a circle. A device's events may therefore be recorded by any thread, without a lock: if another
 * thread records an event in between, the wait is only longer. An ek_event has one owner.
 *
 * Collectives are the exception. The ranks of a collective wait for each other in both directions,
 * and they are issued one after another. If a wait of the last device for the first were issued
 * between two ranks, the last rank would wait for the first for ever. So ranks are issued to
 * exchange streams only, and nothing else is issued there between two ranks, because the
 * collective's section holds all its devices (Note [Sections have one order] in core/lane.h). When
 * the section ends, compute streams wait for the collective.
 *
 * cudaFree waits for GPUs, and may meanwhile hold a resource that a launch on another GPU needs. So
 * it must not run while some ranks of a collective are issued: launch_lock admits any number of
 * collectives at a time, or one cudaFree. */

/* The backend's slots of these names. An ek_event is a cudaEvent_t. */
int ek_cuda_device_wait(ek_dev *waiter, ek_dev *awaited);
void ek_cuda_event_record(ek_dev *dev, ek_stream which, ek_event **made);
void ek_cuda_event_wait(ek_dev *dev, ek_stream which, ek_event *made);
int ek_cuda_event_done(ek_dev *dev, ek_event *made);
void ek_cuda_event_free(ek_dev *dev, ek_event *made);
int ek_cuda_order_stream(ek_dev *dev, void *theirs, bool stream_waits);

/* Creates an event without timing on the current GPU. Does nothing if *event is not NULL. */
int ek_cuda_make_event(ek_dev *dev, cudaEvent_t *event);
int ek_cuda_record(ek_dev *dev, cudaEvent_t event, cudaStream_t stream);
int ek_cuda_stream_wait(ek_dev *dev, cudaStream_t stream, cudaEvent_t event);
/* Records `event` in the stream `awaited` of the same device, and makes `stream` wait for it. */
int ek_cuda_wait_for(ek_dev *dev, cudaStream_t stream, cudaEvent_t event, cudaStream_t awaited);

/* ---- collectives and cudaFree: see Note [Waits never form a circle] ---- */

/* Enclose the issue of a collective's ranks, which must not allocate memory of a device. */
void ek_cuda_launch_begin(void);
void ek_cuda_launch_end(void);
/* Calls cudaFree while no collective is being issued. Returns a cudaError_t. */
int ek_cuda_free(void *pointer);

/* ---- the host waits for a device ----
 *
 * A collective whose member is lost never ends, nor does work that other members issued after it.
 * Only the host can notice this and abort the collective, which it does while it waits for a
 * device. While communicators of NCCL exist, a wait polls the device and doesn't sleep in the
 * driver. At intervals it checks the collectives of all devices, because the device may wait for a
 * collective of another. The cost is one more event per wait; no thread is needed. */

/* Wait as cudaStreamSynchronize (for a stream of `device`) and cudaEventSynchronize do; return a
 * cudaError_t. An event must not be recorded again while a thread waits for it. */
int ek_cuda_wait_stream(const ek_cuda_device *device, cudaStream_t stream);
int ek_cuda_wait_event(cudaEvent_t event);
/* Waits until the issued part of a failed copy has ended on the device. Returns rc. */
int ek_cuda_settle(const ek_cuda_device *device, int rc);

/* Makes waits poll and call `look` at intervals. `look` must not wait. If it is NULL, waits sleep.
 */
void ek_cuda_wait_watched(void (*look)(void));

#endif
