/* copy_convert.cu: copies that change the dtype. */
#include "cuda/copy.h"
#include "cuda/elementwise.cuh"

/* What is loaded is of the type that the input's dtype is computed in, and what is stored is of the
 * output's. */
struct convert {
    template <int V, typename To, typename From>
    __device__ void operator()(To (&r)[V], const From (&x)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = ek_convert<To>(x[j]);
    }
};

template <typename To, typename From>
static int launch_vectors(const ek_cuda_queue *queue, const ek_cuda_walk *walk)
{
    if (walk->ndim > 1)
        return ek_launch_rows<1, To, From, From>(queue, walk, convert());
    return ek_launch_flat<1, To, From, From>(queue, walk, convert());
}

/* The conversions that training makes, in vectors. */
#define TRY_PAIR(to_dtype, To, from_dtype, From)                      \
    if (walk->dtype[0] == to_dtype && walk->dtype[1] == from_dtype && \
        ek_elementwise_vectors<1, To, From, From>::fit(walk))         \
    return launch_vectors<To, From>(queue, walk)

int ek_cuda_launch_convert(const ek_cuda_queue *queue, const ek_cuda_walk *walk)
{
    TRY_PAIR(EK_BF16, ek_bf16, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_BF16, ek_bf16);
    TRY_PAIR(EK_F64, double, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_F64, double);
    TRY_PAIR(EK_F32, float, EK_U8, uint8_t);
    TRY_PAIR(EK_F32, float, EK_I64, int64_t);
    TRY_PAIR(EK_I64, int64_t, EK_U8, uint8_t);
    EK_BY_CLASS(walk->dtype[1], C, return ek_launch_strided<1, C, C, C>(queue, walk, convert()))
}
