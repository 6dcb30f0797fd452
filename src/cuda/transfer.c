/* transfer.c: copies, and the order between devices' streams. */
#include "cuda/transfer.h"

int ek_cuda_order(ek_dev *waiter, ek_dev *awaited)
{
    const ek_cuda_device *from = ek_cuda_of(awaited);
    int restore;
    if (ek_dev_is_host(waiter))
        return ek_cuda_synchronize(awaited);
    EK_TRY(ek_cuda_usable(awaited));
    EK_TRY(ek_cuda_usable(waiter));
    EK_TRY(ek_cuda_enter(awaited, &restore));
    int rc = ek_cuda_check(awaited, "recording an event",
                           (int)cudaEventRecord(from->issued, from->compute));
    ek_cuda_leave(awaited, restore);
    EK_TRY(rc);
    EK_TRY(ek_cuda_enter(waiter, &restore));
    rc = ek_cuda_check(waiter, "waiting for an event",
                       (int)cudaStreamWaitEvent(ek_cuda_of(waiter)->compute, from->issued, 0));
    ek_cuda_leave(waiter, restore);
    return rc;
}

int ek_cuda_transfer(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes)
{
    ek_dev *dev = ek_dev_is_host(to) ? from : to;
    int restore;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_fault_check(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc = ek_cuda_check(dev, "a copy",
                           (int)cudaMemcpyAsync(to_data, from_data, nbytes, cudaMemcpyDefault,
                                                ek_cuda_of(dev)->compute));
    ek_cuda_leave(dev, restore);
    if (rc >= 0 && (ek_dev_is_host(to) || ek_dev_is_host(from)))
        rc = ek_cuda_synchronize(dev);
    return rc;
}

bool ek_cuda_reaches(const ek_dev *dev, const ek_dev *other)
{
    return ek_cuda_of(dev)->physical == ek_cuda_of(other)->physical;
}

void ek_cuda_transfer_close(ek_cuda_device *device)
{
    (void)device;
}
