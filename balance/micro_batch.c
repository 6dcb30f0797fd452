/* micro_batch.c: nests in parts along the batch. */
#include "balance/micro_batch.h"

#include <stdlib.h>

#include "comm/nest.h"
#include "core/thread.h"
#include "evenkeel/ops.h"

int ek_micro_batches_plan(ek_value input, ek_value target, int dim, int wanted,
                          ek_micro_batches *plan)
{
    *plan = (ek_micro_batches){.dim = dim, .parts = 1};
    if (wanted <= 1)
        return 0;
    ek_nest_survey survey = {.size = -1};
    EK_TRY(ek_nest_look(input, dim, &survey));
    EK_TRY(ek_nest_look(target, dim, &survey));
    if (survey.parts > 0)
        return EK_FAIL(EK_E_INVALID,
                       "a list that is scattered already cannot be cut into %d micro-batches; give "
                       "the whole batch, the model scatters each part",
                       wanted);
    if (survey.size <= 0)
        return 0;
    plan->total = survey.size;
    plan->size = (survey.size + wanted - 1) / wanted;
    plan->parts = (int)((survey.size + plan->size - 1) / plan->size);
    return 0;
}

int64_t ek_micro_batch_length(const ek_micro_batches *plan, int index)
{
    int64_t left = plan->total - index * plan->size;
    return left < plan->size ? left : plan->size;
}

static ek_value cut_container(const ek_micro_batches *plan, ek_value value, int index)
{
    int count = ek_value_length(value);
    bool is_dict = value.kind == EK_VALUE_DICT;
    ek_value *items = ek_calloc((size_t)count + 1, sizeof *items);
    ek_value_entry *entries = ek_calloc((size_t)count + 1, sizeof *entries);
    ek_value cut = ek_value_error();
    for (int i = 0; items && entries && i < count; i++) {
        items[i] = ek_micro_batch(plan, ek_value_at(value, i), index);
        if (is_dict)
            entries[i] = (ek_value_entry){ek_value_key(value, i), items[i]};
    }
    if (items && entries)
        cut = is_dict ? ek_value_dict(entries, count) : ek_value_list(items, count);
    free(items);
    free(entries);
    return cut;
}

ek_value ek_micro_batch(const ek_micro_batches *plan, ek_value value, int index)
{
    if (plan->parts == 1)
        return value;
    if (value.kind == EK_VALUE_TENSOR)
        return ek_value_of_tensor(ek_narrow(value.as.tensor, plan->dim, index * plan->size,
                                            ek_micro_batch_length(plan, index)));
    return value.kind == EK_VALUE_LIST || value.kind == EK_VALUE_DICT
               ? cut_container(plan, value, index)
               : value;
}
