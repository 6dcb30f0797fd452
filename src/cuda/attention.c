/* attention.c: scaled dot-product attention and its gradients, by the first of these that serves:
 *
 * cuDNN's fused kernels, for bf16 and f16, which hold a block of the scores at a time. They take
 *   dropout as a tensor of the library's own numbers, so with dropout they hold one tensor of the
 *   scores' size during the call. A plan is compiled for each problem, for about a second.
 * cuBLAS's products with a softmax between them (ops/attention.c), which hold all scores, and for
 *   backward the probabilities. For 96 heads of 1024 x 1024 scores they need about 0.3 ms on an
 *   H200, by estimate.
 * This library's kernels, which multiply without tensor cores: 1.6 to 2.2 ms, by estimate. */
#include "cuda/attention.h"

#include <string.h>

#include "cuda/dnn.h"
#include "cuda/library.h"
#include "evenkeel/precision.h"
#include "kernels/stage.h"

static ek_cuda_heads attention_heads_of(const ek_tensor *x)
{
    if (!x)
        return (ek_cuda_heads){.data = NULL};
    return (ek_cuda_heads){ek_tensor_address(x), x->stride[0], x->stride[1], x->stride[2],
                           x->stride[3]};
}

/* The tensors of a call by number (dnn.h), NULL where the call has none. */
typedef struct attention_call {
    ek_dnn_operation operation;
    const ek_tensor *tensors[EK_DNN_LSE + 1];
    const ek_attention_params *params;
} attention_call;

/* Fills `own` with the mask, which becomes of size 1 where it repeats over batches, heads or rows.
 * Returns `own`; NULL without a mask. */
static const ek_tensor *attention_own_mask(ek_tensor *own, const ek_tensor *mask)
{
    if (!mask)
        return NULL;
    ek_borrow(own, mask);
    for (int d = 0; d < 3; d++)
        own->shape[d] = own->stride[d] == 0 ? 1 : own->shape[d];
    return own;
}

static ek_cuda_attention_job attention_job_of(const attention_call *call)
{
    const ek_tensor *const *of = call->tensors, *q = of[EK_DNN_Q], *k = of[EK_DNN_K];
    const ek_tensor *v = of[EK_DNN_V], *mask = of[EK_DNN_MASK];
    ek_cuda_attention_job job = {.dtype = q->dtype,
                                 .mask_dtype = mask ? mask->dtype : q->dtype,
                                 .q = attention_heads_of(q),
                                 .k = attention_heads_of(k),
                                 .v = attention_heads_of(v),
                                 .mask = attention_heads_of(mask),
                                 .out = attention_heads_of(of[EK_DNN_OUT]),
                                 .dq = attention_heads_of(of[EK_DNN_DQ]),
                                 .dk = attention_heads_of(of[EK_DNN_DK]),
                                 .dv = attention_heads_of(of[EK_DNN_DV]),
                                 .dout = attention_heads_of(of[EK_DNN_DOUT]),
                                 .lse = ek_tensor_address(of[EK_DNN_LSE]),
                                 .batch = q->shape[0],
                                 .heads = q->shape[1],
                                 .groups = k->shape[1],
                                 .rows = q->shape[2],
                                 .keys = k->shape[2],
                                 .depth = (int)q->shape[3],
                                 .width = (int)v->shape[3],
                                 .scale = call->params->scale,
                                 .causal = call->params->causal,
                                 .drops = call->params->dropout != NULL};
    if (call->params->dropout)
        job.draw = *call->params->dropout;
    return job;
}

/* ---- the choice ---- */

enum {
    ATTENTION_SHARE = 16,    /* a layer's scores may take one part in 16 of the free memory */
    ATTENTION_MANY = 1 << 20 /* fewer scores are not worth the launches of a composition */
};

/* Fewer scores are not worth a plan. The emulator's plans cost nothing. */
#ifdef EK_CUDA_EMULATED
enum { ATTENTION_PLANNED = 1 };
#else
enum { ATTENTION_PLANNED = 1 << 20 };
#endif

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

static double attention_count_scores(const ek_tensor *q, const ek_tensor *k)
{
    return (double)q->shape[0] * (double)q->shape[1] * (double)q->shape[2] * (double)k->shape[2];
}

/* ---- cuDNN ---- */

