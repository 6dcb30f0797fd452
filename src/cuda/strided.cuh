/* strided.cuh: where the elements of a walk lie, and short vectors of them. Only .cu files include
 * it. */
#ifndef EK_CUDA_STRIDED_CUH
#define EK_CUDA_STRIDED_CUH

#include "cuda/launch.cuh"
#include "cuda/places.h"

/* ---- vectors: loaded and stored at once if they are aligned to their size ---- */

template <typename T, int Count> struct alignas(sizeof(T) * Count) ek_vector {
    T element[Count];
};

/* A vector's elements as they are computed in. */
template <typename T, int Count>
static __device__ __forceinline__ void
ek_load_elements(typename ek_compute<T>::type (&values)[Count], const T *from)
{
    ek_vector<T, Count> vector = *(const ek_vector<T, Count> *)from;
#pragma unroll
    for (int j = 0; j < Count; j++)
        values[j] = ek_load(&vector.element[j]);
}

template <typename T, int Count>
static __device__ __forceinline__ void
ek_store_elements(T *to, const typename ek_compute<T>::type (&values)[Count])
{
    ek_vector<T, Count> vector;
#pragma unroll
    for (int j = 0; j < Count; j++)
        ek_store(&vector.element[j], values[j]);
    *(ek_vector<T, Count> *)to = vector;
}

static inline bool ek_is_aligned(const void *pointer, size_t nbytes)
{
    return (uintptr_t)pointer % nbytes == 0;
}

/* ---- offsets of `Operands` tensors at a position of their walk ---- */

/* With 32 bits, where positions and offsets are below 2^31. */
template <int Operands> struct ek_strided32 {
    typedef int32_t offset;
    int ndim;
    ek_cuda_divisor shape[EK_MAX_DIMS];
    int32_t stride[Operands][EK_MAX_DIMS];

    __device__ __forceinline__ void find(int64_t position, int32_t (&offsets)[Operands]) const
    {
        uint32_t rest = (uint32_t)position;
        for (int k = 0; k < Operands; k++)
            offsets[k] = 0;
        for (int d = ndim - 1; d > 0; d--) {
            uint32_t quotient = ek_cuda_divide(shape[d], rest);
            int32_t index = (int32_t)(rest - quotient * shape[d].by);
            for (int k = 0; k < Operands; k++)
                offsets[k] += index * stride[k][d];
            rest = quotient;
        }
        for (int k = 0; k < Operands; k++)
            offsets[k] += (int32_t)rest * stride[k][0];
    }
};

template <int Operands> struct ek_strided64 {
    typedef int64_t offset;
    int ndim;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[Operands][EK_MAX_DIMS];

    __device__ __forceinline__ void find(int64_t position, int64_t (&offsets)[Operands]) const
    {
        for (int k = 0; k < Operands; k++)
            offsets[k] = 0;
        for (int d = ndim - 1; d > 0; d--) {
            int64_t quotient = position / shape[d], index = position - quotient * shape[d];
            for (int k = 0; k < Operands; k++)
                offsets[k] += index * stride[k][d];
            position = quotient;
        }
        for (int k = 0; k < Operands; k++)
            offsets[k] += position * stride[k][0];
    }
};

/* Positions and offsets of all operands are below 2^31. */
static inline bool ek_fits_32(const ek_cuda_walk *walk)
{
    const int64_t limit = (int64_t)1 << 31;
    if (walk->count >= limit)
        return false;
    for (int k = 0; k < walk->operands; k++) {
        int64_t last = 0;
        for (int d = 0; d < walk->ndim; d++) {
            if (walk->stride[k][d] >= limit)
                return false;
            last += (walk->shape[d] - 1) * walk->stride[k][d];
        }
        if (last >= limit)
            return false;
    }
    return true;
}

/* Of a walk with at least one element. */
template <int Operands> static ek_strided32<Operands> ek_strided32_of(const ek_cuda_walk *walk)
{
    ek_strided32<Operands> result = {};
    result.ndim = walk->ndim;
    for (int d = 0; d < walk->ndim; d++) {
        result.shape[d] = ek_cuda_divisor_of((uint32_t)walk->shape[d]);
        for (int k = 0; k < Operands; k++)
            result.stride[k][d] = (int32_t)walk->stride[k][d];
    }
    return result;
}

