/* matmul_lt.c: see matmul.h.
 *
 * The heuristic is asked once for a problem: sizes, layouts, alignments, types and epilogue. Its
 * first answer is the plan, or there is none. Sums over parts of k stay in the type of the
 * computation, so that bf16 is rounded once. */
#include <stdlib.h>
#include <string.h>

#include "cuda/matmul.h"
#include "cuda/stream.h"

enum { LT_PLANS = 256, LT_PROBE = 64 /* rows and columns */ };

/* The types of computation (f32, TF32), and the epilogues with a ReLU (with and without a bias). */
enum { LT_COMPUTES = 2, LT_RELUS = 2 };

typedef enum lt_relu { LT_RELU_UNKNOWN, LT_RELU_KEEPS_NAN, LT_RELU_EATS_NAN } lt_relu;

enum { LT_KEY_WORDS = 15 };

typedef struct lt_plan {
    int64_t key[LT_KEY_WORDS];
    bool usable;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} lt_plan;

struct ek_cuda_lt {
    ek_dev *dev;
    const ek_cublaslt_api *api;
    cublasLtHandle_t handle;
    void *workspace;
    size_t nbytes;
    lt_relu relu[2][LT_COMPUTES][LT_RELUS]; /* by f32 or bf16, type of computation, epilogue */
    int plan_count, next;                   /* the plan that is replaced next if all are taken */
    lt_plan plans[LT_PLANS];
};

ek_cuda_lt *ek_cuda_lt_open(ek_dev *dev, void *workspace, size_t nbytes)
{
    const ek_cublaslt_api *api = ek_cublaslt();
    ek_cuda_lt *lt = api ? calloc(1, sizeof *lt) : NULL;
    if (!lt)
        return NULL;
    lt->dev = dev;
    lt->api = api;
    lt->workspace = workspace;
    lt->nbytes = nbytes;
    if (api->cublasLtCreate(&lt->handle) == CUBLAS_STATUS_SUCCESS)
        return lt;
    (void)cudaGetLastError();
    ek_log_line(EK_LOG_WARNING, "%s: cuBLASLt cannot be used: linear layers launch more",
                dev->name);
    free(lt);
    return NULL;
}

static void lt_plan_clear(const ek_cublaslt_api *api, lt_plan *plan)
{
    if (plan->desc)
        (void)api->cublasLtMatmulDescDestroy(plan->desc);
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->d};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            (void)api->cublasLtMatrixLayoutDestroy(layouts[i]);
    *plan = (lt_plan){.usable = false};
}

void ek_cuda_lt_close(ek_cuda_lt *lt)
{
    if (!lt)
        return;
    for (int i = 0; i < lt->plan_count; i++)
        lt_plan_clear(lt->api, &lt->plans[i]);
    (void)lt->api->cublasLtDestroy(lt->handle);
    free(lt);
}

/* ---- plans ---- */

/* Returns the largest power of two up to 256 that divides the address. */
static uint32_t lt_alignment(const void *address)
{
    uintptr_t bits = (uintptr_t)address | 256;
    return (uint32_t)(bits & (~bits + 1));
}

static void lt_key_of(const ek_cuda_product *p, int64_t key[LT_KEY_WORDS])
{
    const int64_t words[LT_KEY_WORDS] = {p->type,
                                         p->compute,
                                         p->epilogue,
                                         p->m,
                                         p->n,
                                         p->k,
                                         p->a.transpose,
                                         p->b.transpose,
                                         p->a.leading,
                                         p->b.leading,
                                         p->leading,
                                         lt_alignment(p->a.data),
                                         lt_alignment(p->b.data),
                                         lt_alignment(p->d),
                                         lt_alignment(p->vector)};
    memcpy(key, words, sizeof words);
}

/* Sets an attribute, if no step before has failed. */
#define LT_SET(status, function, object, attribute, value)                                \
    do {                                                                                  \
        if ((status) == CUBLAS_STATUS_SUCCESS)                                            \
            (status) = lt->api->function((object), (attribute), &(value), sizeof(value)); \
    } while (0)

