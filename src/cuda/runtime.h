/* runtime.h: the state of one logical CUDA device, and how a slot of the kernel table begins and
 * ends. For the C files of this folder.
 *
 *     int ek_cuda_fill(ek_dev *dev, ek_tensor *out, double value)
 *     {
 *         ek_cuda_stream stream;
 *         EK_TRY(ek_cuda_begin(dev, &stream));
 *         ek_cuda_walk walk = ek_cuda_walk_of(1, (const ek_tensor *[]){out});
 *         return ek_cuda_end(dev, &stream, "fill", ek_cuda_launch_fill(&stream, &walk, value));
 *     }
 *
 * All kernels of a device are issued to its compute stream, so that what is issued later sees what
 * was issued earlier, memory given back and taken again included; what other streams do with memory
 * comes before or after by the rule in stream.h. Nothing here waits for the device but
 * ek_cuda_synchronize. Any thread may issue; several at once are in some order. */
#ifndef EK_CUDA_RUNTIME_H
#define EK_CUDA_RUNTIME_H

#include <pthread.h>

#include "core/device.h"
#include "core/tensor.h"
#include "cuda/view.h"
#include "kernels/kernels.h"

/* ek_cuda_<slot> for each slot of kernels/kernels.h, where its contract stands. */
extern const ek_kernels ek_cuda_kernels;
#define EK_CUDA_KERNEL(slot) ek_##slot##_kernel ek_cuda_##slot;
EK_KERNELS(EK_CUDA_KERNEL)
#undef EK_CUDA_KERNEL

enum { EK_CUDA_LAPS = 8 }; /* that are not read yet; more are not timed */

typedef struct ek_cuda_lap {
    cudaEvent_t begin, end; /* made with first use */
} ek_cuda_lap;

/* Guarded by the device's lock. */
typedef struct ek_cuda_clock {
    ek_cuda_lap laps[EK_CUDA_LAPS];
    unsigned next;    /* the lap that begins next, or is open */
    unsigned pending; /* laps before it that were not over when last looked at */
    bool open;
    bool asked; /* somebody reads it: laps are timed */
} ek_cuda_clock;

struct ek_cuda_blas;
struct ek_cuda_dnn;
struct ek_cuda_transfer;

typedef struct ek_cuda_device {
    ek_dev *dev;
    int physical; /* the CUDA runtime's number */
    int multiprocessors;
    int capability; /* 90 for 9.0 */
    cudaStream_t compute;
    cudaStream_t copy;    /* what is to or from the host, in order with `compute` */
    cudaStream_t upload;  /* EK_QUEUE_UPLOAD */
    cudaEvent_t issued;   /* `compute` up to when it was last recorded; see stream.h */
    ek_cuda_fault *fault; /* pinned: the host's address */
    ek_cuda_fault *fault_on_device;
    _Atomic(char *) told; /* what the next call is to return as its error; NULL: nothing */
    struct ek_cuda_transfer *transfer; /* transfer.c's */
    pthread_mutex_t lock;              /* guards what is below, and calls that use it */
    struct ek_cuda_blas *blas;         /* made with first use; NULL until then */
    struct ek_cuda_dnn *dnn;
    ek_cuda_clock clock;
} ek_cuda_device;

static inline ek_cuda_device *ek_cuda_of(const ek_dev *dev)
{
    return dev->context;
}

/* Makes the device's physical one current for the calling thread, and fills the stream. Fails where
 * the device is unusable or has a fault to report. */
int ek_cuda_begin(ek_dev *dev, ek_cuda_stream *stream);

/* Makes the caller's CUDA device current again and returns the outcome: `launched` is a status (not
 * above 0) or a cudaError_t, which becomes a sentence with operation and device. */
int ek_cuda_end(ek_dev *dev, const ek_cuda_stream *stream, const char *operation, int launched);

/* The parts of these two: EK_E_BACKEND if the device is on a GPU that an earlier error made
 * unusable; and making the physical device current, then the one before. */
int ek_cuda_usable(const ek_dev *dev);
bool ek_cuda_is_lost(const ek_dev *dev);
/* "GPU 1 was lost when ... failed with ...", of a device that is. */
void ek_cuda_lost_text(const ek_dev *dev, char text[256]);
int ek_cuda_enter(ek_dev *dev, int *restore);
int ek_cuda_enter_anyway(const ek_dev *dev); /* without a sentence, for what can't fail */
void ek_cuda_leave(const ek_dev *dev, int restore);

