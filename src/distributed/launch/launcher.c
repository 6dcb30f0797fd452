/* launcher.c: see launcher.h. */
#include "launch/launcher.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

/* ---- the environment ---- */

/* The names of a launcher's variables, NULL for those that the launcher doesn't set. Launchers that
 * run inside of others come first in the list: if mpirun was started in a job of Slurm, Slurm's
 * variables are set too, but mpirun's count. */
typedef struct launcher {
    const char *mpi, *size, *rank, *local_rank, *local_size;
    bool either;
} launcher;

static const launcher launchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"Open MPI", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", NULL, true},
    {"Open MPI", NULL, "PMIX_RANK", NULL, NULL, true},
};

/* Returns the variable's text, or NULL if the variable is not set or empty. */
static const char *variable(const char *name)
{
    const char *text = name ? getenv(name) : NULL;
    return text && *text ? text : NULL;
}

/* Reads a variable, which must be a number from 0 on. If it is not set, leaves *value unchanged. */
static int variable_read(const char *name, int *value)
{
    const char *text = variable(name);
    if (!text)
        return 0;
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || *end || number < 0 || number > INT_MAX)
        return EK_FAIL(EK_E_STATE, "%s is \"%s\": a launcher sets it to a number from 0 on", name,
                       text);
    *value = (int)number;
    return 0;
}

static int launcher_read(const launcher *read, ek_launched *launched)
{
    *launched = (ek_launched){.rank = -1,
                              .size = 0,
                              .local_rank = -1,
                              .mpi = read->mpi,
                              .either = read->either,
                              .rank_variable = read->rank};
    EK_TRY(variable_read(read->size, &launched->size));
    EK_TRY(variable_read(read->rank, &launched->rank));
    EK_TRY(variable_read(read->local_rank, &launched->local_rank));
    EK_TRY(variable_read(read->local_size, &launched->local_size));
    if (launched->rank < 0)
        return EK_FAIL(EK_E_STATE, "%s is %d and %s is not set: a launcher sets both", read->size,
                       launched->size, read->rank);
    if (read->size && launched->rank >= launched->size)
        return EK_FAIL(EK_E_STATE, "%s is %d and %s is %d: ranks are smaller", read->size,
                       launched->size, read->rank, launched->rank);
    launched->several = launched->size != 1;
    /* Without a server MPI would make a world of one of each process. */
    if (!read->size && !variable("PMIX_NAMESPACE"))
        return EK_FAIL(
            EK_E_STATE,
            "%s is %d, but PMIX_NAMESPACE is not set: there is no PMIx server to tell of "
            "other processes; start all ranks with mpirun, or with srun --mpi=pmix",
            read->rank, launched->rank);
    return 0;
}

int ek_launcher_find(ek_launched *launched)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (variable(launchers[i].size ? launchers[i].size : launchers[i].rank))
            return launcher_read(&launchers[i], launched);
    const char *rank = variable("RANK"), *size = variable("WORLD_SIZE");
    if (rank && size && strcmp(size, "1") != 0)
        return EK_FAIL(EK_E_STATE,
                       "RANK is %s and WORLD_SIZE is %s, but no MPI launcher started this process: "
                       "start all ranks with mpirun -n %s PROGRAM",
                       rank, size, size);
    *launched = (ek_launched){.size = 1, .local_size = 1};
    return 0;
}

/* ---- plugins ---- */

enum { LAUNCHER_PATH = 4096 };

typedef struct plugin {
    const char *mpi, *file, *packages;
} plugin;

static const plugin plugins[] = {
    {"Open MPI", "libevenkeel_mpi_openmpi.so", "libopenmpi-dev openmpi-bin"},
    {"MPICH", "libevenkeel_mpi_mpich.so", "libmpich-dev mpich"},
};

/* Writes the folder of the shared library, or of the program that contains the library. */
static bool library_folder(char folder[LAUNCHER_PATH])
{
    static const char here = 0;
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname)
        return false;
    if (info.dli_fname[0] == '/') {
        if (snprintf(folder, LAUNCHER_PATH, "%s", info.dli_fname) >= LAUNCHER_PATH)
            return false;
    } else { /* for a program, dli_fname is the name by which the program was called */
        ssize_t length = readlink("/proc/self/exe", folder, LAUNCHER_PATH - 1);
        if (length <= 0)
            return false;
        folder[length] = '\0';
    }
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

