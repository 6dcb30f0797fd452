/* exchange.h: moving elements between devices, below the graph: no versions, no history.
 *
 * All that travels is a list of moves. How it travels is decided here: by the backend's broadcast
 * or exchange (NCCL) if the devices have one, else by copies between two devices at a time, on the
 * receivers' workers if there is enough to copy. */
#ifndef EK_COMM_EXCHANGE_H
#define EK_COMM_EXCHANGE_H

#include "comm/layout.h"
#include "evenkeel/comm.h"

/* Two tensors of one shape and dtype, on any devices. */
typedef struct ek_move {
    ek_tensor *to, *from;
} ek_move;

/* Copies each move's elements. The caller puts moves between the same two devices one after
 * another, in the order of memory: neighbours that are neighbours on both sides are one copy, and
 * what lies between neighbours of `to` is padding and may be overwritten. Neighbours of `to` alone
 * are packed first (EK_MEMORY_COMMUNICATION, EK_COMM_BUFFER_BYTES at a time at the most) if the
 * devices don't reach each other's memory. Lists that are the same for several receivers, one list
 * after another, are a broadcast.
 *
 * Takes no memory of the process as long as nothing has to be packed. `what` names the span. After
 * an error any of the moves may have been done. */
int ek_exchange(const char *what, const ek_move *moves, int count);

/* One move on the calling thread, without a span. What can't be written in place goes through
 * blocks of EK_COMM_BUFFER_BYTES at the most. */
int ek_comm_copy(ek_tensor *to, const ek_tensor *from);

/* ---- devices that take part ---- */

enum { EK_COMM_MOST_DEVICES = 2 * EK_MAX_DEVICES + 1 }; /* those of both kinds, and cpu */

/* A set, in the order in which the devices were added. Starts as {0}. */
typedef struct ek_dev_set {
    int count;
    ek_dev *devs[EK_COMM_MOST_DEVICES];
} ek_dev_set;

/* The device's index in the set, where it is from now on. */
int ek_dev_set_add(ek_dev_set *set, ek_dev *dev);

#endif
