/* sum.h: sums over ranks, and other combinations (combine.h), of a range of elements.
 *
 * Note [Sums in the order of ranks]
 *
 * Each rank combines one slice of the elements. An all-to-all brings the rank that slice of every
 * rank. The rank combines the slices in the order of ranks, and an all-gather brings the results to
 * all ranks. If there is a root, the results go to the root alone. Each rank sends 2 (N - 1) / N
 * times the bytes of the range, which is the least that is possible and what a ring needs. The
 * order of additions depends on the number of ranks alone, so that results don't depend on how
 * elements are cut into ranges. */
#ifndef EK_GROUP_SUM_H
#define EK_GROUP_SUM_H

#include "link/communication.h"

/* Slices begin at multiples of this many elements (64 bytes in f32), so that an optimizer can step
 * a slice as it steps a whole slab (core/slab.h). */
enum { EK_SUM_UNIT = 16 };

/* Returns the first element of a rank's slice of `count` elements, or for rank `ranks` the end. */
int64_t ek_sum_begin(int64_t count, int ranks, int rank);

typedef struct ek_sum {
    const ek_process_group *group;
    ek_dist_op op;
    ek_dtype dtype;
    char *address; /* of the elements, in the host's memory */
    int64_t count;
    int root;           /* the rank in the group that gets the result; -1: all */
    char *scratch;      /* has ek_sum_scratch_nbytes bytes */
    ek_bytes *out, *in; /* room for group->size + 1 of each */
} ek_sum;

/* Returns the bytes of scratch that ranges of at most `count` elements need. */
size_t ek_sum_scratch_nbytes(ek_dtype dtype, int64_t count, int ranks);

/* The three steps of a sum. The first and the third start a transfer and return the transport's
 * status. The second returns the address of the result, which is `slice` of the third. */
int ek_sum_spread(const ek_sum *sum, ek_request **request); /* sends slice r to rank r */
char *ek_sum_slice(const ek_sum *sum);                      /* combines this rank's slice */
int ek_sum_collect(const ek_sum *sum, char *slice, ek_request **request); /* sends the results */

/* Combines this rank's slice of elements that this process can write for every rank (window.h). The
 * elements of rank r lie at addresses[r]. The result goes to all ranks, or to the root. The caller
 * waits until the elements of all ranks are there. The sum is complete once all ranks have made
 * this call. */
void ek_sum_in_place(const ek_sum *sum, char *const *addresses);

#endif