/* Returns true if cuDNN reads or writes the heads in place. If not, the heads are copied. */
static bool attention_keeps(const ek_tensor *x, int at)
{
    bool keeps = x->stride[3] == 1 && (!x->storage || ek_dnn_alignment(ek_tensor_address(x)) == 16);
    for (int d = 0; d < 3 && at != EK_DNN_MASK; d++)
        keeps = keeps && (x->shape[d] == 1 || (x->stride[d] > 0 && x->stride[d] % 8 == 0));
    return keeps;
}

static void attention_set_strides(ek_dnn_problem *p, const ek_tensor *x, int at)
{
    int64_t dense[4];
    ek_strides_along(4, x->shape, 3, dense);
    for (int d = 0; d < 3; d++)
        p->strides[at][d] = attention_keeps(x, at) && x->shape[d] > 1 ? x->stride[d] : dense[d];
}

/* Fills the problem. Returns false if cuDNN doesn't serve it. Heads of more than 128 features need
 * the registers of compute capability 9. On later GPUs the gradient's sums have no fixed order. */
static bool attention_problem_of(ek_dev *dev, const attention_call *call, ek_dnn_problem *p)
{
    const ek_tensor *q = call->tensors[EK_DNN_Q], *k = call->tensors[EK_DNN_K];
    const ek_tensor *v = call->tensors[EK_DNN_V], *mask = call->tensors[EK_DNN_MASK];
    const int capability = ek_cuda_of(dev)->capability;
    const int64_t most = capability / 10 == 9 ? 256 : 128;
    const double scores = attention_count_scores(q, k);
    *p = (ek_dnn_problem){.operation = call->operation,
                          .dtype = q->dtype,
                          .alignment = 16,
                          .deterministic =
                              call->operation == EK_DNN_ATTENTION_GRADIENT && ek_deterministic(),
                          .batch = q->shape[0],
                          .heads = q->shape[1],
                          .groups = k->shape[1],
                          .rows = q->shape[2],
                          .keys = k->shape[2],
                          .depth = q->shape[3],
                          .width = v->shape[3],
                          .causal = call->params->causal,
                          .drops = call->params->dropout != NULL};
    for (int at = 0; at < EK_DNN_HEADS; at++)
        if (call->tensors[at])
            attention_set_strides(p, call->tensors[at], at);
    if (mask) {
        memcpy(p->mask, mask->shape, sizeof p->mask);
        p->mask_dtype = mask->dtype;
    }
    return ek_dtype_is_narrow(q->dtype) && (!mask || ek_dtype_wide(mask->dtype) == EK_F32) &&
           scores >= ATTENTION_PLANNED && p->depth % 8 == 0 && p->width % 8 == 0 &&
           p->depth <= most && p->width <= most && p->keys > 1 &&
           !(p->deterministic && capability >= 100) &&
           (!p->drops || scores * (double)ek_dtype_size(q->dtype) <= attention_most_bytes(dev));
}

/* Returns 1 if cuDNN has a plan for the call, 0 if not, negative on error. */
static int attention_plan(ek_dev *dev, const attention_call *call, ek_dnn_problem *problem)
{
    return attention_problem_of(dev, call, problem) ? ek_cuda_dnn_supports(dev, problem, NULL) : 0;
}

/* Draws dropout's zeros and ones. Returns what ek_stage_try returns. */
static int attention_draw(ek_dev *dev, const ek_dnn_problem *p, const ek_draw *dropout,
                          ek_stage *stage)
{
    const ek_tensor scores = {.ndim = 4, .shape = {p->batch, p->heads, p->rows, p->keys}};
    ek_draw draw = *dropout;
    draw.kind = EK_DRAW_BERNOULLI;
    const int rc = ek_stage_try(stage, dev, &scores, (ek_dtype)p->dtype, 3, false, false);
    if (rc > 0)
        EK_TRY(ek_cuda_draw(dev, &(const ek_drawn){stage->tensor, NULL, NULL}, &draw));
    return rc;
}

static bool attention_writes(const attention_call *call, int at)
{
    return call->operation == EK_DNN_ATTENTION ? at == EK_DNN_OUT
                                               : at >= EK_DNN_DQ && at <= EK_DNN_DV;
}

