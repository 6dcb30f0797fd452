/* norm_call.h: a call of a normalisation's slot. It has its tensors in a form that the kernels of
 * norm.h take, parameters and results as dense arrays, and room for partial sums. */
#ifndef EK_CUDA_NORM_CALL_H
#define EK_CUDA_NORM_CALL_H

#include "cuda/norm.h"
#include "cuda/runtime.h"
#include "kernels/stage.h"

/* The set of elements that has statistics of its own. */
typedef enum ek_norm_kind {
    EK_NORM_BATCH,    /* a channel of the batch */
    EK_NORM_CHANNELS, /* `each` channels of a sample, whose sums are by channel */
    EK_NORM_RUNS      /* a piece of a sample that is one run in memory */
} ek_norm_kind;

/* x and the tensors that go with it; NULL if absent. y is an output, or dx. */
typedef struct ek_norm_tensors {
    const ek_tensor *x, *dy, *mask;
    ek_tensor *y;
} ek_norm_tensors;

enum { EK_NORM_STAGES = 12 };

typedef struct ek_norm_call {
    ek_dev *dev;
    const char *operation;
    ek_cuda_stream stream;
    ek_cuda_norm norm;
    bool last; /* runs: a sample has dimension 1 innermost in memory */
    int stages;
    ek_stage stage[EK_NORM_STAGES]; /* `original` is the result to copy to, borrowed; else NULL */
    ek_tensor wide[EK_NORM_STAGES]; /* parameters per element, as tensors of one sample */
    size_t nbytes;                  /* bytes of partial sums */
} ek_norm_call;

/* Begins a call. x isn't empty. A call must not be moved, because stages point into it. Any of
 * these functions may fail; ek_cuda_norm_end must follow a begin that did not. */
int ek_cuda_norm_begin(ek_norm_call *call, ek_dev *dev, const char *operation);
int ek_cuda_norm_take(ek_norm_call *call, ek_norm_kind kind, int64_t groups,
                      const ek_norm_tensors *tensors);
/* True if channels are innermost and the other dimensions of a sample are one run. */
bool ek_cuda_norm_has_rows(const ek_tensor *x);
/* The values of a parameter or statistic, as a dense array; NULL for NULL. */
int ek_cuda_norm_input(ek_norm_call *call, const ek_tensor *tensor, const void **values);
/* The values of weight, bias or their gradients. With norm.element they are in the order of a
 * sample of x in memory. */
int ek_cuda_norm_parameter(ek_norm_call *call, const ek_tensor *x, const ek_tensor *tensor,
                           const void **values);
int ek_cuda_norm_output(ek_norm_call *call, ek_tensor *tensor, void **values);
/* Takes what is computed from moments into norm.update. NULL: nothing. */
int ek_cuda_norm_take_update(ek_norm_call *call, const ek_norm_update *update);
int ek_cuda_norm_parameter_output(ek_norm_call *call, const ek_tensor *x, ek_tensor *tensor,
                                  void **values);
/* Cut the work. cut_sums makes room for partial sums, unless `direct` allows none and none are
 * needed. cut_elements is for apply and gradient. */
int ek_cuda_norm_cut_sums(ek_norm_call *call, bool direct);
void ek_cuda_norm_cut_elements(ek_norm_call *call);
/* Frees the room for partial sums, so that the call can be cut again. */
void ek_cuda_norm_free_sums(ek_norm_call *call);
/* Ends the call. `rc` is a status or a cudaError_t. */
int ek_cuda_norm_end(ek_norm_call *call, int rc);

#endif
