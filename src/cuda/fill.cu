/* fill.cu: every element one value. */
#include "cuda/fill.h"
#include "cuda/launch.cuh"

template <typename T> static __global__ void fill_flat(T *out, int64_t count, double value)
{
    T element;
    ek_store(&element, static_cast<typename ek_compute<T>::type>(value));
    EK_GRID_LOOP(i, count)
    {
        out[i] = element;
    }
}

template <typename T>
static int fill(const ek_cuda_queue *queue, const ek_cuda_walk *walk, double value)
{
    return ek_launch(queue, dim3(ek_grid(queue, walk->count)), dim3(EK_BLOCK), fill_flat<T>,
                     (T *)walk->data[0], walk->count, value);
}

int ek_cuda_launch_fill(const ek_cuda_queue *queue, const ek_cuda_walk *walk, double value)
{
    EK_ANY_DTYPE(walk->dtype[0], T, return fill<T>(queue, walk, value))
    return (int)cudaErrorInvalidValue;
}
