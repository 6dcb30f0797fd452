/* norm_call.h: a call of a normalisation's slot: its tensors in a form that the kernels of norm.h
 * have, parameters and results dense in the type that is computed in, room for partial sums. */
#ifndef EK_CUDA_NORM_CALL_H
#define EK_CUDA_NORM_CALL_H

#include "cuda/norm.h"
#include "cuda/runtime.h"

/* What has statistics of its own. */
typedef enum ek_norm_kind {
    EK_NORM_BATCH,    /* a channel of the batch */
    EK_NORM_CHANNELS, /* `each` channels of a sample; sums are by channel */
    EK_NORM_RUNS      /* a piece of a sample, which is one run in memory */
} ek_norm_kind;

/* x and those that go with it; NULL if there is none. y is an output, also dx. */
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
    bool last; /* runs: a sample's memory has dimension 1 innermost */
    int stages;
    ek_cuda_stage stage[EK_NORM_STAGES];
    ek_tensor *stored[EK_NORM_STAGES]; /* where stages of results go; else NULL */
    ek_tensor wide[EK_NORM_STAGES];    /* parameters per element as samples of one */
    size_t nbytes;                     /* of partial sums */
} ek_norm_call;

/* Calls are not to be moved: stages point into them. Any of these may fail; ek_cuda_norm_end must
 * follow a begin that did not. x isn't empty. */
int ek_cuda_norm_begin(ek_norm_call *call, ek_dev *dev, const char *operation);
int ek_cuda_norm_take(ek_norm_call *call, ek_norm_kind kind, int64_t groups,
                      const ek_norm_tensors *tensors);
/* Channels are innermost and the other dimensions of a sample one run. */
bool ek_cuda_norm_has_rows(const ek_tensor *x);
/* A parameter or statistic: its values, dense; NULL for NULL. */
int ek_cuda_norm_input(ek_norm_call *call, const ek_tensor *tensor, const void **values);
/* Weight, bias or their gradients: with norm.element in the order of a sample's memory, of x's
 * shape. */
int ek_cuda_norm_parameter(ek_norm_call *call, const ek_tensor *x, const ek_tensor *tensor,
                           const void **values);
int ek_cuda_norm_output(ek_norm_call *call, ek_tensor *tensor, void **values);
/* What becomes of moments, into norm.update. NULL: nothing. */
int ek_cuda_norm_take_update(ek_norm_call *call, const ek_norm_update *update);
int ek_cuda_norm_parameter_output(ek_norm_call *call, const ek_tensor *x, ek_tensor *tensor,
                                  void **values);
/* Cuts the work: for sums, with room for partial ones unless `direct` allows that there are none;
 * for what is applied. */
int ek_cuda_norm_cut_sums(ek_norm_call *call, bool direct);
void ek_cuda_norm_cut_elements(ek_norm_call *call);
/* Gives room for partial sums back, so that the call can be cut again. */
void ek_cuda_norm_free_sums(ek_norm_call *call);
/* `rc` is a status or a cudaError_t. */
int ek_cuda_norm_end(ek_norm_call *call, int rc);

#endif
