/* same.h: compares numbers of all ranks of a group, such as digests of what the ranks hold. */
#ifndef EK_GROUP_SAME_H
#define EK_GROUP_SAME_H

#include "link/process_group.h"

/* Returns the lists of all ranks, one after another. Each list is the count of its numbers and then
 * the numbers; counts may differ. Called in the body of a call (world.h). The result is in the
 * scope; NULL with an error. */
const int64_t *ek_group_lists(const int64_t *numbers, int64_t count, ek_process_group *group);

/* Returns the list of the next rank. */
static inline const int64_t *ek_group_next_list(const int64_t *list)
{
    return list + *list + 1;
}

/* The first difference from rank 0's list: the least index, and the first rank that differs
 * there. */
typedef struct ek_difference {
    int64_t index;        /* the length of the shorter list if the longer list begins with it */
    int rank;             /* in the group */
    int64_t first, other; /* rank 0's number and that of `rank`; 0: none */
} ek_difference;

/* Returns true if the first `most` numbers of all lists are equal, else false with *difference. The
 * result is equal on all ranks. */
bool ek_group_same(const int64_t *lists, int ranks, int64_t most, ek_difference *difference);

/* Gathers the lists of all ranks and compares them. Returns 1 if they are equal, 0 with *difference
 * if not, or a negative status. */
int ek_group_compare(const int64_t *numbers, int64_t count, ek_process_group *group,
                     ek_difference *difference);

#endif
