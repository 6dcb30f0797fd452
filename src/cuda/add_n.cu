/* add_n.cu: each thread adds up its elements, one addend after the other: the order is the
 * caller's. The output may be the first addend. */
#include "cuda/add_n.h"
#include "cuda/strided.cuh"

/* Integers wrap. */
static __device__ __forceinline__ int64_t plus(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}
static __device__ __forceinline__ float plus(float x, float y)
{
    return x + y;
}
static __device__ __forceinline__ double plus(double x, double y)
{
    return x + y;
}

template <typename T, int V>
static __device__ __forceinline__ void add(T *out, const ek_cuda_addends &addends, int64_t offset)
{
    typedef typename ek_compute<T>::type real;
    typedef ek_vector<T, V> vector;
    real sum[V];
    vector first = *(const vector *)((const T *)addends.data[0] + offset);
#pragma unroll
    for (int j = 0; j < V; j++)
        sum[j] = ek_load(&first.element[j]);
#pragma unroll 4
    for (int k = 1; k < addends.count; k++) {
        vector next = *(const vector *)((const T *)addends.data[k] + offset);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] = plus(sum[j], ek_load(&next.element[j]));
    }
    vector result;
#pragma unroll
    for (int j = 0; j < V; j++)
        ek_store(&result.element[j], sum[j]);
    *(vector *)(out + offset) = result;
}

/* Vectors, then the elements that are left. */
template <typename T, int V>
static __global__ __launch_bounds__(EK_BLOCK) void add_n(T *out, ek_cuda_addends addends,
                                                         int64_t count)
{
    int64_t vectors = count / V;
    EK_GRID_LOOP(i, vectors)
    {
        add<T, V>(out, addends, i * V);
    }
    int64_t last = vectors * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (last < count)
        add<T, 1>(out, addends, last);
}

template <typename T>
static int launch(const ek_cuda_queue *queue, T *out, const ek_cuda_addends *addends, int64_t count)
{
    enum { V = 16 / sizeof(T) };
    bool aligned = ek_is_aligned(out, 16);
    for (int k = 0; k < addends->count; k++)
        aligned = aligned && ek_is_aligned(addends->data[k], 16);
    if (aligned)
        return ek_launch(queue, dim3(ek_grid(queue, count, EK_BLOCK * V)), dim3(EK_BLOCK),
                         add_n<T, V>, out, *addends, count);
    return ek_launch(queue, dim3(ek_grid(queue, count)), dim3(EK_BLOCK), add_n<T, 1>, out, *addends,
                     count);
}

int ek_cuda_launch_add_n(const ek_cuda_queue *queue, ek_dtype dtype, void *out,
                         const ek_cuda_addends *addends, int64_t count)
{
    EK_ANY_DTYPE(dtype, T, return launch(queue, (T *)out, addends, count))
    return (int)cudaErrorInvalidValue;
}
