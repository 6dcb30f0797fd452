/* mpirun.c: finds the mpirun of this machine, and makes its environment. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "launch/launcher.h"

/* ---- the program ---- */

/* Writes the path of a program as a shell finds it. In setuid programs the user's PATH is not
 * used. */
static bool mpirun_in_path(const char *name, char path[EK_MPIRUN_PATH])
{
    if (strchr(name, '/'))
        return snprintf(path, EK_MPIRUN_PATH, "%s", name) < EK_MPIRUN_PATH &&
               access(path, X_OK) == 0;
    const char *folders = secure_getenv("PATH");
    for (const char *at = folders ? folders : "/usr/local/bin:/usr/bin:/bin"; *at;) {
        size_t length = strcspn(at, ":");
        if (length > 0 &&
            snprintf(path, EK_MPIRUN_PATH, "%.*s/%s", (int)length, at, name) < EK_MPIRUN_PATH &&
            access(path, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

int ek_mpirun_find(int nprocs, char path[EK_MPIRUN_PATH])
{
    static const char packages[] = "libopenmpi-dev and openmpi-bin, or libmpich-dev and mpich";
    const char *named = secure_getenv("MPIRUN");
    if (named && *named)
        return mpirun_in_path(named, path)
                   ? 0
                   : EK_FAIL(EK_E_BACKEND, "there is no program %s, which MPIRUN names", named);
    const bool openmpi = ek_launcher_has_plugin("Open MPI"),
               mpich = ek_launcher_has_plugin("MPICH");
    const char *library = secure_getenv("EVENKEEL_DIST_LIBRARY");
    if (!openmpi && !mpich && !(library && *library))
        return EK_FAIL(EK_E_BACKEND,
                       "%d processes need MPI, for which Evenkeel was built without a plugin: "
                       "install %s, and build Evenkeel again",
                       nprocs, packages);
    if ((openmpi && mpirun_in_path("mpirun.openmpi", path)) ||
        (mpich && mpirun_in_path("mpirun.mpich", path)) || mpirun_in_path("mpirun", path) ||
        mpirun_in_path("mpiexec", path))
        return 0;
    return EK_FAIL(EK_E_BACKEND,
                   "%d processes need MPI's mpirun, which is not on PATH: install %s, or name it "
                   "in MPIRUN",
                   nprocs, packages);
}

/* ---- its environment ---- */

extern char **environ;

static bool mpirun_begins(const char *text, const char *const *beginnings)
{
    for (; *beginnings; beginnings++)
        if (strncmp(text, *beginnings, strlen(*beginnings)) == 0)
            return true;
    return false;
}

/* Returns true if a launcher sets the variable for its processes. Settings that users make for a
 * launcher don't count. */
static bool mpirun_is_told(const char *variable)
{
    static const char *const told[] = {"OMPI_", "PMIX_", "PMI_", "HYDI_", "MPI_LOCAL", NULL};
    static const char *const set[] = {"OMPI_ALLOW_",    "OMPI_MCA_btl",   "OMPI_MCA_plm",
                                      "OMPI_MCA_rmaps", "OMPI_MCA_hwloc", NULL};
    return mpirun_begins(variable, told) && !mpirun_begins(variable, set);
}

static bool mpirun_in_container(void)
{
    if (access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0)
        return true;
    char text[4096], *at = text;
    FILE *stream = fopen("/proc/1/environ", "re");
    size_t length = stream ? fread(text, 1, sizeof text - 1, stream) : 0;
    if (stream)
        fclose(stream);
    text[length] = '\0';
    for (; at < text + length; at += strlen(at) + 1)
        if (strncmp(at, "container=", 10) == 0)
            return true;
    return false;
}

/* Tells when a setting is needed. The settings are those of samples/mpirun, for Open MPI 4 (OMPI)
 * and 5 (PRTE). MPICH needs none. */
typedef enum mpirun_need {
    NEED_ALWAYS,
    NEED_AS_ROOT,
    NEED_WITHOUT_SSH,
    NEED_IN_CONTAINER
} mpirun_need;

static const struct {
    const char *setting;
    mpirun_need need;
} mpirun_settings[] = {
    {"OMPI_ALLOW_RUN_AS_ROOT=1", NEED_AS_ROOT},
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", NEED_AS_ROOT},
    {"PRTE_ALLOW_RUN_AS_ROOT=1", NEED_AS_ROOT},
    {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1", NEED_AS_ROOT},
    {"OMPI_MCA_rmaps_base_oversubscribe=1", NEED_ALWAYS},
    {"PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", NEED_ALWAYS},
    {"OMPI_MCA_hwloc_base_binding_policy=none", NEED_ALWAYS},
    {"PRTE_MCA_hwloc_default_binding_policy=none", NEED_ALWAYS},
    {"OMPI_MCA_btl=vader,self", NEED_ALWAYS},
    {"OMPI_MCA_plm=isolated", NEED_WITHOUT_SSH},
    {"OMPI_MCA_btl_vader_single_copy_mechanism=none", NEED_IN_CONTAINER},
};
enum { MPIRUN_SETTINGS = sizeof mpirun_settings / sizeof mpirun_settings[0] };

static bool mpirun_needs(mpirun_need need)
{
    char path[EK_MPIRUN_PATH];
    switch (need) {
    case NEED_ALWAYS:
        return true;
    case NEED_AS_ROOT:
        return geteuid() == 0;
    case NEED_WITHOUT_SSH:
        return !mpirun_in_path("ssh", path) && !mpirun_in_path("rsh", path);
    case NEED_IN_CONTAINER:
        return mpirun_in_container();
    }
    return false;
}

static bool mpirun_is_set(const char *setting)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(setting, "="), setting);
    return getenv(name) != NULL;
}

char **ek_mpirun_environment(char *mark)
{
    size_t count = 0, kept = 0;
    while (environ && environ[count])
        count++;
    char **made = ek_calloc(count + MPIRUN_SETTINGS + 2, sizeof *made);
    if (!made)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (!mpirun_is_told(environ[i]) && strncmp(environ[i], mark, strcspn(mark, "=") + 1) != 0)
            made[kept++] = environ[i];
    for (int i = 0; i < MPIRUN_SETTINGS; i++)
        if (!mpirun_is_set(mpirun_settings[i].setting) && mpirun_needs(mpirun_settings[i].need))
            made[kept++] = (char *)(uintptr_t)mpirun_settings[i].setting;
    made[kept] = mark;
    return made;
}
