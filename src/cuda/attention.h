/* attention.h: the launches of attention (attention.cu). */
#ifndef EK_CUDA_ATTENTION_H
#define EK_CUDA_ATTENTION_H

#include "core/philox.h"
#include "cuda/view.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

/* A tensor (batch, head, row, column). */
typedef struct ek_cuda_heads {
    void *data; /* NULL: none */
    int64_t batch, head, row, column;
} ek_cuda_heads;

typedef struct ek_cuda_attention_job {
    ek_dtype dtype, mask_dtype;
    ek_cuda_heads q, k, v, mask, out, dq, dk, dv, dout;
    void *lse;  /* of the type that is computed in */
    void *sums; /* in gradients: sum(dout out) of each row, of the same type */
    int64_t batch, heads, groups, rows, keys;
    int depth, width; /* last sizes of q and v, at most EK_ATTENTION_DEPTH */
    double scale;
    bool causal, drops;
    ek_draw draw;
} ek_cuda_attention_job;

int ek_cuda_launch_attention(const ek_cuda_stream *stream, const ek_cuda_attention_job *job);
int ek_cuda_launch_attention_gradient(const ek_cuda_stream *stream,
                                      const ek_cuda_attention_job *job);
/* Sets out to 0 and lse to inf for rows whose mask hides all keys. Other rows stay. */
int ek_cuda_launch_attention_hidden(const ek_cuda_stream *stream, const ek_cuda_attention_job *job);

EK_END_DECLARATIONS
#endif
