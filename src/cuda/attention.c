/* attention.c: scaled dot-product attention and its gradients. A library's fused attention would be
 * tried in the two slots before this library's kernels are launched.
 *
 * This library's kernels multiply without tensor cores. For 96 heads of 1024 x 1024 scores, half of
 * them hidden, they need an estimated 1.6 to 2.2 ms on an H200. cuBLAS's products with a softmax
 * between them need 0.3 ms, but hold all scores, and for backward the probabilities. So the
 * products are preferred if the scores are a small share of the free memory. */
#include "cuda/attention.h"

#include <stdio.h>
#include <string.h>

#include "core/environment.h"
#include "cuda/library.h"
#include "cuda/runtime.h"
#include "evenkeel/precision.h"

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

/* ---- products, or our own kernels ---- */

enum {
    ATTENTION_SHARE = 16,    /* a layer's scores may take one part in 16 of the free memory */
    ATTENTION_MANY = 1 << 20 /* fewer scores are not worth the launches of a composition */
};

/* Returns how many bytes scores may take. With deterministic algorithms the number doesn't depend
 * on the memory in use, which other threads may change. */
static double attention_most_bytes(ek_dev *dev)
{
    ek_memory_stats stats;
    ek_ledger_read(dev, &stats);
    const uint64_t all = stats.capacity ? stats.capacity : ek_cuda_of(dev)->memory;
    const uint64_t used = ek_deterministic() ? 0 : stats.in_use;
    return all > used ? (double)(all - used) / ATTENTION_SHARE : 0;
}

/* Prints a choice that differs from the device's last one, if EVENKEEL_CUDA_PLANS=1. */
static void attention_show(ek_dev *dev, const ek_tensor *q, const ek_tensor *k, bool composes,
                           double nbytes, double most)
{
    ek_cuda_device *device = ek_cuda_of(dev);
    bool wanted = false;
    if (ek_environment_switch("EVENKEEL_CUDA_PLANS", &wanted) < 0 || !wanted)
        return;
    const int64_t choice[] = {q->shape[0], q->shape[1], q->shape[2],      k->shape[2],
                              q->shape[3], q->dtype,    (int64_t)composes};
    _Static_assert(sizeof choice == sizeof device->attention, "all that is told is compared");
    pthread_mutex_lock(&device->lock);
    const bool told = memcmp(choice, device->attention, sizeof choice) == 0;
    memcpy(device->attention, choice, sizeof choice);
    pthread_mutex_unlock(&device->lock);
    if (!told)
        fprintf(stderr,
                "attention: %s of %lldx%lld heads of %lld, %lldx%lld scores each: %s, scores of "
                "%.0f bytes, at most %.0f\n",
                ek_dtype_name(q->dtype), (long long)choice[0], (long long)choice[1],
                (long long)choice[4], (long long)choice[2], (long long)choice[3],
                composes ? "composed of products" : "own kernels", nbytes, most);
}

bool ek_cuda_attention_composes(ek_dev *dev, const ek_tensor *q, const ek_tensor *k,
                                const ek_tensor *v)
{
    const double scores =
        (double)q->shape[0] * (double)q->shape[1] * (double)q->shape[2] * (double)k->shape[2];
    const double nbytes = scores * (double)ek_dtype_size(q->dtype);
    const double most = attention_most_bytes(dev);
    const bool taken = q->shape[3] <= EK_ATTENTION_DEPTH && v->shape[3] <= EK_ATTENTION_DEPTH;
    const bool composes =
        !taken || (scores >= ATTENTION_MANY && nbytes <= most && ek_cublas() != NULL);
    attention_show(dev, q, k, composes, nbytes, most);
    return composes;
}

/* ---- our own kernels ---- */

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