/* Begins the stages of all tensors, which the caller ends. Returns 1; 0 if memory is short. */
static int attention_stage(ek_dev *dev, const attention_call *call, const ek_dnn_problem *p,
                           ek_stage stages[EK_DNN_SCALE])
{
    const ek_tensor *dq = call->tensors[EK_DNN_DQ], *lse = call->tensors[EK_DNN_LSE];
    int rc = ek_stage_try(&stages[EK_DNN_LSE], dev, lse, EK_F32, 2, true, false);
    for (int at = 0; at < EK_DNN_HEADS && rc > 0; at++)
        if (call->tensors[at])
            rc = ek_stage_try(&stages[at], dev, call->tensors[at], call->tensors[at]->dtype, 3,
                              attention_keeps(call->tensors[at], at), !attention_writes(call, at));
    if (rc > 0 && p->drops)
        rc = attention_draw(dev, p, call->params->dropout, &stages[EK_DNN_DROPOUT]);
    if (rc > 0 && dq)
        rc = ek_stage_try(&stages[EK_DNN_ROW_SUMS], dev, lse, EK_F32, 2, false, false);
    if (rc > 0 && dq && !p->deterministic)
        rc = ek_stage_try(&stages[EK_DNN_DQ_SUMS], dev, dq, EK_F32, 3, false, false);
    return rc;
}

static int attention_issue(ek_dev *dev, const attention_call *call, const ek_dnn_problem *problem,
                           const ek_stage stages[EK_DNN_SCALE])
{
    const ek_draw *draw = call->params->dropout;
    void *tensors[EK_DNN_ADDRESSES] = {NULL};
    float scale = (float)call->params->scale, hidden = -INFINITY;
    float factor = draw ? (float)draw->b : 1, kept = draw ? (float)draw->a : 1;
    for (int at = 0; at < EK_DNN_SCALE; at++)
        if (stages[at].tensor)
            tensors[at] = ek_tensor_address(stages[at].tensor);
    tensors[EK_DNN_SCALE] = &scale;
    tensors[EK_DNN_HIDDEN] = problem->causal ? &hidden : NULL;
    tensors[EK_DNN_FACTOR] = draw ? &factor : NULL;
    tensors[EK_DNN_KEPT] = call->operation == EK_DNN_ATTENTION ? NULL : &kept;
    return ek_cuda_dnn_attend(dev, problem, tensors);
}

/* Computes a call by cuDNN. Returns 1 if the call is issued, 0 if cuDNN doesn't serve it or memory
 * is short, negative on error. cuDNN may write NaN to rows without a score above -inf, which are
 * set afterwards. */
static int attention_by_dnn(ek_dev *dev, const attention_call *call, const ek_cuda_stream *stream,
                            ek_cuda_attention_job job)
{
    ek_stage stages[EK_DNN_SCALE] = {{.nbytes = 0}};
    ek_dnn_problem problem;
    int done = 0, rc = attention_plan(dev, call, &problem);
    if (rc <= 0)
        return rc;
    rc = attention_stage(dev, call, &problem, stages);
    if (rc > 0)
        rc = done = attention_issue(dev, call, &problem, stages);
    if (done > 0 && problem.mask[0] && call->operation == EK_DNN_ATTENTION) {
        job.out = attention_heads_of(stages[EK_DNN_OUT].tensor);
        rc = ek_cuda_check(dev, "attention", ek_cuda_launch_attention_hidden(stream, &job));
    }
    for (int at = EK_DNN_SCALE - 1; at >= 0; at--)
        rc = ek_stage_end(&stages[at], dev, done > 0 && attention_writes(call, at), rc);
    return rc < 0 ? rc : done;
}

/* ---- the slots ---- */

static void attention_show(ek_dev *dev, const ek_tensor *q, const ek_tensor *k, int chosen,
                           double nbytes, double most)
{
    static const char *const names[] = {"cuDNN", "composed of products", "own kernels"};
    ek_cuda_show(dev, &ek_cuda_of(dev)->attention,
                 "attention: %s of %lldx%lld heads of %lld, %lldx%lld scores each: %s, scores of "
                 "%.0f bytes; at most %.0f",
                 ek_dtype_name(q->dtype), (long long)q->shape[0], (long long)q->shape[1],
                 (long long)q->shape[3], (long long)q->shape[2], (long long)k->shape[2],
                 names[chosen], nbytes, most);
}

/* Returns 1 if cuDNN has plans for attention and, if `gradient`, for its gradient, 0 if not,
 * negative on error. Tensors that aren't made yet are planned with the strides that
 * ops/attention.c gives them. */
