// emulator_device.h: what device code is written with: qualifiers, where a thread is, barriers,
// exchanges within a warp, atomics, and CUDA's own arithmetic.
#ifndef EK_EMULATOR_DEVICE_H
#define EK_EMULATOR_DEVICE_H

#include "vector_types.h"

#ifndef __CUDACC__
#define __CUDACC__ 1
#endif

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// Blocks run one after the other, whichever host thread runs them.
#define __shared__ static

// Constant while a thread of a kernel runs, which is all that device code sees of them.
#ifndef EK_EMULATOR_PLACE
#define EK_EMULATOR_PLACE const
#endif
extern "C" {
extern EK_EMULATOR_PLACE uint3 threadIdx, blockIdx;
extern EK_EMULATOR_PLACE dim3 blockDim, gridDim;
}
enum { warpSize = 32 };

// ---- barriers and exchanges ----

// The place in the source of a call, for messages.
struct ek_emulator_site {
    const char *file, *function;
    int line;
};
#define EK_EMULATOR_SITE                                                              \
    const char *file = __builtin_FILE(), const char *function = __builtin_FUNCTION(), \
               int line = __builtin_LINE()

enum ek_emulator_barrier_kind {
    EK_EMULATOR_ALL,
    EK_EMULATOR_COUNT,
    EK_EMULATOR_AND,
    EK_EMULATOR_OR
};
int ek_emulator_barrier(ek_emulator_barrier_kind kind, int predicate, ek_emulator_site site);

enum ek_emulator_warp_kind { EK_EMULATOR_SHUFFLE, EK_EMULATOR_BALLOT, EK_EMULATOR_SYNCWARP };
// The bits that lane `source` gave; or for a ballot, which lanes gave bits other than 0.
uint64_t ek_emulator_warp(ek_emulator_warp_kind kind, unsigned mask, uint64_t bits, int source,
                          ek_emulator_site site);
int ek_emulator_lane(void);

static inline void __syncthreads(EK_EMULATOR_SITE)
{
    ek_emulator_barrier(EK_EMULATOR_ALL, 0, {file, function, line});
}
static inline int __syncthreads_count(int predicate, EK_EMULATOR_SITE)
{
    return ek_emulator_barrier(EK_EMULATOR_COUNT, predicate, {file, function, line});
}
static inline int __syncthreads_and(int predicate, EK_EMULATOR_SITE)
{
    return ek_emulator_barrier(EK_EMULATOR_AND, predicate, {file, function, line});
}
static inline int __syncthreads_or(int predicate, EK_EMULATOR_SITE)
{
    return ek_emulator_barrier(EK_EMULATOR_OR, predicate, {file, function, line});
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EK_EMULATOR_SITE)
{
    ek_emulator_warp(EK_EMULATOR_SYNCWARP, mask, 0, 0, {file, function, line});
}

template <typename T>
static inline T ek_emulator_exchange(unsigned mask, T value, int source, ek_emulator_site site)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles move at most eight bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = ek_emulator_warp(EK_EMULATOR_SHUFFLE, mask, bits, source, site);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EK_EMULATOR_SITE)
{
    int self = ek_emulator_lane();
    int source = (self & ~(width - 1)) | (lane & (width - 1));
    return ek_emulator_exchange(mask, value, source, {file, function, line});
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, EK_EMULATOR_SITE)
{
    int self = ek_emulator_lane(), source = self ^ with;
    // Lanes of an earlier group can be read, those of a later one can't.
    source = source < (self | (width - 1)) + 1 ? source : self;
    return ek_emulator_exchange(mask, value, source, {file, function, line});
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                 EK_EMULATOR_SITE)
{
    int self = ek_emulator_lane(), source = self + (int)by;
    source = source <= (self | (width - 1)) ? source : self;
    return ek_emulator_exchange(mask, value, source, {file, function, line});
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                               EK_EMULATOR_SITE)
{
    int self = ek_emulator_lane(), source = self - (int)by;
    source = source >= (self & ~(width - 1)) ? source : self;
    return ek_emulator_exchange(mask, value, source, {file, function, line});
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EK_EMULATOR_SITE)
{
    return (unsigned)ek_emulator_warp(EK_EMULATOR_BALLOT, mask, predicate != 0, 0,
                                      {file, function, line});
}
static inline int __any_sync(unsigned mask, int predicate, EK_EMULATOR_SITE)
{
    return __ballot_sync(mask, predicate, file, function, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EK_EMULATOR_SITE)
{
    return __ballot_sync(mask, predicate, file, function, line) == mask;
}

static inline void __threadfence_system()
{
    __asm__ volatile("" ::: "memory");
}

// ---- atomics ----

// One thread of device code runs at a time, so that loads and stores are enough for what only
// device code writes; they are atomic for the host that reads.
template <typename T, typename F> static inline T ek_emulator_update(T *p, F next)
{
    T old, fresh;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    fresh = next(old);
    __atomic_store(p, &fresh, __ATOMIC_RELEASE);
    return old;
}
#define EK_EMULATOR_ATOMIC(name, type, expression)                                  \
    static inline type name(type *p, type value)                                    \
    {                                                                               \
        return ek_emulator_update(p, [=](type old) -> type { return expression; }); \
    }
#define EK_EMULATOR_ATOMIC_INTEGERS(name, expression)  \
    EK_EMULATOR_ATOMIC(name, int, expression)          \
    EK_EMULATOR_ATOMIC(name, unsigned int, expression) \
    EK_EMULATOR_ATOMIC(name, unsigned long long int, expression)
EK_EMULATOR_ATOMIC(atomicAdd, float, old + value)
EK_EMULATOR_ATOMIC(atomicAdd, double, old + value)
EK_EMULATOR_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)value))
EK_EMULATOR_ATOMIC(atomicAdd, unsigned int, old + value)
EK_EMULATOR_ATOMIC(atomicAdd, unsigned long long int, old + value)
EK_EMULATOR_ATOMIC_INTEGERS(atomicMax, old > value ? old : value)
EK_EMULATOR_ATOMIC_INTEGERS(atomicMin, old < value ? old : value)
EK_EMULATOR_ATOMIC(atomicMax, long long int, old > value ? old : value)
EK_EMULATOR_ATOMIC(atomicMin, long long int, old < value ? old : value)
EK_EMULATOR_ATOMIC(atomicInc, unsigned int, old >= value ? 0u : old + 1)

#define EK_EMULATOR_ATOMIC_SWAP(type)                                             \
    static inline type atomicCAS(type *p, type expected, type value)              \
    {                                                                             \
        __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, \
                                    __ATOMIC_SEQ_CST);                            \
        return expected;                                                          \
    }
EK_EMULATOR_ATOMIC_SWAP(int)
EK_EMULATOR_ATOMIC_SWAP(unsigned int)
EK_EMULATOR_ATOMIC_SWAP(unsigned long long int)
EK_EMULATOR_ATOMIC_SWAP(unsigned short int)

// ---- loads ----

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

#include "emulator_math.h"

#endif
