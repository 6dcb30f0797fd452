/* state.c: dictionaries of tensors: written, and read with distrust. */
#include "data/state.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/value.h"

/* ---- writing ---- */

ek_value ek_state_of_int(int64_t integer)
{
    return ek_value_of_tensor(ek_from_data(&integer, ek_scalar_shape(), EK_I64));
}

ek_value ek_state_of_ints(const int64_t *integers, int64_t count)
{
    static const int64_t none = 0;

    return ek_value_of_tensor(ek_from_data(count ? integers : &none, EK_SHAPE(count), EK_I64));
}

ek_value ek_state_of_bytes(const void *bytes, int64_t nbytes)
{
    return ek_value_of_tensor(ek_from_data(bytes, EK_SHAPE(nbytes), EK_U8));
}

ek_value ek_state_of_text(const char *text)
{
    return ek_state_of_bytes(text, (int64_t)strlen(text));
}

ek_value ek_state_of_generator(ek_generator *generator)
{
    uint8_t bytes[EK_GENERATOR_STATE_BYTES];

    if (ek_generator_get_state(generator, bytes, sizeof bytes) < 0)
        return ek_value_error();
    return ek_state_of_bytes(bytes, sizeof bytes);
}

/* ---- reading ---- */

int ek_state_check(ek_value state, const char *function)
{
    if (state.kind == EK_VALUE_DICT)
        return 0;
    if (state.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    return EK_FAIL(EK_E_FORMAT, "%s: the state is %s; it has to be a dictionary", function,
                   ek_value_kind_name(state));
}

bool ek_state_has(ek_value state, const char *key)
{
    return ek_value_get(state, key).kind != EK_VALUE_NONE;
}

/* `value` of a key is a tensor of this dtype and one dimension, or, with `ndim` 0, none or one. */
static int check_tensor(ek_value value, const char *function, const char *key, ek_dtype dtype,
                        int ndim)
{
    char text[160];

    if (value.kind == EK_VALUE_NONE)
        return EK_FAIL(EK_E_FORMAT, "%s: the state has no \"%s\"", function, key);
    if (value.kind != EK_VALUE_TENSOR)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state is %s; it has to be %s", function, key,
                       ek_value_kind_name(value), ndim ? "a tensor" : "a whole number or a tensor");
    ek_dtype found = ek_tensor_dtype(value.as.tensor);
    if (found != dtype)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state is %s; it has to be %s", function, key,
                       ek_dtype_name(found), ek_dtype_name(dtype));
    ek_shape shape = ek_tensor_shape(value.as.tensor);
    if (shape.ndim > 1 || (ndim && shape.ndim != ndim))
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has shape %s; it has to have %s",
                       function, key, ek_shape_text(&shape, text),
                       ndim ? "one dimension" : "one element");
    return 0;
}

/* The tensor of a key; NULL with the error. */
static ek_tensor *find(ek_value state, const char *function, const char *key, ek_dtype dtype,
                       int ndim)
{
    ek_value value = ek_value_get(state, key);

    if (ek_state_check(state, function) < 0 || check_tensor(value, function, key, dtype, ndim) < 0)
        return NULL;
    return value.as.tensor;
}

int ek_state_int(ek_value state, const char *function, const char *key, int64_t low, int64_t high,
                 int64_t *integer)
{
    ek_value value = ek_value_get(state, key);
    ek_tensor *tensor;
    int64_t found = value.as.integer;

    if (value.kind != EK_VALUE_INT) {
        tensor = find(state, function, key, EK_I64, 0);
        if (!tensor)
            return ek_error_pending();
        if (ek_tensor_count(tensor) != 1)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"%s\" of the state has %lld elements; it has to be one number",
                           function, key, (long long)ek_tensor_count(tensor));
        EK_TRY(ek_to_data(tensor, &found, sizeof found));
    }
    if (found < low || found > high)
        return EK_FAIL(EK_E_FORMAT,
                       "%s: \"%s\" of the state is %lld; it has to lie in [%lld, %lld]", function,
                       key, (long long)found, (long long)low, (long long)high);
    *integer = found;
    return 0;
}

