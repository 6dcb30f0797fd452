/* current.c: see current.h. The driver's functions are asked of the runtime, so that a program
 * starts if there is no driver. */
#include "cuda/current.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/devices.h"

static struct {
    __typeof__(cuDevicePrimaryCtxRetain) *retain;
    __typeof__(cuCtxPushCurrent) *push;
    __typeof__(cuCtxPopCurrent) *pop;
} driver;
static int missing; /* a cudaError_t where the driver hasn't got them */
static pthread_once_t found = PTHREAD_ONCE_INIT;

/* Drivers refuse to look for versions after their own, which the toolkit's may be; these functions
 * are older than this one. */
enum { DRIVER_VERSION = 12000 };
enum { NONE = -1 }; /* the number of no GPU */

static void find_one(const char *name, void *member)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, DRIVER_VERSION,
                                                         cudaEnableDefault, &status);
    if (error == cudaSuccess && (status != cudaDriverEntryPointSuccess || !function))
        error = cudaErrorSymbolNotFound;
    if (error != cudaSuccess)
        missing = (int)error;
    memcpy(member, &function, sizeof function);
}

static void find_driver(void)
{
    find_one("cuDevicePrimaryCtxRetain", &driver.retain);
    find_one("cuCtxPushCurrent", &driver.push);
    find_one("cuCtxPopCurrent", &driver.pop);
}

/* The context that the runtime uses, retained with its first use for the life of the process, as
 * the runtime retains it. */
static int context_of(int physical, CUcontext *context)
{
    static _Atomic(CUcontext) contexts[EK_CUDA_GPUS];
    *context = atomic_load_explicit(&contexts[physical], memory_order_acquire);
    if (*context)
        return 0;
    int error = (int)driver.retain(context, physical);
    if (error == 0)
        atomic_store_explicit(&contexts[physical], *context, memory_order_release);
    return error;
}

int ek_cuda_current_enter(int physical, int *restore)
{
    CUcontext context;
    /* It may fail where what is current now is lost, which is no error of this GPU. */
    if (cudaGetDevice(restore) != cudaSuccess) {
        (void)cudaGetLastError();
        *restore = NONE;
    }
    if (*restore == physical)
        return 0;
    pthread_once(&found, find_driver);
    int error = missing ? missing : context_of(physical, &context);
    return error ? error : (int)driver.push(context);
}

int ek_cuda_current_leave(int physical, int restore)
{
    CUcontext context;
    return restore == physical ? 0 : (int)driver.pop(&context);
}
