/* fault.c: the sentences of what kernels found in their inputs. */
#include "cuda/fault.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/runtime.h"

/* Final kinds only: a record that is still being written is seen by a later call. */
static int kind_of(ek_cuda_fault *fault)
{
    int kind = __atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE);
    return kind == EK_CUDA_FAULT_FILLING ? EK_CUDA_FAULT_NONE : kind;
}

static int report(const ek_dev *dev, int kind, const ek_cuda_fault *fault)
{
    const char *operation = fault->operation ? fault->operation : "a kernel";
    long long value = (long long)fault->value, bound = (long long)fault->bound;
    switch (kind) {
    case EK_CUDA_FAULT_INDEX:
        return EK_FAIL(EK_E_INVALID,
                       "%s on %s: index %lld is out of range for a dimension of size %lld; it must "
                       "be from 0 to %lld",
                       operation, dev->name, value, bound, bound - 1);
    case EK_CUDA_FAULT_TARGET:
        return EK_FAIL(EK_E_INVALID,
                       "%s on %s: target %lld is out of range for %lld classes; it must be from 0 "
                       "to %lld, or the ignored index",
                       operation, dev->name, value, bound, bound - 1);
    case EK_CUDA_FAULT_POSITION:
        return EK_FAIL(EK_E_INVALID,
                       "%s on %s: position %lld of a maximum is out of range for a plane of %lld; "
                       "it must be from 0 to %lld",
                       operation, dev->name, value, bound, bound - 1);
    default:
        return EK_FAIL(EK_E_INVALID, "%s on %s: a kernel found fault %d with its input", operation,
                       dev->name, kind);
    }
}

/* ---- sentences ---- */

/* The first stays, as of faults; if there is no memory for it nothing is said. */
void ek_cuda_tell(ek_cuda_device *device, const char *sentence)
{
    char *none = NULL, *copy = strdup(sentence);
    if (copy && !atomic_compare_exchange_strong(&device->told, &none, copy))
        free(copy);
}

static int pass_on(ek_cuda_device *device)
{
    char *sentence = atomic_exchange(&device->told, NULL); /* of several threads one takes it */
    int rc = sentence ? EK_FAIL(EK_E_BACKEND, "%s", sentence) : 0;
    free(sentence);
    return rc;
}

/* ---- both ---- */

int ek_cuda_fault_check(ek_dev *dev)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    if (atomic_load_explicit(&device->told, memory_order_acquire))
        return pass_on(device);
    if (kind_of(device->fault) == EK_CUDA_FAULT_NONE)
        return 0;
    /* Of several threads one takes the record. */
    pthread_mutex_lock(&device->lock);
    int kind = kind_of(device->fault);
    ek_cuda_fault fault = *device->fault;
    if (kind != EK_CUDA_FAULT_NONE)
        __atomic_store_n(&device->fault->kind, EK_CUDA_FAULT_NONE, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device->lock);
    return kind != EK_CUDA_FAULT_NONE ? report(dev, kind, &fault) : 0;
}
