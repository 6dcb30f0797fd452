/* collate.c: makes batches of samples.
 *
 * All samples of a batch are descended together. At each place of their nesting the values of all
 * samples must have one kind; otherwise the error names the place and the sample that differs. The
 * recursion is as deep as samples are nested, which is finite because a value can hold only values
 * that were made before it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/value.h"
#include "data/dataset.h"

ek_dev *ek_batch_dev(ek_device device, const char *caller)
{
    ek_dev *dev = ek_dev_get(device);
    if (dev && !ek_dev_is_host(dev))
        return EK_FAIL_NULL(EK_E_DEVICE,
                            "%s: the CPU cannot write to the memory of %s; batches are made on "
                            "cpu or a host device and copied from there",
                            caller, dev->name);
    return dev;
}

ek_tensor *ek_row_major(ek_tensor *tensor, ek_dev *dev)
{
    if (ek_tensor_dev(tensor) == dev && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS))
        return tensor;
    ek_shape shape = ek_tensor_shape(tensor);
    size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    ek_tensor *copy = ek_tensor_new(dev, tensor->dtype, &shape, EK_CONTIGUOUS);
    if (!copy || ek_to_data(tensor, ek_tensor_address(copy), nbytes) < 0)
        return NULL;
    return copy;
}

typedef struct batch_map {
    ek_batch_function *function;
    ek_dev *dev;
} batch_map;

static bool batch_map_tensor(ek_value *value, void *user)
{
    const batch_map *map = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    ek_tensor *image = map->function(value->as.tensor, map->dev);
    *value = ek_value_with_tensor(*value, image);
    return true;
}

ek_value ek_batch_map(ek_value batch, ek_batch_function *function, ek_dev *dev)
{
    return ek_value_map(batch, batch_map_tensor, &(batch_map){function, dev});
}

typedef struct collation {
    ek_dev *dev;
    const int64_t *numbers; /* the samples' numbers in error messages; NULL: 0, 1, 2, ... */
    int64_t count;
} collation;

/* A place in a sample's nested lists and dictionaries: a linked list, the innermost one first. */
typedef struct place {
    const struct place *outer;
    int index;
    const char *key; /* NULL: the node is a list */
} place;

static long long collate_number(const collation *c, int64_t i)
{
    return (long long)(c->numbers ? c->numbers[i] : i);
}

/* Writes ` at [1]["mask"]`, or nothing if samples are not nested. Returns the number of bytes. */
static size_t place_write(const place *where, char *text, size_t room)
{
    if (!where) {
        text[0] = '\0';
        return 0;
    }
    size_t used = place_write(where->outer, text, room);
    const char *at = where->outer ? "" : " at ";
    int length = where->key ? snprintf(text + used, room - used, "%s[\"%s\"]", at, where->key)
                            : snprintf(text + used, room - used, "%s[%d]", at, where->index);
    used += length > 0 ? (size_t)length : 0;
    return used < room ? used : room - 1;
}

/* Fails with "collate: sample <i> at <where> <message>"; `where` is the place within the sample. */
static int collate_fail(const collation *c, int status, int64_t i, const place *where,
                        const char *format, ...) EK_PRINTF(5, 6);
