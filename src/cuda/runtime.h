/* runtime.h: the state of a logical CUDA device, and the begin and end of a slot of the kernel
 * table. Only C files of this folder include it.
 *
 *     int ek_cuda_fill(ek_dev *dev, ek_tensor *out, double value)
 *     {
 *         ek_cuda_stream stream;
 *         EK_TRY(ek_cuda_begin(dev, &stream));
 *         ek_cuda_walk walk = ek_cuda_walk_of(1, (const ek_tensor *[]){out});
 *         return ek_cuda_end(dev, &stream, "fill", ek_cuda_launch_fill(&stream, &walk, value));
 *     }
 *
 * A kernel is issued to the stream of the calling thread's work: the compute stream; within a
 * section (core/lane.h), the exchange stream. Kernels of a stream run in the order of issue, so
 * that a kernel may use memory that was freed while earlier kernels still use it. Other streams
 * follow Note [Streams share memory] in stream.h. Of these functions only ek_cuda_synchronize waits
 * for the device. Any thread may issue work; the order between threads is unspecified. */
#ifndef EK_CUDA_RUNTIME_H
#define EK_CUDA_RUNTIME_H

#include <pthread.h>

#include "core/device.h"
#include "core/tensor.h"
#include "cuda/view.h"
#include "kernels/kernels.h"

/* ek_cuda_<slot> for each slot of kernels/kernels.h, which states its contract. */
extern const ek_kernels ek_cuda_kernels;
#define EK_CUDA_KERNEL(slot) ek_##slot##_kernel ek_cuda_##slot;
EK_KERNELS(EK_CUDA_KERNEL)
#undef EK_CUDA_KERNEL

/* The backend's slot `draw` (core/backend.h). */
int ek_cuda_draw(ek_dev *dev, const struct ek_drawn *tensors, const struct ek_draw *draw);

/* Writes the positions along the first `lines` lines of an index to `order`, line after line, in
 * ascending order of the index. An index out of range comes last. */
struct ek_cuda_index_job;
int ek_cuda_argsort_lines(ek_dev *dev, const struct ek_cuda_index_job *index, int64_t lines,
                          int64_t *order);

enum { EK_CUDA_STREAMS = 5 };

enum { EK_CUDA_LAPS = 8 }; /* laps that are kept until they are read */

typedef struct ek_cuda_lap {
    cudaEvent_t begin, end; /* created with the lap's first use */
} ek_cuda_lap;

/* The timer of replicas' forwards. Guarded by ek_cuda_device.lock. */
typedef struct ek_cuda_clock {
    ek_cuda_lap laps[EK_CUDA_LAPS];
    unsigned next;    /* number of the lap that begins next or is open */
    unsigned pending; /* laps before `next` that had not ended when they were last checked */
    bool open;
    bool asked; /* true once the clock was read; before, laps aren't timed */
} ek_cuda_clock;

struct ek_cuda_blas;
typedef struct ek_cuda_launcher ek_cuda_launcher;
struct ek_cuda_dnn;
struct ek_cuda_transfer;

/* A line of EVENKEEL_CUDA_PLANS=1. */
typedef struct ek_cuda_shown {
    char line[400];
} ek_cuda_shown;

typedef struct ek_cuda_device {
    ek_dev *dev;
    int physical; /* the GPU's number in the CUDA runtime */
    int multiprocessors;
    int capability; /* compute capability: 90 for 9.0 */
    union {
        struct {
            cudaStream_t compute;     /* the stream of EK_STREAM_COMPUTE */
            cudaStream_t copy;        /* copies from and to the host, in order with `compute` */
            cudaStream_t upload;      /* the stream of EK_STREAM_UPLOAD */
            cudaStream_t communicate; /* the stream of EK_STREAM_COMMUNICATE */
            cudaStream_t exchange;    /* the stream of EK_STREAM_EXCHANGE */
        };
        cudaStream_t streams[EK_CUDA_STREAMS];
    };
    cudaEvent_t issued;    /* event in `compute`, recorded for each wait (stream.h) */
    cudaEvent_t exchanged; /* event in `exchange`, recorded for each wait */
    ek_cuda_fault *fault;  /* the host's address of the fault record, which is pinned */
    ek_cuda_fault *fault_on_device;
    _Atomic(char *) told; /* the error that the next call returns; NULL if there is none */
    struct ek_cuda_transfer *transfer; /* owned by transfer.c */
    pthread_mutex_t lock;      /* guards blas, dnn, clock, choices, and clearing of the fault */
    struct ek_cuda_blas *blas; /* created with the first product; NULL before */
    struct ek_cuda_dnn *dnn;
    ek_cuda_launcher *launcher; /* guarded by the device's section (core/lane.h) */
    ek_cuda_clock clock;
    uint64_t memory; /* bytes of the GPU, which logical devices may share; 0: unknown */
    ek_cuda_shown attention, recurrent; /* The problems printed last (dnn.h). */
} ek_cuda_device;

static inline ek_cuda_device *ek_cuda_of(const ek_dev *dev)
{
    return dev->context;
}

/* Return the stream of the calling thread's work (core/backend.h), and the event that is recorded
 * there. */
static inline cudaStream_t ek_cuda_stream_now(const ek_cuda_device *device)
{
    return ek_thread_self()->modes.stream == EK_STREAM_EXCHANGE ? device->exchange
                                                                : device->compute;
}
static inline cudaEvent_t ek_cuda_issued_now(const ek_cuda_device *device)
{
    return ek_thread_self()->modes.stream == EK_STREAM_EXCHANGE ? device->exchanged
                                                                : device->issued;
}

