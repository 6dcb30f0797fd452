/* mpirun.h: the launcher on this machine, for a process that starts others. What samples/mpirun
 * does for a shell. */
#ifndef EK_LAUNCH_MPIRUN_H
#define EK_LAUNCH_MPIRUN_H

enum { EK_MPIRUN_PATH = 4096 };

/* Finds the mpirun that the environment's MPIRUN names, or that of an MPI whose plugin is there.
 * EK_E_BACKEND names the packages. */
int ek_mpirun_find(int nprocs, char path[EK_MPIRUN_PATH]);

/* The environment for it: this process's without what a launcher has told it, with settings for
 * ranks on one machine unless they are set, and with `mark`, a further "NAME=value". A block for
 * free(), whose strings are borrowed; NULL with an error. */
char **ek_mpirun_environment(char *mark);

#endif
