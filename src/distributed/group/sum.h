/* sum.h: sums over ranks, and other combinations (combine.h), of a range of elements.
 *
 * A sum is a state machine on the communication thread. It passes the levels of a schedule
 * (sum_schedule.h) forward, with partial sums, and then backward, with results. Its messages go
 * between pairs of ranks and have one tag, so that sums with different tags can be under way
 * together. The bits of the result depend on the ranks' terms alone: not on the schedule, nor on
 * how elements are cut into ranges.
 *
 *     ek_sum_begin     for a sum, a scattering or a gathering
 *     ek_sum_ready     tests the open messages
 *     ek_sum_go_on     makes the next step: starts messages, or combines some elements */
#ifndef EK_GROUP_SUM_H
#define EK_GROUP_SUM_H

#include "group/sum_schedule.h"
#include "link/communication.h"

typedef enum ek_sum_parts {
    EK_SUM_ALL,     /* every rank, or the root, gets the whole result */
    EK_SUM_SCATTER, /* each rank gets its slice of the result */
    EK_SUM_GATHER   /* every rank gets the other ranks' slices; nothing is combined */
} ek_sum_parts;

typedef struct ek_sum {
    /* Set by the caller: */
    const ek_process_group *group;
    const ek_sum_schedule *schedule;
    ek_dist_op op;
    ek_dtype dtype; /* a narrow dtype is only added up by a direct schedule */
    ek_sum_parts parts;
    int root; /* the rank in the group that gets the result; -1: all */
    int tag;
    char *address; /* The elements, in the host's memory. The sum writes to all of them. */
    int64_t count;
    ek_interval range;     /* The elements that a gathering carries; all elements for other sums. */
    char *scratch;         /* has ek_sum_scratch_nbytes bytes */
    ek_request **requests; /* room for 2 * group->size */

    /* Used by the sum alone: */
    int level, open; /* the level under way; requests that are not complete */
    bool back;       /* results travel */
    bool started;    /* the messages of the level were started */
    int64_t done;    /* elements of the level's slice that are combined */
    int status;      /* The transport's status. */
} ek_sum;

/* Returns the bytes of scratch that a sum of at most `count` elements needs. */
size_t ek_sum_scratch_nbytes(const ek_sum_schedule *schedule, ek_dtype dtype, int64_t count);

void ek_sum_begin(ek_sum *sum);
/* Tells whether the next step can be made. */
ek_readiness ek_sum_ready(ek_sum *sum);
/* Makes the next step. Returns 1 once the sum is complete, 0 before, or a negative status of the
 * transport. */
int ek_sum_go_on(ek_sum *sum);

#endif