static cublasStatus_t lt_describe(const ek_cuda_lt *lt, const ek_cuda_product *p, lt_plan *plan)
{
    bool ta = p->a.transpose != CUBLAS_OP_N, tb = p->b.transpose != CUBLAS_OP_N;
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const int32_t transa = p->a.transpose, transb = p->b.transpose, type = p->type;
    const uint32_t epilogue = p->epilogue;
    cublasStatus_t status =
        lt->api->cublasLtMatmulDescCreate(&plan->desc, p->compute,
                                          p->type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F);
    LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, transa);
    LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, transb);
    LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
           epilogue);
    if (p->vector) {
        LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc,
               CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
        LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc,
               CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->vector);
    }
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->api->cublasLtMatrixLayoutCreate(&plan->a, p->type, ta ? k : m, ta ? m : k,
                                                     p->a.leading);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->api->cublasLtMatrixLayoutCreate(&plan->b, p->type, tb ? n : k, tb ? k : n,
                                                     p->b.leading);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->api->cublasLtMatrixLayoutCreate(&plan->d, p->type, m, n, p->leading);
    return status;
}

/* Asks the heuristic. The plan becomes usable if there is an algorithm. */
static cublasStatus_t lt_choose(const ek_cuda_lt *lt, const ek_cuda_product *p, lt_plan *plan)
{
    const uint64_t most = lt->nbytes;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a = lt_alignment(p->a.data), b = lt_alignment(p->b.data), d = lt_alignment(p->d);
    cublasLtMatmulHeuristicResult_t found = {.workspaceSize = 0};
    cublasLtMatmulPreference_t wish = NULL;
    int count = 0;
    cublasStatus_t status = lt->api->cublasLtMatmulPreferenceCreate(&wish);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d);
    LT_SET(status, cublasLtMatmulPreferenceSetAttribute, wish,
           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->api->cublasLtMatmulAlgoGetHeuristic(lt->handle, plan->desc, plan->a, plan->b,
                                                         plan->d, plan->d, wish, 1, &found, &count);
    if (wish)
        (void)lt->api->cublasLtMatmulPreferenceDestroy(wish);
    plan->algo = found.algo;
    plan->usable =
        status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    return status;
}

/* Returns the plan for a product, which may be unusable. */
static lt_plan *lt_plan_of(ek_cuda_lt *lt, const ek_cuda_product *p)
{
    int64_t key[LT_KEY_WORDS];
    lt_key_of(p, key);
    for (int i = 0; i < lt->plan_count; i++)
        if (memcmp(lt->plans[i].key, key, sizeof key) == 0)
            return &lt->plans[i];
    lt_plan *plan = &lt->plans[lt->next];
    lt->next = (lt->next + 1) % LT_PLANS;
    if (lt->plan_count < LT_PLANS)
        lt->plan_count++;
    lt_plan_clear(lt->api, plan);
    memcpy(plan->key, key, sizeof key);
    if (lt_describe(lt, p, plan) == CUBLAS_STATUS_SUCCESS)
        (void)lt_choose(lt, p, plan);
    return plan;
}

/* ---- the ReLU, which must keep NaN ---- */

static cublasStatus_t lt_run(ek_cuda_lt *lt, const ek_cuda_product *p)
{
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    bool f64 = p->type == CUDA_R_64F;
    lt_plan *plan = lt_plan_of(lt, p);
    if (!plan->usable)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p->vector)
        LT_SET(status, cublasLtMatmulDescSetAttribute, plan->desc,
               CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->vector);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return lt->api->cublasLtMatmul(lt->handle, plan->desc, f64 ? (const void *)&one : &one_f,
                                   p->a.data, plan->a, p->b.data, plan->b,
                                   f64 ? (const void *)&zero : &zero_f, p->d, plan->d, p->d,
                                   plan->d, &plan->algo, lt->workspace, lt->nbytes,
                                   ek_cuda_of(lt->dev)->compute);
}

