/** @file
 * spawn.h: a function that several new processes run, each as a rank (dist.h).
 *
 *     static int train(int rank, void *user)
 *     {
 *         ek_dist_init_process_group();
 *         ... in a world of 4 ranks ...
 *     }
 *
 *     int main(int argc, char **argv)
 *     {
 *         settings s = read_settings(argc, argv);
 *         int rc = ek_spawn(train, .user = &s, .nprocs = 4);
 *         ...
 *
 * ek_spawn starts this program again with mpirun, with the same arguments. In the new processes
 * main runs as before until it comes to the same call of ek_spawn, which there runs the function
 * and ends the process; earlier calls return 0 at once. So the function may use whatever main has
 * made, and what comes before the call should be quick. The new processes' standard input is
 * empty. */
#ifndef EVENKEEL_SPAWN_H
#define EVENKEEL_SPAWN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"
#include "evenkeel/status.h"

EK_BEGIN_DECLARATIONS

/** What a rank does. Returns 0 or a negative status; an error that is pending counts too. */
typedef int ek_spawn_function(int rank, void *user);

/** Processes that were started, of which nobody has heard yet that they ended. */
typedef struct ek_spawned ek_spawned;

typedef struct ek_spawn_options {
    int begin; /**< no option, see base.h */
    ek_spawn_function *function;
    void *user;
    int nprocs EK_IS(EK_UNSET); /**< EK_UNSET: one per device of the default kind */
    bool join EK_IS(true);      /**< waits until all have ended */
    /** The processes are ended if this process ends, or the thread that has called. Always so with
     * `join`. */
    bool daemon;
    ek_spawned **result; /**< gets what ek_spawn_join takes, if `join` is false */
} ek_spawn_options;
#define EK_DEFAULTS_ek_spawn_options EK_DEFAULT(nprocs, EK_UNSET), EK_DEFAULT(join, true)

EK_API int ek_spawn_with(ek_spawn_options options);
/** Starts the processes and waits for them. If one of them fails, the others are ended, and the
 * first one's error is this call's: its status and sentence behind "rank 1: ", or EK_E_ABORTED with
 * "rank 1 was ended by signal 9".
 *
 * One process is no new one: the function is called here, as rank 0. Several need MPI: the mpirun
 * of the plugin that is there, or the one that the environment's MPIRUN names; else EK_E_BACKEND
 * says what to install. EK_E_STATE within a spawned function. For one thread at a time. */
#define ek_spawn(...) EK_CALL_1(ek_spawn_with, ek_spawn_options, function, __VA_ARGS__)

/** Waits for so many seconds, or if they are negative for ever. 1: all have ended, and `spawned` is
 * freed. 0: not yet. An error, as of ek_spawn: they have ended, and it is freed. NULL, which
 * ek_spawn gives for one process, is 1. */
EK_API int ek_spawn_join(ek_spawned *spawned, double seconds);

EK_END_DECLARATIONS
#endif
