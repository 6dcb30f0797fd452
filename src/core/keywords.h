/* keywords.h: resolves what EK_GIVEN (base.h) gives: 0 means the default, EK_ZERO means 0; and
 * switches. */
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

/* Makes the options' switch what it means, in place: `fallback` if it was left out or is
 * EK_DEFAULT, EK_OFF if it was written as 0. EK_E_INVALID, for `what`, if it is no ek_switch. A
 * switch that was read may be read again. */
#define EK_READ_SWITCH(what, options, member, position, fallback)                               \
    ek_switch_read((what), #member,                                                             \
                   ek_keyword_is_written((options)->keywords, #member, (position)), (fallback), \
                   &(options)->member)
int ek_switch_read(const char *what, const char *name, bool written, ek_switch fallback,
                   ek_switch *given);

/* Takes an option by its second name, where `second` is not 0. EK_E_INVALID if both were given and
 * differ. */
int ek_second_name_read(const char *what, const char *name, int *value, const char *second_name,
                        int second);

#endif