/* Writes the path of the file `name` in folder/below, or in the folder itself if `below` is "".
 * Returns true if the file can be read. */
static bool plugin_in(const char *folder, const char *below, const char *name,
                      char path[LAUNCHER_PATH])
{
    int used = snprintf(path, LAUNCHER_PATH, "%s%s/%s", folder, below, name);
    return used < LAUNCHER_PATH && access(path, R_OK) == 0;
}

static bool plugin_find(const plugin *wanted, char path[LAUNCHER_PATH])
{
    char folder[LAUNCHER_PATH];
    if (library_folder(folder) && (plugin_in(folder, "", wanted->file, path) ||
                                   plugin_in(folder, "/evenkeel", wanted->file, path)))
        return true;
    return plugin_in(ek_plugin_folder, "", wanted->file, path);
}

bool ek_launcher_has_plugin(const char *mpi)
{
    char path[LAUNCHER_PATH];
    for (size_t i = 0; i < sizeof plugins / sizeof plugins[0]; i++)
        if (strcmp(plugins[i].mpi, mpi) == 0)
            return plugin_find(&plugins[i], path);
    return false;
}

static int plugin_missing(const ek_launched *launched, const plugin *wanted, const plugin *other)
{
    char path[LAUNCHER_PATH], there[64] = "";
    if (other && plugin_find(other, path))
        snprintf(there, sizeof there, "; that of %s is here: start with its mpirun", other->mpi);
    return EK_FAIL(EK_E_BACKEND,
                   "this is rank %d of several that %s's launcher started, but Evenkeel's plugin "
                   "for it, %s, was not found: install %s and build Evenkeel again, or name the "
                   "file in EVENKEEL_DIST_LIBRARY%s",
                   launched->rank, wanted->mpi, wanted->file, wanted->packages, there);
}

/* Opens a plugin for good, because an MPI that has run cannot be unloaded. */
static int plugin_open(const char *path, const ek_transport **transport)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *reason = dlerror();
        return EK_FAIL(EK_E_BACKEND, "%s could not be opened: %s", path,
                       reason ? reason : "unknown reason");
    }
    const ek_transport *(*of_plugin)(void) = NULL;
    /* POSIX converts dlsym's pointers in this way. */
    *(void **)&of_plugin = dlsym(handle, EK_TRANSPORT_SYMBOL);
    const ek_transport *opened = of_plugin ? of_plugin() : NULL;
    dlclose(handle);
    if (!of_plugin)
        return EK_FAIL(EK_E_BACKEND, "%s is no plugin of Evenkeel: it has no %s", path,
                       EK_TRANSPORT_SYMBOL);
    if (!opened || opened->version != EK_TRANSPORT_VERSION)
        return EK_FAIL(EK_E_BACKEND,
                       "%s is a plugin of version %u, and this library's is %d: take both from one "
                       "build",
                       path, opened ? opened->version : 0, EK_TRANSPORT_VERSION);
    *transport = opened;
    return 0;
}

int ek_launcher_transport(const ek_launched *launched, const ek_transport **transport)
{
    char path[LAUNCHER_PATH];
    *transport = NULL;
    if (!launched->several)
        return 0;
    const char *named = secure_getenv("EVENKEEL_DIST_LIBRARY");
    if (named && *named) {
        const int before = ek_error_status();
        int rc = plugin_open(named, transport);
        if (rc < 0)
            ek_error_prefix(before, "EVENKEEL_DIST_LIBRARY");
        return rc;
    }
    const plugin *wanted = &plugins[strcmp(launched->mpi, plugins[0].mpi) == 0 ? 0 : 1];
    const plugin *other = &plugins[wanted == plugins ? 1 : 0];
    if (plugin_find(wanted, path) || (launched->either && plugin_find(other, path)))
        return plugin_open(path, transport);
    return plugin_missing(launched, wanted, other);
}
