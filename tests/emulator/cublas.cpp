// cublas.cpp: matrix products of cuBLAS and cuBLASLt in streams.
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "machine.h"
#include "product.h"

using namespace emulator;

struct cublasContext {
    int device = 0;
    cudaStream_t stream = nullptr;
    char *workspace = nullptr;
    size_t workspace_size = 0;
    bool device_scalars = false;
};

namespace
{

template <typename Body> cublasStatus_t blas(const char *name, cublasHandle_t handle, Body body)
{
    return library_call(name, CUBLAS_STATUS_EXECUTION_FAILED, [&](Machine &m, Lock &lock) {
        return handle ? body(m, lock) : CUBLAS_STATUS_NOT_INITIALIZED;
    });
}

struct Scalars {
    const void *alpha, *beta;
};

bool known(cublasComputeType_t compute, bool *in_double)
{
    *in_double = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    return *in_double || compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
           compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF;
}

bool types_fit(const Product &p)
{
    if (p.in_double)
        return p.a.type == CUDA_R_64F && p.b.type == CUDA_R_64F && p.c.type == CUDA_R_64F;
    bool narrow = p.a.type == p.b.type && (p.a.type == CUDA_R_16BF || p.a.type == CUDA_R_16F);
    bool single = p.a.type == CUDA_R_32F && p.b.type == CUDA_R_32F;
    return (narrow && p.c.type == p.a.type) || ((narrow || single) && p.c.type == CUDA_R_32F);
}

bool leads(const Matrix &x, int64_t rows, int64_t columns)
{
    int64_t least = x.transposed ? columns : rows;
    return x.leading >= (least > 1 ? least : 1);
}

// Returns true if each matrix of the batch lies in one allocation of the device.
bool inside(Machine &m, const Matrix &x, int64_t rows, int64_t columns, int64_t batch, int device)
{
    int64_t down = x.transposed ? columns : rows, across = x.transposed ? rows : columns;
    size_t size = (size_t)((across - 1) * x.leading + down) * element_size(x.type);
    const char *last = x.data + (batch - 1) * x.stride * (int64_t)element_size(x.type);
    return lies_in(m, x.data, size, device) && lies_in(m, last, size, device);
}

cublasStatus_t check(Machine &m, const Product &p, int device)
{
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!leads(p.a, p.m, p.k) || !leads(p.b, p.k, p.n) || !leads(p.c, p.m, p.n))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_fit(p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.m == 0 || p.n == 0 || p.batch == 0)
        return CUBLAS_STATUS_SUCCESS;
    bool operands = p.k == 0 || (inside(m, p.a, p.m, p.k, p.batch, device) &&
                                 inside(m, p.b, p.k, p.n, p.batch, device));
    if (operands && inside(m, p.c, p.m, p.n, p.batch, device))
        return CUBLAS_STATUS_SUCCESS;
    fprintf(stderr,
            "emulator: a matrix of a %lld x %lld x %lld product does not lie in one allocation of "
            "device %d\n",
            (long long)p.m, (long long)p.n, (long long)p.k, device);
    return CUBLAS_STATUS_EXECUTION_FAILED;
}

// Where a product runs, and memory that it may use.
struct Place {
    int device;
    cudaStream_t stream;
    char *workspace;
    size_t workspace_size;
};

cublasStatus_t enqueue(Machine &m, Lock &lock, const Place &place, const Product &p)
{
    Stream stream = stream_of(m, place.stream);
    if (place.device != current_device() || !stream || stream->device != place.device)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    cublasStatus_t status = check(m, p, place.device);
    if (status != CUBLAS_STATUS_SUCCESS || p.m == 0 || p.n == 0 || p.batch == 0)
        return status;
    char *scratch = place.workspace;
    size_t scratch_size = scratch ? place.workspace_size : 0;
    Product ordered = p;
    if (!m.kind)
        ordered.order.parts =
            1 + (int)(mix({p.m, p.n, p.k, p.batch, p.a.transposed, p.b.transposed}) % 4);
    Operation operation;
    operation.name = "a matrix product";
    operation.run = [ordered, scratch, scratch_size] {
        spoil(scratch, scratch_size);
        multiply(ordered);
        Machine &now = machine();
        Lock counting(now.lock);
        now.counters.products++;
        now.counters.epilogues += ordered.epilogue.vector || ordered.epilogue.relu;
    };
    after_issue(m, lock, issue(m, stream, std::move(operation))->self);
    return CUBLAS_STATUS_SUCCESS;
}

