/* nest_gather.c: gather over nests of values. */
#include <stdlib.h>
#include <string.h>

#include "comm/nest.h"
#include "core/thread.h"
#include "core/value.h"

static ek_value gather_tensors(const ek_value *values, int count, ek_device destination, int dim)
{
    ek_tensor *tensors[EK_MAX_DEVICES];
    for (int i = 0; i < count; i++)
        tensors[i] = values[i].as.tensor;
    return ek_value_of_tensor(ek_gather(tensors, count, destination, dim));
}

static ek_value gather_numbers(const ek_value *values, int count, ek_device destination)
{
    int64_t integers[EK_MAX_DEVICES];
    double floats[EK_MAX_DEVICES];
    for (int i = 0; i < count; i++) {
        integers[i] = values[i].as.integer;
        floats[i] = values[i].as.floating;
    }
    if (values[0].kind == EK_VALUE_INT)
        return ek_value_of_tensor(
            ek_from_data(integers, EK_SHAPE(count), .dtype = EK_I64, .device = destination));
    return ek_value_of_tensor(
        ek_from_data(floats, EK_SHAPE(count), .dtype = EK_F64, .device = destination));
}

static int check_lengths(const ek_value *values, int count)
{
    int length = ek_value_length(values[0]);
    for (int i = 1; i < count; i++)
        if (ek_value_length(values[i]) != length)
            return EK_FAIL(EK_E_SHAPE, "gather: output %d is %s of %d, but output 0 is one of %d",
                           i, ek_value_kind_name(values[i]), ek_value_length(values[i]), length);
    return 0;
}

/* Element `index` of every container, by position or by the first one's key. */
static int elements(const ek_value *values, int count, int index, ek_value *out)
{
    for (int i = 0; i < count; i++) {
        if (values[0].kind == EK_VALUE_LIST) {
            out[i] = ek_value_at(values[i], index);
            continue;
        }
        const char *key = ek_value_key(values[0], index);
        int at = 0;
        while (at < ek_value_length(values[i]) && strcmp(ek_value_key(values[i], at), key) != 0)
            at++;
        if (at == ek_value_length(values[i]))
            return EK_FAIL(EK_E_INVALID, "gather: output %d has no key \"%s\", but output 0 has", i,
                           key);
        out[i] = ek_value_at(values[i], at);
    }
    return 0;
}

static ek_value gather_containers(const ek_value *values, int count, ek_device destination, int dim)
{
    if (check_lengths(values, count) < 0)
        return ek_value_error();
    int length = ek_value_length(values[0]), done = 0;
    ek_value *items = ek_calloc((size_t)length, sizeof *items), joined = ek_value_error();
    while (items && done < length) {
        ek_value parts[EK_MAX_DEVICES];
        if (elements(values, count, done, parts) < 0)
            break;
        items[done] = ek_gather_value(parts, count, destination, dim);
        if (items[done].kind == EK_VALUE_ERROR)
            break;
        done++;
    }
    if (items && done == length)
        joined = ek_value_like(values[0], items);
    free(items);
    return joined;
}

ek_value ek_gather_value(const ek_value *values, int count, ek_device destination, int dim)
{
    if (count < 1 || count > EK_MAX_DEVICES) {
        EK_FAIL(EK_E_INVALID, "gather: 1 to %d values are needed, not %d", EK_MAX_DEVICES, count);
        return ek_value_error();
    }
    if (ek_check_pointer("gather", "the array of values", values) < 0)
        return ek_value_error();
    for (int i = 0; i < count; i++) {
        if (values[i].kind == EK_VALUE_ERROR) {
            EK_FAIL(EK_E_INVALID, "gather: output %d is an error", i);
            return ek_value_error();
        }
        if (values[i].kind == values[0].kind)
            continue;
        EK_FAIL(EK_E_INVALID, "gather: output %d is %s, but output 0 is %s", i,
                ek_value_kind_name(values[i]), ek_value_kind_name(values[0]));
        return ek_value_error();
    }
    switch (values[0].kind) {
    case EK_VALUE_TENSOR:
        return gather_tensors(values, count, destination, dim);
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        return gather_containers(values, count, destination, dim);
    case EK_VALUE_INT:
    case EK_VALUE_FLOAT:
        return gather_numbers(values, count, destination);
    case EK_VALUE_POINTER:
        for (int i = 1; i < count; i++) {
            if (values[i].as.pointer == values[0].as.pointer)
                continue;
            EK_FAIL(EK_E_INVALID,
                    "gather: output %d is another pointer than output 0; pointers "
                    "cannot be joined",
                    i);
            return ek_value_error();
        }
        return values[0];
    default:
        return ek_value_none();
    }
}
