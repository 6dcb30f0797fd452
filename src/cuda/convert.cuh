/* convert.cuh: one dtype's values as another's: the host's conversions (src/host/tile.c), by way of
 * the types that dtypes are computed in. Only .cu files include it. */
#ifndef EK_CUDA_CONVERT_CUH
#define EK_CUDA_CONVERT_CUH

#include "cuda/launch.cuh"

/* To and the value's type: float, double or int64_t. Floating to integer truncates; NaN and what
 * does not fit become INT64_MIN. */
template <typename To> struct ek_conversion {
    template <typename From> static __device__ __forceinline__ To of(From value)
    {
        return (To)value;
    }
};
template <> struct ek_conversion<int64_t> {
    static __device__ __forceinline__ int64_t of(int64_t value)
    {
        return value;
    }
    static __device__ __forceinline__ int64_t of(double value)
    {
        return ek_i64_of(value);
    }
    static __device__ __forceinline__ int64_t of(float value)
    {
        return ek_i64_of((double)value);
    }
};

template <typename To, typename From> static __device__ __forceinline__ To ek_convert(From value)
{
    return ek_conversion<To>::of(value);
}

/* The statement with C the type that a dtype is computed in, bf16 in float, u8 in
 * int64_t: EK_BY_CLASS(dtype, C, return f<C>(...)). */
#define EK_BY_CLASS(dtype, C, ...) \
    switch (dtype) {               \
    case EK_F32:                   \
    case EK_BF16: {                \
        typedef float C;           \
        __VA_ARGS__;               \
    } break;                       \
    case EK_F64: {                 \
        typedef double C;          \
        __VA_ARGS__;               \
    } break;                       \
    default: {                     \
        typedef int64_t C;         \
        __VA_ARGS__;               \
    } break;                       \
    }

#endif
