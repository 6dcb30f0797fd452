// test_emulator_lt.cpp: cuBLASLt's products with an epilogue.
#include <cublasLt.h>

#include "test_emulator.h"

enum { M = 5, N = 4, K = 3 };

struct Plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t found;
    cublasStatus_t status;
};

static Plan plan_of(cublasLtHandle_t handle, uint32_t epilogue, void *vector, cudaDataType type,
                    uint32_t alignment)
{
    Plan p = {};
    bool wide = type == CUDA_R_64F;
    cublasLtMatmulDescCreate(&p.desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                             wide ? CUDA_R_64F : CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                   sizeof epilogue);
    if (vector)
        cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector,
                                       sizeof vector);
    cublasLtMatrixLayoutCreate(&p.a, type, M, K, M);
    cublasLtMatrixLayoutCreate(&p.b, type, K, N, K);
    cublasLtMatrixLayoutCreate(&p.d, type, M, N, M);
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulPreferenceCreate(&wish);
    for (int which = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         which <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; which++)
        cublasLtMatmulPreferenceSetAttribute(wish, (cublasLtMatmulPreferenceAttributes_t)which,
                                             &alignment, sizeof alignment);
    int count;
    p.status = cublasLtMatmulAlgoGetHeuristic(handle, p.desc, p.a, p.b, p.d, p.d, wish, 1, &p.found,
                                              &count);
    ck_assert_int_eq(count, p.status == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceDestroy(wish);
    return p;
}

static cublasStatus_t run(cublasLtHandle_t handle, const Plan &p, const float *a, const float *b,
                          float *d, cudaStream_t stream)
{
    float one = 1, zero = 0;
    return cublasLtMatmul(handle, p.desc, &one, a, p.a, b, p.b, &zero, d, p.d, d, p.d,
                          &p.found.algo, nullptr, 0, stream);
}

static void drop(const Plan &p)
{
    cublasLtMatmulDescDestroy(p.desc);
    cublasLtMatrixLayoutDestroy(p.a);
    cublasLtMatrixLayoutDestroy(p.b);
    cublasLtMatrixLayoutDestroy(p.d);
}

TEST(epilogues)
{
    cudaStream_t stream = new_stream();
    cublasLtHandle_t handle;
    ck_assert_int_eq(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    std::vector<float> a(M * K), b(K * N), v(M);
    for (size_t i = 0; i < a.size(); i++)
        a[i] = (float)((int)(i * 7 % 11) - 5);
    for (size_t i = 0; i < b.size(); i++)
        b[i] = (float)((int)(i * 5 % 7) - 3);
    for (size_t i = 0; i < v.size(); i++)
        v[i] = i == 2 ? NAN : (float)i - 2;
    float *da = device_copy(a, stream), *db = device_copy(b, stream);
    for (uint32_t epilogue :
         {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS,
          CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
        bool bias = epilogue & CUBLASLT_EPILOGUE_BIAS, relu = epilogue & CUBLASLT_EPILOGUE_RELU;
        bool sum_a = epilogue == CUBLASLT_EPILOGUE_BGRADA,
             sum_b = epilogue == CUBLASLT_EPILOGUE_BGRADB;
        float *dv = device_copy(v, stream), *dd = device_array<float>(M * N);
        Plan p = plan_of(handle, epilogue, bias || sum_a || sum_b ? dv : nullptr, CUDA_R_32F, 16);
        ck_assert_int_eq(run(handle, p, da, db, dd, stream), CUBLAS_STATUS_SUCCESS);
        std::vector<float> got = host_copy(dd, M * N, stream), vector = host_copy(dv, M, stream);
        for (int j = 0; j < N; j++)
            for (int i = 0; i < M; i++) {
                float wanted = bias ? v[(size_t)i] : 0, value = got[(size_t)(i + j * M)];
                for (int k = 0; k < K; k++)
                    wanted += a[(size_t)(i + k * M)] * b[(size_t)(k + j * K)];
                wanted = relu && wanted <= 0 ? 0 : wanted;
                ck_assert(isnan(wanted) ? isnan(value) : value == wanted);
            }
        for (int line = 0; line < (sum_a ? M : sum_b ? N : 0); line++) {
            float wanted = 0;
            for (int k = 0; k < K; k++)
                wanted += sum_a ? a[(size_t)(line + k * M)] : b[(size_t)(k + line * K)];
            ck_assert(vector[(size_t)line] == wanted);
        }
        drop(p);
        cudaFree(dv);
        cudaFree(dd);
    }
    cublasLtDestroy(handle);
}

TEST(refusals)
{
    cudaStream_t stream = new_stream();
    cublasLtHandle_t handle;
    ck_assert_int_eq(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    float *a = device_array<float>(64), *d = device_array<float>(64), *v = device_array<float>(M);
    Plan f64 = plan_of(handle, CUBLASLT_EPILOGUE_BIAS, v, CUDA_R_64F, 16);
    ck_assert_int_eq(f64.status, CUBLAS_STATUS_NOT_SUPPORTED);
    Plan none = plan_of(handle, CUBLASLT_EPILOGUE_BIAS, nullptr, CUDA_R_32F, 16);
    ck_assert_int_eq(none.status, CUBLAS_STATUS_INVALID_VALUE);
    Plan p = plan_of(handle, CUBLASLT_EPILOGUE_BIAS, v, CUDA_R_32F, 16);
    ck_assert_int_eq(run(handle, p, a, a, d, stream), CUBLAS_STATUS_SUCCESS);
    /* Not as aligned as the heuristic was told, another epilogue, a bias that isn't there. */
    ck_assert_int_eq(run(handle, p, a + 1, a, d, stream), CUBLAS_STATUS_INVALID_VALUE);
    uint32_t relu = CUBLASLT_EPILOGUE_RELU_BIAS;
    cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &relu, sizeof relu);
    ck_assert_int_eq(run(handle, p, a, a, d, stream), CUBLAS_STATUS_INVALID_VALUE);
    Plan beyond = plan_of(handle, CUBLASLT_EPILOGUE_BIAS, v + 1, CUDA_R_32F, 16);
    ck_assert_int_eq(run(handle, beyond, a, a, d, stream), CUBLAS_STATUS_INVALID_VALUE);
    for (const Plan &plan : {f64, none, p, beyond})
        drop(plan);
    cublasLtDestroy(handle);
}
