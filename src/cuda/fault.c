/* fault.c: errors of devices: GPUs that this process has lost, errors of the CUDA runtime, and
 * faults that kernels have found in their inputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/devices.h"
#include "cuda/runtime.h"

/* ---- GPUs that are lost to this process ---- */

/* The error by which each GPU was lost, 0 if it isn't. GPUs are numbered as in the CUDA runtime.
 * The error is never cleared: the process's context on the GPU is gone, and with it all logical
 * devices there. `call` and `device` are written once, before `error`. */
static struct {
    atomic_int error;
    char call[96];
    char device[16];
} lost[EK_CUDA_GPUS];
static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns true if every later call on the GPU fails after this error. */
static bool fault_is_sticky(int error)
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
    case 226:              /* cudaErrorContained; some toolkits lack this name and the next three */
    case 721:              /* cudaErrorTensorMemoryLeak */
    case 810:              /* cudaErrorMpsClientTerminated */
    case 911:              /* cudaErrorExternalDevice */
    case cudaErrorUnknown: /* drivers may return this for a lost GPU */
        return true;
    default:
        return false;
    }
}

static void lost_set(const ek_dev *dev, const char *call, int error)
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
    /* CUDA also keeps the error as the thread's last error, which is cleared here, so that neither
     * a later launch nor user code gets it. */
    (void)cudaGetLastError();
    if (dev && fault_is_sticky(error))
        lost_set(dev, call, error);
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
                   dev && fault_is_sticky(error)
                       ? "; the device can no longer be used by this process"
                       : "");
}

/* ---- what kernels found ---- */

/* Returns the record's kind. A record that is still being written counts as none, and a later call
 * finds it. */
static int fault_kind(ek_cuda_fault *fault)
{
    int kind = __atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE);
    return kind == EK_CUDA_FAULT_FILLING ? EK_CUDA_FAULT_NONE : kind;
}

static int fault_report(const ek_dev *dev, int kind, const ek_cuda_fault *fault)
{
    static const struct {
        const char *value, *whose, *within, *bounds, *also;
    } words[] = {[EK_CUDA_FAULT_INDEX] = {"index", "", "a dimension of size ", "", ""},
                 [EK_CUDA_FAULT_TARGET] = {"target", "", "", " classes", ", or the ignored index"},
                 [EK_CUDA_FAULT_POSITION] = {"position", " of a maximum", "a plane of ", "", ""}};
    const char *operation = fault->operation ? fault->operation : "a kernel";
    if (kind < EK_CUDA_FAULT_INDEX || kind > EK_CUDA_FAULT_POSITION)
        return EK_FAIL(EK_E_INVALID, "%s on %s: a kernel found fault %d with its input", operation,
                       dev->name, kind);
    long long value = (long long)fault->value, bound = (long long)fault->bound;
    return EK_FAIL(EK_E_INVALID,
                   "%s on %s: %s %lld%s is out of range for %s%lld%s; it must be from 0 to %lld%s",
                   operation, dev->name, words[kind].value, value, words[kind].whose,
                   words[kind].within, bound, words[kind].bounds, bound - 1, words[kind].also);
}

/* ---- sentences for the next call ---- */

/* Keeps the sentence until a call returns it. Later sentences are dropped meanwhile. If memory is
 * short, the sentence is not kept. */
void ek_cuda_tell(ek_cuda_device *device, const char *sentence)
{
    char *none = NULL, *copy = strdup(sentence);
    if (copy && !atomic_compare_exchange_strong(&device->told, &none, copy))
        free(copy);
}

static int told_pass_on(ek_cuda_device *device)
{
    /* only one of several threads takes the sentence */
    char *sentence = atomic_exchange(&device->told, NULL);
    int rc = sentence ? EK_FAIL(EK_E_BACKEND, "%s", sentence) : 0;
    free(sentence);
    return rc;
}

/* ---- faults and sentences ---- */

int ek_cuda_fault_check(ek_dev *dev)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    if (atomic_load_explicit(&device->told, memory_order_acquire))
        return told_pass_on(device);
    if (fault_kind(device->fault) == EK_CUDA_FAULT_NONE)
        return 0;
    /* Only one of several threads takes the record. */
    pthread_mutex_lock(&device->lock);
    int kind = fault_kind(device->fault);
    ek_cuda_fault fault = *device->fault;
    if (kind != EK_CUDA_FAULT_NONE)
        __atomic_store_n(&device->fault->kind, EK_CUDA_FAULT_NONE, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device->lock);
    return kind != EK_CUDA_FAULT_NONE ? fault_report(dev, kind, &fault) : 0;
}
