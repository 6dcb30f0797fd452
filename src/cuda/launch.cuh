/* launch.cuh: what kernels share: launching, element types, loops, sums over a block. C++17 without
 * its library; only .cu files include it.
 *
 * Launches go through cudaLaunchKernelEx, never <<< >>>, and shared memory is static, so that the
 * files are plain C++ but for the qualifiers. */
#ifndef EK_CUDA_LAUNCH_CUH
#define EK_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/queue.h"
#include "cuda/view.h"
#include "kernels/formulas.h"

enum { EK_WARP = 32, EK_BLOCK = 256 };

/* ---- launching ---- */

/* Arguments are converted to the kernel's parameter types. A grid of no blocks is no launch. */
template <typename... Expected, typename... Actual>
static int ek_launch(const ek_cuda_queue *queue, dim3 grid, dim3 block,
                     void (*kernel)(Expected...), Actual... actual)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = queue->stream;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return 0;
    return (int)cudaLaunchKernelEx(&config, kernel, static_cast<Expected>(actual)...);
}

/* Blocks for a loop over `count` that each thread strides through: enough to fill the device. */
static inline unsigned ek_grid(const ek_cuda_queue *queue, int64_t count, int per_block = EK_BLOCK)
{
    int64_t wanted = (count + per_block - 1) / per_block;
    int64_t most = (int64_t)queue->multiprocessors * 16;
    return (unsigned)(wanted < most ? wanted : most);
}

#define EK_GRID_LOOP(i, count)                                                  \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- element types ---- */

struct ek_bf16 {
    uint16_t bits;
};

/* `type` is what a stored T is computed in. */
template <typename T> struct ek_compute {
    typedef T type;
};
template <> struct ek_compute<ek_bf16> {
    typedef float type;
};
template <> struct ek_compute<uint8_t> {
    typedef int64_t type;
};

template <typename T> static __device__ __forceinline__ T ek_load(const T *p)
{
    return *p;
}
static __device__ __forceinline__ float ek_load(const ek_bf16 *p)
{
    return ek_float_of_bf16(p->bits);
}
static __device__ __forceinline__ int64_t ek_load(const uint8_t *p)
{
    return *p;
}

template <typename T> static __device__ __forceinline__ void ek_store(T *p, T value)
{
    *p = value;
}
static __device__ __forceinline__ void ek_store(ek_bf16 *p, float value)
{
    p->bits = ek_bf16_of(value);
}
static __device__ __forceinline__ void ek_store(uint8_t *p, int64_t value)
{
    *p = (uint8_t)value;
}

/* EK_FLOATING(dtype, T, return f<T>(...)): the statement with T the stored type. */
#define EK_FLOATING(dtype, T, ...)  \
    switch (dtype) {                \
    case EK_F32: {                  \
        typedef float T;            \
        __VA_ARGS__;                \
    } break;                        \
    case EK_F64: {                  \
        typedef double T;           \
        __VA_ARGS__;                \
    } break;                        \
    case EK_BF16: {                 \
        typedef ek_bf16 T;          \
        __VA_ARGS__;                \
    } break;                        \
    default:                        \
        break;                      \
    }

/* The same for every dtype. */
#define EK_ANY_DTYPE(dtype, T, ...) \
    switch (dtype) {                \
    case EK_I64: {                  \
        typedef int64_t T;          \
        __VA_ARGS__;                \
    } break;                        \
    case EK_U8: {                   \
        typedef uint8_t T;          \
        __VA_ARGS__;                \
    } break;                        \
    default:                        \
        EK_FLOATING(dtype, T, __VA_ARGS__) \
        break;                      \
    }

/* ---- sums over a warp and a block: a fixed order, whatever the schedule ---- */

template <typename T> static __device__ __forceinline__ T ek_warp_sum(T value)
{
    for (int step = EK_WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/* All threads of a one-dimensional block of at most 1024 (a multiple of 32) call it; all get the
 * sum. */
template <typename T> static __device__ T ek_block_sum(T value)
{
    __shared__ T parts[EK_WARP];
    int lane = (int)threadIdx.x % EK_WARP, warp = (int)threadIdx.x / EK_WARP;
    int warps = (int)blockDim.x / EK_WARP;
    value = ek_warp_sum(value);
    __syncthreads(); /* `parts` may still be read from the call before */
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
    value = lane < warps ? parts[lane] : T(0);
    return ek_warp_sum(value);
}

#endif
