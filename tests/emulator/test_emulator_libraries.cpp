// test_emulator_libraries.cpp: cuBLAS and NCCL.
#include <pthread.h>

#include <cublas_v2.h>
#include <cudnn.h>
#include <nccl.h>

#include "half.h"
#include "test_emulator.h"

// ---- matrix products ----

static uint16_t narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16); // exact for the small integers of these tests
}

static float value_at(size_t i)
{
    return (float)((int)(i * 7 % 11) - 5);
}

static std::vector<char> numbers(cudaDataType type, size_t count, bool nan)
{
    size_t size = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
    std::vector<char> bytes(count * size);
    for (size_t i = 0; i < count; i++) {
        float single = nan ? NAN : value_at(i);
        double wide = single;
        uint16_t half = type == CUDA_R_16F ? emulator::half_of(single)
                        : nan              ? (uint16_t)0x7fc0
                                           : narrow(single);
        const void *from = size == 8 ? (const void *)&wide : size == 4 ? (void *)&single : &half;
        memcpy(bytes.data() + i * size, from, size);
    }
    return bytes;
}

static double number(const std::vector<char> &bytes, cudaDataType type, size_t i)
{
    if (type == CUDA_R_64F)
        return ((const double *)bytes.data())[i];
    if (type == CUDA_R_32F)
        return ((const float *)bytes.data())[i];
    if (type == CUDA_R_16F)
        return emulator::half_value(((const uint16_t *)bytes.data())[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)bytes.data())[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct Case {
    cudaDataType in, out;
    cublasOperation_t ta, tb;
    int m, n, k, batch;
    double beta;
};

static void check_product(cublasHandle_t handle, cudaStream_t stream, const Case &c)
{
    bool wide = c.in == CUDA_R_64F;
    int lda = (c.ta == CUBLAS_OP_N ? c.m : c.k) + 1, ldb = (c.tb == CUBLAS_OP_N ? c.k : c.n) + 2;
    int ldc = c.m + 3;
    size_t sa = (size_t)lda * (size_t)(c.ta == CUBLAS_OP_N ? c.k : c.m);
    size_t sb = (size_t)ldb * (size_t)(c.tb == CUBLAS_OP_N ? c.n : c.k);
    size_t sc = (size_t)ldc * (size_t)c.n, batch = (size_t)c.batch;
    std::vector<char> a = numbers(c.in, sa * batch, false), b = numbers(c.in, sb * batch, false);
    std::vector<char> old = numbers(c.out, sc * batch, c.beta == 0);
    char *da = device_copy(a, stream), *db = device_copy(b, stream), *dc = device_copy(old, stream);
    double alpha64 = 2;
    float alpha32 = 2, beta32 = (float)c.beta;
    const void *alpha = wide ? (void *)&alpha64 : &alpha32;
    const void *beta = wide ? (const void *)&c.beta : &beta32;
    cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    ck_assert_int_eq(cublasGemmStridedBatchedEx(handle, c.ta, c.tb, c.m, c.n, c.k, alpha, da, c.in,
                                                lda, (long long)sa, db, c.in, ldb, (long long)sb,
                                                beta, dc, c.out, ldc, (long long)sc, c.batch,
                                                compute, CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_SUCCESS);
    alpha32 = 9;
    std::vector<char> got = host_copy(dc, old.size(), stream);
    for (size_t z = 0; z < batch; z++)
        for (int j = 0; j < c.n; j++)
            for (int i = 0; i < c.m; i++) {
                double sum = 0;
                for (int p = 0; p < c.k; p++) {
                    size_t ia = (size_t)(c.ta == CUBLAS_OP_N ? i + p * lda : p + i * lda);
                    size_t ib = (size_t)(c.tb == CUBLAS_OP_N ? p + j * ldb : j + p * ldb);
                    sum += number(a, c.in, z * sa + ia) * number(b, c.in, z * sb + ib);
                }
                size_t ic = z * sc + (size_t)(i + j * ldc);
                double wanted = 2 * sum + (c.beta != 0 ? c.beta * number(old, c.out, ic) : 0);
                double slack = c.out == CUDA_R_16BF  ? fabs(wanted) / 128
                               : c.out == CUDA_R_16F ? fabs(wanted) / 1024
                                                     : 0;
                ck_assert_double_le(fabs(number(got, c.out, ic) - wanted), slack);
            }
    cudaFree(da);
    cudaFree(db);
    cudaFree(dc);
}

TEST(products)
{
    cudaStream_t stream = new_stream();
    cublasHandle_t handle;
    ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    const cudaDataType types[][2] = {{CUDA_R_32F, CUDA_R_32F},   {CUDA_R_64F, CUDA_R_64F},
                                     {CUDA_R_16BF, CUDA_R_16BF}, {CUDA_R_16BF, CUDA_R_32F},
                                     {CUDA_R_16F, CUDA_R_16F},   {CUDA_R_16F, CUDA_R_32F}};
    const int sizes[][4] = {
        {1, 1, 1, 1}, {17, 5, 3, 2}, {16, 4, 8, 1}, {33, 9, 40, 3}, {2, 3, 0, 1}};
    for (const auto &type : types)
        for (const auto &s : sizes)
            for (int way = 0; way < 8; way++)
                check_product(handle, stream,
                              {type[0], type[1], way & 1 ? CUBLAS_OP_T : CUBLAS_OP_N,
                               way & 2 ? CUBLAS_OP_T : CUBLAS_OP_N, s[0], s[1], s[2], s[3],
                               way & 4 ? 0.5 : 0.0});
    ck_assert_int_eq(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

static cublasStatus_t square(cublasHandle_t handle, float *a, float *c, int size, int leading)
{
    float one = 1, zero = 0;
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, a, CUDA_R_32F,
                        leading, a, CUDA_R_32F, leading, &zero, c, CUDA_R_32F, leading,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

// Each shape has one order of its sum, and few have the order of the terms.
TEST(sums_depend_on_the_shape)
{
    enum { SHAPES = 16 };
    cudaStream_t stream = new_stream();
    cublasHandle_t handle;
    float one = 1, zero = 0;
    int others = 0;
    ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    for (int k = 200; k < 200 + SHAPES; k++) {
        std::vector<float> terms, ones((size_t)k, 1);
        float serial = 0, results[2];
        for (int i = 0; i < k; i++) {
            terms.push_back(1.0f / (float)(i + 3));
            serial += terms.back();
        }
        float *x = device_copy(terms, stream), *y = device_copy(ones, stream);
        float *sum = device_array<float>(1);
        for (float &result : results) {
            ck_assert_int_eq(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, k, &one, x,
                                          CUDA_R_32F, 1, y, CUDA_R_32F, k, &zero, sum, CUDA_R_32F,
                                          1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                             CUBLAS_STATUS_SUCCESS);
            result = host_copy(sum, 1, stream)[0];
        }
        ck_assert(results[0] == results[1]);
        ck_assert_float_eq_tol(results[0], serial, 1e-4);
        others += results[0] != serial;
    }
    ck_assert(others >= SHAPES / 4 && others < SHAPES);
    cublasDestroy(handle);
}

TEST(products_are_late_and_checked)
{
    setenv("EK_EMULATOR_DEVICES", "2", 1);
    cudaStream_t stream = new_stream();
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    float *a = device_array<float>(16), *c = device_array<float>(16);
    char *workspace = device_array<char>(1000);
    ck_assert_int_eq(cublasSetWorkspace(handle, workspace, 1001), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasSetWorkspace(handle, workspace, 1000), CUBLAS_STATUS_SUCCESS);
    OK(cudaMemsetAsync(workspace, 0, 1000, stream));
    ck_assert_int_eq(square(handle, a, c, 4, 4), CUBLAS_STATUS_SUCCESS);
    ck_assert_uint_eq(pending(), 2);
    ck_assert_int_ne(host_copy(workspace, 1, stream)[0], 0); // a product uses it
    ck_assert_int_eq(square(handle, a, c, 4, 3), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(square(handle, a, c, 5, 5), CUBLAS_STATUS_EXECUTION_FAILED);
    ek_emulator_fail_next("cublasGemmEx", CUBLAS_STATUS_INTERNAL_ERROR, 0);
    ck_assert_int_eq(square(handle, a, c, 4, 4), CUBLAS_STATUS_INTERNAL_ERROR);
    OK(cudaSetDevice(1));
    ck_assert_int_eq(square(handle, a, c, 4, 4), CUBLAS_STATUS_EXECUTION_FAILED);
    cublasDestroy(handle);
}

// ---- exchanges between devices ----

enum { RANKS = 3, COUNT = 5 };

struct Ranks {
    ncclComm_t comms[RANKS];
    cudaStream_t streams[RANKS];
    float *x[RANKS], *y[RANKS]; // x: rank + 1 in all elements
};

static Ranks begin_ranks()
{
    setenv("EK_EMULATOR_DEVICES", "3", 1);
    Ranks r;
    const int devices[RANKS] = {0, 1, 2};
    ck_assert_int_eq(ncclCommInitAll(r.comms, RANKS, devices), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        OK(cudaSetDevice(i));
        r.streams[i] = new_stream();
        r.x[i] = device_copy(std::vector<float>(COUNT, (float)(i + 1)), r.streams[i]);
        r.y[i] = device_array<float>(COUNT);
    }
    return r;
}

static void end_ranks(Ranks &r)
{
    for (int i = 0; i < RANKS; i++)
        ncclCommDestroy(r.comms[i]);
}

static float result(Ranks &r, int rank)
{
    OK(cudaSetDevice(rank));
    std::vector<float> got = host_copy(r.y[rank], COUNT, r.streams[rank]);
    for (float value : got)
        ck_assert(memcmp(&value, &got[0], sizeof value) == 0);
    return got[0];
}

TEST(collectives)
{
    Ranks r = begin_ranks();
    ncclGroupStart();
    for (int i = 0; i < RANKS; i++)
        ck_assert_int_eq(ncclBroadcast(r.x[i], r.y[i], COUNT, ncclFloat, 1, r.comms[i],
                                       r.streams[i]),
                         ncclSuccess);
    ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
    for (int i = 0; i < RANKS; i++)
        ck_assert_float_eq(result(r, i), 2);
    ncclGroupStart();
    for (int i = 0; i < RANKS; i++)
        ncclAllReduce(r.x[i], r.y[i], COUNT, ncclFloat, ncclSum, r.comms[i], r.streams[i]);
    ncclGroupEnd();
    for (int i = 0; i < RANKS; i++)
        ck_assert_float_eq(result(r, i), 6);
    ncclGroupStart();
    for (int i = 0; i < RANKS; i++)
        ncclReduce(r.x[i], i == 2 ? r.y[i] : nullptr, COUNT, ncclFloat, ncclMax, 2, r.comms[i],
                   r.streams[i]);
    ncclGroupEnd();
    ck_assert_float_eq(result(r, 2), 3);
    ck_assert_float_eq(result(r, 1), 6);
    end_ranks(r);
}

TEST(ring)
{
    Ranks r = begin_ranks();
    ncclGroupStart();
    for (int i = 0; i < RANKS; i++) {
        ncclSend(r.x[i], COUNT, ncclFloat, (i + 1) % RANKS, r.comms[i], r.streams[i]);
        ncclRecv(r.y[i], COUNT, ncclFloat, (i + RANKS - 1) % RANKS, r.comms[i], r.streams[i]);
    }
    ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
    for (int i = 0; i < RANKS; i++)
        ck_assert_float_eq(result(r, i), (float)((i + RANKS - 1) % RANKS + 1));
    end_ranks(r);
}

// What one rank's stream does before and after is in order with the exchange.
TEST_LOOP(exchanges_wait_for_streams, 0, 3)
{
    if (_i)
        setenv("EK_EMULATOR_ORDER", _i == 1 ? "eager" : "random:3", 1);
    Ranks r = begin_ranks();
    OK(cudaSetDevice(0));
    OK(launch_add(r.streams[0], COUNT, r.x[0], 10));
    ncclGroupStart();
    ncclSend(r.x[0], COUNT, ncclFloat, 1, r.comms[0], r.streams[0]);
    ncclRecv(r.y[1], COUNT, ncclFloat, 0, r.comms[1], r.streams[1]);
    ncclGroupEnd();
    OK(launch_add(r.streams[0], COUNT, r.x[0], 100));
    ck_assert_float_eq(result(r, 1), 11);
    if (!_i) {
        ck_assert_uint_gt(pending(), 0); // the last kernel of device 0
        // A write that another stream of the device makes is in no order with it.
        OK(cudaSetDevice(1));
        cudaStream_t other = new_stream();
        OK(cudaMemsetAsync(r.x[1], 0, COUNT * sizeof(float), other));
        ncclGroupStart();
        ncclSend(r.x[1], COUNT, ncclFloat, 2, r.comms[1], r.streams[1]);
        ncclRecv(r.y[2], COUNT, ncclFloat, 1, r.comms[2], r.streams[2]);
        ncclGroupEnd();
        ck_assert_float_eq(result(r, 2), 2);
    }
    end_ranks(r);
}

struct RankJob {
    Ranks *ranks;
    int rank;
};

static void *reduce_and_wait(void *argument)
{
    RankJob *job = (RankJob *)argument;
    Ranks &r = *job->ranks;
    int i = job->rank;
    OK(cudaSetDevice(i));
    for (int turn = 0; turn < 20; turn++) {
        ck_assert_int_eq(ncclAllReduce(r.x[i], r.y[i], COUNT, ncclFloat, ncclSum, r.comms[i],
                                       r.streams[i]),
                         ncclSuccess);
        if (turn % 5 == i)
            OK(cudaStreamSynchronize(r.streams[i]));
    }
    OK(cudaStreamSynchronize(r.streams[i]));
    return NULL;
}

TEST(a_thread_per_rank)
{
    Ranks r = begin_ranks();
    pthread_t threads[RANKS];
    RankJob jobs[RANKS];
    for (int i = 0; i < RANKS; i++) {
        jobs[i] = {&r, i};
        pthread_create(&threads[i], NULL, reduce_and_wait, &jobs[i]);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RANKS; i++)
        ck_assert_float_eq(result(r, i), 6);
    end_ranks(r);
}

TEST(types)
{
    Ranks r = begin_ranks();
    std::vector<uint16_t> values = {narrow(1.5f), narrow(-2), 0x7fc0};
    uint16_t *given[RANKS];
    int64_t *integers[RANKS];
    for (int i = 0; i < RANKS; i++) {
        OK(cudaSetDevice(i));
        given[i] = device_copy(values, r.streams[i]);
        integers[i] = device_copy(std::vector<int64_t>(2, ((int64_t)1 << 40) + i), r.streams[i]);
    }
    ncclGroupStart();
    for (int i = 0; i < RANKS; i++) {
        ncclAllReduce(given[i], given[i], 3, ncclBfloat16, ncclAvg, r.comms[i], r.streams[i]);
        ncclAllReduce(integers[i], integers[i], 2, ncclInt64, ncclSum, r.comms[i], r.streams[i]);
    }
    ncclGroupEnd();
    OK(cudaSetDevice(2));
    std::vector<uint16_t> got = host_copy(given[2], 3, r.streams[2]);
    ck_assert_uint_eq(got[0], narrow(1.5f));
    ck_assert_uint_eq(got[1], narrow(-2));
    ck_assert_uint_eq(got[2] & 0x7fc0, 0x7fc0);
    ck_assert_int_eq(host_copy(integers[2], 2, r.streams[2])[1], 3 * ((int64_t)1 << 40) + 3);
    end_ranks(r);
}

TEST(refusals)
{
    Ranks r = begin_ranks();
    ncclComm_t comms[2];
    const int twice[2] = {1, 1}, missing[2] = {0, 3};
    ck_assert_int_eq(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
    ck_assert_int_eq(ncclCommInitAll(comms, 2, missing), ncclInvalidArgument);
    // Too long, of another device, in a stream of another device, to nobody.
    ck_assert_int_eq(ncclSend(r.x[0], COUNT + 1, ncclFloat, 1, r.comms[0], r.streams[0]),
                     ncclInvalidArgument);
    ck_assert_int_eq(ncclSend(r.x[1], COUNT, ncclFloat, 1, r.comms[0], r.streams[0]),
                     ncclInvalidArgument);
    ck_assert_int_eq(ncclSend(r.x[0], COUNT, ncclFloat, 1, r.comms[0], r.streams[1]),
                     ncclInvalidArgument);
    ck_assert_int_eq(ncclSend(r.x[0], COUNT, ncclFloat, 3, r.comms[0], r.streams[0]),
                     ncclInvalidArgument);
    ek_emulator_fail_next("ncclGroupEnd", ncclSystemError, 0);
    ncclGroupStart();
    ck_assert_int_eq(ncclGroupEnd(), ncclSystemError);
    ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
    end_ranks(r);
}

/* ---- communicators of one rank each ---- */

static ncclResult_t state_of(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;
    ck_assert_int_eq(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    return state;
}

static ncclComm_t begin_rank(ncclUniqueId id, int ranks, int rank, int device)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    config.blocking = 0;
    OK(cudaSetDevice(device));
    ck_assert_int_eq(ncclCommInitRankConfig(&comm, ranks, id, rank, &config), ncclInProgress);
    return comm;
}

/* All calls end later than they return. */
TEST(ranks_find_each_other)
{
    Ranks r = begin_ranks();
    ncclUniqueId id;
    ncclComm_t comms[RANKS];
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        comms[i] = begin_rank(id, RANKS, i, i);
        ck_assert_int_eq(state_of(comms[0]), i < RANKS - 1 ? ncclInProgress : ncclSuccess);
    }
    for (int i = 0; i < RANKS; i++) {
        ck_assert_int_eq(ncclAllReduce(r.x[i], r.y[i], COUNT, ncclFloat, ncclSum, comms[i],
                                       r.streams[i]),
                         ncclInProgress);
        ck_assert_int_eq(ncclSend(r.x[i], COUNT, ncclFloat, (i + 1) % RANKS, comms[i],
                                  r.streams[i]),
                         ncclInvalidUsage);
        ck_assert_int_eq(cudaStreamQuery(r.streams[i]), cudaSuccess); // nothing is there yet
    }
    for (int i = 0; i < RANKS; i++) {
        ck_assert_int_eq(state_of(comms[i]), ncclInProgress);
        ck_assert_int_eq(state_of(comms[i]), ncclSuccess);
    }
    for (int i = 0; i < RANKS; i++) {
        float sum = 0;
        for (int k = 0; k < RANKS; k++)
            sum += r.x[k][1];
        OK(cudaStreamSynchronize(r.streams[i]));
        ck_assert_float_eq(r.y[i][1], sum);
        ncclCommAbort(comms[i]);
    }
    end_ranks(r);
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
}

TEST(ranks_that_cannot_be_connected)
{
    Ranks r = begin_ranks();
    ncclUniqueId id, other = {"emulated 1 1"};
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    ncclComm_t first = begin_rank(id, 2, 0, 1), second = begin_rank(id, 2, 1, 1);
    ck_assert_int_eq(state_of(first), ncclInvalidUsage); // on one GPU
    ck_assert_int_eq(state_of(second), ncclInvalidUsage);
    ncclComm_t stranger = begin_rank(other, 2, 0, 0); // another process's
    ck_assert_int_eq(state_of(stranger), ncclSystemError);
    for (ncclComm_t comm : {first, second, stranger})
        ncclCommAbort(comm);
    end_ranks(r);
}

TEST(symbols)
{
    ck_assert(ek_emulator_has("libcublas.so.13") && ek_emulator_has("libnccl.so.2"));
    ck_assert(ek_emulator_has("libcudnn.so.9") && !ek_emulator_has("cublas"));
    ck_assert_ptr_eq(ek_emulator_symbol("cublasSetStream_v2"), (void *)cublasSetStream_v2);
    ck_assert_ptr_eq(ek_emulator_symbol("ncclSend"), (void *)ncclSend);
    ck_assert_ptr_eq(ek_emulator_symbol("cudnnBackendExecute"), (void *)cudnnBackendExecute);
    ck_assert_ptr_null(ek_emulator_symbol("cudnnConvolutionForward"));
}

TEST(hidden_libraries)
{
    setenv("EK_EMULATOR_LIBRARIES", "cublas,cudnn", 1);
    ck_assert(ek_emulator_has("libcublas.so.13") && !ek_emulator_has("libnccl.so.2"));
    ck_assert(ek_emulator_has("libcudnn.so.9"));
}