/* A status from a cudaError_t: 0, or EK_E_BACKEND with "call on cuda:0: what CUDA says", or
 * EK_E_OUT_OF_MEMORY; what is not positive is returned as it is. An error that ends the process's
 * use of a GPU (an illegal address, a failed launch) makes all devices there unusable. dev may be
 * NULL.
 */
int ek_cuda_check(ek_dev *dev, const char *call, int error);
/* The same without a sentence, for calls whose failure changes nothing: whether all was well. */
bool ek_cuda_note(const ek_dev *dev, const char *call, int error);
#define EK_CUDA_TRY(dev, call) EK_TRY(ek_cuda_check((dev), #call, (int)(call)))

/* After a library's call has failed, whose errors are its own: what the device has met, or 0. The
 * last error of our own calls knows nothing of it. */
int ek_cuda_late(const ek_dev *dev);

/* The fault record's error, or what was told, cleared; 0 without one. Doesn't wait. */
int ek_cuda_fault_check(ek_dev *dev);
/* Makes the sentence the error (EK_E_BACKEND) of the next call that issues work to the device, but
 * in EK_QUEUE_UPLOAD, waits for it or reads from it. Any thread. */
void ek_cuda_tell(ek_cuda_device *device, const char *sentence);

/* Returns when all work of the device is done; faults and late errors are its result. */
int ek_cuda_synchronize(ek_dev *dev);

/* Scratch memory of the device until work issued now has run; free it once the kernels that use it
 * are issued. nbytes 0 gives NULL. */
int ek_cuda_scratch(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_scratch_free(ek_dev *dev, void *pointer, size_t nbytes);

/* The same for callers that have another way if there is none: 1 with memory (NULL for 0 bytes), 0
 * if there is too little (no error is pending for it), negative on other errors. */
int ek_cuda_try_scratch(ek_dev *dev, size_t nbytes, void **pointer);

/* A library's workspace: bytes with room to begin at a multiple of 256 (0 for 0), and that place.
 */
static inline size_t ek_cuda_padded(size_t nbytes)
{
    return nbytes > 0 ? nbytes + 256 : 0;
}
static inline void *ek_cuda_aligned(void *workspace)
{
    return workspace ? (char *)workspace + (256 - (uintptr_t)workspace % 256) % 256 : NULL;
}

/* Strides of a dense tensor of `ndim` dimensions: row-major, or, with EK_CHANNELS_LAST and 4 or 5
 * of them, with dimension 1 innermost. */
void ek_cuda_dense_strides(int ndim, const int64_t *shape, ek_memory_format format,
                           int64_t *strides);

/* A dense tensor of scratch memory, for kernels that read only some dtypes or layouts: the copy is
 * made by the kernel `copy`. `format` means something for 4 and 5 dimensions: EK_CHANNELS_LAST puts
 * dimension 1 innermost. */
typedef struct ek_cuda_stage {
    ek_tensor *tensor; /* what the kernel uses */
    ek_tensor own;
    ek_storage storage;
    size_t nbytes; /* of the copy; 0 if `tensor` is the original */
} ek_cuda_stage;
int ek_cuda_stage_begin(ek_cuda_stage *stage, ek_dev *dev, const ek_tensor *x, ek_dtype dtype,
                        ek_memory_format format, bool keep, bool load);
/* With `store`, copies back into `original`; keeps `rc` if it is an error. */
int ek_cuda_stage_end(ek_cuda_stage *stage, ek_dev *dev, ek_tensor *original, bool store, int rc);

/* The time of replicas' forwards by the device's own clock: the backend's clock slots. */
void ek_cuda_clock_begin(ek_dev *dev);
void ek_cuda_clock_end(ek_dev *dev);
void ek_cuda_clock_read(ek_dev *dev);
void ek_cuda_clock_close(ek_cuda_clock *clock);

/* Give back what the libraries' handles and plans hold of the device, the ledger's workspaces
 * included: before the device closes. Fine if there is nothing. */
void ek_cuda_blas_close(ek_cuda_device *device);
void ek_cuda_dnn_close(ek_cuda_device *device);

/* The tensors, of one shape, as a walk. */
ek_cuda_walk ek_cuda_walk_of(int operands, const ek_tensor *const *tensors);

#endif
