/* world.h: this process's rank among the processes of its job.
 *
 * Samplers, generators and the host backend read these numbers, without a dependency on
 * src/distributed. src/distributed writes them when a process group is made, and resets them when
 * the group is destroyed; both happen while no other thread uses the library. */
#ifndef EK_CORE_WORLD_H
#define EK_CORE_WORLD_H

#include "evenkeel/device.h"

typedef struct ek_world_place {
    int rank, size;             /* among all processes of the job; 0 of 1 without a process group */
    int local_rank, local_size; /* among the job's processes on this machine */
    /* By device kind: the number of this process's device 0 among the devices of all ranks, which
     * are counted rank by rank. Device i has the number first_device[kind] + i. first_device is
     * negative if the rank doesn't use its first devices. */
    int first_device[EK_CUDA + 1];
} ek_world_place;

extern ek_world_place ek_world;

/* Returns on how many cores this process computes: EVENKEEL_THREADS; else OMP_NUM_THREADS; else the
 * cores of its affinity mask divided by the number of ranks on this machine, but at least 1. Any
 * thread. */
int ek_world_cores(void);

/* Fails if EVENKEEL_THREADS isn't a valid number. Logs a warning, once, if a launcher seems to have
 * bound the rank to few cores: if this machine has more ranks than the process may use cores, and
 * has more cores than the process may use. No lock may be held. */
int ek_world_check_cores(void);

#endif
