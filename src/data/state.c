/* state.c: writes states of samplers and loaders, and reads them with all checks (sampler.h). */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "data/sampler.h"

/* ---- writing ---- */

void ek_state_put(ek_state_writer *writer, const char *key, ek_value value)
{
    writer->entries[writer->count++] = (ek_value_entry){key, value};
}

static void state_put_data(ek_state_writer *writer, const char *key, const void *data,
                           ek_shape shape, ek_dtype dtype)
{
    ek_state_put(writer, key, ek_value_of_tensor(ek_from_data(data, shape, dtype)));
}

void ek_state_put_int(ek_state_writer *writer, const char *key, int64_t integer)
{
    state_put_data(writer, key, &integer, ek_scalar_shape(), EK_I64);
}

void ek_state_put_bytes(ek_state_writer *writer, const char *key, const void *bytes, int64_t nbytes)
{
    state_put_data(writer, key, bytes, EK_SHAPE(nbytes), EK_U8);
}

void ek_state_put_generator(ek_state_writer *writer, ek_generator *generator)
{
    uint8_t bytes[EK_GENERATOR_STATE_BYTES];
    if (!generator)
        return;
    if (ek_generator_get_state(generator, bytes, sizeof bytes) < 0)
        ek_state_put(writer, "generator", ek_value_error());
    else
        ek_state_put_bytes(writer, "generator", bytes, sizeof bytes);
}

void ek_state_put_pass(ek_state_writer *writer, const ek_pass *pass, int64_t begin, bool batches,
                       int64_t batch)
{
    static const int64_t none = 0;
    int64_t count = pass->count - begin;
    state_put_data(writer, "indices", count ? pass->indices + begin : &none, EK_SHAPE(count),
                   EK_I64);
    if (!batches)
        return;
    ek_tensor *ends = ek_empty(EK_SHAPE(pass->batches - batch), EK_I64);
    int64_t *to = ends ? ek_tensor_address(ends) : NULL;
    for (; ends && batch < pass->batches; batch++)
        *to++ = pass->ends[batch] - begin;
    ek_state_put(writer, "ends", ek_value_of_tensor(ends));
}

/* ---- reading ---- */

int ek_state_check(const ek_state *state)
{
    if (state->value.kind == EK_VALUE_DICT)
        return 0;
    if (state->value.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    return EK_FAIL(EK_E_FORMAT, "%s: the state is %s; it has to be a dictionary", state->function,
                   ek_value_kind_name(state->value));
}

/* Finds the key's tensor, of this dtype. `ndim` 1: it has one dimension; 0: it has at most one. */
static int state_find(const ek_state *state, const char *key, ek_dtype dtype, int ndim,
                      ek_tensor **tensor)
{
    const char *function = state->function;
    char text[160];
    EK_TRY(ek_state_check(state));
    ek_value value = ek_value_get(state->value, key);
    if (value.kind == EK_VALUE_NONE)
        return EK_FAIL(EK_E_FORMAT, "%s: the state has no \"%s\"", function, key);
    if (value.kind != EK_VALUE_TENSOR)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state is %s; it has to be %s", function, key,
                       ek_value_kind_name(value), ndim ? "a tensor" : "a whole number or a tensor");
    *tensor = value.as.tensor;
    ek_dtype found = ek_tensor_dtype(*tensor);
    if (found != dtype)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state is %s; it has to be %s", function, key,
                       ek_dtype_name(found), ek_dtype_name(dtype));
    ek_shape shape = ek_tensor_shape(*tensor);
    if (shape.ndim > 1 || (ndim && shape.ndim != ndim))
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has shape %s; it has to have %s",
                       function, key, ek_shape_text(&shape, text),
                       ndim ? "one dimension" : "one element");
    return 0;
}

int ek_state_int(const ek_state *state, const char *key, int64_t low, int64_t high,
                 int64_t *integer)
{
    const char *function = state->function;
    ek_value value = ek_value_get(state->value, key);
    int64_t found = value.as.integer;
    if (value.kind != EK_VALUE_INT) {
        ek_tensor *tensor;
        EK_TRY(state_find(state, key, EK_I64, 0, &tensor));
        if (ek_count(tensor) != 1)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"%s\" of the state has %lld elements; it has to be one number",
                           function, key, (long long)ek_count(tensor));
        EK_TRY(ek_to_data(tensor, &found, sizeof found));
    }
    if (found < low || found > high)
        return EK_FAIL(EK_E_FORMAT,
                       "%s: \"%s\" of the state is %lld; it has to lie in [%lld, %lld]", function,
                       key, (long long)found, (long long)low, (long long)high);
    *integer = found;
    return 0;
}

