/* precision.c: the process's choices of precision and determinism. */
#include "evenkeel/precision.h"

#include <stdatomic.h>

#include "core/python_random.h"
#include "evenkeel/random.h"

static atomic_bool tf32, tf32_convolution = true, fast_convolution, benchmark, deterministic;

void ek_allow_tf32(bool allow)
{
    atomic_store_explicit(&tf32, allow, memory_order_relaxed);
}

bool ek_tf32_allowed(void)
{
    return atomic_load_explicit(&tf32, memory_order_relaxed);
}

void ek_allow_tf32_convolution(bool allow)
{
    atomic_store_explicit(&tf32_convolution, allow, memory_order_relaxed);
}

bool ek_tf32_convolution_allowed(void)
{
    return atomic_load_explicit(&tf32_convolution, memory_order_relaxed);
}

void ek_allow_fast_convolution(bool allow)
{
    atomic_store_explicit(&fast_convolution, allow, memory_order_relaxed);
}

bool ek_fast_convolution_allowed(void)
{
    return atomic_load_explicit(&fast_convolution, memory_order_relaxed);
}

void ek_benchmark_convolution(bool on)
{
    atomic_store_explicit(&benchmark, on, memory_order_relaxed);
}

bool ek_convolution_benchmarked(void)
{
    return atomic_load_explicit(&benchmark, memory_order_relaxed);
}

void ek_use_deterministic_algorithms(bool on)
{
    atomic_store_explicit(&deterministic, on, memory_order_relaxed);
}

bool ek_deterministic(void)
{
    return atomic_load_explicit(&deterministic, memory_order_relaxed);
}

void ek_set_seed(int64_t seed)
{
    if (seed == EK_NO_SEED)
        return;
    ek_manual_seed((uint64_t)seed);
    ek_python_seed(NULL, seed);
    ek_numpy_seed(NULL, (uint32_t)seed);
    ek_use_deterministic_algorithms(true);
}
