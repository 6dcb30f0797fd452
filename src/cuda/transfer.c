/* transfer.c: see transfer.h. */
#include "cuda/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/stream.h"

enum { SMALL = 64 << 10, SMALL_SLOTS = 32, LARGE = 4 << 20, LARGE_SLOTS = 4 };

/* ---- from the host ---- */

/* Sends one chunk through a slot, and releases the slot once the copy is issued. */
static int upload_chunk(ek_dev *dev, ek_cuda_ring *ring, cudaStream_t stream, void *to,
                        const void *from, size_t nbytes)
{
    ek_cuda_slot *slot;
    EK_TRY(ek_cuda_ring_take(ring, dev, true, &slot));
    memcpy(slot->buffer, from, nbytes);
    int rc = ek_cuda_check(dev, "a copy from the host",
                           (int)cudaMemcpyAsync(to, slot->buffer, nbytes, cudaMemcpyHostToDevice,
                                                stream));
    if (rc >= 0)
        rc = ek_cuda_record(dev, slot->done, stream);
    if (rc < 0)
        ek_cuda_settle(ek_cuda_of(dev), rc); /* before the slot is written again */
    ek_cuda_ring_release(ring, slot);
    return rc;
}

/* Uploads in `stream` only, from any memory of the host. */
static int upload_chunks(ek_dev *dev, cudaStream_t stream, void *to, const void *from,
                         size_t nbytes)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    ek_cuda_ring *ring = nbytes <= SMALL ? &device->transfer->small : &device->transfer->large;
    for (size_t done = 0; done < nbytes; done += ring->nbytes) {
        size_t chunk = nbytes - done < ring->nbytes ? nbytes - done : ring->nbytes;
        int rc =
            upload_chunk(dev, ring, stream, (char *)to + done, (const char *)from + done, chunk);
        if (rc < 0) /* earlier chunks may be on their way */
            return ek_cuda_settle(device, rc);
    }
    return 0;
}

/* Uploads in `stream` from pinned memory, and returns at once. Records `done` after the copy. */
static int upload_pinned(ek_dev *dev, cudaStream_t stream, void *to, const void *from,
                         size_t nbytes, cudaEvent_t done)
{
    int rc = ek_cuda_check(dev, "a copy from pinned memory",
                           (int)cudaMemcpyAsync(to, from, nbytes, cudaMemcpyHostToDevice, stream));
    if (rc >= 0)
        rc = ek_cuda_record(dev, done, stream);
    return rc < 0 ? ek_cuda_settle(ek_cuda_of(dev), rc) : 0;
}

/* Uploads in the device's order. For a large copy the copy stream waits for the compute stream, and
 * then the compute stream waits for the copy stream. */
static int upload(ek_dev *dev, void *to, const void *from, size_t nbytes)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    if (nbytes <= SMALL)
        return upload_chunks(dev, device->compute, to, from, nbytes);
    cudaEvent_t done = ek_cuda_pinned_event(dev, from);
    EK_TRY(ek_cuda_wait_for(dev, device->copy, device->issued, device->compute));
    EK_TRY(done ? upload_pinned(dev, device->copy, to, from, nbytes, done)
                : upload_chunks(dev, device->copy, to, from, nbytes));
    int rc = ek_cuda_wait_for(dev, device->compute, device->transfer->copied, device->copy);
    if (rc >= 0 && done) /* before the host changes the source */
        rc = ek_cuda_check(dev, "waiting for a copy from pinned memory", ek_cuda_wait_event(done));
    return rc < 0 ? ek_cuda_settle(device, rc) : 0;
}

int ek_cuda_upload(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes)
{
    cudaEvent_t done = ek_cuda_pinned_event(dev, from_data);
    int restore, rc;
    /* Faults are left for a call that needs results, because callers that prefetch drop errors. */
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    if (done)
        rc = upload_pinned(dev, ek_cuda_of(dev)->upload, to_data, from_data, nbytes, done);
    else /* the event of another GPU's block can't be recorded after this copy */
        rc = upload_chunks(dev, ek_cuda_of(dev)->upload, to_data, from_data, nbytes);
    ek_cuda_leave(dev, restore);
    return rc;
}

