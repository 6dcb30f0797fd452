/* multiversion.h: functions compiled for several processors, and loops that become vectors.
 *
 * Builds with sanitizers have one version only, because they crash in the resolver that picks a
 * version. All versions compute equal bits, because in ISO C mode compilers fuse no product with a
 * sum. Only recurrent.c has products fused, where the processor can. */
#ifndef EK_CORE_MULTIVERSION_H
#define EK_CORE_MULTIVERSION_H

/* EK_MULTIVERSION before a function compiles it for AVX-512, AVX2 and plain x86-64; the version is
 * picked when the program is loaded. Callees are not compiled for these processors, unless they are
 * inlined (static inline). */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EK_SANITIZED)
#define EK_MULTIVERSION \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EK_MULTIVERSION
#endif

/* EK_IVDEP before a loop says that its iterations don't depend on each other, although its pointers
 * may be equal. */
#if defined(__GNUC__) && !defined(__clang__)
#define EK_IVDEP _Pragma("GCC ivdep")
#else
#define EK_IVDEP
#endif

#endif
