/* launcher.h: who started this process, the transport that belongs to the launcher, and which
 * processes have come.
 *
 * An MPI launcher tells its processes about themselves in the environment. The library opens MPI
 * only if the launcher tells of several processes. A program that is started without a launcher
 * needs no MPI. */
#ifndef EK_LAUNCH_LAUNCHER_H
#define EK_LAUNCH_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

#include "link/transport.h"

typedef struct ek_launched {
    bool several;    /* the launcher has started other processes too, or may have */
    int rank, size;  /* in the job; size is 0 if the launcher does not tell it */
    int local_rank;  /* on this machine; -1 if the launcher does not tell it */
    int local_size;  /* on this machine; 0 if the launcher does not tell it */
    const char *mpi; /* "Open MPI" or "MPICH"; NULL: there is no launcher */
    bool either;     /* the launcher can start programs of both MPIs, and `mpi` is a guess */
    const char *rank_variable; /* the variable that has the rank; NULL: no launcher */
} ek_launched;

/* Reads the environment. Without a launcher the process is rank 0 of 1. Returns EK_E_STATE if a
 * variable is no number or contradicts another, or if RANK and a WORLD_SIZE other than 1 are set
 * without a launcher. */
int ek_launcher_find(ek_launched *launched);

/* Opens the plugin for the launcher's MPI, which stays open, and writes the plugin's transport, or
 * NULL if launched->several is false. EVENKEEL_DIST_LIBRARY can name the plugin's file. Else the
 * file is libevenkeel_mpi_openmpi.so or libevenkeel_mpi_mpich.so, in the first of these folders
 * that has it: that of the library (or of the program that contains the library), the folder
 * evenkeel in that folder, and ek_plugin_folder. Returns EK_E_BACKEND if there is no fitting
 * plugin. */
int ek_launcher_transport(const ek_launched *launched, const ek_transport **transport);

/* Returns true if one of the folders of ek_launcher_transport has the plugin for this MPI, "Open
 * MPI" or "MPICH". */
bool ek_launcher_has_plugin(const char *mpi);

/* A further folder of plugins: the build's in programs of the build, the installation's in
 * installed libraries. An installed library must not look in the folder of the build, which may be
 * gone and made anew by anybody. backends.c defines this name. */
extern const char ek_plugin_folder[];

/* ---- roster.c: who has come ---- */

/* Before MPI connects the processes, no process can ask another one. But /proc shows the job's
 * processes on this machine. A process of the job has its rank in its environment, descends from
 * the launcher of this process, and has a communication thread once it has come.
 *
 * Writes which ranks of the job have not come to ek_dist_init_process_group, as far as this machine
 * shows: "rank 1 on node7 has not called it (process 4711)". Returns true if a rank of this machine
 * has no process, because the process has ended or has not begun. Keeps pending errors. */
bool ek_roster_describe(const ek_launched *launched, char *text, size_t room);

/* ---- mpirun.c: the launcher on this machine, for a process that starts others ---- */

enum { EK_MPIRUN_PATH = 4096 };

/* Finds the mpirun that the environment's MPIRUN names, or else that of an MPI with a plugin.
 * Returns EK_E_BACKEND with the names of packages if there is none. */
int ek_mpirun_find(int nprocs, char path[EK_MPIRUN_PATH]);

/* Makes the environment of mpirun: this process's environment without what a launcher has told this
 * process, with settings for ranks on one machine unless they are set, and with `mark`, a further
 * "NAME=value". The caller frees the list, whose strings are borrowed. NULL with an error. */
char **ek_mpirun_environment(char *mark);

#endif
