/* isa.h: the instructions that the host's kernels use. */
#ifndef EK_HOST_ISA_H
#define EK_HOST_ISA_H

#include <stdbool.h>

/* In ascending order. EK_ISA_AVX2 means AVX2 and FMA. */
typedef enum ek_isa { EK_ISA_PLAIN, EK_ISA_AVX2, EK_ISA_AVX512 } ek_isa;

/* Returns the best instructions that the processor has and EVENKEEL_HOST_ISA (plain, avx2, avx512)
 * allows. */
ek_isa ek_host_isa(void);

/* ek_host_has_bf16 returns true if the processor multiplies pairs of bf16 (AVX512_BF16) and AVX-512
 * is allowed. Functions that multiply pairs of bf16 have the target EK_TARGET_BF16. */
#define EK_TARGET_BF16 "avx512f,avx512bw,avx512vl,avx512bf16"
bool ek_host_has_bf16(void);

/* Returns true if ek_host_has_bf16, and the processor multiplies bf16 faster than f32. AMD's
 * multiply twice as many, and so does Intel's Cooper Lake; Intel's later ones, which have AMX for
 * this, half as many: on an Emerald Rapids core 40 against 80 G per second. */
bool ek_host_bf16_is_fast(void);

/* Returns true if EVENKEEL_HOST_WITHOUT, a list separated by commas, names the algorithm
 * ("winograd"). */
bool ek_host_without(const char *algorithm);

/* Reads EVENKEEL_HOST_ISA anew, and checks both variables. Fails if one of them can't be
 * understood. */
int ek_host_read_settings(void);

#endif
