/* outline.c: taking the tensors out of a nest, and putting others there. */
#include "nn/outline.h"

#include <stdlib.h>

#include "core/thread.h"

/* A kind of value that only outlines have: as.integer is a place in the list. */
static const ek_value_kind place_kind = (ek_value_kind)(EK_VALUE_ERROR + 1);

typedef ek_value leaf_function(ek_value leaf, void *user);

/* The nest with function(leaf) for each of its leaves. */
static ek_value map(ek_value value, leaf_function *function, void *user)
{
    if (value.kind != EK_VALUE_LIST && value.kind != EK_VALUE_DICT)
        return function(value, user);
    int count = ek_value_length(value);
    ek_value *items = ek_calloc((size_t)count, sizeof *items);
    ek_value_entry *entries = ek_calloc((size_t)count, sizeof *entries);
    ek_value mapped = ek_value_error();
    bool failed = !items || !entries;
    for (int i = 0; i < count && !failed; i++) {
        items[i] = map(ek_value_at(value, i), function, user);
        failed = items[i].kind == EK_VALUE_ERROR;
        if (value.kind == EK_VALUE_DICT)
            entries[i] = (ek_value_entry){ek_value_key(value, i), items[i]};
    }
    if (!failed)
        mapped = value.kind == EK_VALUE_LIST ? ek_value_list(items, count)
                                             : ek_value_dict(entries, count);
    mapped.per_device = value.per_device;
    free(items);
    free(entries);
    return mapped;
}

static ek_value take_out(ek_value leaf, void *user)
{
    ek_tensor_list *list = user;
    if (leaf.kind != EK_VALUE_TENSOR)
        return leaf;
    int place = 0;
    while (place < list->count && list->tensors[place] != leaf.as.tensor)
        place++;
    if (place == list->count && ek_tensor_list_append(list, leaf.as.tensor) < 0)
        return ek_value_error();
    return (ek_value){.kind = place_kind, .as.integer = place};
}

static ek_value put_in(ek_value leaf, void *user)
{
    ek_tensor *const *tensors = user;
    return leaf.kind == place_kind ? ek_value_of_tensor(tensors[leaf.as.integer]) : leaf;
}

ek_value ek_outline_of(ek_value value, ek_tensor_list *list)
{
    return map(value, take_out, list);
}

ek_value ek_outline_fill(ek_value outline, ek_tensor *const *tensors)
{
    return map(outline, put_in, (void *)(uintptr_t)tensors);
}
