// cublas.cpp: cuBLAS's matrix products in streams.
#include <cublas_v2.h>

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
    bool narrow = p.a.type == CUDA_R_16BF && p.b.type == CUDA_R_16BF;
    bool single = p.a.type == CUDA_R_32F && p.b.type == CUDA_R_32F;
    return (narrow && p.c.type == CUDA_R_16BF) || ((narrow || single) && p.c.type == CUDA_R_32F);
}

bool leads(const Matrix &x, int64_t rows, int64_t columns)
{
    int64_t least = x.transposed ? columns : rows;
    return x.leading >= (least > 1 ? least : 1);
}

// Whether all of a matrix, of each of the batch, lies in memory of the device.
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

cublasStatus_t enqueue(Machine &m, Lock &lock, cublasHandle_t handle, const Product &p)
{
    Stream stream = stream_of(m, handle->stream);
    if (handle->device != current_device() || !stream || stream->device != handle->device)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    cublasStatus_t status = check(m, p, handle->device);
    if (status != CUBLAS_STATUS_SUCCESS || p.m == 0 || p.n == 0 || p.batch == 0)
        return status;
    char *scratch = handle->workspace;
    size_t scratch_size = handle->workspace_size < 4096 ? handle->workspace_size : 4096;
    Operation operation;
    operation.name = "a matrix product";
    operation.run = [p, scratch, scratch_size] {
        // A workspace is anybody's whose turn it is: what lay there is lost.
        if (scratch)
            memset(scratch, 0xff, scratch_size);
        multiply(p);
        Machine &now = machine();
        Lock counting(now.lock);
        now.counters.products++;
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
        if (p.in_double) {
            p.alpha = *static_cast<const double *>(scalars.alpha);
            p.beta = *static_cast<const double *>(scalars.beta);
        } else {
            p.alpha = *static_cast<const float *>(scalars.alpha);
            p.beta = *static_cast<const float *>(scalars.beta);
        }
        return enqueue(m, lock, handle, p);
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
