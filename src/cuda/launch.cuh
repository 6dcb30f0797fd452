/* launch.cuh: common code of kernels: launching, dtypes and conversions, vectors, sums of
 * terms and over a warp. The code is C++17 without the standard library. Only .cu files include
 * this header.
 *
 * Launches use cudaLaunchKernelEx, never <<< >>>, and shared memory is static, so that the files
 * are plain C++ but for the qualifiers. */
#ifndef EK_CUDA_LAUNCH_CUH
#define EK_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "core/dtypes.h"
#include "cuda/view.h"

enum { EK_WARP = 32, EK_BLOCK = 256 /* threads of every block */ };

#define EK_DEVICE static __device__ __forceinline__
#define EK_KERNEL static __global__ void __launch_bounds__(EK_BLOCK)

/* A loop that the compiler unrolls, because `count` is a constant. */
#define EK_EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)

/* ---- launching ---- */

/* Launches a kernel, with the arguments converted to its parameter types. Does nothing if the grid
 * has no blocks. */
template <typename... Expected, typename... Actual>
static int ek_launch(const ek_cuda_stream *stream, dim3 grid, void (*kernel)(Expected...),
                     Actual... actual)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(EK_BLOCK);
    config.stream = stream->handle;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return 0;
    return (int)cudaLaunchKernelEx(&config, kernel, static_cast<Expected>(actual)...);
}

/* Returns the number of blocks for a loop in which all threads stride through `count` elements: no
 * more blocks than fill the device. */
static inline unsigned ek_grid(const ek_cuda_stream *stream, int64_t count,
                               int per_block = EK_BLOCK)
{
    int64_t wanted = (count + per_block - 1) / per_block;
    int64_t most = (int64_t)stream->multiprocessors * 16;
    return (unsigned)(wanted < most ? wanted : most);
}

#define EK_GRID_LOOP(i, count)                                                    \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- faults ---- */

EK_DEVICE void ek_fault_raise(ek_cuda_fault *fault, int kind, int64_t value, int64_t bound,
                              const char *operation)
{
    /* The record is in the host's memory, where atomic exchanges are slow and serialised. Because
     * of this test only the first of many bad indices reach the exchange. */
    if (*(volatile int *)&fault->kind != EK_CUDA_FAULT_NONE)
        return;
    if (atomicCAS(&fault->kind, EK_CUDA_FAULT_NONE, EK_CUDA_FAULT_FILLING) != EK_CUDA_FAULT_NONE)
        return;
    fault->value = value;
    fault->bound = bound;
    fault->operation = operation;
    __threadfence_system();
    *(volatile int *)&fault->kind = kind;
}

/* ---- element types ---- */

struct ek_bf16 {
    uint16_t bits;
};
struct ek_f16 {
    uint16_t bits;
};
struct ek_bool {
    uint8_t byte;
};

/* `type` is the type in which elements stored as T are computed. */
template <typename T> struct ek_compute {
    typedef T type;
};
template <> struct ek_compute<ek_bf16> {
    typedef float type;
};
template <> struct ek_compute<ek_f16> {
    typedef float type;
};
template <> struct ek_compute<uint8_t> {
    typedef int64_t type;
};
template <> struct ek_compute<int32_t> {
    typedef int64_t type;
};
template <> struct ek_compute<ek_bool> {
    typedef int64_t type;
};

template <typename T> EK_DEVICE T ek_load(const T *p)
{
    return *p;
}
EK_DEVICE float ek_load(const ek_bf16 *p)
{
    return ek_float_of_bf16(p->bits);
}
EK_DEVICE float ek_load(const ek_f16 *p)
{
    return ek_float_of_f16(p->bits);
}
EK_DEVICE int64_t ek_load(const uint8_t *p)
{
    return *p;
}
EK_DEVICE int64_t ek_load(const int32_t *p)
{
    return *p;
}
EK_DEVICE int64_t ek_load(const ek_bool *p)
{
    return p->byte != 0;
}