template <int Operands> static ek_strided64<Operands> ek_strided64_of(const ek_cuda_walk *walk)
{
    ek_strided64<Operands> result = {};
    result.ndim = walk->ndim;
    for (int d = 0; d < walk->ndim; d++) {
        result.shape[d] = walk->shape[d];
        for (int k = 0; k < Operands; k++)
            result.stride[k][d] = walk->stride[k][d];
    }
    return result;
}

/* ---- walks in steps of several elements ---- */

/* Operand k is one element. */
static inline bool ek_is_constant(const ek_cuda_walk *walk, int k)
{
    for (int d = 0; d < walk->ndim; d++)
        if (walk->stride[k][d] != 0 && walk->shape[d] != 1)
            return false;
    return true;
}

/* Along the innermost dimension operand k stays in place. */
static inline bool ek_stays(const ek_cuda_walk *walk, int k)
{
    return walk->stride[k][walk->ndim - 1] == 0;
}

/* Every operand either stays in place along the innermost dimension (not the first, which is
 * written), or has there runs of stride 1 whose starts, `sizes[k]` bytes an element, are aligned to
 * vectors of `count`. */
static inline bool ek_has_vectors(const ek_cuda_walk *walk, const size_t *sizes, int count)
{
    int inner = walk->ndim - 1;
    if (walk->ndim > 1 && walk->shape[inner] % count != 0)
        return false;
    for (int k = 0; k < walk->operands; k++) {
        if (k > 0 && ek_stays(walk, k))
            continue;
        if (walk->stride[k][inner] != 1 || !ek_is_aligned(walk->data[k], sizes[k] * (size_t)count))
            return false;
        for (int d = 0; d < inner; d++)
            if (walk->stride[k][d] % count != 0)
                return false;
    }
    return true;
}

/* The same walk by vectors of `count`: the innermost dimension has fewer steps, which are longer.
 */
static inline ek_cuda_walk ek_by_vectors(const ek_cuda_walk *walk, int count)
{
    ek_cuda_walk result = *walk;
    int inner = walk->ndim - 1;
    result.count /= count;
    result.shape[inner] /= count;
    for (int k = 0; k < walk->operands; k++)
        result.stride[k][inner] *= count;
    return result;
}

/* ---- memory whose meaning does not matter, in units of 1 to 16 bytes ---- */

typedef ek_vector<uint64_t, 2> ek_unit16;

/* The statement with T an unsigned type of `size` bytes. */
#define EK_BY_SIZE(size, T, ...) \
    switch (size) {              \
    case 1: {                    \
        typedef uint8_t T;       \
        __VA_ARGS__;             \
    } break;                     \
    case 2: {                    \
        typedef uint16_t T;      \
        __VA_ARGS__;             \
    } break;                     \
    case 4: {                    \
        typedef uint32_t T;      \
        __VA_ARGS__;             \
    } break;                     \
    case 8: {                    \
        typedef uint64_t T;      \
        __VA_ARGS__;             \
    } break;                     \
    case 16: {                   \
        typedef ek_unit16 T;     \
        __VA_ARGS__;             \
    } break;                     \
    default:                     \
        break;                   \
    }

/* Pairs of neighbours become one unit, again and again up to 16 bytes, if all operands allow it.
 * Returns the unit's size. */
static inline size_t ek_widen(ek_cuda_walk *walk, size_t size)
{
    int inner = walk->ndim - 1;
    const size_t largest = 16;
    while (size < largest && walk->shape[inner] % 2 == 0) {
        for (int k = 0; k < walk->operands; k++) {
            if (walk->stride[k][inner] != 1 || !ek_is_aligned(walk->data[k], 2 * size))
                return size;
            for (int d = 0; d < inner; d++)
                if (walk->stride[k][d] % 2 != 0)
                    return size;
        }
        for (int k = 0; k < walk->operands; k++)
            for (int d = 0; d < inner; d++)
                walk->stride[k][d] /= 2;
        walk->shape[inner] /= 2;
        walk->count /= 2;
        size *= 2;
    }
    return size;
}

#endif