/* Makes the device's GPU current for the calling thread, and fills the stream. Fails if the device
 * is unusable or has a fault to report. */
int ek_cuda_begin(ek_dev *dev, ek_cuda_stream *stream);

/* Restores the GPU that was current before ek_cuda_begin, and returns the outcome. `launched` is a
 * status (not above 0) or a cudaError_t, for which an error that names operation and device is
 * set. */
int ek_cuda_end(ek_dev *dev, const ek_cuda_stream *stream, const char *operation, int launched);

/* Ends the calling function with a launch that takes `&stream`, between ek_cuda_begin and
 * ek_cuda_end. Returns its status. */
#define EK_CUDA_RUN(dev, operation, launch)                        \
    do {                                                           \
        ek_cuda_stream stream;                                     \
        EK_TRY(ek_cuda_begin((dev), &stream));                     \
        return ek_cuda_end((dev), &stream, (operation), (launch)); \
    } while (0)

/* The parts of ek_cuda_begin and ek_cuda_end. ek_cuda_usable returns EK_E_BACKEND if an earlier
 * error made the device's GPU unusable. ek_cuda_enter makes the GPU current, ek_cuda_leave restores
 * the GPU that was current before. */
int ek_cuda_usable(const ek_dev *dev);
bool ek_cuda_is_lost(const ek_dev *dev);
/* Writes "GPU 1 was lost when ... failed with ...". The device must be lost. */
void ek_cuda_lost_text(const ek_dev *dev, char text[256]);
int ek_cuda_enter(ek_dev *dev, int *restore);
int ek_cuda_enter_anyway(const ek_dev *dev); /* raises no error */
void ek_cuda_leave(const ek_dev *dev, int restore);

/* Turns a cudaError_t into a status: 0, EK_E_OUT_OF_MEMORY, or EK_E_BACKEND with "call on cuda:0:
 * what CUDA says". An `error` that isn't positive is a status already, and is returned unchanged.
 * An error that ends the process's use of a GPU (an illegal address, a failed launch) makes all
 * devices on this GPU unusable. dev may be NULL. */
int ek_cuda_check(ek_dev *dev, const char *call, int error);
/* Does what ek_cuda_check does but sets no error, for failures without consequences. Returns true
 * on success. */
bool ek_cuda_note(const ek_dev *dev, const char *call, int error);
#define EK_CUDA_TRY(dev, call) EK_TRY(ek_cuda_check((dev), #call, (int)(call)))

/* Returns the device's pending cudaError_t, or 0. Called after a library's call has failed, because
 * the library returns only its own errors, and not the device's. */
int ek_cuda_late(const ek_dev *dev);

/* Returns and clears the error of the fault record or of ek_cuda_tell, or 0. Doesn't wait. */
int ek_cuda_fault_check(ek_dev *dev);
/* Makes `sentence` the error (EK_E_BACKEND) of the next call that issues work to the device, waits
 * for it or reads from it. Calls in EK_STREAM_UPLOAD don't return it. Any thread. */
void ek_cuda_tell(ek_cuda_device *device, const char *sentence);

/* Waits until all work of the device is done. Returns faults and late errors. */
int ek_cuda_synchronize(ek_dev *dev);

/* Allocate and free scratch memory of the device. Callers free it once the kernels that use it are
 * issued. For nbytes 0, *pointer becomes NULL. */
int ek_cuda_scratch(ek_dev *dev, size_t nbytes, void **pointer);
void ek_cuda_scratch_free(ek_dev *dev, void *pointer, size_t nbytes);

/* ek_cuda_scratch for callers that can do without the memory: ek_dev_try_alloc_for, with its
 * result. For nbytes 0, *pointer becomes NULL and the result is 1. */
int ek_cuda_try_scratch(ek_dev *dev, size_t nbytes, void **pointer);

/* Return how many bytes to allocate for a workspace of nbytes that begins at a multiple of 256, and
 * the address at which the workspace begins in this memory. */
static inline size_t ek_cuda_padded(size_t nbytes)
{
    return nbytes > 0 ? nbytes + 256 : 0;
}
static inline void *ek_cuda_aligned(void *workspace)
{
    return workspace ? (char *)workspace + (256 - (uintptr_t)workspace % 256) % 256 : NULL;
}

/* The backend's clock slots. They time replicas' forwards by the device's own clock. */
void ek_cuda_clock_begin(ek_dev *dev);
void ek_cuda_clock_end(ek_dev *dev);
void ek_cuda_clock_read(ek_dev *dev);
void ek_cuda_clock_close(ek_cuda_clock *clock);

/* Free the device's handles and plans of the libraries, and their workspaces on the ledger. The
 * device closes afterwards. They do nothing if there is nothing to free. */
void ek_cuda_blas_close(ek_cuda_device *device);
void ek_cuda_dnn_close(ek_cuda_device *device);

/* Return the size and the stride along dim; 1 if the tensor has no dimensions. */
static inline int64_t ek_cuda_size_along(const ek_tensor *tensor, int dim)
{
    return tensor->ndim == 0 ? 1 : tensor->shape[dim];
}
static inline int64_t ek_cuda_stride_along(const ek_tensor *tensor, int dim)
{
    return tensor->ndim == 0 ? 1 : tensor->stride[dim];
}

/* Returns a walk over tensors of one shape. */
ek_cuda_walk ek_cuda_walk_of(int operands, const ek_tensor *const *tensors);

#endif
