/* attention.c: scaled dot-product attention and its gradients. A library's fused attention would be
 * tried in the two slots before our own kernels are launched. */
#include "cuda/attention.h"

#include "cuda/runtime.h"

static ek_cuda_heads attention_heads_of(const ek_tensor *x)
{
    if (!x)
        return (ek_cuda_heads){.data = NULL};
    return (ek_cuda_heads){ek_tensor_address(x), x->stride[0], x->stride[1], x->stride[2],
                           x->stride[3]};
}

static ek_cuda_attention_job attention_job_of(const ek_tensor *q, const ek_tensor *k,
                                              const ek_tensor *v, const ek_tensor *mask,
                                              const ek_tensor *lse,
                                              const ek_attention_params *params)
{
    ek_cuda_attention_job job = {.dtype = q->dtype,
                                 .mask_dtype = mask ? mask->dtype : q->dtype,
                                 .q = attention_heads_of(q),
                                 .k = attention_heads_of(k),
                                 .v = attention_heads_of(v),
                                 .mask = attention_heads_of(mask),
                                 .lse = ek_tensor_address(lse),
                                 .batch = q->shape[0],
                                 .heads = q->shape[1],
                                 .groups = k->shape[1],
                                 .rows = q->shape[2],
                                 .keys = k->shape[2],
                                 .depth = (int)q->shape[3],
                                 .width = (int)v->shape[3],
                                 .scale = params->scale,
                                 .causal = params->causal,
                                 .drops = params->dropout != NULL};
    if (params->dropout)
        job.draw = *params->dropout;
    return job;
}

int ek_cuda_attention(ek_dev *dev, ek_tensor *out, ek_tensor *lse, const ek_tensor *q,
                      const ek_tensor *k, const ek_tensor *v, const ek_tensor *mask,
                      const ek_attention_params *params)
{
    ek_cuda_attention_job job = attention_job_of(q, k, v, mask, lse, params);
    job.out = attention_heads_of(out);
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    return ek_cuda_end(dev, &stream, "attention", ek_cuda_launch_attention(&stream, &job));
}

int ek_cuda_attention_gradient(ek_dev *dev, ek_tensor *dq, ek_tensor *dk, ek_tensor *dv,
                               const ek_tensor *dout, const ek_tensor *q, const ek_tensor *k,
                               const ek_tensor *v, const ek_tensor *mask, const ek_tensor *out,
                               const ek_tensor *lse, const ek_attention_params *params)
{
    ek_cuda_attention_job job = attention_job_of(q, k, v, mask, lse, params);
    job.out = attention_heads_of(out);
    job.dq = attention_heads_of(dq);
    job.dk = attention_heads_of(dk);
    job.dv = attention_heads_of(dv);
    job.dout = attention_heads_of(dout);
    const size_t nbytes = (size_t)ek_count(lse) * ek_dtype_size(lse->dtype);
    EK_TRY(ek_cuda_scratch(dev, nbytes, &job.sums));
    ek_cuda_stream stream;
    int rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0)
        rc = ek_cuda_end(dev, &stream, "attention_gradient",
                         ek_cuda_launch_attention_gradient(&stream, &job));
    ek_cuda_scratch_free(dev, job.sums, nbytes);
    return rc;
}
