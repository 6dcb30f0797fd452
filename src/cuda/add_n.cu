/* add_n.cu: each thread adds up its elements, one addend after the other: the order is the
 * caller's. The output may be the first addend. */
#include "cuda/add_n.h"
#include "cuda/list.cuh"
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
static __device__ __forceinline__ void add(const ek_cuda_list &list, const ek_list_part &part,
                                           int64_t begin, int64_t end)
{
    typedef typename ek_compute<T>::type real;
    typedef ek_vector<T, V> vector;
    for (int64_t i = begin + (int64_t)threadIdx.x * V; i < end; i += EK_BLOCK * V) {
        real sum[V];
        vector first = *(const vector *)((const T *)part.data[1] + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] = ek_load(&first.element[j]);
#pragma unroll 4
        for (int k = 2; k < list.operands; k++) {
            vector next = *(const vector *)((const T *)part.data[k] + i);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] = plus(sum[j], ek_load(&next.element[j]));
        }
        vector result;
#pragma unroll
        for (int j = 0; j < V; j++)
            ek_store(&result.element[j], sum[j]);
        *(vector *)((T *)part.data[0] + i) = result;
    }
}

template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void add_n(const __grid_constant__ ek_cuda_list list)
{
    ek_list_part part = ek_list_part_of(list, sizeof(T));
    add<T, 16 / sizeof(T)>(list, part, part.begin, part.vectors_end);
    add<T, 1>(list, part, part.vectors_end, part.end);
}

template <typename T> static int launch(const ek_cuda_queue *queue, const ek_cuda_list *list)
{
    return ek_launch(queue, dim3(list->first[list->count]), dim3(EK_BLOCK), add_n<T>, *list);
}

int ek_cuda_launch_add_n(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list)
{
    EK_ANY_DTYPE(dtype, T, return launch<T>(queue, list))
    return (int)cudaErrorInvalidValue;
}