char *mutable_bytes(const void *pointer)
{
    return static_cast<char *>(const_cast<void *>(pointer));
}

} // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    return library_call("cublasCreate", CUBLAS_STATUS_NOT_INITIALIZED, [&](Machine &, Lock &) {
        *handle = new cublasContext;
        (*handle)->device = current_device();
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version)
{
    *version = 130000;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    return blas("cublasSetStream", handle, [&](Machine &m, Lock &) {
        if (!stream_of(m, stream))
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->stream = stream;
        handle->workspace = nullptr;
        handle->workspace_size = 0;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size)
{
    return blas("cublasSetWorkspace", handle, [&](Machine &m, Lock &) {
        bool aligned = (reinterpret_cast<uintptr_t>(workspace) & 255) == 0;
        if (workspace && (!aligned || !lies_in(m, workspace, size, handle->device)))
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->workspace = static_cast<char *>(workspace);
        handle->workspace_size = size;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    return blas("cublasSetPointerMode", handle, [&](Machine &, Lock &) {
        handle->device_scalars = mode == CUBLAS_POINTER_MODE_DEVICE;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t)
{
    return blas("cublasSetMathMode", handle,
                [&](Machine &, Lock &) { return CUBLAS_STATUS_SUCCESS; });
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t)
{
    return blas("cublasSetAtomicsMode", handle,
                [&](Machine &, Lock &) { return CUBLAS_STATUS_SUCCESS; });
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define NAME(name) \
    case name:     \
        return #name;
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH)
        NAME(CUBLAS_STATUS_MAPPING_ERROR)
        NAME(CUBLAS_STATUS_EXECUTION_FAILED)
        NAME(CUBLAS_STATUS_INTERNAL_ERROR)
        NAME(CUBLAS_STATUS_NOT_SUPPORTED)
        NAME(CUBLAS_STATUS_LICENSE_ERROR)
#undef NAME
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}

static cublasStatus_t gemm(const char *name, cublasHandle_t handle, Product p, Scalars scalars,
                           cublasComputeType_t compute)
{
    return blas(name, handle, [&](Machine &m, Lock &lock) {
        if (!scalars.alpha || !scalars.beta)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (!known(compute, &p.in_double) || handle->device_scalars)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        p.tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
        if (p.in_double) {
            p.alpha = *static_cast<const double *>(scalars.alpha);
            p.beta = *static_cast<const double *>(scalars.beta);
        } else {
            p.alpha = *static_cast<const float *>(scalars.alpha);
            p.beta = *static_cast<const float *>(scalars.beta);
        }
        Place place = {handle->device, handle->stream, handle->workspace, handle->workspace_size};
        return enqueue(m, lock, place, p);
    });
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t)
{
    Product p = {};
    p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.a = {mutable_bytes(A), Atype, lda, 0, transa != CUBLAS_OP_N};
    p.b = {mutable_bytes(B), Btype, ldb, 0, transb != CUBLAS_OP_N};
    p.c = {mutable_bytes(C), Ctype, ldc, 0, false};
    return gemm("cublasGemmEx", handle, p, {alpha, beta}, computeType);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t)
{
    Product p = {};
    p.m = m, p.n = n, p.k = k, p.batch = batchCount;
    p.a = {mutable_bytes(A), Atype, lda, strideA, transa != CUBLAS_OP_N};
    p.b = {mutable_bytes(B), Btype, ldb, strideB, transb != CUBLAS_OP_N};
    p.c = {mutable_bytes(C), Ctype, ldc, strideC, false};
    return gemm("cublasGemmStridedBatchedEx", handle, p, {alpha, beta}, computeType);
}

// ---- cuBLASLt ----

struct cublasLtContext {
    int device = 0;
};

struct cublasLtMatmulDesc {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transa = 0, transb = 0, bias_type = -1;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    char *bias = nullptr;
};

struct cublasLtMatrixLayout {
    cudaDataType type;
    int64_t rows, columns, leading;
};

struct cublasLtMatmulPreference {
    uint64_t workspace = 0;
    uint32_t schemes = 7, alignments[4] = {256, 256, 256, 256};
};

namespace
{

template <typename T> cublasStatus_t set(T *member, const void *value, size_t size)
{
    if (!value || size != sizeof *member)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(member, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t destroy(T *object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

// Reads the product that the descriptors describe. Returns false if they don't fit each other.
bool product_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t d, Product *p)
{
    bool ta = desc->transa != CUBLAS_OP_N, tb = desc->transb != CUBLAS_OP_N;
    uint32_t epilogue = desc->epilogue;
    *p = {};
    p->m = d->rows, p->n = d->columns, p->k = ta ? a->rows : a->columns, p->batch = 1;
    p->a = {nullptr, a->type, a->leading, 0, ta};
    p->b = {nullptr, b->type, b->leading, 0, tb};
    p->c = {nullptr, d->type, d->leading, 0, false};
    p->tf32 = desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    p->epilogue.vector = desc->bias;
    p->epilogue.bias = epilogue & CUBLASLT_EPILOGUE_BIAS;
    p->epilogue.relu = epilogue & CUBLASLT_EPILOGUE_RELU;
    p->epilogue.sum_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    p->epilogue.sum_b = epilogue == CUBLASLT_EPILOGUE_BGRADB;
    bool wants_vector = epilogue & ~3u,
         scales = desc->scale == (d->type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F);
    return (ta ? a->columns : a->rows) == p->m && (tb ? b->columns : b->rows) == p->k &&
           (tb ? b->rows : b->columns) == p->n && wants_vector == (desc->bias != nullptr) &&
           (desc->bias_type == -1 || desc->bias_type == (int32_t)d->type) && scales &&
           known(desc->compute, &p->in_double) && types_fit(*p);
}

// Returns the words of an algorithm: the product that it is for, its workspace in bytes, and the
// alignments that it relies on.
cublasLtMatmulAlgo_t algorithm_of(const Product &p, uint64_t workspace, const uint32_t *alignments)
{
    uint64_t layout = (uint64_t)p.a.type | (uint64_t)p.a.transposed << 8 |
                      (uint64_t)p.b.transposed << 9 | (uint64_t)p.epilogue.bias << 10 |
                      (uint64_t)p.epilogue.relu << 11 | (uint64_t)p.epilogue.sum_a << 12 |
                      (uint64_t)p.epilogue.sum_b << 13 | workspace << 16;
    return {{(uint64_t)p.m, (uint64_t)p.n, (uint64_t)p.k, layout, alignments[0], alignments[1],
             alignments[2], alignments[3]}};
}

bool aligned(const void *pointer, uint64_t alignment)
{
    return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return library_call("cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED, [&](Machine &, Lock &) {
        *handle = new cublasLtContext;
        (*handle)->device = current_device();
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType scale)
{
    *desc = new cublasLtMatmulDesc{compute, scale};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->transa, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->transb, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading)
{
    *layout = new cublasLtMatrixLayout{type, (int64_t)rows, (int64_t)columns, leading};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new cublasLtMatmulPreference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&preference->workspace, value, size);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&preference->schemes, value, size);
    return set(&preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
               value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    return library_call("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_EXECUTION_FAILED,
                        [&](Machine &m, Lock &) {
                            Product p;
                            *count = 0;
                            if (!handle || wanted < 1 || !product_of(desc, a, b, d, &p))
                                return CUBLAS_STATUS_INVALID_VALUE;
                            m.counters.plans++;
                            if (p.in_double && desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
                                return CUBLAS_STATUS_NOT_SUPPORTED;
                            *count = 1;
                            results[0] = {};
                            // Bytes of workspace: all that is allowed, few, or none.
                            uint64_t wanted[] = {preference->workspace, 4096, 0};
                            uint64_t size = wanted[m.kind ? 1 : mix({p.m, p.k, p.n}) % 3];
                            size = std::min(size, preference->workspace);
                            results[0].algo = algorithm_of(p, size, preference->alignments);
                            results[0].workspaceSize = size;
                            return CUBLAS_STATUS_SUCCESS;
                        });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_size, cudaStream_t stream)
{
    return library_call(
        "cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, [&](Machine &m, Lock &lock) {
            Product p;
            if (!handle || !algo || C != D || !product_of(desc, a, b, d, &p))
                return CUBLAS_STATUS_INVALID_VALUE;
            const uint32_t alignments[4] = {(uint32_t)algo->data[4], (uint32_t)algo->data[5],
                                            (uint32_t)algo->data[6], (uint32_t)algo->data[7]};
            uint64_t least = algo->data[3] >> 16;
            cublasLtMatmulAlgo_t own = algorithm_of(p, least, alignments);
            bool fits = memcmp(&own, algo, sizeof own) == 0 && workspace_size >= least &&
                        aligned(A, alignments[0]) && aligned(B, alignments[1]) &&
                        aligned(C, alignments[2]) && aligned(D, alignments[3]) &&
                        aligned(workspace, 16);
            int64_t length = p.epilogue.sum_b ? p.n : p.m;
            if (desc->bias)
                fits = fits && lies_in(m, desc->bias, (size_t)length * element_size(d->type),
                                       handle->device);
            if (!fits ||
                (workspace_size > 0 && !lies_in(m, workspace, workspace_size, handle->device)))
                return CUBLAS_STATUS_INVALID_VALUE;
            p.a.data = mutable_bytes(A), p.b.data = mutable_bytes(B), p.c.data = mutable_bytes(D);
            p.alpha = p.in_double ? *static_cast<const double *>(alpha)
                                  : *static_cast<const float *>(alpha);
            p.beta = p.in_double ? *static_cast<const double *>(beta)
                                 : *static_cast<const float *>(beta);
            p.epilogue.relu_eats_nan = m.relu_eats_nan;
            Place place = {handle->device, stream, static_cast<char *>(workspace), workspace_size};
            return enqueue(m, lock, place, p);
        });
}

void ek_emulator_relu_eats_nan(bool eats)
{
    Machine &m = machine();
    Lock lock(m.lock);
    m.relu_eats_nan = eats;
}
