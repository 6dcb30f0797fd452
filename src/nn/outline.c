/* outline.c: taking the tensors out of a nest, and putting others there. */
#include "nn/outline.h"

#include "core/value.h"

/* A kind of value that only outlines have: as.integer is a place in the list. */
static const ek_value_kind place_kind = (ek_value_kind)(EK_VALUE_ERROR + 1);

static bool take_out(ek_value *value, void *user)
{
    ek_tensor_list *list = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    int place = 0;
    while (place < list->count && list->tensors[place] != value->as.tensor)
        place++;
    if (place == list->count && ek_tensor_list_append(list, value->as.tensor) < 0)
        *value = ek_value_error();
    else
        *value = (ek_value){.kind = place_kind, .as.integer = place};
    return true;
}

static bool put_in(ek_value *value, void *user)
{
    ek_tensor *const *tensors = user;
    if (value->kind != place_kind)
        return false;
    *value = ek_value_of_tensor(tensors[value->as.integer]);
    return true;
}

ek_value ek_outline_of(ek_value value, ek_tensor_list *list)
{
    return ek_value_map(value, take_out, list);
}

ek_value ek_outline_fill(ek_value outline, ek_tensor *const *tensors)
{
    return ek_value_map(outline, put_in, (void *)(uintptr_t)tensors);
}