/* ---- to the host ---- */

/* A chunk that is being downloaded: to the slot, which is held, and from there to `to`. */
typedef struct download_chunk {
    ek_cuda_slot *slot;
    char *to;
    size_t nbytes;
} download_chunk;

static int download_begin(ek_dev *dev, const download_chunk *part, cudaStream_t stream,
                          const void *from)
{
    EK_TRY(ek_cuda_check(dev, "a copy to the host",
                         (int)cudaMemcpyAsync(part->slot->buffer, from, part->nbytes,
                                              cudaMemcpyDeviceToHost, stream)));
    return ek_cuda_record(dev, part->slot->done, stream);
}

static int download_end(ek_dev *dev, ek_cuda_ring *ring, const download_chunk *part)
{
    int rc =
        ek_cuda_check(dev, "waiting for a copy to the host", ek_cuda_wait_event(part->slot->done));
    if (rc >= 0)
        memcpy(part->to, part->slot->buffer, part->nbytes);
    else
        ek_cuda_settle(ek_cuda_of(dev), rc); /* before the slot is used again */
    ek_cuda_ring_release(ring, part->slot);
    return rc;
}

enum { WINDOW = 3 };

/* The chunks of a download that are in flight. The oldest is parts[0]. */
typedef struct download_pipeline {
    ek_dev *dev;
    ek_cuda_ring *ring;
    cudaStream_t stream;
    download_chunk parts[WINDOW];
    int count;
} download_pipeline;

/* Issues chunks while slots are free. Waits for a slot only if no chunk is in flight: threads that
 * hold slots and wait for more could wait for each other for ever. */
static int download_fill(download_pipeline *line, char *to, const char *from, size_t nbytes,
                         size_t *issued)
{
    const size_t most = line->ring->nbytes;
    while (*issued < nbytes && line->count < WINDOW) {
        download_chunk part = {.to = to + *issued,
                               .nbytes = nbytes - *issued < most ? nbytes - *issued : most};
        EK_TRY(ek_cuda_ring_take(line->ring, line->dev, line->count == 0, &part.slot));
        if (!part.slot)
            return 0;
        line->parts[line->count++] = part;
        EK_TRY(download_begin(line->dev, &part, line->stream, from + *issued));
        *issued += part.nbytes;
    }
    return 0;
}

static int download_all(download_pipeline *line, char *to, const char *from, size_t nbytes)
{
    size_t issued = 0;
    int rc;
    do {
        rc = download_fill(line, to, from, nbytes, &issued);
        if (rc < 0)
            break;
        rc = download_end(line->dev, line->ring, &line->parts[0]);
        line->count--;
        memmove(&line->parts[0], &line->parts[1], (WINDOW - 1) * sizeof line->parts[0]);
    } while (rc >= 0 && (issued < nbytes || line->count > 0));
    if (rc < 0)
        ek_cuda_settle(ek_cuda_of(line->dev), rc);
    while (line->count > 0)
        ek_cuda_ring_release(line->ring, line->parts[--line->count].slot);
    return rc;
}

static int download(ek_dev *dev, void *to, const void *from, size_t nbytes)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    const bool small = nbytes <= SMALL;
    download_pipeline line = {.dev = dev,
                              .ring = small ? &device->transfer->small : &device->transfer->large,
                              .stream = small ? device->compute : device->copy};
    if (!small)
        EK_TRY(ek_cuda_wait_for(dev, device->copy, device->issued, device->compute));
    int rc = download_all(&line, to, from, nbytes);
    int fault = ek_cuda_fault_check(dev);
    return rc < 0 ? rc : fault;
}

