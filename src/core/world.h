/* world.h: where this process stands among the processes of its job.
 *
 * Plain numbers for folders that know nothing of processes: samplers take their shares by them,
 * generators their numbers, the host backend its threads. src/distributed writes them when a
 * process group is made and resets them when it is destroyed; both happen while no other thread
 * uses the library. */
#ifndef EK_CORE_WORLD_H
#define EK_CORE_WORLD_H

typedef struct ek_world_place {
    int rank, size;             /* among all processes of the job; 0 of 1 without a process group */
    int local_rank, local_size; /* among those on the same machine */
} ek_world_place;

extern ek_world_place ek_world;

#endif
