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
 * main runs until it reaches this call of ek_spawn, which runs the function there and ends the
 * process; earlier calls of ek_spawn return 0 at once. So the function may use whatever main has
 * made, and main's code before the call should be quick. The new processes' standard input is
 * empty. */
#ifndef EVENKEEL_SPAWN_H
#define EVENKEEL_SPAWN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/base.h"
#include "evenkeel/status.h"

EK_BEGIN_DECLARATIONS

/** The function that each rank runs. Returns 0 or a negative status; if it leaves an error pending,
 * it has failed, too. */
typedef int ek_spawn_function(int rank, void *user);

/** Started processes that ek_spawn_join has not yet reported as ended. */
typedef struct ek_spawned ek_spawned;

typedef struct ek_spawn_options {
    int begin; /**< no option, see base.h */
    ek_spawn_function *function;
    void *user;
    int nprocs EK_IS(EK_UNSET); /**< EK_UNSET: one per device of the default kind */
    bool join EK_IS(true);      /**< waits until all have ended */
    /** True: the processes are ended if this process or the calling thread ends. With `join` they
     * always are. */
    bool daemon;
    ek_spawned **result; /**< gets what ek_spawn_join takes, if `join` is false */
} ek_spawn_options;
#define EK_DEFAULTS_ek_spawn_options EK_DEFAULT(nprocs, EK_UNSET), EK_DEFAULT(join, true)

EK_API int ek_spawn_with(ek_spawn_options options);
/** Starts the processes and waits for them. If a process fails, the others are ended, and the call
 * returns the first failed process's error: its status, and its sentence after "rank 1: "; or
 * EK_E_ABORTED with "rank 1 was ended by signal 9".
 *
 * With nprocs 1 no process is started: the function is called in this process, as rank 0. Several
 * processes need MPI: the mpirun of the installed plugin, or the one that the environment's MPIRUN
 * names; else EK_E_BACKEND says what to install. EK_E_STATE within a spawned function, and in a
 * process that mpirun or another launcher has started beside others. For one thread at a time. */
#define ek_spawn(...) EK_CALL_1(ek_spawn_with, ek_spawn_options, function, __VA_ARGS__)

/** Waits at most `seconds` (negative: without limit) for the processes to end. Returns 1 if all
 * have ended, and frees `spawned`; 0 if some still run; or an error as ek_spawn does: then all have
 * ended and `spawned` is freed. Returns 1 for NULL, which ek_spawn writes for one process. */
EK_API int ek_spawn_join(ek_spawned *spawned, double seconds);

EK_END_DECLARATIONS
#endif