int ek_cuda_download(ek_dev *dev, void *to_data, const void *from_data, size_t nbytes)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    cudaEvent_t done = ek_cuda_pinned_event(dev, to_data);
    int restore;
    /* Faults are left for a call that needs results. */
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc = ek_cuda_check(dev, "a copy to pinned memory",
                           (int)cudaMemcpyAsync(to_data, from_data, nbytes, cudaMemcpyDeviceToHost,
                                                device->communicate));
    if (rc >= 0 && done)
        rc = ek_cuda_record(dev, done, device->communicate);
    ek_cuda_leave(dev, restore);
    return rc < 0 ? ek_cuda_settle(device, rc) : 0;
}

/* ---- staged copies: between GPUs that don't reach each other ----
 *
 * Chunks alternate between two pinned buffers of the host: the source fills one buffer while the
 * target reads the other. Only streams wait. */

enum { STAGED_CHUNK = 2 << 20 };

/* Makes the buffers and events of both devices, whose transfer->lock is held. An event belongs to
 * the GPU that is current when it is made. */
static int staged_prepare(ek_dev *to, ek_dev *from)
{
    ek_cuda_transfer *source = ek_cuda_of(from)->transfer, *target = ek_cuda_of(to)->transfer;
    int restore, rc = 0;
    for (int i = 0; i < EK_CUDA_STAGING; i++)
        EK_TRY(ek_cuda_make_event(to, &target->drained[i]));
    EK_TRY(ek_cuda_enter(from, &restore));
    for (int i = 0; i < EK_CUDA_STAGING && rc >= 0; i++) {
        rc = ek_cuda_make_event(from, &source->filled[i]);
        if (rc >= 0)
            rc = ek_cuda_make_pinned(from, STAGED_CHUNK, &source->staging[i]);
    }
    ek_cuda_leave(from, restore);
    return rc;
}

/* Makes the copy stream wait for the work that is issued so far to the stream of the calling
 * thread's work. */
static int staged_begin(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    return ek_cuda_wait_for(dev, device->copy, ek_cuda_issued_now(device),
                            ek_cuda_stream_now(device));
}

/* Copies one chunk through buffer i. */
static int staged_copy_chunk(ek_dev *to, char *to_data, ek_dev *from, const char *from_data,
                             size_t nbytes, int i)
{
    const ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    void *buffer = source->transfer->staging[i];
    EK_TRY(ek_cuda_check(from, "a copy to pinned memory",
                         (int)cudaMemcpyAsync(buffer, from_data, nbytes, cudaMemcpyDeviceToHost,
                                              source->copy)));
    EK_TRY(ek_cuda_record(from, source->transfer->filled[i], source->copy));
    EK_TRY(ek_cuda_stream_wait(to, target->copy, source->transfer->filled[i]));
    EK_TRY(ek_cuda_check(to, "a copy from pinned memory",
                         (int)cudaMemcpyAsync(to_data, buffer, nbytes, cudaMemcpyHostToDevice,
                                              target->copy)));
    return ek_cuda_record(to, target->transfer->drained[i], target->copy);
}

static int staged_issue(ek_dev *to, char *to_data, ek_dev *from, const char *from_data,
                        size_t nbytes)
{
    const ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    size_t chunks = (nbytes + STAGED_CHUNK - 1) / STAGED_CHUNK;
    EK_TRY(staged_begin(from));
    EK_TRY(staged_begin(to));
    for (size_t c = 0; c < chunks; c++) {
        size_t done = c * STAGED_CHUNK;
        int i = (int)(c % EK_CUDA_STAGING);
        if (c >= EK_CUDA_STAGING)
            EK_TRY(ek_cuda_stream_wait(from, source->copy, target->transfer->drained[i]));
        EK_TRY(staged_copy_chunk(to, to_data + done, from, from_data + done,
                                 nbytes - done < STAGED_CHUNK ? nbytes - done : STAGED_CHUNK, i));
    }
    /* The source's copy stream waits until the buffers are read, because its next copy may be to
     * another GPU. */
    for (size_t i = 0; i < EK_CUDA_STAGING && i < chunks; i++)
        EK_TRY(ek_cuda_stream_wait(from, source->copy, target->transfer->drained[i]));
    return ek_cuda_wait_for(to, ek_cuda_stream_now(target), target->transfer->copied, target->copy);
}

