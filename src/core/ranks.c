/* ranks.c: see ranks.h. */
#include "core/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/sum_order.h"

ek_ranks *(*ek_ranks_of)(ek_process_group *group);
ek_ranks *(*ek_ranks_of_wrapper)(struct ek_module *module, struct ek_module **child);
struct ek_module *(*ek_ranks_wrap_model)(struct ek_module *module, ek_process_group *group,
                                         int shard, int offload);
struct ek_module *(*ek_ranks_wrap_criterion)(struct ek_module *module, ek_process_group *group);
bool (*ek_ranks_set_sync)(struct ek_module *model, bool sync);

int ek_ranks_check(const ek_ranks *ranks)
{
    if (!ranks->ended)
        return 0;
    return EK_FAIL(EK_E_STATE, "the process group that the optimizer's state is divided over has "
                               "been destroyed; save the state before, with ek_dist_archive_save");
}

/* Returns x + y, or the larger one; NaN is larger than all numbers. */
static double ranks_pair(double x, double y, bool largest)
{
    return !largest ? x + y : y > x || y != y ? y : x;
}

int ek_ranks_combine(ek_ranks *ranks, int status, double *value, bool largest)
{
    int64_t bits, *all = NULL;
    EK_TRY(ek_ranks_check(ranks));
    if (status >= 0 && !(all = ek_calloc((size_t)ranks->size, sizeof *all)))
        status = ek_error_pending();
    if (status < 0)
        return ranks->agree(ranks, status);
    _Static_assert(sizeof bits == sizeof *value, "a double travels as its bits");
    memcpy(&bits, value, sizeof bits);
    status = ranks->gather(ranks, &bits, 1, all);
    double stack[EK_SUM_DEPTH];
    for (int r = 0, top = 0; r < ranks->size && status >= 0; r++, top++) {
        memcpy(&stack[top], &all[r], sizeof *stack);
        for (int joins = ek_sum_joins(r, ranks->size); joins > 0; joins--, top--)
            stack[top - 1] = ranks_pair(stack[top - 1], stack[top], largest);
    }
    if (status >= 0)
        *value = stack[0];
    free(all);
    return status;
}
