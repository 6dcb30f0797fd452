/* bias.cu: bounded by memory: 16 bytes at a time where rows allow it. */
#include "cuda/bias.h"
#include "cuda/launch.cuh"

template <typename T, int COUNT> struct alignas(sizeof(T) * COUNT) pack {
    T at[COUNT];
};

/* Channels are a row of `pack`s, or (`same`) a pack lies within one channel. I: what indices fit
 * in. */
template <typename T, int COUNT, typename I>
static __global__ void add_bias(T *y, const T *bias, int64_t bias_stride, I packs, I inner,
                                I channels)
{
    typedef typename ek_compute<T>::type C;
    typedef pack<T, COUNT> P;
    bool same = COUNT == 1 || inner > 1;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (int64_t)packs;
         i += (int64_t)gridDim.x * blockDim.x) {
        P values = ((const P *)y)[i];
        I channel = (I)i * COUNT / inner % channels;
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            int64_t from = (int64_t)channel + (same ? 0 : j);
            C sum = ek_load(&values.at[j]) + ek_load(bias + from * bias_stride);
            ek_store(&values.at[j], sum);
        }
        ((P *)y)[i] = values;
    }
}

template <typename T, int COUNT>
static int bias_packs(const ek_cuda_queue *queue, T *y, const T *bias, int64_t bias_stride,
                      int64_t count, int64_t inner, int64_t channels)
{
    int64_t packs = count / COUNT;
    dim3 grid(ek_grid(queue, packs)), block(EK_BLOCK);
    if (count < INT32_MAX)
        return ek_launch(queue, grid, block, add_bias<T, COUNT, uint32_t>, y, bias, bias_stride,
                         packs, inner, channels);
    return ek_launch(queue, grid, block, add_bias<T, COUNT, int64_t>, y, bias, bias_stride, packs,
                     inner, channels);
}

template <typename T>
static int launch_bias(const ek_cuda_queue *queue, T *y, const T *bias, int64_t bias_stride,
                       int64_t count, int64_t inner, int64_t channels)
{
    enum { COUNT = 16 / sizeof(T) };
    int64_t run = inner > 1 ? inner : channels;
    if (run % COUNT == 0 && (uintptr_t)y % 16 == 0)
        return bias_packs<T, COUNT>(queue, y, bias, bias_stride, count, inner, channels);
    return bias_packs<T, 1>(queue, y, bias, bias_stride, count, inner, channels);
}

int ek_cuda_launch_bias(const ek_cuda_queue *queue, ek_dtype dtype, void *y, const void *bias,
                        int64_t bias_stride, int64_t count, int64_t inner, int64_t channels)
{
    EK_FLOATING(dtype, T,
                return launch_bias<T>(queue, (T *)y, (const T *)bias, bias_stride, count, inner,
                                      channels))
    return (int)cudaErrorInvalidValue;
}
