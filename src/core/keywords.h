/* keywords.h: options with keyword arguments (evenkeel/base.h): which were written by the caller.
 */
#ifndef EK_CORE_KEYWORDS_H
#define EK_CORE_KEYWORDS_H

#include "evenkeel/base.h"

/* Do the arguments' text name the option, as in ".lr = 0", or reach its position (counted from 0,
 * behind `keywords`) without a name? False for NULL: a struct that was filled without its macro. */
bool ek_keyword_is_written(const char *keywords, const char *name, int position);

/* A numeric option as it was given: 0 if it was left out, EK_ZERO if it is a zero that was written.
 */
#define EK_GIVEN(options, member, position)                                                  \
    ((options)->member == 0 && ek_keyword_is_written((options)->keywords, #member, position) \
         ? EK_ZERO                                                                           \
         : (options)->member)

/* What a given number means. */
static inline double ek_number_or(double given, double fallback)
{
    return given == 0 ? fallback : given == EK_ZERO ? 0 : given;
}

static inline int64_t ek_integer_or(int64_t given, int64_t fallback)
{
    return given == 0 ? fallback : given == EK_ZERO ? 0 : given;
}

#endif