int ek_state_ints(ek_value state, const char *function, const char *key, int64_t **integers,
                  int64_t *count)
{
    ek_tensor *tensor = find(state, function, key, EK_I64, 1);

    if (!tensor)
        return ek_error_pending();
    int64_t found = ek_tensor_count(tensor);
    int64_t *copy = ek_calloc((size_t)found + 1, sizeof *copy);
    if (!copy)
        return EK_E_NO_MEMORY;
    int rc = ek_to_data(tensor, copy, (size_t)found * sizeof *copy);
    if (rc < 0) {
        free(copy);
        return rc;
    }
    *integers = copy;
    *count = found;
    return 0;
}

int ek_state_bytes(ek_value state, const char *function, const char *key, void *bytes,
                   int64_t nbytes)
{
    ek_tensor *tensor = find(state, function, key, EK_U8, 1);

    if (!tensor)
        return ek_error_pending();
    if (ek_tensor_count(tensor) != nbytes)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has %lld bytes; it has to have %lld",
                       function, key, (long long)ek_tensor_count(tensor), (long long)nbytes);
    return ek_to_data(tensor, bytes, (size_t)nbytes);
}

int ek_state_is_text(ek_value state, const char *function, const char *key, const char *text,
                     const char *what)
{
    enum { SHOWN = 60 }; /* characters of a wrong one */
    ek_tensor *tensor = find(state, function, key, EK_U8, 1);

    if (!tensor)
        return ek_error_pending();
    int64_t count = ek_tensor_count(tensor), length = (int64_t)strlen(text);
    if (count > SHOWN && count != length)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has %lld bytes; it has to be \"%s\"",
                       function, key, (long long)count, text);
    char *found = ek_calloc((size_t)count + 1, 1);
    if (!found)
        return EK_E_NO_MEMORY;
    int rc = ek_to_data(tensor, found, (size_t)count);
    if (rc == 0 && (count != length || memcmp(found, text, (size_t)count) != 0)) {
        for (int64_t i = 0; i < count; i++)
            if (found[i] < ' ' || found[i] > '~')
                found[i] = '?';
        rc = EK_FAIL(EK_E_FORMAT, "%s: the state is of %s \"%s\", this one is \"%s\"", function,
                     what, found, text);
    }
    free(found);
    return rc;
}

int ek_state_generator(ek_value state, const char *function, const char *key,
                       ek_generator *generator)
{
    const int before = ek_error_status();
    uint8_t bytes[EK_GENERATOR_STATE_BYTES];

    EK_TRY(ek_state_bytes(state, function, key, bytes, sizeof bytes));
    memset(generator, 0, sizeof *generator);
    int rc = ek_generator_set_state(generator, bytes, sizeof bytes);
    if (rc < 0)
        ek_error_prefix(before, "%s: \"%s\" of the state", function, key);
    return rc;
}

int ek_state_ends(ek_value state, const char *function, ek_pass *pass)
{
    int64_t before = 0;
    EK_TRY(ek_state_ints(state, function, "ends", &pass->ends, &pass->batches));
    pass->ends_room = pass->batches;
    for (int64_t b = 0; b < pass->batches; before = pass->ends[b++])
        if (pass->ends[b] <= before || pass->ends[b] > pass->count)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"ends\" of the state has %lld after %lld; ends rise, to the "
                           "number of indices, %lld",
                           function, (long long)pass->ends[b], (long long)before,
                           (long long)pass->count);
    if (before != pass->count)
        return EK_FAIL(EK_E_FORMAT, "%s: the last batch of the state ends at %lld of %lld indices",
                       function, (long long)before, (long long)pass->count);
    return 0;
}
