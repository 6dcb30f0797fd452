/* world.c: see world.h. */
#include "core/world.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/error.h"

ek_world_place ek_world = {.rank = 0, .size = 1, .local_rank = 0, .local_size = 1};

static int world_cores_online(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 1 ? (int)cores : 1;
}

/* Counts the cores of the process's affinity mask. The kernel refuses a set that is shorter than
 * its own, so the set here has room for more cores than any kernel is built for. */
static int world_cores_allowed(void)
{
    union {
        cpu_set_t set;
        char bytes[8192];
    } mask;
    if (sched_getaffinity(getpid(), sizeof mask, &mask.set) != 0)
        return world_cores_online();
    int cores = CPU_COUNT_S(sizeof mask, &mask.set);
    return cores > 1 ? cores : 1;
}

/* Returns how many threads the user wants; below 1 if no variable tells, or if EVENKEEL_THREADS
 * isn't valid. OMP_NUM_THREADS may be a list, whose first number counts; if it isn't a number, it
 * is ignored. */
static int world_threads_wanted(void)
{
    const char *openmp = getenv("OMP_NUM_THREADS");
    int wanted = ek_environment_count("EVENKEEL_THREADS");
    if (wanted != 0 || !openmp)
        return wanted;
    long number = strtol(openmp, NULL, 10);
    return number < 1 || number > EK_MOST_COUNT ? 0 : (int)number;
}

int ek_world_cores(void)
{
    int wanted = world_threads_wanted();
    if (wanted > 0)
        return wanted;
    int ranks = ek_world.local_size > 1 ? ek_world.local_size : 1;
    int cores = world_cores_allowed() / ranks;
    return cores > 1 ? cores : 1;
}

int ek_world_check_cores(void)
{
    static atomic_bool warned;
    if (ek_environment_count("EVENKEEL_THREADS") < 0)
        return EK_FAIL(EK_E_INVALID,
                       "EVENKEEL_THREADS is \"%.80s\"; it can be a number from 1 to %d",
                       getenv("EVENKEEL_THREADS"), EK_MOST_COUNT);
    if (ek_world.local_size < 2 || atomic_load_explicit(&warned, memory_order_relaxed))
        return 0;
    int allowed = world_cores_allowed(), online = world_cores_online();
    if (ek_world.local_size <= allowed || allowed >= online || atomic_exchange(&warned, true))
        return 0;
    ek_log_line(EK_LOG_WARNING,
                "rank %d computes on %d of this machine's %d cores, to which it is bound; a "
                "launcher with --bind-to none (mpirun) lets its %d ranks here share all of them",
                ek_world.rank, allowed, online, ek_world.local_size);
    return 0;
}
