#include "cuda/order.h"

#include "cuda/between.h"
#include "cuda/wait.h"

int ek_cuda_wait_for(ek_dev *dev, cudaStream_t stream, cudaEvent_t event, cudaStream_t awaited)
{
    EK_TRY(ek_cuda_check(dev, "recording an event", (int)cudaEventRecord(event, awaited)));
    return ek_cuda_check(dev, "waiting for an event", (int)cudaStreamWaitEvent(stream, event, 0));
}

int ek_cuda_settle(const ek_cuda_device *device, int rc)
{
    ek_cuda_note(device->dev, "waiting for its work", ek_cuda_wait_stream(device, device->compute));
    ek_cuda_note(device->dev, "waiting for its copies", ek_cuda_wait_stream(device, device->copy));
    ek_cuda_note(device->dev, "waiting for its copies",
                 ek_cuda_wait_stream(device, device->upload));
    return rc;
}

/* ---- between devices ---- */

static int order_host(ek_dev *awaited)
{
    const ek_cuda_device *device = ek_cuda_of(awaited);
    EK_TRY(ek_cuda_check(awaited, "waiting for its work",
                         ek_cuda_wait_stream(device, device->compute)));
    return ek_cuda_fault_check(awaited);
}

int ek_cuda_order(ek_dev *waiter, ek_dev *awaited)
{
    const ek_cuda_device *device = ek_cuda_of(awaited);
    int restore, rc;
    EK_TRY(ek_cuda_usable(awaited));
    if (!ek_dev_is_host(waiter))
        EK_TRY(ek_cuda_usable(waiter));
    EK_TRY(ek_cuda_enter(awaited, &restore));
    if (ek_dev_is_host(waiter)) {
        rc = order_host(awaited);
    } else {
        ek_cuda_waits_begin();
        rc =
            ek_cuda_wait_for(awaited, ek_cuda_of(waiter)->compute, device->issued, device->compute);
        ek_cuda_waits_end();
    }
    ek_cuda_leave(awaited, restore);
    return rc;
}

/* ---- between the queues of a device ---- */

static cudaStream_t stream_of(const ek_dev *dev, ek_queue queue)
{
    return queue == EK_QUEUE_UPLOAD ? ek_cuda_of(dev)->upload : ek_cuda_of(dev)->compute;
}

/* What can't be marked is over when this returns, so that the mark's last record will do. */
void ek_cuda_mark(ek_dev *dev, ek_queue queue, ek_mark **mark)
{
    cudaEvent_t event = (cudaEvent_t)*mark;
    cudaStream_t stream = stream_of(dev, queue);
    int restore = ek_cuda_enter_anyway(dev);
    if (!event && !ek_cuda_note(dev, "making an event",
                                (int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming)))
        event = NULL;
    if (!event || !ek_cuda_note(dev, "recording an event", (int)cudaEventRecord(event, stream)))
        ek_cuda_note(dev, "waiting for its work", ek_cuda_wait_stream(ek_cuda_of(dev), stream));
    *mark = (ek_mark *)event;
    ek_cuda_leave(dev, restore);
}

void ek_cuda_await(ek_dev *dev, ek_queue queue, ek_mark *mark)
{
    cudaEvent_t event = (cudaEvent_t)mark;
    int restore = ek_cuda_enter_anyway(dev);
    if (!ek_cuda_note(dev, "waiting for an event",
                      (int)cudaStreamWaitEvent(stream_of(dev, queue), event, 0)))
        ek_cuda_note(dev, "waiting for its work", ek_cuda_wait_event(event));
    ek_cuda_leave(dev, restore);
}

void ek_cuda_mark_free(ek_dev *dev, ek_mark *mark)
{
    int restore = ek_cuda_enter_anyway(dev);
    ek_cuda_note(dev, "giving an event back", (int)cudaEventDestroy((cudaEvent_t)mark));
    ek_cuda_leave(dev, restore);
}
