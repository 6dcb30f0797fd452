/* stream.c: see device.h. */
#include "core/device.h"

#include "core/error.h"
#include "core/fork.h"

int ek_dev_wait(ek_dev *waiter, ek_dev *awaited)
{
    EK_TRY(ek_fork_check());
    if (waiter == awaited || !awaited->backend->device_wait)
        return 0;
    return awaited->backend->device_wait(waiter, awaited);
}

int ek_dev_synchronize(ek_dev *dev)
{
    EK_TRY(ek_fork_check());
    return dev->backend->synchronize ? dev->backend->synchronize(dev) : 0;
}

int ek_dev_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes)
{
    EK_TRY(ek_fork_check());
    if (nbytes == 0)
        return 0;
    /* A GPU's backend can copy from and to the host; the host's cannot copy from and to a GPU. */
    const ek_backend *backend = to->backend->host_memory ? from->backend : to->backend;
    bool with_host = to->backend->host_memory || from->backend->host_memory;
    if (with_host || to == from)
        return backend->copy(to, to_data, from, from_data, nbytes);
    EK_TRY(ek_dev_wait(to, from));
    EK_TRY(backend->copy(to, to_data, from, from_data, nbytes));
    return ek_dev_wait(from, to);
}

bool ek_dev_has_streams(const ek_dev *dev)
{
    return dev->backend->event_record != NULL;
}

void ek_dev_record_event(ek_dev *dev, ek_stream stream, ek_event **event)
{
    if (dev->backend->event_record && !ek_forked())
        dev->backend->event_record(dev, stream, event);
}

void ek_dev_wait_event(ek_dev *dev, ek_stream stream, ek_event *event)
{
    if (event && !ek_forked())
        dev->backend->event_wait(dev, stream, event);
}

int ek_dev_event_done(ek_dev *dev, ek_event *event)
{
    EK_TRY(ek_fork_check());
    return event ? dev->backend->event_done(dev, event) : 1;
}

void ek_dev_free_event(ek_dev *dev, ek_event *event)
{
    if (event && !ek_forked())
        dev->backend->event_free(dev, event);
}

int ek_dev_upload(ek_dev *dev, void *to_data, ek_dev *from, const void *from_data, size_t nbytes)
{
    EK_TRY(ek_fork_check());
    if (nbytes == 0)
        return 0;
    return dev->backend->upload ? dev->backend->upload(dev, to_data, from_data, nbytes)
                                : ek_dev_copy(dev, to_data, from, from_data, nbytes);
}

int ek_dev_download(ek_dev *dev, ek_dev *to, void *to_data, const void *from_data, size_t nbytes)
{
    EK_TRY(ek_fork_check());
    if (nbytes == 0)
        return 0;
    return dev->backend->download ? dev->backend->download(dev, to_data, from_data, nbytes)
                                  : ek_dev_copy(to, to_data, dev, from_data, nbytes);
}

bool ek_dev_reaches(const ek_dev *dev, const ek_dev *other)
{
    if (dev == other || (dev->backend->host_memory && other->backend->host_memory))
        return true;
    return dev->backend == other->backend && dev->backend->reaches &&
           dev->backend->reaches(dev, other);
}

int ek_dev_collective(ek_dev *const *devs, int count)
{
    int with = 0; /* the first device whose backend has a `collective` */
    while (with < count && !devs[with]->backend->collective)
        with++;
    return count > 1 && with < count ? devs[with]->backend->collective(devs, count)
                                     : EK_COLLECTIVE_NONE;
}

/* Does a step by copies from device to device. */
static int stream_copy_step(ek_dev *const *devs, int count, const ek_exchange_step *step)
{
    for (int d = 0; d < count && step->work; d++)
        EK_TRY(step->work(step->user, devs[d]));
    for (int d = 1; d < count && step->data; d++)
        EK_TRY(ek_dev_copy(devs[d], step->data[d], devs[0], step->data[0], step->nbytes));
    for (int i = 0; i < step->count; i++)
        EK_TRY(ek_dev_copy(step->moves[i].to, step->moves[i].target, step->moves[i].from,
                           step->moves[i].source, step->moves[i].nbytes));
    return 0;
}

int ek_dev_exchange(ek_dev *const *devs, int count, const ek_exchange_step *steps, int step_count)
{
    EK_TRY(ek_fork_check());
    if (devs[0]->backend->exchange)
        return devs[0]->backend->exchange(devs, count, steps, step_count);
    for (int i = 0; i < step_count; i++)
        EK_TRY(stream_copy_step(devs, count, &steps[i]));
    return 0;
}

int ek_dev_broadcast(ek_dev *const *devs, int count, void *const *data, size_t nbytes)
{
    const ek_exchange_step step = {.data = data, .nbytes = nbytes};
    return nbytes > 0 ? ek_dev_exchange(devs, count, &step, 1) : 0;
}

bool ek_dev_is_host(const ek_dev *dev)
{
    return dev->backend->host_memory;
}