static int staged_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes)
{
    ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    /* Locks are taken in the order of device indices, so that two copies in opposite directions
     * don't wait for each other. */
    bool up = to->id.index < from->id.index;
    pthread_mutex_lock(&(up ? target : source)->transfer->lock);
    pthread_mutex_lock(&(up ? source : target)->transfer->lock);
    int rc = staged_prepare(to, from);
    if (rc >= 0)
        rc = staged_issue(to, to_data, from, from_data, nbytes);
    if (rc < 0) {
        ek_cuda_settle(source, rc);
        ek_cuda_settle(target, rc);
    }
    pthread_mutex_unlock(&source->transfer->lock);
    pthread_mutex_unlock(&target->transfer->lock);
    return rc;
}

/* ---- between devices ---- */

static int copy_across(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes)
{
    const ek_cuda_device *target = ek_cuda_of(to), *source = ek_cuda_of(from);
    if (target->physical == source->physical)
        return ek_cuda_check(to, "a copy on one GPU",
                             (int)cudaMemcpyAsync(to_data, from_data, nbytes,
                                                  cudaMemcpyDeviceToDevice,
                                                  ek_cuda_stream_now(target)));
    if (ek_cuda_peers(target, source))
        return ek_cuda_check(to, "a copy between GPUs",
                             (int)cudaMemcpyPeerAsync(to_data, target->physical, from_data,
                                                      source->physical, nbytes,
                                                      ek_cuda_stream_now(target)));
    return staged_copy(to, to_data, from, from_data, nbytes);
}

int ek_cuda_copy_bytes(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                       size_t nbytes)
{
    ek_dev *dev = ek_dev_is_host(to) ? from : to;
    int restore, rc;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_fault_check(dev));
    if (!ek_dev_is_host(from) && from != dev) {
        EK_TRY(ek_cuda_usable(from));
        EK_TRY(ek_cuda_fault_check(from));
    }
    EK_TRY(ek_cuda_enter(dev, &restore));
    if (ek_dev_is_host(from))
        rc = upload(to, to_data, from_data, nbytes);
    else if (ek_dev_is_host(to))
        rc = download(from, to_data, from_data, nbytes);
    else
        rc = copy_across(to, to_data, from, from_data, nbytes);
    ek_cuda_leave(dev, restore);
    return rc;
}

bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other)
{
    const ek_cuda_device *a = ek_cuda_of(dev), *b = ek_cuda_of(other);
    return a->physical == b->physical || ek_cuda_peers(a, b);
}

/* ---- opening and closing ---- */

int ek_cuda_transfer_open(ek_cuda_device *device)
{
    ek_cuda_transfer *transfer = ek_calloc(1, sizeof *transfer);
    if (!transfer)
        return EK_E_NO_MEMORY;
    device->transfer = transfer;
    ek_cuda_ring_open(&transfer->small, SMALL_SLOTS, SMALL);
    ek_cuda_ring_open(&transfer->large, LARGE_SLOTS, LARGE);
    pthread_mutex_init(&transfer->lock, NULL);
    return ek_cuda_make_event(device->dev, &transfer->copied);
}

void ek_cuda_transfer_close(ek_cuda_device *device)
{
    ek_cuda_transfer *transfer = device->transfer;
    if (!transfer)
        return;
    for (int i = 0; i < EK_CUDA_STAGING; i++) {
        if (transfer->staging[i])
            cudaFreeHost(transfer->staging[i]);
        if (transfer->filled[i])
            cudaEventDestroy(transfer->filled[i]);
        if (transfer->drained[i])
            cudaEventDestroy(transfer->drained[i]);
    }
    if (transfer->copied)
        cudaEventDestroy(transfer->copied);
    pthread_mutex_destroy(&transfer->lock);
    ek_cuda_ring_close(&transfer->large);
    ek_cuda_ring_close(&transfer->small);
    free(transfer);
    device->transfer = NULL;
}
