/* window.h: memory that the ranks of a group on one machine share, as MPI's windows of shared
 * memory, but made here, so that it is the same whatever carries messages.
 *
 * Every rank of the group has a part of the same size, which is mapped in all of them: what one
 * writes, the others read without a copy and without a message. */
#ifndef EK_TRAIN_WINDOW_H
#define EK_TRAIN_WINDOW_H

#include <stdatomic.h>

#include "core/object.h"
#include "link/communication.h"

typedef struct ek_window {
    ek_object object; /* the memory is unmapped with the last reference */
    int rank, size;
    size_t nbytes; /* of a part as it is mapped */
    char *parts[]; /* per rank of the group */
} ek_window;

/* Makes a window with `nbytes` for each rank, zeroed: a collective call of the group. *window
 * becomes NULL, with status 0, if the ranks cannot share memory: they are on several machines or in
 * different containers, memory is short, EVENKEEL_DIST_SHARED_MEMORY is 0, or `wanted` is false on
 * some rank. The outcome is the same on all ranks. One reference. */
int ek_window_open(ek_process_group *group, size_t nbytes, bool wanted, ek_window **window);

/* The memory of a rank, aligned to a page. */
char *ek_window_memory(const ek_window *window, int rank);

/* A rank's counter, 0 at first, which that rank increases. Adding releases, reading acquires: who
 * reads a count also sees what was written to any part before it was reached. */
void ek_window_add(ek_window *window);
uint64_t ek_window_count(const ek_window *window, int rank);

#endif
