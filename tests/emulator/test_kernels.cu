// test_kernels.cu: see test_kernels.h.
#include <cuda_runtime.h>

#include "test_kernels.h"

static cudaLaunchConfig_t shape(cudaStream_t stream, dim3 grid, dim3 block)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return config;
}

template <typename T> static __device__ T warp_sum(T value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

template <typename T> static __device__ T block_sum(T value)
{
    __shared__ T parts[32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
    value = lane < (int)blockDim.x / 32 ? parts[lane] : T(0);
    return warp_sum(value);
}

template <typename T>
static __global__ void __launch_bounds__(1024)
    block_sums(const T *__restrict__ x, int64_t count, T *__restrict__ sums)
{
    T sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        sum += __ldg(x + i);
    sum = block_sum(sum);
    sum = block_sum(threadIdx.x == 0 ? sum : T(0));
    if (threadIdx.x == blockDim.x - 1)
        sums[blockIdx.x] = sum;
}

int launch_block_sums_f32(cudaStream_t stream, int blocks, int threads, const float *x,
                          int64_t count, float *sums)
{
    cudaLaunchConfig_t config = shape(stream, (unsigned)blocks, (unsigned)threads);
    return cudaLaunchKernelEx(&config, block_sums<float>, x, count, sums);
}

int launch_block_sums_f64(cudaStream_t stream, int blocks, int threads, const double *x,
                          int64_t count, double *sums)
{
    cudaLaunchConfig_t config = shape(stream, (unsigned)blocks, (unsigned)threads);
    return cudaLaunchKernelEx(&config, block_sums<double>, x, count, sums);
}

static __global__ void exchanges(int *results)
{
    int self = (int)threadIdx.x, value = 100 + self;
    unsigned all = 0xffffffffu;
    results[self] = __shfl_sync(all, value, 5);
    results[64 + self] = __shfl_xor_sync(all, value, 3);
    results[128 + self] = (int)__shfl_down_sync(all, (long long)value, 2);
    results[192 + self] = (int)__shfl_up_sync(all, (double)value, 4);
    results[256 + self] = __shfl_down_sync(all, value, 1, 8);
    results[320 + self] = (int)(__ballot_sync(all, self % 3 == 0) & 0xffff);
    results[384 + self] = __any_sync(all, self == 40);
    results[448 + self] = __all_sync(all, self < 32);
    __syncwarp();
    // Halves of a warp on their own.
    unsigned half = self % 32 < 16 ? 0xffffu : 0xffff0000u;
    for (int turn = 0; turn < (self % 32 < 16 ? 3 : 5); turn++)
        value = __shfl_xor_sync(half, value, 1);
    results[512 + self] = value;
}

int launch_exchanges(cudaStream_t stream, int *results)
{
    cudaLaunchConfig_t config = shape(stream, 1, 64);
    return cudaLaunchKernelEx(&config, exchanges, results);
}

static __global__ void atomics(int *results, float *sum)
{
    int self = (int)threadIdx.x;
    atomicAdd(&results[0], self);
    atomicMax(&results[1], self);
    atomicMin(&results[2], -self);
    if (atomicCAS(&results[3], 0, 1 + self) == 0)
        atomicAdd(&results[4], 1);
    atomicInc((unsigned *)&results[5], 9);
    atomicAdd(sum, 0.5f);
    __threadfence_system();
}

int launch_atomics(cudaStream_t stream, int threads, int *results, float *sum)
{
    cudaLaunchConfig_t config = shape(stream, 1, (unsigned)threads);
    return cudaLaunchKernelEx(&config, atomics, results, sum);
}

static __global__ void places(unsigned *numbers)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    __syncthreads();
    numbers[block * threads + thread] = block * threads + thread;
}

int launch_places(cudaStream_t stream, dim3 grid, dim3 block, unsigned *numbers)
{
    cudaLaunchConfig_t config = shape(stream, grid, block);
    return cudaLaunchKernelEx(&config, places, numbers);
}

static __global__ void transpose(int size, const float *x, float *y)
{
    __shared__ float tile[32][33];
    int column = (int)(blockIdx.x * 32 + threadIdx.x), row = (int)(blockIdx.y * 32 + threadIdx.y);
    if (row < size && column < size)
        tile[threadIdx.y][threadIdx.x] = x[row * size + column];
    __syncthreads();
    column = (int)(blockIdx.y * 32 + threadIdx.x);
    row = (int)(blockIdx.x * 32 + threadIdx.y);
    if (row < size && column < size)
        y[row * size + column] = tile[threadIdx.x][threadIdx.y];
}

int launch_transpose(cudaStream_t stream, int size, const float *x, float *y)
{
    unsigned blocks = (unsigned)(size + 31) / 32;
    cudaLaunchConfig_t config = shape(stream, dim3(blocks, blocks), dim3(32, 32));
    return cudaLaunchKernelEx(&config, transpose, size, x, y);
}

static __global__ void add(int count, float *x, float value)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        x[i] += value;
}

int launch_add(cudaStream_t stream, int count, float *x, float value)
{
    cudaLaunchConfig_t config = shape(stream, (unsigned)(count + 127) / 128, 128);
    return cudaLaunchKernelEx(&config, add, count, x, value);
}

static __global__ void copy(int count, float *y, const float *x)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        y[i] = x[i];
}

int launch_copy(cudaStream_t stream, int count, float *y, const float *x)
{
    cudaLaunchConfig_t config = shape(stream, (unsigned)(count + 127) / 128, 128);
    return cudaLaunchKernelEx(&config, copy, count, y, x);
}

static __global__ void vote(int *results)
{
    int self = (int)threadIdx.x;
    int count = __syncthreads_count(self % 2);
    int all = __syncthreads_and(self >= 0), any = __syncthreads_or(self == 7);
    int none = __syncthreads_or(self < 0), some = __syncthreads_and(self != 3);
    results[self] = count * 16 + all * 8 + any * 4 + none * 2 + some;
}

int launch_vote(cudaStream_t stream, int threads, int *results)
{
    cudaLaunchConfig_t config = shape(stream, 1, (unsigned)threads);
    return cudaLaunchKernelEx(&config, vote, results);
}

// ---- with faults ----

static __global__ void early_return(float *x)
{
    if (threadIdx.x < 5)
        return;
    __syncthreads();
    x[threadIdx.x] = 1;
}

int launch_early_return(cudaStream_t stream, float *x)
{
    cudaLaunchConfig_t config = shape(stream, 1, 64);
    return cudaLaunchKernelEx(&config, early_return, x);
}

static __global__ void two_barriers(float *x)
{
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}

int launch_two_barriers(cudaStream_t stream, float *x)
{
    cudaLaunchConfig_t config = shape(stream, 1, 64);
    return cudaLaunchKernelEx(&config, two_barriers, x);
}

static __global__ void half_shuffle(float *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}

int launch_half_shuffle(cudaStream_t stream, float *x)
{
    cudaLaunchConfig_t config = shape(stream, 1, 64);
    return cudaLaunchKernelEx(&config, half_shuffle, x);
}

static __global__ void missing_barrier(float *x)
{
    __shared__ float line[64];
    line[threadIdx.x] = (float)threadIdx.x;
    x[threadIdx.x] = line[63 - threadIdx.x];
}

int launch_missing_barrier(cudaStream_t stream, float *x)
{
    cudaLaunchConfig_t config = shape(stream, 1, 64);
    return cudaLaunchKernelEx(&config, missing_barrier, x);
}
