/* micro_batch.c: nests in parts along the batch. */
#include "balance/micro_batch.h"

#include "comm/nest.h"
#include "core/thread.h"
#include "core/value.h"
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

typedef struct cut {
    const ek_micro_batches *plan;
    int index;
} cut;

static bool cut_tensor(ek_value *value, void *user)
{
    const cut *c = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    *value = ek_value_of_tensor(ek_narrow(value->as.tensor, c->plan->dim, c->index * c->plan->size,
                                          ek_micro_batch_length(c->plan, c->index)));
    return true;
}

ek_value ek_micro_batch(const ek_micro_batches *plan, ek_value value, int index)
{
    return plan->parts == 1 ? value : ek_value_map(value, cut_tensor, &(cut){plan, index});
}
