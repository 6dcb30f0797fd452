/* window.h: memory that the ranks of a group on one machine share, like MPI's windows of shared
 * memory. The library makes windows itself, so that they don't depend on the transport.
 *
 * Every rank of the group has a part. All parts have one size, and each part is mapped in all
 * ranks: what one rank writes, the other ranks read without a copy or a message. */
#ifndef EK_TRAIN_WINDOW_H
#define EK_TRAIN_WINDOW_H

#include <stdatomic.h>

#include "core/object.h"
#include "link/communication.h"

typedef struct ek_window {
    ek_object object; /* the last reference unmaps the memory */
    int rank, size;
    size_t nbytes; /* of each mapped part */
    char *parts[]; /* per rank of the group: its part */
} ek_window;

/* Makes a window with `nbytes` zeroed bytes for each rank. A collective call of the group. *window
 * gets one reference. If the ranks cannot share memory, *window becomes NULL with status 0: the
 * ranks are on several machines or in different containers, memory is short,
 * EVENKEEL_DIST_SHARED_MEMORY is 0, or `wanted` is false on some rank. The outcome is equal on all
 * ranks. */
int ek_window_open(ek_process_group *group, size_t nbytes, bool wanted, ek_window **window);

/* Returns a rank's memory, aligned to a page. */
char *ek_window_memory(const ek_window *window, int rank);

/* Each rank has a counter, which begins at 0 and which the rank itself increases. Adding releases
 * and reading acquires: a rank that reads a count also sees everything that was written to any part
 * before the count was reached. */
void ek_window_add(ek_window *window);
uint64_t ek_window_count(const ek_window *window, int rank);

#endif
