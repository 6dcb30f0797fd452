/* world.h: where this process stands among the processes of its job.
 *
 * Plain numbers for folders that know nothing of processes: samplers take their shares by them,
 * generators their numbers, the host backend its threads. src/distributed writes them when a
 * process group is made and resets them when it is destroyed; both happen while no other thread
 * uses the library. */
#ifndef EK_CORE_WORLD_H
#define EK_CORE_WORLD_H

#include "evenkeel/device.h"

typedef struct ek_world_place {
    int rank, size;             /* among all processes of the job; 0 of 1 without a process group */
    int local_rank, local_size; /* among those on the same machine */
    /* By device kind: the number of this process's device 0 among the devices of all ranks, which
     * are counted rank by rank. Device i has the number first_device[kind] + i. It is negative if
     * a rank's first devices are ones that it doesn't use. */
    int first_device[EK_CUDA + 1];
} ek_world_place;

extern ek_world_place ek_world;

/* How many cores this process is to compute on: EVENKEEL_THREADS, else OMP_NUM_THREADS, else those
 * of its affinity mask, divided among the ranks of this machine; at least 1. Any thread. */
int ek_world_cores(void);

/* An error if EVENKEEL_THREADS cannot be understood. Logs a warning, once, if this machine has more
 * ranks than this process may use cores, though the machine has more: a launcher has bound the rank
 * to them. No lock may be held. */
int ek_world_check_cores(void);

#endif
