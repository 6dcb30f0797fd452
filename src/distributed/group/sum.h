/* sum.h: sums over ranks, and other combinations (combine.h), of one stretch of elements.
 *
 * Note [Sums in the order of ranks]
 *
 * Each rank combines one slice of the elements: all-to-all brings it that slice of every rank, it
 * combines them in the order of ranks, and all-gather brings the results to all. Per rank that
 * moves 2 (N - 1) / N times the bytes of the stretch, as a ring does, which is the least. The order
 * of additions depends on the number of ranks alone, so that results don't depend on how elements
 * are cut into stretches. */
#ifndef EK_GROUP_SUM_H
#define EK_GROUP_SUM_H

#include "link/communication.h"

/* Slices begin at multiples of this many elements: 64 bytes or a multiple of them in f32 and f64,
 * so that an optimizer can step a slice as it steps a whole slab (core/slab.h). */
enum { EK_SUM_UNIT = 16 };

/* The first element of a rank's slice of `count` elements; for `ranks` itself, the end. */
int64_t ek_sum_begin(int64_t count, int ranks, int rank);

typedef struct ek_sum {
    const ek_process_group *group;
    ek_dist_op op;
    ek_dtype dtype;
    char *address; /* of the elements, in the host's memory */
    int64_t count;
    int root;           /* the rank in the group that gets the result; -1: all */
    char *scratch;      /* ek_sum_scratch_nbytes */
    ek_bytes *out, *in; /* group->size + 1 of each, for the sum's use */
} ek_sum;

/* Bytes of scratch for stretches of at most `count` elements. */
size_t ek_sum_scratch_nbytes(ek_dtype dtype, int64_t count, int ranks);

/* The three steps; the first and the third start a transfer, and return the transport's status. */
int ek_sum_spread(const ek_sum *sum, ek_request **request); /* slice r to rank r */
char *ek_sum_slice(const ek_sum *sum);                      /* combines this rank's slice */
int ek_sum_collect(const ek_sum *sum, char *slice, ek_request **request); /* all slices */

/* The sum of elements that this process can write for every rank (window.h), at addresses[rank] for
 * each: combines this rank's slice, and stores it for all, or for the root. Each rank does so once
 * all elements are there, and the sum is complete when all have done so. */
void ek_sum_in_place(const ek_sum *sum, char *const *addresses);

#endif
