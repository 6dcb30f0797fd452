/** @file
 * version.h: which Evenkeel this is, and whether a program fits the library that it runs with.
 *
 * Versions are MAJOR.MINOR.PATCH; this is the one place where they stand. While MAJOR is 0, options
 * are passed by value, and any release may change a public struct, function or value. So the shared
 * library's name (SONAME) has EK_ABI in it, and a program finds no library that it was not compiled
 * for. The rule for changes: whoever changes what a header declares raises EK_ABI and makes
 * tests/install/abi.txt anew (tests/install/abi says how), which fails until both is done. What
 * changed for users stands in src/CHANGELOG.md. */
#ifndef EVENKEEL_VERSION_H
#define EVENKEEL_VERSION_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

#define EK_VERSION_MAJOR 0
#define EK_VERSION_MINOR 1
#define EK_VERSION_PATCH 0
#define EK_ABI 1

/** "0.1.0" */
#define EK_VERSION EK_VERSION_OF(EK_VERSION_MAJOR, EK_VERSION_MINOR, EK_VERSION_PATCH)
#define EK_VERSION_OF(major, minor, patch) \
    EK_TEXT_OF(major) "." EK_TEXT_OF(minor) "." EK_TEXT_OF(patch)

/** The library's EK_VERSION, a static string, and its EK_ABI. Any thread. */
EK_API const char *ek_version(void);
EK_API int ek_abi(void);

EK_API int ek_check_abi_of(int abi, const char *version);
/** Returns 0 if the program was compiled with the headers of the library that it runs with, else
 * EK_E_STATE: the program should then end, since no other call can be trusted. For programs that
 * load the library themselves (dlopen), or link a static one that somebody else made. */
#define EK_CHECK_ABI() ek_check_abi_of(EK_ABI, EK_VERSION)

EK_END_DECLARATIONS
#endif
