/* dnn.h: convolutions and attention by cuDNN: the description of a problem, and the handle and
 * plans of one device, which are made at first use and guarded by ek_cuda_device.lock. If cuDNN
 * can't be opened, or was missing when this was compiled, no problem is supported. */
#ifndef EK_CUDA_DNN_H
#define EK_CUDA_DNN_H

#include "cuda/library.h"
#include "cuda/runtime.h"

typedef enum ek_dnn_operation {
    EK_DNN_FORWARD,
    EK_DNN_INPUT_GRADIENT,
    EK_DNN_WEIGHT_GRADIENT,
    EK_DNN_ATTENTION,
    EK_DNN_ATTENTION_GRADIENT
} ek_dnn_operation;

/* The tensors of attention. The first ones are heads (batch, head, row, column) with contiguous
 * columns, others are contiguous. Values are one f32 on the host each. */
enum {
    EK_DNN_Q,
    EK_DNN_K,
    EK_DNN_V,
    EK_DNN_OUT,
    EK_DNN_DOUT,
    EK_DNN_DQ,
    EK_DNN_DK,
    EK_DNN_DV,
    EK_DNN_MASK, /* The mask is (batch, head, row, key). */
    EK_DNN_HEADS,
    EK_DNN_LSE = EK_DNN_HEADS,
    EK_DNN_DROPOUT,  /* 1 for a probability that stays, else 0 */
    EK_DNN_ROW_SUMS, /* scratch: sum(dout out) of each row */
    EK_DNN_DQ_SUMS,  /* scratch: dq in f32, if the problem isn't deterministic */
    EK_DNN_SCALE,    /* the first value */
    EK_DNN_HIDDEN,   /* -inf */
    EK_DNN_FACTOR,   /* dropout's */
    EK_DNN_KEPT,     /* 1 / factor; 1 without dropout */
    EK_DNN_ADDRESSES
};

/* A convolution or attention, as the key of its plan. All members are int64_t, so there is no
 * padding and keys are compared as bytes. Unused elements are 0. */
typedef struct ek_dnn_problem {
    int64_t operation; /* ek_dnn_operation */
    int64_t dtype;     /* EK_F32, EK_BF16 or EK_F16 */
    int64_t alignment; /* All addresses have this alignment, 16 at most. */
    int64_t deterministic;
    union {
        /* A convolution. Shapes are (N, C, ...), (O, C / groups, ...) and (N, O, ...). */
        struct {
            int64_t format; /* memory format of all three tensors, which are dense */
            int64_t dims;   /* dimensions in space: 2 or 3 */
            int64_t x[5], w[5], y[5];
            int64_t stride[3], before[3], after[3], dilation[3]; /* before, after: the padding */
            int64_t tf32;
            int64_t bias; /* 1: forward adds a bias of O contiguous elements, aligned as the rest */
        };
        /* Attention, with the names of ek_cuda_attention_job. */
        struct {
            int64_t batch, heads, groups, rows, keys, depth, width;
            int64_t causal, drops;
            int64_t mask[4], mask_dtype;      /* the mask's sizes, 1 where it repeats; 0: no mask */
            int64_t strides[EK_DNN_HEADS][3]; /* Batches, heads and rows. */
        };
    };
} ek_dnn_problem;

/* Fills the problem, with alignment 16 and bias 0. In gradients y is dy, and the tensor that is
 * computed is dx or dw. No tensor is empty. Returns false if cuDNN can't express the problem. */
bool ek_dnn_problem_of(ek_dnn_problem *problem, ek_dnn_operation operation, const ek_tensor *x,
                       const ek_tensor *w, const ek_tensor *y, const ek_conv_params *params,
                       ek_memory_format format);

/* Returns true if the tensor is dense in the format. Dimensions of size 1 don't matter. */
bool ek_dnn_is_dense(const ek_tensor *tensor, ek_memory_format format);

/* Returns the largest power of two up to 16 that divides the address. */
int64_t ek_dnn_alignment(const void *address);

/* Returns the order of memory in which cuDNN's engines for a dtype compute images without internal
 * copies. Engines with tensor cores read channels-last tensors. f32 without TF32 uses the ordinary
 * units, whose engines are row-major. Returns channels-last if cuDNN can't be opened. */
ek_memory_format ek_dnn_format(ek_dtype dtype);

/* Returns 2 if cuDNN computes the problem by tensor cores, 1 if it computes the problem without
 * them, 0 if it doesn't support the problem, negative on error. *workspace, if not NULL, becomes
 * the plan's bytes of workspace. The result and *workspace describe the plan that cuDNN suggests,
 * so that callers' decisions don't depend on a faster plan found by timing. The plan is kept.
 * Called between ek_cuda_begin and ek_cuda_end. */
int ek_cuda_dnn_supports(ek_dev *dev, const ek_dnn_problem *problem, int64_t *workspace);

/* Returns how many bytes are copied to another order of memory, here or in the plan's workspace, if
 * x and y are row-major and w is channels-last. */
int64_t ek_dnn_copied(const ek_dnn_problem *problem, int64_t workspace);

/* Issues the problem. The tensors are dense in its format and have its alignment. bias is NULL if
 * the problem has none. Returns 1 when issued, 0 if cuDNN doesn't support the problem or needs more
 * memory than there is, negative on error. */
int ek_cuda_dnn_run(ek_dev *dev, const ek_dnn_problem *problem, const ek_tensor *x,
                    const ek_tensor *w, const ek_tensor *y, const ek_tensor *bias);

/* Issues attention or its gradient. `tensors` has EK_DNN_ADDRESSES addresses, NULL where the
 * problem has no tensor. Returns what ek_cuda_dnn_run returns. */
int ek_cuda_dnn_attend(ek_dev *dev, const ek_dnn_problem *problem, void *const *tensors);

/* Prints a line to stderr, if EVENKEEL_CUDA_PLANS=1 and it differs from the last one before its
 * semicolon. */
__attribute__((format(printf, 3, 4))) void ek_cuda_show(ek_dev *dev, ek_cuda_shown *last,
                                                        const char *format, ...);

#ifdef EK_HAVE_CUDNN
/* Sets *handle to the device's handle of cuDNN, which issues to the compute stream; NULL if cuDNN
 * can't be used. The device's lock is held. Called between ek_cuda_begin and ek_cuda_end. */
int ek_cuda_dnn_handle(ek_dev *dev, cudnnHandle_t *handle);

/* Sets the error of a failed call of cuDNN, and returns its status. The sentence begins with the
 * operation's name and `of`. */
int ek_cuda_dnn_failed(ek_dev *dev, const char *name, const char *of, cudnnStatus_t status);
#endif

#endif