static int collate_fail(const collation *c, int status, int64_t i, const place *where,
                        const char *format, ...)
{
    char at[200], text[500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    place_write(where, at, sizeof at);
    return EK_FAIL(status, "collate: sample %lld%s %s", collate_number(c, i), at, text);
}

/* ---- samples that differ ---- */

static const char *collate_describe(ek_value value, char text[200])
{
    if (value.kind == EK_VALUE_TENSOR)
        return ek_tensor_text(value.as.tensor, text);
    if (value.kind != EK_VALUE_LIST && value.kind != EK_VALUE_DICT)
        return ek_value_kind_name(value);
    snprintf(text, 200, "%s of %d", ek_value_kind_name(value), ek_value_length(value));
    return text;
}

static int collate_difference(ek_value value, ek_value first)
{
    if (value.kind != first.kind)
        return EK_E_INVALID;
    if (ek_value_length(value) != ek_value_length(first))
        return EK_E_SHAPE;
    if (value.kind != EK_VALUE_TENSOR)
        return 0;
    if (value.as.tensor->dtype != first.as.tensor->dtype)
        return EK_E_DTYPE;
    return ek_same_shape(value.as.tensor, first.as.tensor) ? 0 : EK_E_SHAPE;
}

/* Fails if no batch can be made of this kind of value. */
static int collate_check_value(const collation *c, int64_t i, ek_value value, const place *where)
{
    char text[200];
    if (value.kind == EK_VALUE_ERROR)
        return ek_error_outcome(EK_E_USER);
    if (value.kind == EK_VALUE_POINTER)
        return collate_fail(c, EK_E_INVALID, i, where,
                            "is %s; batches are made of tensors, numbers, none, and lists and "
                            "dictionaries of them",
                            ek_value_kind_name(value));
    if (value.kind == EK_VALUE_TENSOR && ek_tensor_dev(value.as.tensor)->id.kind != EK_CPU)
        return collate_fail(c, EK_E_DEVICE, i, where, "is %s; samples lie on cpu",
                            ek_tensor_text(value.as.tensor, text));
    return 0;
}

static int collate_check_alike(const collation *c, const ek_value *values, const place *where)
{
    for (int64_t i = 0; i < c->count; i++) {
        EK_TRY(collate_check_value(c, i, values[i], where));
        int status = i ? collate_difference(values[i], values[0]) : 0;
        if (status < 0) {
            char text[2][200];
            return collate_fail(c, status, i, where, "is %s, sample %lld is %s",
                                collate_describe(values[i], text[0]), collate_number(c, 0),
                                collate_describe(values[0], text[1]));
        }
    }
    return 0;
}

/* ---- leaves ---- */

static ek_value collate_tensors(const collation *c, const ek_value *values, const place *where)
{
    const ek_tensor *first = values[0].as.tensor;
    char text[200], at[200];
    if (first->ndim == EK_MAX_DIMS) {
        place_write(where, at, sizeof at);
        return EK_FAIL_VALUE(
            EK_E_SHAPE, "collate: samples%s are %s; a batch of them has more than %d dimensions",
            at, ek_tensor_text(first, text), EK_MAX_DIMS);
    }
    ek_shape shape = {.ndim = first->ndim + 1, .dims = {c->count}};
    memcpy(shape.dims + 1, first->shape, (size_t)first->ndim * sizeof *first->shape);
    ek_tensor *batch = ek_tensor_new(c->dev, first->dtype, &shape, EK_CONTIGUOUS);
    if (!batch)
        return ek_value_error();
    size_t nbytes = (size_t)ek_count(first) * ek_dtype_size(first->dtype);
    char *row = ek_tensor_address(batch);
    for (int64_t i = 0; i < c->count; i++, row += nbytes)
        if (ek_to_data(values[i].as.tensor, row, nbytes) < 0)
            return ek_value_error();
    return ek_value_of_tensor(batch);
}

static ek_value collate_numbers(const collation *c, const ek_value *values, ek_dtype dtype)
{
    ek_shape shape = {.ndim = 1, .dims = {c->count}};
    ek_tensor *batch = ek_tensor_new(c->dev, dtype, &shape, EK_CONTIGUOUS);
    if (!batch)
        return ek_value_error();
    int64_t *integers = ek_tensor_address(batch);
    double *floats = ek_tensor_address(batch);
    for (int64_t i = 0; i < c->count; i++) {
        if (dtype == EK_I64)
            integers[i] = values[i].as.integer;
        else
            floats[i] = values[i].as.floating;
    }
    return ek_value_of_tensor(batch);
}

/* ---- lists and dictionaries ---- */

static ek_value collate(const collation *c, const ek_value *values, const place *where);

/* Returns the index of the dictionary's element under `key`, or -1. It tries `guess` first, because
 * dictionaries of one data set most often have the same order. */
static int collate_find_key(ek_value dict, const char *key, int guess)
{
    if (strcmp(ek_value_key(dict, guess), key) == 0)
        return guess;
    for (int i = 0; i < ek_value_length(dict); i++)
        if (strcmp(ek_value_key(dict, i), key) == 0)
            return i;
    return -1;
}

/* Writes element `at` of every sample to `column`; dictionaries are searched by key. */
static int collate_take_column(const collation *c, const ek_value *values, const place *at,
                               ek_value *column)
{
    for (int64_t i = 0; i < c->count; i++) {
        int index = at->key ? collate_find_key(values[i], at->key, at->index) : at->index;
        if (index < 0)
            return collate_fail(c, EK_E_INVALID, i, at->outer, "has no \"%s\", sample %lld has",
                                at->key, collate_number(c, 0));
        column[i] = ek_value_at(values[i], index);
    }
    return 0;
}

static ek_value collate_nest(const collation *c, const ek_value *values, const place *where)
{
    int length = ek_value_length(values[0]);
    ek_value *items = ek_calloc((size_t)length + (size_t)c->count, sizeof *items);
    if (!items)
        return ek_value_error();
    ek_value *column = items + length;
    bool named = values[0].kind == EK_VALUE_DICT;
    for (int j = 0; j < length && (j == 0 || items[j - 1].kind != EK_VALUE_ERROR); j++) {
        place at = {where, j, named ? ek_value_key(values[0], j) : NULL};
        items[j] = collate_take_column(c, values, &at, column) < 0 ? ek_value_error()
                                                                   : collate(c, column, &at);
    }
    ek_value batch = ek_value_like(values[0], items); /* an error if one of the items is an error */
    free(items);
    return batch;
}

static ek_value collate(const collation *c, const ek_value *values, const place *where)
{
    if (collate_check_alike(c, values, where) < 0)
        return ek_value_error();
    switch (values[0].kind) {
    case EK_VALUE_TENSOR:
        return collate_tensors(c, values, where);
    case EK_VALUE_INT:
        return collate_numbers(c, values, EK_I64);
    case EK_VALUE_FLOAT:
        return collate_numbers(c, values, EK_F64);
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        return collate_nest(c, values, where);
    default:
        return ek_value_none();
    }
}

ek_value ek_collate_numbered(const ek_value *samples, const int64_t *numbers_of, int64_t count,
                             ek_device device)
{
    if (count < 1 || !samples)
        return EK_FAIL_VALUE(EK_E_INVALID, "collate: %s",
                             count < 1 ? "there is no sample; at least one is wanted"
                                       : "the samples are NULL");
    collation c = {ek_batch_dev(device, "collate"), numbers_of, count};
    if (!c.dev)
        return ek_value_error();
    ek_scope scope = ek_scope_begin();
    return ek_scope_return_value(&scope, collate(&c, samples, NULL));
}

ek_value ek_collate(const ek_value *samples, int64_t count, ek_device device)
{
    return ek_collate_numbered(samples, NULL, count, device);
}
