/* case_isa.h: the host's kernels for lesser processors than this one. */
#ifndef EK_TESTS_CASE_ISA_H
#define EK_TESTS_CASE_ISA_H

#include <stdlib.h>

#include "host/isa.h"
#include "unit.h"

/* Limits the host to an instruction set; false if the processor lacks it. */
static inline bool case_limit_isa(ek_isa isa)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    setenv("EVENKEEL_HOST_ISA", names[isa], 1);
    assert_ok(ek_host_read_settings());
    return ek_host_isa() == isa;
}

#endif
