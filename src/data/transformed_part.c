/* transformed_part.c: elements of samples that are transformed: how they are found and replaced,
 * and how several of them draw alike. */
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/value.h"
#include "data/transformed.h"

/* ---- elements ---- */

enum { PART_ITSELF = -1 }; /* the index of a value that is no list */

bool ek_part_same(const ek_part *a, const ek_part *b)
{
    return a->key && b->key ? strcmp(a->key, b->key) == 0
                            : !a->key && !b->key && a->field == b->field;
}

static bool part_is_leaf(ek_value value)
{
    return value.kind == EK_VALUE_TENSOR || value.kind == EK_VALUE_INT ||
           value.kind == EK_VALUE_FLOAT;
}

static int part_find_key(const ek_part *self, ek_value sample, int *at)
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

/* Finds the element's index in a sample or batch. EK_E_INVALID if there is none. */
static int part_find(const ek_part *self, ek_value sample, int *at)
{
    if (self->key)
        return part_find_key(self, sample, at);
    *at = self->field;
    if (sample.kind == EK_VALUE_LIST && self->field < ek_value_length(sample))
        return 0;
    if (sample.kind == EK_VALUE_LIST)
        return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is a list of %d",
                       self->field, ek_value_length(sample));
    *at = PART_ITSELF;
    if (part_is_leaf(sample) && self->field == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is %s%s", self->field,
                   ek_value_kind_name(sample),
                   sample.kind == EK_VALUE_DICT ? "; ek_transformed_key transforms its elements"
                                                : "");
}

ek_tensor *ek_part_tensor(const ek_part *self, ek_value sample, int *at)
{
    if (part_find(self, sample, at) < 0)
        return NULL;
    ek_value element = *at == PART_ITSELF ? sample : ek_value_at(sample, *at);
    if (element.kind == EK_VALUE_INT)
        return ek_from_data(&element.as.integer, ek_scalar_shape(), EK_I64);
    if (element.kind == EK_VALUE_FLOAT)
        return ek_from_data(&element.as.floating, ek_scalar_shape(), EK_F64);
    if (element.kind == EK_VALUE_TENSOR)
        return element.as.tensor;
    return EK_FAIL_NULL(EK_E_INVALID, "what is transformed is %s; tensors and numbers are",
                        ek_value_kind_name(element));
}

ek_value ek_part_replaced(ek_value sample, int at, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    if (at == PART_ITSELF)
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

/* ---- random numbers ---- */

int ek_parts_run_alike(int count, int (*run)(void *user, int number), void *user)
{
    if (count == 1)
        return run(user, 0);
    ek_generator begin, end, meanwhile;
    ek_generator_borrow(&begin, &meanwhile);
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        ek_generator drawn = begin, *before = ek_generator_stand_in(&drawn);
        rc = run(user, i);
        ek_generator_stand_in(before);
        if (i == 0)
            end = drawn;
    }
    ek_generator_give_back(&end, &meanwhile);
    return rc;
}
