/* isa.c: the processor's instructions, and what the user leaves out of them. */
#include "host/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static const char *const isa_names[] = {"plain", "avx2", "avx512"};
static const char *const algorithm_names[] = {"winograd"};
enum {
    ISAS = sizeof isa_names / sizeof *isa_names,
    ALGORITHMS = sizeof algorithm_names / sizeof *algorithm_names
};

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

static int isa_find(const char *const *names, int count, const char *text, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0)
            return i;
    return -1;
}

/* What EVENKEEL_HOST_ISA leaves of the processor's instructions. */
static ek_isa isa_of_environment(void)
{
    const char *most = getenv("EVENKEEL_HOST_ISA");
    int limit = most ? isa_find(isa_names, ISAS, most, strlen(most)) : -1;
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

/* The first word of *at, which becomes what follows it. False at the end. */
static bool isa_next_word(const char **at, const char **word, size_t *length)
{
    if (!*at || !**at)
        return false;
    *word = *at;
    *length = strcspn(*at, ",");
    *at += *length + ((*at)[*length] == ',');
    return true;
}

bool ek_host_without(const char *algorithm)
{
    const char *at = getenv("EVENKEEL_HOST_WITHOUT"), *word;
    size_t length;
    while (isa_next_word(&at, &word, &length))
        if (isa_find(&algorithm, 1, word, length) == 0)
            return true;
    return false;
}

int ek_host_read_settings(void)
{
    const char *most = getenv("EVENKEEL_HOST_ISA"), *word;
    if (most && *most && isa_find(isa_names, ISAS, most, strlen(most)) < 0)
        return EK_FAIL(EK_E_INVALID, "EVENKEEL_HOST_ISA is \"%s\", not plain, avx2 or avx512",
                       most);
    const char *at = getenv("EVENKEEL_HOST_WITHOUT");
    size_t length;
    atomic_store_explicit(&isa_known, isa_of_environment(), memory_order_relaxed);
    while (isa_next_word(&at, &word, &length))
        if (isa_find(algorithm_names, ALGORITHMS, word, length) < 0)
            return EK_FAIL(EK_E_INVALID,
                           "EVENKEEL_HOST_WITHOUT names \"%.*s\", which is not winograd",
                           (int)length, word);
    return 0;
}
