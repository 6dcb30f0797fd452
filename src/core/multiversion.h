/* multiversion.h: functions compiled for several processors.
 *
 * Sanitizers' builds do without: they crash in the resolver that picks a version. All versions give
 * the same bits: ISO C's mode fuses no product with a sum. */
#ifndef EK_CORE_MULTIVERSION_H
#define EK_CORE_MULTIVERSION_H

/* Before a function: compiled for AVX-512, AVX2 and plain x86-64, chosen when the program is
 * loaded. The attribute is not inherited by callees: what shall be vectorised with it must be
 * inlined into the function (static inline). */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EK_SANITIZED)
#define EK_MULTIVERSION \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EK_MULTIVERSION
#endif

#endif
