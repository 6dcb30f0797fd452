/* sum.h: adding tensors of several devices, below the graph: no versions, no history.
 *
 * Every element is the sum of its terms in their order, whatever travels how: numbers don't depend
 * on buffers, collectives or threads. (The one exception is asked for: EVENKEEL_COMM=nccl-sum.) */
#ifndef EK_COMM_SUM_H
#define EK_COMM_SUM_H

#include "comm/exchange.h"

/* out = terms[0] + terms[1] + ..., all of one shape and dtype, `out` dense. One term: a copy. The
 * terms lie on any devices, at least one is given, and `out` may be the first of them. */
typedef struct ek_addition {
    ek_tensor *out;
    ek_tensor *const *terms;
    int count;
} ek_addition;

/* Makes the sums, each on its device. Terms that the device can't read where they are, or that are
 * laid out otherwise, come in batches for which no device needs more than EK_COMM_BUFFER_BYTES
 * (EK_MEMORY_COMMUNICATION). Sums for one device are added in slices by all that have terms, if the
 * backend has collectives for them. `what` names the spans. After an error any of the sums may have
 * been made, whole or in part. */
int ek_add_all(const char *what, const ek_addition *sums, int count);

#endif