static int attention_planned(ek_dev *dev, const ek_tensor *q, const ek_tensor *k,
                             const ek_tensor *v, const ek_tensor *mask,
                             const ek_attention_params *params, bool gradient)
{
    const ek_tensor out = ek_heads_like(q, v->shape[3]), dq = ek_heads_like(q, q->shape[3]);
    const ek_tensor dk = ek_heads_like(k, k->shape[3]), dv = ek_heads_like(v, v->shape[3]);
    ek_tensor own;
    mask = attention_own_mask(&own, mask);
    const attention_call calls[] = {
        {EK_DNN_ATTENTION, {q, k, v, &out, [EK_DNN_MASK] = mask}, params},
        {EK_DNN_ATTENTION_GRADIENT, {q, k, v, &out, &out, &dq, &dk, &dv, mask}, params}};
    ek_dnn_problem problem;
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int rc = 1;
    for (int i = 0; i <= gradient && rc > 0; i++)
        rc = attention_plan(dev, &calls[i], &problem);
    int ended = ek_cuda_end(dev, &stream, "attention", rc < 0 ? rc : 0);
    return ended < 0 ? ended : rc;
}

int ek_cuda_attention_composes(ek_dev *dev, const ek_tensor *q, const ek_tensor *k,
                               const ek_tensor *v, const ek_tensor *mask,
                               const ek_attention_params *params, bool gradient)
{
    const double scores = attention_count_scores(q, k), most = attention_most_bytes(dev);
    const double nbytes = scores * (double)ek_dtype_size(q->dtype);
    const bool taken = q->shape[3] <= EK_ATTENTION_DEPTH && v->shape[3] <= EK_ATTENTION_DEPTH;
    const int planned = attention_planned(dev, q, k, v, mask, params, gradient);
    if (planned < 0)
        return planned;
    const bool composes =
        !planned && (!taken || (scores >= ATTENTION_MANY && nbytes <= most && ek_cublas() != NULL));
    attention_show(dev, q, k, planned ? 0 : composes ? 1 : 2, nbytes, most);
    return composes;
}

static int attention_own_gradient(ek_dev *dev, const ek_cuda_stream *stream,
                                  ek_cuda_attention_job *job, const ek_tensor *lse)
{
    const size_t nbytes = (size_t)ek_count(lse) * ek_dtype_size(lse->dtype);
    EK_TRY(ek_cuda_scratch(dev, nbytes, &job->sums));
    int rc = ek_cuda_launch_attention_gradient(stream, job);
    ek_cuda_scratch_free(dev, job->sums, nbytes);
    return rc;
}

static int attention_run(ek_dev *dev, const char *name, attention_call *call)
{
    ek_tensor own;
    call->tensors[EK_DNN_MASK] = attention_own_mask(&own, call->tensors[EK_DNN_MASK]);
    ek_cuda_attention_job job = attention_job_of(call);
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int rc = attention_by_dnn(dev, call, &stream, job);
    if (rc > 0)
        rc = 0;
    else if (rc == 0 && call->operation == EK_DNN_ATTENTION)
        rc = ek_cuda_launch_attention(&stream, &job);
    else if (rc == 0)
        rc = attention_own_gradient(dev, &stream, &job, call->tensors[EK_DNN_LSE]);
    return ek_cuda_end(dev, &stream, name, rc);
}

int ek_cuda_attention(ek_dev *dev, ek_tensor *out, ek_tensor *lse, const ek_tensor *q,
                      const ek_tensor *k, const ek_tensor *v, const ek_tensor *mask,
                      const ek_attention_params *params)
{
    return attention_run(dev, "attention",
                         &(attention_call){EK_DNN_ATTENTION,
                                           {q, k, v, out, [EK_DNN_MASK] = mask, lse},
                                           params});
}

int ek_cuda_attention_gradient(ek_dev *dev, ek_tensor *dq, ek_tensor *dk, ek_tensor *dv,
                               const ek_tensor *dout, const ek_tensor *q, const ek_tensor *k,
                               const ek_tensor *v, const ek_tensor *mask, const ek_tensor *out,
                               const ek_tensor *lse, const ek_attention_params *params)
{
    return attention_run(dev, "attention_gradient",
                         &(attention_call){EK_DNN_ATTENTION_GRADIENT,
                                           {q, k, v, out, dout, dq, dk, dv, mask, lse},
                                           params});
}
