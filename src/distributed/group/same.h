/* same.h: whether all ranks of a group have the same numbers, such as digests of what they hold. */
#ifndef EK_GROUP_SAME_H
#define EK_GROUP_SAME_H

#include "link/process_group.h"

/* The lists of all ranks, one after another: each is the count of its numbers, then the numbers.
 * Counts may differ. Behind the boundary of a call (world.h). In the scope; NULL with an error. */
const int64_t *ek_group_lists(const int64_t *numbers, int64_t count, ek_process_group *group);

/* The list of the next rank. */
static inline const int64_t *ek_group_next_list(const int64_t *list)
{
    return list + *list + 1;
}

/* The first number that differs from rank 0's: the least index, and there the first rank. */
typedef struct ek_difference {
    int64_t index;        /* the length of the shorter list if it is the begin of the other one */
    int rank;             /* in the group */
    int64_t first, other; /* rank 0's number, and that of `rank`; 0 if there is none */
} ek_difference;

/* Compares the first `most` numbers of the lists, alike on all ranks. True if they are the same;
 * else writes *difference. */
bool ek_group_same(const int64_t *lists, int ranks, int64_t most, ek_difference *difference);

/* Compares the lists of all ranks. Returns 1 if they are equal, else 0 with *difference, or a
 * negative status. */
int ek_group_compare(const int64_t *numbers, int64_t count, ek_process_group *group,
                     ek_difference *difference);

#endif