/* Finds out whether the ReLU keeps NaN in a product like `asked`, by a small product in `memory` of
 * the device and `results` of the host. Returns UNKNOWN if the product or a copy fails. */
static lt_relu lt_probe(ek_cuda_lt *lt, const ek_cuda_product *asked, char *memory, size_t nbytes,
                        uint32_t *results)
{
    const ek_cuda_device *device = ek_cuda_of(lt->dev);
    const cudaStream_t stream = device->compute;
    const cudaDataType type = asked->type;
    size_t size = type == CUDA_R_32F ? 4 : 2, matrix = LT_PROBE * LT_PROBE * size;
    ek_cuda_product p = {.type = type,
                         .compute = asked->compute,
                         .m = LT_PROBE,
                         .n = LT_PROBE,
                         .k = LT_PROBE,
                         .a = {memory, CUBLAS_OP_N, LT_PROBE},
                         .b = {memory + matrix, CUBLAS_OP_N, LT_PROBE},
                         .d = memory + 2 * matrix,
                         .leading = LT_PROBE,
                         .epilogue = asked->epilogue,
                         .vector = asked->vector ? memory + 3 * matrix : NULL};
    if (cudaMemsetAsync(memory, 0xff, nbytes, stream) != cudaSuccess ||
        lt_run(lt, &p) != CUBLAS_STATUS_SUCCESS || ek_cuda_wait_stream(device, stream) != 0 ||
        cudaMemcpyAsync(results, p.d, matrix, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
        ek_cuda_wait_stream(device, stream) != 0)
        return LT_RELU_UNKNOWN;
    for (size_t i = 0; i < matrix / 4; i++) {
        bool low = type == CUDA_R_32F || (results[i] & 0x7fffU) > 0x7f80U;
        if (!low || (results[i] & 0x7fffffffU) <= 0x7f800000U)
            return LT_RELU_EATS_NAN;
    }
    return LT_RELU_KEEPS_NAN;
}

/* Returns true if the epilogue's ReLU keeps NaN, as ek_f_relu does. cuBLASLt's documentation says
 * max(x, 0) and doesn't mention NaN, so that the device is tried once for each type, type of
 * computation and epilogue. A trial that fails is repeated with a later call. */
static bool lt_relu_is_ours(ek_cuda_lt *lt, const ek_cuda_product *p)
{
    size_t nbytes = (3 * LT_PROBE * LT_PROBE + LT_PROBE) * (size_t)4;
    void *memory = NULL;
    if (p->type != CUDA_R_32F && p->type != CUDA_R_16BF)
        return false;
    lt_relu *known = &lt->relu[p->type == CUDA_R_16BF][p->compute != CUBLAS_COMPUTE_32F]
                              [p->epilogue == CUBLASLT_EPILOGUE_RELU_BIAS];
    uint32_t *results =
        *known == LT_RELU_UNKNOWN ? malloc(LT_PROBE * LT_PROBE * sizeof *results) : NULL;
    if (results && ek_cuda_try_scratch(lt->dev, ek_cuda_padded(nbytes), &memory) > 0) {
        *known = lt_probe(lt, p, ek_cuda_aligned(memory), nbytes, results);
        ek_cuda_scratch_free(lt->dev, memory, ek_cuda_padded(nbytes));
    }
    free(results);
    return *known == LT_RELU_KEEPS_NAN;
}

cublasStatus_t ek_cuda_lt_issue(ek_cuda_lt *lt, const ek_cuda_product *product)
{
    if (product->epilogue & CUBLASLT_EPILOGUE_RELU &&
        product->epilogue < CUBLASLT_EPILOGUE_BGRADA && !lt_relu_is_ours(lt, product)) {
        (void)cudaGetLastError();
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    cublasStatus_t status = lt_run(lt, product);
    if (status != CUBLAS_STATUS_SUCCESS)
        (void)cudaGetLastError(); /* the status is reported; the next launch must not return it */
    return status;
}
