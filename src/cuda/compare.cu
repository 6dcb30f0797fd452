/* compare.cu: comparisons, choices by their results, and conversions between dtypes. */
#include "cuda/elementwise.cuh"

/* ---- comparisons, whose results are bytes, and choices by such bytes ---- */

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

int ek_cuda_launch_compare(const ek_cuda_stream *stream, ek_compare op, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[1];
    if (walk->dtype[0] == EK_BOOL && dtype == walk->dtype[2]) {
        EK_FAST_DTYPE(
            dtype, T,
            if (vectors_of<2, uint8_t, T, T>::fit(walk)) return launch_vectors<2, uint8_t, T, T>(
                stream, walk, compare_any<typename ek_compute<T>::type>{(int)op}))
    }
    EK_BY_CLASS(dtype, C,
                return launch_strided<2, int64_t, C, C>(stream, walk, compare_any<C>{(int)op}))
}

template <typename C> struct where_any {
    template <int V>
    __device__ void operator()(C (&r)[V], const int64_t (&condition)[V], const C (&x)[V],
                               const C (&y)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = condition[j] ? x[j] : y[j];
    }
};

int ek_cuda_launch_where(const ek_cuda_stream *stream, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[0];
    bool bytes = walk->dtype[1] == EK_BOOL || walk->dtype[1] == EK_U8;
    if (bytes && dtype == walk->dtype[2] && dtype == walk->dtype[3]) {
        EK_FAST_DTYPE(
            dtype, T,
            if (vectors_of<3, T, uint8_t, T>::fit(walk)) return launch_vectors<3, T, uint8_t, T>(
                stream, walk, where_any<typename ek_compute<T>::type>{}))
    }
    EK_BY_CLASS(dtype, C, return launch_strided<3, C, int64_t, C>(stream, walk, where_any<C>{}))
}

/* ---- conversions ---- */

/* Converts elements. x has the computing type of the input's dtype, r that of the output's. */
struct convert {
    template <int V, typename To, typename From>
    __device__ void operator()(To (&r)[V], const From (&x)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = ek_convert<To>(x[j]);
    }
};

/* Launches a conversion by vectors, if dtypes and walk fit. The pairs below occur in training. */
#define TRY_PAIR(to_dtype, To, from_dtype, From)                      \
    if (walk->dtype[0] == to_dtype && walk->dtype[1] == from_dtype && \
        vectors_of<1, To, From, From>::fit(walk))                     \
    return launch_vectors<1, To, From, From>(stream, walk, convert())

int ek_cuda_launch_convert(const ek_cuda_stream *stream, const ek_cuda_walk *walk)
{
    TRY_PAIR(EK_BF16, ek_bf16, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_BF16, ek_bf16);
    TRY_PAIR(EK_F16, ek_f16, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_F16, ek_f16);
    TRY_PAIR(EK_F64, double, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_F64, double);
    TRY_PAIR(EK_F32, float, EK_U8, uint8_t);
    TRY_PAIR(EK_F32, float, EK_BOOL, ek_bool);
    TRY_PAIR(EK_F32, float, EK_I64, int64_t);
    TRY_PAIR(EK_I64, int64_t, EK_U8, uint8_t);
    TRY_PAIR(EK_I64, int64_t, EK_I32, int32_t);
    EK_BY_CLASS(walk->dtype[1], C, return launch_strided<1, C, C, C>(stream, walk, convert()))
}
