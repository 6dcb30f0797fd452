/* version.c: the version of the library, and whether a program fits it. */
#include "evenkeel/version.h"

#include "core/error.h"

const char *ek_version(void)
{
    return EK_VERSION;
}

int ek_abi(void)
{
    return EK_ABI;
}

int ek_check_abi_of(int abi, const char *version)
{
    EK_TRY(ek_check_pointer("check_abi", "version", version));
    if (abi == EK_ABI)
        return 0;
    return EK_FAIL(EK_E_STATE,
                   "this program was compiled with the headers of Evenkeel %.40s (ABI %d) and runs "
                   "with the library of Evenkeel %s (ABI %d); compile it again",
                   version, abi, EK_VERSION, EK_ABI);
}
