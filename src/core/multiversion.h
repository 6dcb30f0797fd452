/* multiversion.h: functions compiled for several processors.
 *
 * Builds with sanitizers have one version only, because they crash in the resolver that picks one.
 * All versions give the same bits, because ISO C mode fuses no product with a sum. */
#ifndef EK_CORE_MULTIVERSION_H
#define EK_CORE_MULTIVERSION_H

/* EK_MULTIVERSION before a function compiles it for AVX-512, AVX2 and plain x86-64; the version is
 * picked when the program is loaded. Callees do not inherit it: they must be inlined (static
 * inline) to be vectorised the same way. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EK_SANITIZED)
#define EK_MULTIVERSION \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EK_MULTIVERSION
#endif

#endif
