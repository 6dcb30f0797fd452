/* isa.c: the processor's instructions, as far as the user allows them. */
#include "host/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/error.h"

static const char *const isa_names[] = {"plain", "avx2", "avx512"};
enum { ISAS = sizeof isa_names / sizeof *isa_names };

static ek_isa isa_of_processor(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return EK_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return EK_ISA_AVX2;
#endif
    return EK_ISA_PLAIN;
}

static int isa_find(const char *text)
{
    for (int i = 0; i < ISAS; i++)
        if (strcmp(isa_names[i], text) == 0)
            return i;
    return -1;
}

/* Returns the best instructions that the processor has and EVENKEEL_HOST_ISA allows. */
static ek_isa isa_of_environment(void)
{
    const char *most = getenv("EVENKEEL_HOST_ISA");
    int limit = most ? isa_find(most) : -1;
    ek_isa best = isa_of_processor();
    return limit >= 0 && (ek_isa)limit < best ? (ek_isa)limit : best;
}

/* An ek_isa, or -1 if the environment has not been read. */
static atomic_int isa_known = -1;

ek_isa ek_host_isa(void)
{
    int known = atomic_load_explicit(&isa_known, memory_order_relaxed);
    if (known < 0) {
        known = isa_of_environment();
        atomic_store_explicit(&isa_known, known, memory_order_relaxed);
    }
    return (ek_isa)known;
}

bool ek_host_has_bf16(void)
{
#if defined(__x86_64__)
    return ek_host_isa() == EK_ISA_AVX512 && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

bool ek_host_bf16_is_fast(void)
{
#if defined(__x86_64__)
    return ek_host_has_bf16() && (__builtin_cpu_is("amd") || __builtin_cpu_is("cooperlake"));
#else
    return false;
#endif
}

bool ek_host_without(const char *algorithm)
{
    return ek_environment_lists("EVENKEEL_HOST_WITHOUT", algorithm);
}

int ek_host_read_settings(void)
{
    static const char *const algorithms[] = {"winograd"};
    const char *most = getenv("EVENKEEL_HOST_ISA");
    if (most && *most && isa_find(most) < 0)
        return EK_FAIL(EK_E_INVALID, "EVENKEEL_HOST_ISA is \"%s\", not plain, avx2 or avx512",
                       most);
    atomic_store_explicit(&isa_known, isa_of_environment(), memory_order_relaxed);
    return ek_environment_check_list("EVENKEEL_HOST_WITHOUT", algorithms, 1);
}