template <typename T> EK_DEVICE void ek_store(T *p, T value)
{
    *p = value;
}
EK_DEVICE void ek_store(ek_bf16 *p, float value)
{
    p->bits = ek_bf16_of(value);
}
EK_DEVICE void ek_store(ek_f16 *p, float value)
{
    p->bits = ek_f16_of(value);
}
EK_DEVICE void ek_store(uint8_t *p, int64_t value)
{
    *p = (uint8_t)value;
}
EK_DEVICE void ek_store(int32_t *p, int64_t value)
{
    *p = (int32_t)value;
}
EK_DEVICE void ek_store(ek_bool *p, int64_t value)
{
    p->byte = value != 0;
}

/* Return a sum and a product. Integers wrap. */
template <typename T> EK_DEVICE T ek_plus(T a, T b)
{
    return a + b;
}
EK_DEVICE int64_t ek_plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
template <typename T> EK_DEVICE T ek_times(T a, T b)
{
    return a * b;
}
EK_DEVICE int64_t ek_times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* ---- dispatch: runs a statement with the type of a dtype or size ---- */

#define EK_CASE(label, type, T, ...) \
    case label: {                    \
        typedef type T;              \
        __VA_ARGS__;                 \
    } break;

#define EK_FLOATING_CASES(T, ...)             \
    EK_CASE(EK_F32, float, T, __VA_ARGS__)    \
    EK_CASE(EK_F64, double, T, __VA_ARGS__)   \
    EK_CASE(EK_BF16, ek_bf16, T, __VA_ARGS__) \
    EK_CASE(EK_F16, ek_f16, T, __VA_ARGS__)

/* EK_FLOATING(dtype, T, return f<T>(...)) runs the statement with T as the dtype's stored type.
 * Dtypes that aren't floating are errors. */
#define EK_FLOATING(dtype, T, ...)         \
    switch (dtype) {                       \
        EK_FLOATING_CASES(T, __VA_ARGS__)  \
    default:                               \
        return (int)cudaErrorInvalidValue; \
    }

/* EK_FLOATING for every dtype. */
#define EK_ANY_DTYPE(dtype, T, ...)               \
    switch (dtype) {                              \
        EK_FLOATING_CASES(T, __VA_ARGS__)         \
        EK_CASE(EK_I64, int64_t, T, __VA_ARGS__)  \
        EK_CASE(EK_U8, uint8_t, T, __VA_ARGS__)   \
        EK_CASE(EK_I32, int32_t, T, __VA_ARGS__)  \
        EK_CASE(EK_BOOL, ek_bool, T, __VA_ARGS__) \
    default:                                      \
        return (int)cudaErrorInvalidValue;        \
    }

/* EK_FLOATING for i64 and u8, too. For other dtypes execution continues after the macro, where the
 * caller has a slower kernel. */
#define EK_FAST_DTYPE(dtype, T, ...)             \
    switch (dtype) {                             \
        EK_FLOATING_CASES(T, __VA_ARGS__)        \
        EK_CASE(EK_I64, int64_t, T, __VA_ARGS__) \
        EK_CASE(EK_U8, uint8_t, T, __VA_ARGS__)  \
    default:                                     \
        break;                                   \
    }

/* Runs the statement with C as the dtype's computing type: float for bf16 and f16, int64_t for
 * integers and bool. */
#define EK_BY_CLASS(dtype, C, ...)              \
    switch (dtype) {                            \
    case EK_F32:                                \
    case EK_F16:                                \
        EK_CASE(EK_BF16, float, C, __VA_ARGS__) \
        EK_CASE(EK_F64, double, C, __VA_ARGS__) \
    case EK_I64:                                \
    case EK_I32:                                \
    case EK_BOOL:                               \
        EK_CASE(EK_U8, int64_t, C, __VA_ARGS__) \
    default:                                    \
        return (int)cudaErrorInvalidValue;      \
    }

/* ---- conversions between dtypes through their computing types, as on the host ---- */

/* Converts a value to `To`, which is float, double or int64_t. Floating to integer truncates. NaN
 * and values that don't fit become INT64_MIN. */
template <typename To, typename From> EK_DEVICE To ek_convert(From value)
{
    if constexpr (To(0.5) == To(0) && From(0.5) != From(0))
        return ek_i64_of((double)value);
    else
        return (To)value;
}

/* Loads an element whose dtype is known at run time only. */
template <typename C> EK_DEVICE C ek_load_as(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
#define LOAD_CASE(label, text, type, ...) \
    case EK_##label:                      \
        return ek_convert<C>(EK_LOAD_##label(((const type *)data)[i]));
        EK_DTYPE_ROWS(LOAD_CASE)
#undef LOAD_CASE
    }
    return C(0);
}

