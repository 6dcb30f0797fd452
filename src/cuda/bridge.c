/* bridge.c: copies between GPUs that don't reach each other: through two pinned buffers of the
 * host, one being filled from one GPU while the other GPU reads the other. Only the streams wait.
 */
#include "cuda/between.h"
#include "cuda/transfer.h"

enum { CHUNK = 2 << 20 };

static int make(ek_dev *dev, void **buffer, cudaEvent_t *event)
{
    if (!*event)
        EK_TRY(ek_cuda_check(dev, "making an event",
                             (int)cudaEventCreateWithFlags(event, cudaEventDisableTiming)));
    if (buffer && !*buffer)
        EK_TRY(ek_cuda_check(dev, "allocating pinned memory",
                             (int)cudaHostAlloc(buffer, CHUNK, cudaHostAllocPortable)));
    return 0;
}

/* What either side needs; an event belongs to the GPU that is current when it is made. Both sides'
 * locks are held. */
static int prepare(ek_dev *to, ek_dev *from)
{
    ek_cuda_transfer *source = ek_cuda_of(from)->transfer, *target = ek_cuda_of(to)->transfer;
    int restore, rc = 0;
    for (int i = 0; i < EK_CUDA_BRIDGE; i++)
        EK_TRY(make(to, NULL, &target->drained[i]));
    EK_TRY(ek_cuda_enter(from, &restore));
    for (int i = 0; i < EK_CUDA_BRIDGE && rc >= 0; i++)
        rc = make(from, &source->bridge[i], &source->filled[i]);
    ek_cuda_leave(from, restore);
    return rc;
}

static int record(ek_dev *dev, cudaEvent_t event, cudaStream_t stream)
{
    return ek_cuda_check(dev, "recording an event", (int)cudaEventRecord(event, stream));
}

static int wait(ek_dev *dev, cudaStream_t stream, cudaEvent_t event)
{
    return ek_cuda_check(dev, "waiting for an event", (int)cudaStreamWaitEvent(stream, event, 0));
}

/* The copy streams begin after what is issued to the compute streams now. */
static int begin(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    EK_TRY(record(dev, device->issued, device->compute));
    return wait(dev, device->copy, device->issued);
}

/* Buffer i, filled and drained. */
static int copy_chunk(ek_dev *to, char *to_data, ek_dev *from, const char *from_data, size_t nbytes,
                      int i)
{
    const ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    void *buffer = source->transfer->bridge[i];
    EK_TRY(ek_cuda_check(from, "a copy to pinned memory",
                         (int)cudaMemcpyAsync(buffer, from_data, nbytes, cudaMemcpyDeviceToHost,
                                              source->copy)));
    EK_TRY(record(from, source->transfer->filled[i], source->copy));
    EK_TRY(wait(to, target->copy, source->transfer->filled[i]));
    EK_TRY(ek_cuda_check(to, "a copy from pinned memory",
                         (int)cudaMemcpyAsync(to_data, buffer, nbytes, cudaMemcpyHostToDevice,
                                              target->copy)));
    return record(to, target->transfer->drained[i], target->copy);
}

static int copy(ek_dev *to, char *to_data, ek_dev *from, const char *from_data, size_t nbytes)
{
    const ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    size_t chunks = (nbytes + CHUNK - 1) / CHUNK;
    EK_TRY(begin(from));
    EK_TRY(begin(to));
    for (size_t c = 0; c < chunks; c++) {
        size_t done = c * CHUNK;
        int i = (int)(c % EK_CUDA_BRIDGE);
        if (c >= EK_CUDA_BRIDGE)
            EK_TRY(wait(from, source->copy, target->transfer->drained[i]));
        EK_TRY(copy_chunk(to, to_data + done, from, from_data + done,
                          nbytes - done < CHUNK ? nbytes - done : CHUNK, i));
    }
    /* The next copy through the buffers, which may be to another GPU, finds them drained. */
    for (size_t i = 0; i < EK_CUDA_BRIDGE && i < chunks; i++)
        EK_TRY(wait(from, source->copy, target->transfer->drained[i]));
    EK_TRY(record(to, target->transfer->copied, target->copy));
    return wait(to, target->compute, target->transfer->copied);
}

int ek_cuda_bridge_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                        size_t nbytes)
{
    ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    /* In the order of their indices, so that two copies in opposite directions don't wait for each
     * other. */
    bool up = to->id.index < from->id.index;
    pthread_mutex_lock(&(up ? target : source)->transfer->lock);
    pthread_mutex_lock(&(up ? source : target)->transfer->lock);
    int rc = prepare(to, from);
    if (rc >= 0) {
        ek_cuda_waits_begin();
        rc = copy(to, to_data, from, from_data, nbytes);
        ek_cuda_waits_end();
    }
    if (rc < 0) {
        ek_cuda_settle(source, rc);
        ek_cuda_settle(target, rc);
    }
    pthread_mutex_unlock(&source->transfer->lock);
    pthread_mutex_unlock(&target->transfer->lock);
    return rc;
}
