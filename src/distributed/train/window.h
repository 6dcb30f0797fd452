/* window.h: memory that the ranks of a group on one machine share, like MPI's windows of shared
 * memory. The library makes windows itself, so that they don't depend on the transport.
 *
 * A group has a window on each of its machines if the ranks of a machine are a block
 * (group/sum_schedule.h, Note [Machines]). Every rank of the block has a part. All parts have one
 * size, and each part is mapped in all ranks of the block: what one rank writes, the other ranks
 * read without a copy or a message. */
#ifndef EK_TRAIN_WINDOW_H
#define EK_TRAIN_WINDOW_H

#include <stdatomic.h>

#include "core/object.h"
#include "link/communication.h"

typedef struct ek_window {
    ek_object object; /* the last reference unmaps the memory */
    int rank;         /* in the group */
    int first, size;  /* the block's first rank in the group, and its size */
    size_t nbytes;    /* of each mapped part */
    char *parts[];    /* per rank of the block: its part */
} ek_window;

/* Makes a window with `nbytes` zeroed bytes for each rank. A collective call of the group. *window
 * gets one reference. If the ranks cannot share memory, *window becomes NULL with status 0: all
 * machines have one rank, their ranks are no blocks or are in different containers, memory is
 * short, EVENKEEL_DIST_SHARED_MEMORY is 0, or `wanted` is false on some rank. The outcome is equal
 * on all ranks. */
int ek_window_open(ek_process_group *group, size_t nbytes, bool wanted, ek_window **window);

/* Returns the memory of a rank of the block, aligned to a page. */
char *ek_window_memory(const ek_window *window, int rank);

/* Each rank has counters, which begin at 0 and which the rank itself sets. Setting releases and
 * reading acquires: a rank that reads a count also sees everything that was written to any part
 * before the count was set. */
enum { EK_WINDOW_COUNTERS = 4 };
void ek_window_set(ek_window *window, int counter, uint64_t count);
uint64_t ek_window_count(const ek_window *window, int rank, int counter);
/* Tells whether this counter of all ranks of the block has at least the value `count`. */
bool ek_window_has(const ek_window *window, int counter, uint64_t count);

#endif
