/* same.c: see same.h. */
#include "group/same.h"

#include <string.h>

#include "core/tensor.h"
#include "evenkeel/tensor.h"
#include "group/differentiable.h"

const int64_t *ek_group_lists(const int64_t *numbers, int64_t count, ek_process_group *group)
{
    ek_tensor *mine = ek_empty(EK_SHAPE(count + 1), EK_I64, .device = ek_cpu());
    if (!mine)
        return NULL;
    int64_t *list = ek_tensor_address(mine);
    list[0] = count;
    memcpy(list + 1, numbers, (size_t)count * sizeof *numbers);
    ek_tensor *all = ek_join(&ek_verb_presence, mine, 0, NULL, group);
    return all ? ek_tensor_address(all) : NULL;
}

bool ek_group_same(const int64_t *lists, int ranks, int64_t most, ek_difference *difference)
{
    const int64_t *first = lists, *list = lists;
    int64_t first_count = *first < most ? *first : most;
    difference->index = -1;
    for (int r = 0; r < ranks; r++, list = ek_group_next_list(list)) {
        int64_t count = *list < most ? *list : most, i = 0;
        while (i < count && i < first_count && list[i + 1] == first[i + 1])
            i++;
        if ((i == count && i == first_count) || (difference->index >= 0 && difference->index <= i))
            continue;
        *difference =
            (ek_difference){i, r, i < first_count ? first[i + 1] : 0, i < count ? list[i + 1] : 0};
    }
    return difference->index < 0;
}

int ek_group_compare(const int64_t *numbers, int64_t count, ek_process_group *group,
                     ek_difference *difference)
{
    ek_scope scope = ek_scope_begin();
    const int64_t *all = ek_group_lists(numbers, count, group);
    int same = all ? ek_group_same(all, group->size, INT64_MAX, difference) : ek_error_pending();
    ek_scope_end(&scope);
    return same;
}
