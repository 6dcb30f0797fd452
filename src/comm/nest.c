/* nest.c: looking into nests of values. */
#include "comm/nest.h"

#include <stdlib.h>

#include "comm/chunks.h"
#include "core/object.h"
#include "core/thread.h"
#include "core/value.h"
#include "evenkeel/ops.h"

ek_tensor *ek_nest_first(ek_value value)
{
    if (value.kind == EK_VALUE_TENSOR)
        return value.as.tensor;
    for (int i = 0; i < ek_value_length(value); i++) {
        ek_tensor *tensor = ek_nest_first(ek_value_at(value, i));
        if (tensor)
            return tensor;
    }
    return NULL;
}

int64_t ek_nest_batch_size(ek_value value, int dim)
{
    const ek_tensor *tensor = ek_nest_first(value);
    if (!tensor)
        return -1;
    dim = ek_comm_dim("batch size", tensor, dim);
    return dim < 0 ? dim : tensor->shape[dim];
}

static int look_at_tensor(const ek_tensor *tensor, int dim, ek_nest_survey *survey)
{
    char text[200];
    if (tensor->ndim == 0)
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: a tensor without dimensions cannot be cut; pass it as a number, or "
            "one per device with EK_SCATTERED");
    dim = ek_comm_dim("scatter", tensor, dim);
    EK_TRY(dim);
    if (survey->size >= 0 && survey->size != tensor->shape[dim])
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: %s has size %lld along dimension %d, but another tensor of the call "
            "has %lld; all must have one batch size, or be scattered with EK_SCATTERED",
            ek_tensor_text(tensor, text), (long long)tensor->shape[dim], dim,
            (long long)survey->size);
    survey->size = tensor->shape[dim];
    return 0;
}

static int look_at_parts(ek_value list, int dim, ek_nest_survey *survey)
{
    int parts = ek_value_length(list);
    if (parts < 1 || parts > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_SHAPE, "scatter: a scattered list of %d elements", parts);
    if (survey->parts && survey->parts != parts)
        return EK_FAIL(EK_E_SHAPE, "scatter: scattered lists of %d and of %d elements",
                       survey->parts, parts);
    survey->parts = parts;
    int64_t sizes[EK_MAX_DEVICES];
    for (int i = 0; i < parts; i++) {
        const ek_tensor *first = ek_nest_first(ek_value_at(list, i));
        if (!first || first->ndim == 0)
            return 0; /* says nothing about the batch */
        sizes[i] = ek_nest_batch_size(ek_value_at(list, i), dim);
        EK_TRY((int)(sizes[i] < 0 ? sizes[i] : 0));
    }
    for (int i = 0; i < parts; i++) {
        if (survey->sizes_known && survey->sizes[i] != sizes[i])
            return EK_FAIL(
                EK_E_SHAPE,
                "scatter: element %d of a scattered list has batch size %lld, of another "
                "one %lld",
                i, (long long)sizes[i], (long long)survey->sizes[i]);
        survey->sizes[i] = sizes[i];
    }
    survey->sizes_known = true;
    return 0;
}

int ek_nest_look(ek_value value, int dim, ek_nest_survey *survey)
{
    if (value.kind == EK_VALUE_ERROR || (value.kind == EK_VALUE_TENSOR && !value.as.tensor)) {
        EK_FAIL(EK_E_INVALID, "scatter: an input is an error");
        return ek_error_pending();
    }
    if (value.kind == EK_VALUE_TENSOR)
        return look_at_tensor(value.as.tensor, dim, survey);
    if (value.per_device)
        return look_at_parts(value, dim, survey);
    for (int i = 0; i < ek_value_length(value); i++)
        EK_TRY(ek_nest_look(ek_value_at(value, i), dim, survey));
    return 0;
}

static ek_value join(ek_value list, ek_device device, int dim)
{
    ek_value items[EK_MAX_DEVICES];
    int count = ek_value_length(list);
    if (count < 1 || count > EK_MAX_DEVICES) {
        EK_FAIL(EK_E_SHAPE, "a scattered list of %d elements", count);
        return ek_value_error();
    }
    for (int i = 0; i < count; i++)
        items[i] = ek_value_at(list, i);
    return count == 1 ? ek_value_to_device(items[0], device, dim)
                      : ek_gather_value(items, count, device, dim);
}

typedef struct destination {
    ek_device device;
    int dim;
} destination;

static bool move(ek_value *value, void *user)
{
    const destination *to = user;
    if (value->kind == EK_VALUE_TENSOR)
        *value = ek_value_of_tensor(ek_to_device(value->as.tensor, to->device));
    else if (value->per_device)
        *value = join(*value, to->device, to->dim);
    else
        return false;
    return true;
}

ek_value ek_value_to_device(ek_value value, ek_device device, int dim)
{
    return ek_value_map(value, move, &(destination){device, dim});
}

ek_value ek_nest_adopt(ek_value value)
{
    void *object = ek_value_object(ek_value_keep(value));
    return object && !ek_scope_adopt(object) ? ek_value_error() : value;
}
