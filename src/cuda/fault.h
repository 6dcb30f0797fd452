/* fault.h: bad values that only a kernel can see, an index out of range for example.
 *
 * A kernel that meets one notes it in its device's record (the first stays), and goes on with a
 * value that is harmless. The record lies in memory that the host reads without waiting: the next
 * call that issues work to the device, waits for it or reads from it returns the error, and the
 * device stays usable. */
#ifndef EK_CUDA_FAULT_H
#define EK_CUDA_FAULT_H

#include <stdint.h>

enum {
    EK_CUDA_FAULT_NONE,
    EK_CUDA_FAULT_INDEX,       /* index `value` along a dimension of `bound` */
    EK_CUDA_FAULT_TARGET,      /* target `value` with `bound` classes */
    EK_CUDA_FAULT_POSITION,    /* max pooling's position `value` in a plane of `bound` */
    EK_CUDA_FAULT_FILLING = 64 /* another thread is writing the record */
};

typedef struct ek_cuda_fault {
    int kind; /* of the enumeration; written last */
    int64_t value, bound;
    const char *operation; /* a static string of the host's */
} ek_cuda_fault;

#if defined(__cplusplus) && defined(__CUDACC__)
static __device__ inline void ek_fault_raise(ek_cuda_fault *fault, int kind, int64_t value,
                                             int64_t bound, const char *operation)
{
    /* The record is in the host's memory, where exchanges are slow and one after the other: when
     * all of a large tensor's indices are bad, only the first threads come to that. */
    if (*(volatile int *)&fault->kind != EK_CUDA_FAULT_NONE)
        return;
    if (atomicCAS(&fault->kind, EK_CUDA_FAULT_NONE, EK_CUDA_FAULT_FILLING) != EK_CUDA_FAULT_NONE)
        return;
    fault->value = value;
    fault->bound = bound;
    fault->operation = operation;
    __threadfence_system();
    *(volatile int *)&fault->kind = kind;
}
#endif

#endif
