/* launcher.h: who started this process, and the transport that goes with it.
 *
 * An MPI launcher tells its processes about themselves in the environment. MPI itself is opened
 * only if it tells of several: a program that is started plainly needs no MPI. */
#ifndef EK_LAUNCH_LAUNCHER_H
#define EK_LAUNCH_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

#include "link/transport.h"

typedef struct ek_launched {
    bool several;    /* a launcher has started more processes than this one, or may have */
    int rank, size;  /* among all; size is 0 if the launcher does not tell */
    int local_rank;  /* on the same machine; -1 if the launcher does not tell */
    int local_size;  /* 0 if the launcher does not tell */
    const char *mpi; /* whose launcher it is: "Open MPI" or "MPICH"; NULL if there is none */
    bool either;     /* it starts both, and `mpi` is a guess: Slurm's */
    const char *rank_variable; /* where the launcher tells the rank; NULL if there is none */
} ek_launched;

/* Reads the environment. Without a launcher the process is 0 of 1. EK_E_STATE if variables
 * contradict each other, or if RANK and WORLD_SIZE are set and no launcher is. */
int ek_launcher_find(ek_launched *launched);

/* The transport of the launcher's MPI, from its plugin, which stays open; NULL if `several` is
 * false. The plugin is EVENKEEL_DIST_LIBRARY, a file, or libevenkeel_mpi_openmpi.so or _mpich.so:
 * beside the library (the program, if the library is in it), in a folder evenkeel beside it, in the
 * folder of the build, or in that of the installation. EK_E_BACKEND if there is none that fits. */
int ek_launcher_transport(const ek_launched *launched, const ek_transport **transport);

/* True if the plugin for "Open MPI" or "MPICH" is in one of these folders. */
bool ek_launcher_has_plugin(const char *mpi);

/* Where plugins lie, if not beside the library or the program that contains it: the folder of the
 * build for programs that stay there, that of the installation for installed libraries, which must
 * not open files of a folder that may be gone by now and be anybody's. Defined in backends.c. */
extern const char ek_plugin_folder[];

/* ---- roster.c: who has come ---- */

/* Before MPI connects the processes, none can ask another one. Processes of the job that run on
 * this machine can be seen in /proc. Such a process has its rank in its environment, descends from
 * the launcher of this process, and has a communication thread once it has come.
 *
 * Writes which of the job's ranks have not come to ek_dist_init_process_group, as far as this
 * machine shows: "rank 1 on node7 has not called it (process 4711)". Returns true if a rank of this
 * machine has no process: it has ended, or has not begun. Keeps pending errors. */
bool ek_roster_describe(const ek_launched *launched, char *text, size_t room);

/* ---- mpirun.c: the launcher on this machine, for a process that starts others ---- */

enum { EK_MPIRUN_PATH = 4096 };

/* Finds the mpirun that the environment's MPIRUN names, or that of an MPI whose plugin is there.
 * EK_E_BACKEND names the packages. */
int ek_mpirun_find(int nprocs, char path[EK_MPIRUN_PATH]);

/* The environment for it: this process's without what a launcher has told it, with settings for
 * ranks on one machine unless they are set, and with `mark`, a further "NAME=value". A block for
 * free(), whose strings are borrowed; NULL with an error. */
char **ek_mpirun_environment(char *mark);

#endif
