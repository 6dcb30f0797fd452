/* sample_element.c: finding and replacing elements of samples and batches. */
#include "data/sample_element.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/value.h"

enum { ITSELF = -1 };

static bool is_leaf(ek_value value)
{
    return value.kind == EK_VALUE_TENSOR || value.kind == EK_VALUE_INT ||
           value.kind == EK_VALUE_FLOAT;
}

static int find_key(const ek_sample_element *self, ek_value sample, int *at)
{
    if (sample.kind != EK_VALUE_DICT)
        return EK_FAIL(EK_E_INVALID,
                       "\"%s\" is transformed, and the sample is %s; a dictionary is "
                       "needed",
                       self->key, ek_value_kind_name(sample));
    for (*at = 0; *at < ek_value_length(sample); ++*at)
        if (strcmp(ek_value_key(sample, *at), self->key) == 0)
            return 0;
    return EK_FAIL(EK_E_INVALID, "\"%s\" is transformed, and the sample has no such element",
                   self->key);
}

int ek_sample_find(const ek_sample_element *self, ek_value sample, int *at)
{
    if (self->key)
        return find_key(self, sample, at);
    *at = self->field;
    if (sample.kind == EK_VALUE_LIST && self->field < ek_value_length(sample))
        return 0;
    if (sample.kind == EK_VALUE_LIST)
        return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is a list of %d",
                       self->field, ek_value_length(sample));
    *at = ITSELF;
    if (is_leaf(sample) && self->field == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is %s%s", self->field,
                   ek_value_kind_name(sample),
                   sample.kind == EK_VALUE_DICT ? "; ek_transformed_key transforms its elements"
                                                : "");
}

ek_value ek_sample_at(ek_value sample, int at)
{
    return at == ITSELF ? sample : ek_value_at(sample, at);
}

ek_tensor *ek_sample_tensor(ek_value element)
{
    if (element.kind == EK_VALUE_INT)
        return ek_from_data(&element.as.integer, ek_scalar_shape(), EK_I64);
    if (element.kind == EK_VALUE_FLOAT)
        return ek_from_data(&element.as.floating, ek_scalar_shape(), EK_F64);
    if (element.kind == EK_VALUE_TENSOR)
        return element.as.tensor;
    EK_FAIL(EK_E_INVALID, "what is transformed is %s; tensors and numbers are",
            ek_value_kind_name(element));
    return NULL;
}

ek_value ek_sample_replaced(ek_value sample, int at, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    if (at == ITSELF)
        return ek_value_of_tensor(tensor);
    ek_value *items = ek_calloc((size_t)ek_value_length(sample), sizeof *items);
    if (!items)
        return ek_value_error();
    for (int i = 0; i < ek_value_length(sample); i++)
        items[i] = i == at ? ek_value_of_tensor(tensor) : ek_value_at(sample, i);
    ek_value result = ek_value_like(sample, items);
    free(items);
    return result;
}

bool ek_sample_same(const ek_sample_element *a, const ek_sample_element *b)
{
    return a->key && b->key ? strcmp(a->key, b->key) == 0
                            : !a->key && !b->key && a->field == b->field;
}
