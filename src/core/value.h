/* value.h: values, for the library's own use. */
#ifndef EK_CORE_VALUE_H
#define EK_CORE_VALUE_H

#include "core/error.h"
#include "evenkeel/value.h"

/* EK_FAIL in a function that returns a value. */
#define EK_FAIL_VALUE(status, ...) (EK_FAIL((status), __VA_ARGS__), ek_value_error())

/* The counted object of a value (borrowed); NULL for numbers, pointers and none. */
void *ek_value_object(ek_value value);

/* "a tensor", "a list", and so on, for sentences. */
const char *ek_value_kind_name(ek_value value);

/* A tensor in the place of the value's own, with the mark of its batch. NULL gives an error. */
ek_value ek_value_with_tensor(ek_value value, ek_tensor *tensor);

/* The elements of a list (borrowed). */
const ek_value *ek_value_items(ek_value list);

/* A list, or a dictionary with the keys of `container`, with as many items as `container` has
 * elements. In the scope. An error among the items gives an error. Not marked per_device. */
ek_value ek_value_like(ek_value container, const ek_value *items);

/* Returns true if it has replaced *value, perhaps by an error, and false if the value stays. The
 * elements of a list or dictionary that stays are then asked one by one. */
typedef bool ek_value_replacement(ek_value *value, void *user);

/* The tree `value` with its parts as `replace` leaves them; outer parts come before inner ones.
 * Lists marked per_device stay so. In the scope. The first error ends the walk and is returned. */
ek_value ek_value_map(ek_value value, ek_value_replacement *replace, void *user);

#endif
