/* rounds.h: exchanges of small blocks between all ranks of a group, in few rounds of messages.
 *
 * Note [Rounds]
 *
 * A rank that has the blocks of s ranks gets those of s further ranks in one round. In a group of P
 * ranks an exchange has lg P rounds, rounded up. In a group of at most EK_ROUNDS_DIRECT ranks every
 * rank sends to all others, and there is one round.
 *
 * If P is a power of two, rank r has the aligned range of s ranks around r, and exchanges messages
 * with rank r xor s, so that each round needs one connection (recursive doubling). If P is another
 * number, the range begins at r. The rank receives from rank r + s and sends to rank r - s, modulo
 * P (Bruck). A reduction may then combine a block twice, so that its function must be idempotent.
 */
#ifndef EK_LINK_ROUNDS_H
#define EK_LINK_ROUNDS_H

#include <stddef.h>

#include "evenkeel/dist.h"
#include "link/transport.h"

enum {
    EK_ROUNDS_DIRECT = 8,    /* the most ranks that all send to each other */
    EK_ROUNDS_TAG = 100,     /* of messages in the group's communicator */
    EK_ROUNDS_MOST = 1 << 20 /* the most bytes that are gathered in rounds */
};

/* Combines `other` with `block`. Both have nbytes bytes. The function is associative and
 * commutative, and combining a block twice has no effect, as for minima and "or". */
typedef void ek_rounds_combine(void *block, const void *other, size_t nbytes);

/* An exchange that is under way, or none. */
typedef struct ek_rounds {
    char *blocks;
    size_t nbytes;              /* of a block of a reduction */
    const size_t *at;           /* of blocks that are gathered: their offsets */
    ek_rounds_combine *combine; /* NULL: blocks are gathered */
    int tag;
    int have; /* ranks whose blocks this rank has; 0: no exchange is under way */
    int open; /* how many requests are open; they are the first ones */
    ek_request *requests[2 * EK_ROUNDS_DIRECT];
} ek_rounds;

/* Start an exchange, and return the transport's status. Exchanges of one group that overlap in time
 * have different tags. The memory stays valid until the exchange has ended.
 *
 * In a gathering each rank gives the bytes [at[rank], at[rank + 1]) of `all`, and receives the
 * other ranks' bytes in the other ranges. `at` is equal on all ranks.
 *
 * In a reduction `blocks` has room for ek_rounds_room(size) blocks. The first block is this rank's,
 * and becomes the combination of all ranks' blocks. */
int ek_rounds_gather(ek_rounds *rounds, const ek_process_group *group, int tag, void *all,
                     const size_t *at);
int ek_rounds_reduce(ek_rounds *rounds, const ek_process_group *group, int tag, void *blocks,
                     size_t nbytes, ek_rounds_combine *combine);

/* Makes progress. Returns 1 once the exchange has ended, 0 before, or the transport's status. */
int ek_rounds_test(ek_rounds *rounds, const ek_process_group *group);

static inline bool ek_rounds_are_open(const ek_rounds *rounds)
{
    return rounds->have > 0;
}

/* Returns how many blocks a reduction has room for. In each round the number of ranks whose blocks
 * a rank has grows by this factor. */
static inline int ek_rounds_room(int size)
{
    return size <= EK_ROUNDS_DIRECT ? size : 2;
}

#endif
