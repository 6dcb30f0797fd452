/* keywords.h: resolves what EK_GIVEN (base.h) gives: 0 means the default, EK_ZERO means 0. */
#ifndef EK_CORE_KEYWORDS_H
#define EK_CORE_KEYWORDS_H

#include "evenkeel/base.h"

static inline double ek_number_or(double given, double fallback)
{
    return given == 0 ? fallback : given == EK_ZERO ? 0 : given;
}

static inline int64_t ek_integer_or(int64_t given, int64_t fallback)
{
    return given == 0 ? fallback : given == EK_ZERO ? 0 : given;
}

#endif
