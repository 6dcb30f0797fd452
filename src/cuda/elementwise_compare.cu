/* elementwise_compare.cu: comparisons, whose results are bytes, and choices by such bytes. */
#include "cuda/elementwise.cuh"
#include "cuda/elementwise.h"

/* ---- compare ---- */

template <typename C> struct compare_any {
    int op;

    template <int V>
    __device__ void operator()(int64_t (&r)[V], const C (&x)[V], const C (&y)[V]) const
    {
        switch (op) {
#define COMPARE_CASE(name, operator)   \
    case EK_COMPARE_##name:            \
        for (int j = 0; j < V; j++)    \
            r[j] = x[j] operator y[j]; \
        break;
            EK_COMPARISONS(COMPARE_CASE)
        default:
            break;
        }
    }
};

template <typename T>
static int compare_vectors(const ek_cuda_queue *queue, ek_compare op, const ek_cuda_walk *walk)
{
    compare_any<typename ek_compute<T>::type> f = {(int)op};
    if (walk->ndim > 1)
        return ek_launch_rows<2, uint8_t, T, T>(queue, walk, f);
    return ek_launch_flat<2, uint8_t, T, T>(queue, walk, f);
}

int ek_cuda_launch_compare(const ek_cuda_queue *queue, ek_compare op, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[1];
    if (walk->dtype[0] == EK_U8 && dtype == walk->dtype[2]) {
        EK_ANY_DTYPE(dtype, T,
                     if (ek_elementwise_vectors<2, uint8_t, T, T>::fit(
                             walk)) return compare_vectors<T>(queue, op, walk))
    }
    EK_BY_CLASS(dtype, C,
                return ek_launch_strided<2, int64_t, C, C>(queue, walk, compare_any<C>{(int)op}))
}

/* ---- where ---- */

template <typename C> struct where_any {
    template <int V>
    __device__ void operator()(C (&r)[V], const int64_t (&condition)[V], const C (&x)[V],
                               const C (&y)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = condition[j] ? x[j] : y[j];
    }
};

template <typename T> static int where_vectors(const ek_cuda_queue *queue, const ek_cuda_walk *walk)
{
    where_any<typename ek_compute<T>::type> f;
    if (walk->ndim > 1)
        return ek_launch_rows<3, T, uint8_t, T>(queue, walk, f);
    return ek_launch_flat<3, T, uint8_t, T>(queue, walk, f);
}

int ek_cuda_launch_where(const ek_cuda_queue *queue, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[0];
    if (walk->dtype[1] == EK_U8 && dtype == walk->dtype[2] && dtype == walk->dtype[3]) {
        EK_ANY_DTYPE(dtype, T,
                     if (ek_elementwise_vectors<3, T, uint8_t, T>::fit(
                             walk)) return where_vectors<T>(queue, walk))
    }
    EK_BY_CLASS(dtype, C, return ek_launch_strided<3, C, int64_t, C>(queue, walk, where_any<C>{}))
}
