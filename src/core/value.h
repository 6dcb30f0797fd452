/* value.h: what stands behind a value, for the library's own use. */
#ifndef EK_CORE_VALUE_H
#define EK_CORE_VALUE_H

#include "evenkeel/value.h"

/* The counted object that a value holds; NULL for plain numbers. */
void *ek_value_object(ek_value value);

/* "a tensor", "a list", ... for sentences. */
const char *ek_value_kind_name(ek_value value);

/* The elements of a list, which live as long as it does. */
const ek_value *ek_value_items(ek_value list);

/* A list or a dictionary with the keys of `container`, which has as many elements as that, in the
 * scope. An error among `items` is an error. Not marked as per device. */
ek_value ek_value_like(ek_value container, const ek_value *items);

/* Says of a value what stands in its place: true if *value was replaced, an error included; false
 * if it stays, or if its elements are to be asked one by one. */
typedef bool ek_value_replacement(ek_value *value, void *user);

/* The nest with what `replace` gives for its parts, asked from the outside in. Lists per device
 * stay so. In the scope; the first error ends the walk and is returned. */
ek_value ek_value_map(ek_value value, ek_value_replacement *replace, void *user);

#endif
