/* sum_schedule.h: which ranks exchange which elements in a sum over ranks.
 *
 * Note [Halving]
 *
 * A sum over ranks is a fixed binary tree. In each node of the tree every rank of the node owns a
 * slice of the elements (core/slab.h, Note [Owners of slices]) and has the node's sum of the slice.
 * A level of the schedule joins neighbouring nodes, its sides, to a larger node. The owner of an
 * element in the larger node gets the sides' sums of the element from their owners, and combines
 * the sums in the order of the sides. After the last level each rank has its slice of the whole
 * sum. The results travel back level by level: the owner of an element in the larger node gives the
 * result to the owner in each side.
 *
 * Where sides have 2^k ranks, a level is a round of recursive halving at distance 2^k: each rank
 * sends one message, with half of its elements. A right side of fewer ranks sends more and shorter
 * messages. N = 2^k ranks send 2 (N - 1) / N times the bytes of the elements, in 2 k rounds.
 *
 * Few ranks are joined by one level with one side for each: fewer rounds, more messages, and the
 * same bits, because ek_combine adds the sides as the tree does. Narrow dtypes always use one
 * level, because their sums have twice their bytes until they are rounded at the end.
 *
 * Note [Machines]
 *
 * If each machine has 2^k consecutive ranks that begin at a multiple of 2^k (the last machine may
 * have fewer), its ranks are a node, called a block. Levels inside of a block send nothing between
 * machines, and levels above it send the least that is possible: as much as if each machine had one
 * rank. Ranks that share memory need no levels inside of a block. */
#ifndef EK_GROUP_SUM_SCHEDULE_H
#define EK_GROUP_SUM_SCHEDULE_H

#include "core/slab.h"
#include "link/process_group.h"

/* Slices begin at multiples of this many elements (64 bytes in f32), so that an optimizer can step
 * a slice as it steps a whole slab. */
enum { EK_SUM_UNIT = 16 };

/* Some of a group's ranks in a row. */
typedef struct ek_sum_node {
    int first, size;
    const int *owners; /* per slice, in the order of elements: the rank that owns it */
} ek_sum_node;

typedef struct ek_sum_level {
    ek_sum_node node; /* after the level */
    const ek_sum_node *sides;
    int count, own; /* sides; the side of this rank */
} ek_sum_level;

typedef enum ek_sum_way {
    EK_SUM_DIRECT, /* one level with a side for each rank */
    EK_SUM_SENT,   /* levels inside of blocks, then between blocks */
    EK_SUM_SHARED, /* levels between blocks */
    EK_SUM_WAYS
} ek_sum_way;

typedef struct ek_sum_schedule {
    int ranks, rank;
    ek_sum_node base; /* before the first level: the rank alone, or its block */
    int count;
    ek_sum_level levels[];
} ek_sum_schedule;

/* Returns how many ranks a block has (1 if the ranks of machines are no blocks, the group's size if
 * all ranks are on one machine). */
int ek_sum_block(const ek_process_group *group);

/* Makes the schedule of a rank. free() frees it. NULL with an error. */
ek_sum_schedule *ek_sum_schedule_new(int ranks, int rank, int block, ek_sum_way way);

/* Returns the slice of a rank in a node. */
ek_interval ek_sum_node_slice(const ek_sum_node *node, int64_t count, int rank);

/* Returns which slice of a node has element `at`, and writes that slice. */
int ek_sum_node_find(const ek_sum_node *node, int64_t count, int64_t at, ek_interval *slice);

#endif