template <typename C> EK_DEVICE void ek_store_as(void *data, int dtype, int64_t i, C value)
{
    switch (dtype) {
#define STORE_CASE(label, text, type, ...)                      \
    case EK_##label:                                            \
        if constexpr (C(0.5) != C(0))                           \
            ((type *)data)[i] = EK_##label##_OF_REAL(value);    \
        else                                                    \
            ((type *)data)[i] = EK_##label##_OF_INTEGER(value); \
        break;
        EK_DTYPE_ROWS(STORE_CASE)
#undef STORE_CASE
    }
}

/* ---- vectors: loaded and stored at once if they are aligned to their size, or to 16 bytes ---- */

template <typename T, int Count>
struct alignas(sizeof(T) * Count > 16 ? 16 : sizeof(T) * Count) ek_vector {
    T element[Count];
};

/* Loads a vector, as the type that its elements are computed in. */
template <typename T, int Count, typename R>
EK_DEVICE void ek_load_elements(R (&values)[Count], const T *from)
{
    ek_vector<T, Count> vector = *(const ek_vector<T, Count> *)from;
    EK_EACH(j, Count)
        values[j] = ek_load(&vector.element[j]);
}

template <typename T, int Count, typename R>
EK_DEVICE void ek_store_elements(T *to, const R (&values)[Count])
{
    ek_vector<T, Count> vector;
    EK_EACH(j, Count)
        ek_store(&vector.element[j], values[j]);
    *(ek_vector<T, Count> *)to = vector;
}

static inline bool ek_is_aligned(const void *pointer, size_t nbytes)
{
    return (uintptr_t)pointer % nbytes == 0;
}

/* Runs the statement with T as an unsigned type of `size` bytes, 1 to 16. For memory that is moved
 * and not computed with. */
typedef ek_vector<uint64_t, 2> ek_unit16;
#define EK_BY_SIZE(size, T, ...)               \
    switch (size) {                            \
        EK_CASE(1, uint8_t, T, __VA_ARGS__)    \
        EK_CASE(2, uint16_t, T, __VA_ARGS__)   \
        EK_CASE(4, uint32_t, T, __VA_ARGS__)   \
        EK_CASE(8, uint64_t, T, __VA_ARGS__)   \
        EK_CASE(16, ek_unit16, T, __VA_ARGS__) \
    default:                                   \
        return (int)cudaErrorInvalidValue;     \
    }

/* ---- combinations of terms, in the order of Note [Order of a sum] (core/sum_order.h) ---- */

/* Combines V elements, each of `count` terms, with less than 2^Levels terms. terms.load(t, values)
 * loads the elements of term t, or returns false if term t is absent; terms.pair(x, y) combines two
 * elements. At least one term is present. */
template <int Levels, int V, typename R, typename Terms>
EK_DEVICE void ek_combine_terms(const Terms &terms, int count, R (&sum)[V])
{
    R level[Levels][V];   /* level l is the combination of 2^l terms */
    unsigned present = 0; /* bit l: level l has a term that is present */
#pragma unroll 4
    for (int t = 0; t < count; t++) {
        bool carries = terms.load(t, sum), moves = true;
        EK_EACH(l, Levels) {
            bool joins = present >> l & 1;
            if (moves && !(t >> l & 1)) {
                EK_EACH(j, V)
                    level[l][j] = sum[j];
                present |= (unsigned)carries << l;
                moves = false;
            } else if (moves) {
                if (joins)
                    EK_EACH(j, V)
                        sum[j] = carries ? terms.pair(level[l][j], sum[j]) : level[l][j];
                carries |= joins;
                present &= ~(1u << l);
            }
        }
    }
    bool carries = false;
    EK_EACH(l, Levels) {
        if (present >> l & 1)
            EK_EACH(j, V)
                sum[j] = carries ? terms.pair(level[l][j], sum[j]) : level[l][j];
        carries |= present >> l & 1;
    }
}

/* Returns the sum over a warp to all its threads, in a fixed order. */
template <typename T> EK_DEVICE T ek_warp_sum(T value)
{
    for (int step = EK_WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

#endif
