/* value.h: values, for the library's own use. */
#ifndef EK_CORE_VALUE_H
#define EK_CORE_VALUE_H

#include "core/error.h"
#include "evenkeel/value.h"

/* Does what EK_FAIL does, in a function that returns a value. */
#define EK_FAIL_VALUE(status, ...) (EK_FAIL((status), __VA_ARGS__), ek_value_error())

/* Returns the counted object of a value (borrowed); NULL for numbers, pointers and none. */
void *ek_value_object(ek_value value);

/* Returns "a tensor", "a list", and so on, for sentences. */
const char *ek_value_kind_name(ek_value value);

/* Returns a value of `tensor` with the batch mark of `value`. A NULL tensor gives an error value.
 */
ek_value ek_value_with_tensor(ek_value value, ek_tensor *tensor);

/* Returns the elements of a list (borrowed). */
const ek_value *ek_value_items(ek_value list);

/* Makes a list, or a dictionary with the keys of `container`, of as many items as `container` has,
 * in the scope. If an item is an error, the result is an error. The result isn't marked
 * per_device. */
ek_value ek_value_like(ek_value container, const ek_value *items);

/* Returns true if the function has replaced *value (an error value is a replacement, too), and
 * false if the value stays. If a list or dictionary stays, the function is then called for each of
 * its elements. */
typedef bool ek_value_replacement(ek_value *value, void *user);

/* Returns the tree `value` with the replacements that `replace` makes, in the scope. Outer parts
 * are visited before inner parts. Lists keep their per_device mark. The first error ends the walk
 * and is returned. */
ek_value ek_value_map(ek_value value, ek_value_replacement *replace, void *user);

#endif