int ek_state_bytes(const ek_state *state, const char *key, void *bytes, int64_t nbytes)
{
    ek_tensor *tensor;
    EK_TRY(state_find(state, key, EK_U8, 1, &tensor));
    if (ek_count(tensor) != nbytes)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has %lld bytes; it has to have %lld",
                       state->function, key, (long long)ek_count(tensor), (long long)nbytes);
    return ek_to_data(tensor, bytes, (size_t)nbytes);
}

int ek_state_is_text(const ek_state *state, const char *key, const char *text, const char *what)
{
    enum { SHOWN = 60 }; /* the most characters of a wrong text in a message */
    const char *function = state->function;
    ek_tensor *tensor;
    EK_TRY(state_find(state, key, EK_U8, 1, &tensor));
    int64_t count = ek_count(tensor), length = (int64_t)strlen(text);
    if (count > SHOWN && count != length)
        return EK_FAIL(EK_E_FORMAT, "%s: \"%s\" of the state has %lld bytes; it has to be \"%s\"",
                       function, key, (long long)count, text);
    char *found = ek_calloc((size_t)count + 1, 1);
    int rc = found ? ek_to_data(tensor, found, (size_t)count) : EK_E_NO_MEMORY;
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

int ek_state_generator(const ek_state *state, bool expected, const char *what,
                       ek_generator *generator)
{
    const int before = ek_error_status();
    uint8_t bytes[EK_GENERATOR_STATE_BYTES];
    if (!expected && ek_value_get(state->value, "generator").kind != EK_VALUE_NONE)
        return EK_FAIL(EK_E_FORMAT, "%s: the state has a generator; this %s was made without one",
                       state->function, what);
    if (!expected)
        return 0;
    EK_TRY(ek_state_bytes(state, "generator", bytes, sizeof bytes));
    memset(generator, 0, sizeof *generator);
    int rc = ek_generator_set_state(generator, bytes, sizeof bytes);
    if (rc < 0)
        ek_error_prefix(before, "%s: \"generator\" of the state", state->function);
    return rc;
}

/* ---- reading passes ---- */

/* Copies an i64 tensor of one dimension. The caller frees *integers, also if the length is 0. */
static int state_ints(const ek_state *state, const char *key, int64_t **integers, int64_t *count,
                      int64_t *room)
{
    ek_tensor *tensor;
    EK_TRY(state_find(state, key, EK_I64, 1, &tensor));
    int64_t found = ek_count(tensor);
    *integers = ek_calloc((size_t)found + 1, sizeof **integers);
    if (!*integers)
        return EK_E_NO_MEMORY;
    *count = *room = found;
    return ek_to_data(tensor, *integers, (size_t)found * sizeof **integers);
}

static int state_ends(const ek_state *state, ek_pass *pass)
{
    int64_t before = 0;
    EK_TRY(state_ints(state, "ends", &pass->ends, &pass->batches, &pass->ends_room));
    for (int64_t b = 0; b < pass->batches; before = pass->ends[b++])
        if (pass->ends[b] <= before || pass->ends[b] > pass->count)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"ends\" of the state has %lld after %lld; ends rise, to the "
                           "number of indices, %lld",
                           state->function, (long long)pass->ends[b], (long long)before,
                           (long long)pass->count);
    if (before != pass->count)
        return EK_FAIL(EK_E_FORMAT, "%s: the last batch of the state ends at %lld of %lld indices",
                       state->function, (long long)before, (long long)pass->count);
    return 0;
}

int ek_state_pass(const ek_state *state, bool batches, int64_t low, int64_t high, ek_pass *pass)
{
    EK_TRY(state_ints(state, "indices", &pass->indices, &pass->count, &pass->room));
    for (int64_t i = 0; i < pass->count; i++)
        if (pass->indices[i] < low || pass->indices[i] > high)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"indices\" of the state has %lld; samples here lie in "
                           "[%lld, %lld]",
                           state->function, (long long)pass->indices[i], (long long)low,
                           (long long)high);
    return batches ? state_ends(state, pass) : 0;
}
