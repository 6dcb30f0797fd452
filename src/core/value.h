/* value.h: what stands behind a value, for the library's own use. */
#ifndef EK_CORE_VALUE_H
#define EK_CORE_VALUE_H

#include "evenkeel/value.h"

/* The counted object that a value holds; NULL for plain numbers. */
void *ek_value_object(ek_value value);

/* "a tensor", "a list", ... for sentences. */
const char *ek_value_kind_name(ek_value value);

#endif
