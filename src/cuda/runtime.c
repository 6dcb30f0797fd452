/* runtime.c: begin and end of a slot, errors of the CUDA runtime, scratch memory. */
#include "cuda/runtime.h"

#include <stdio.h>
#include <string.h>

#include "cuda/current.h"
#include "cuda/devices.h"
#include "cuda/wait.h"
#include "evenkeel/precision.h"

/* ---- GPUs that are lost to this process ---- */

/* By the CUDA runtime's number. Once set it stays: the process's context on that GPU is gone, and
 * with it all logical devices there. `call` is written before `error` and never again. */
static struct {
    atomic_int error;
    char call[96];
    char device[16];
} lost[EK_CUDA_GPUS];
static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;

/* After these every later call on the GPU fails too. */
static bool is_sticky(int error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 226: /* cudaErrorContained: not every toolkit's header has it, nor the next three */
    case 721: /* cudaErrorTensorMemoryLeak */
    case 810: /* cudaErrorMpsClientTerminated */
    case 911: /* cudaErrorExternalDevice */
        return true;
    default:
        return false;
    }
}

static void lose(const ek_dev *dev, const char *call, int error)
{
    int physical = ek_cuda_of(dev)->physical;
    pthread_mutex_lock(&lost_lock);
    bool first = atomic_load(&lost[physical].error) == 0;
    if (first) {
        snprintf(lost[physical].call, sizeof lost[physical].call, "%s", call);
        memcpy(lost[physical].device, dev->name, sizeof lost[physical].device);
        atomic_store(&lost[physical].error, error);
    }
    pthread_mutex_unlock(&lost_lock);
    if (first)
        ek_log_line(EK_LOG_WARNING,
                    "GPU %d (%s) can no longer be used by this process: %s failed with %s",
                    physical, dev->name, call, cudaGetErrorString((cudaError_t)error));
}

static int lost_by(const ek_dev *dev)
{
    return atomic_load_explicit(&lost[ek_cuda_of(dev)->physical].error, memory_order_acquire);
}

bool ek_cuda_is_lost(const ek_dev *dev)
{
    return lost_by(dev) != 0;
}

void ek_cuda_lost_text(const ek_dev *dev, char text[256])
{
    int physical = ek_cuda_of(dev)->physical;
    cudaError_t error = (cudaError_t)lost_by(dev);
    snprintf(text, 256, "GPU %d was lost when %s on %s failed with %s (%s)", physical,
             lost[physical].call, lost[physical].device, cudaGetErrorName(error),
             cudaGetErrorString(error));
}

int ek_cuda_usable(const ek_dev *dev)
{
    char text[256];
    if (!ek_cuda_is_lost(dev))
        return 0;
    ek_cuda_lost_text(dev, text);
    return EK_FAIL(EK_E_BACKEND,
                   "%s can no longer be used by this process: %s; the host and devices on other "
                   "GPUs go on, in a new data-parallel module without it for example",
                   dev->name, text);
}

bool ek_cuda_note(const ek_dev *dev, const char *call, int error)
{
    if (error == cudaSuccess)
        return true;
    /* A call's error is also noted as the thread's last one, where the caller's own CUDA code, or
     * a launch, would find it. */
    (void)cudaGetLastError();
    if (dev && is_sticky(error))
        lose(dev, call, error);
    return false;
}

int ek_cuda_late(const ek_dev *dev)
{
    int error = (int)cudaStreamQuery(ek_cuda_of(dev)->compute);
    (void)cudaGetLastError();
    return error == cudaErrorNotReady ? 0 : error;
}

int ek_cuda_check(ek_dev *dev, const char *call, int error)
{
    if (error <= 0)
        return error;
    ek_cuda_note(dev, call, error);
    return EK_FAIL(error == cudaErrorMemoryAllocation ? EK_E_OUT_OF_MEMORY : EK_E_BACKEND,
                   "%s on %s: %s (%s)%s", call, dev ? dev->name : "the CUDA runtime",
                   cudaGetErrorString((cudaError_t)error), cudaGetErrorName((cudaError_t)error),
                   dev && is_sticky(error) ? "; the device can no longer be used by this process"
                                           : "");
}

/* ---- begin and end ---- */

int ek_cuda_enter(ek_dev *dev, int *restore)
{
    return ek_cuda_check(dev, "making it current",
                         ek_cuda_current_enter(ek_cuda_of(dev)->physical, restore));
}

int ek_cuda_enter_anyway(const ek_dev *dev)
{
    int physical = ek_cuda_of(dev)->physical, restore;
    bool entered =
        ek_cuda_note(dev, "making it current", ek_cuda_current_enter(physical, &restore));
    return entered ? restore : physical;
}

void ek_cuda_leave(const ek_dev *dev, int restore)
{
    /* If what was current before is lost it's not this call's error. */
    ek_cuda_note(NULL, "leaving it", ek_cuda_current_leave(ek_cuda_of(dev)->physical, restore));
}

int ek_cuda_begin(ek_dev *dev, ek_cuda_queue *queue)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_fault_check(dev));
    *queue = (ek_cuda_queue){.stream = device->compute,
                             .fault = device->fault_on_device,
                             .multiprocessors = device->multiprocessors,
                             .deterministic = ek_deterministic()};
    return ek_cuda_enter(dev, &queue->restore);
}

int ek_cuda_end(ek_dev *dev, const ek_cuda_queue *queue, const char *operation, int launched)
{
    int rc = ek_cuda_check(dev, operation, launched);
    ek_cuda_leave(dev, queue->restore);
    return rc;
}

int ek_cuda_synchronize(ek_dev *dev)
{
    const ek_cuda_device *device = ek_cuda_of(dev);
    int restore;
    EK_TRY(ek_cuda_usable(dev));
    EK_TRY(ek_cuda_enter(dev, &restore));
    int rc =
        ek_cuda_check(dev, "waiting for its work", ek_cuda_wait_stream(device, device->compute));
    if (rc >= 0)
        rc =
            ek_cuda_check(dev, "waiting for its copies", ek_cuda_wait_stream(device, device->copy));
    if (rc >= 0)
        rc = ek_cuda_check(dev, "waiting for its copies",
                           ek_cuda_wait_stream(device, device->upload));
    ek_cuda_leave(dev, restore);
    int fault = ek_cuda_fault_check(dev);
    return rc < 0 ? rc : fault;
}

/* ---- scratch ---- */

int ek_cuda_scratch(ek_dev *dev, size_t nbytes, void **pointer)
{
    *pointer = NULL;
    return nbytes ? ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, pointer) : 0;
}

void ek_cuda_scratch_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    ek_dev_free(dev, pointer, nbytes, EK_MEMORY_WORKSPACE);
}
