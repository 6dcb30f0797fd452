/* test_launcher.c: what launchers tell in the environment, and the plugins that are opened. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "evenkeel/dist.h"
#include "launch/launcher.h"
#include "unit.h"

NAMES_DEVICES

/* Whatever started the tests. */
static void clear_environment(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID",
                                        "SLURM_LOCALID",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "EVENKEEL_DIST_LIBRARY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

FIXTURE(clear_environment, NULL)

/* "NAME=value" of each, until NULL. */
static void environment(const char *const *settings)
{
    for (; *settings; settings++) {
        char name[64];
        size_t length = strcspn(*settings, "=");
        ck_assert_uint_lt(length, sizeof name);
        memcpy(name, *settings, length);
        name[length] = '\0';
        setenv(name, *settings + length + 1, 1);
    }
}
#define ENVIRONMENT(...) environment((const char *const[]){__VA_ARGS__, NULL})

static ek_launched find(void)
{
    ek_launched launched;
    memset(&launched, 0xee, sizeof launched);
    assert_ok(ek_launcher_find(&launched));
    return launched;
}

static void expect(ek_launched launched, const char *mpi, int rank, int size, int local_rank,
                   int local_size)
{
    ck_assert(launched.several == (size != 1));
    ck_assert_int_eq(launched.rank, rank);
    ck_assert_int_eq(launched.size, size);
    ck_assert_int_eq(launched.local_rank, local_rank);
    ck_assert_int_eq(launched.local_size, local_size);
    ck_assert_pstr_eq(launched.mpi, mpi);
}

static void expect_state(const char *part)
{
    ek_launched launched;
    assert_refused(ek_launcher_find(&launched), EK_E_STATE, part);
}

/* ---- the environment ---- */

TEST(without_a_launcher_the_world_is_one)
{
    const ek_transport *transport = (const ek_transport *)&transport;
    ek_launched launched = find();
    expect(launched, NULL, 0, 1, 0, 1);
    assert_ok(ek_launcher_transport(&launched, &transport));
    ck_assert_ptr_null(transport);
    ENVIRONMENT("RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE=", "PMI_SIZE=");
    expect(find(), NULL, 0, 1, 0, 1);
    ENVIRONMENT("WORLD_SIZE=4", "RANK=");
    expect(find(), NULL, 0, 1, 0, 1);
}

TEST(open_mpi_tells_all)
{
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=5");
    expect(find(), "Open MPI", 5, 8, 1, 4);
    ck_assert(!find().either);
    /* Within a job of Slurm's, and in a program that torch's variables are set for. */
    ENVIRONMENT("SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0", "RANK=0", "WORLD_SIZE=16");
    expect(find(), "Open MPI", 5, 8, 1, 4);
}

TEST(mpich_tells_all)
{
    ENVIRONMENT("PMI_SIZE=3", "PMI_RANK=2", "MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=3");
    expect(find(), "MPICH", 2, 3, 2, 3);
    ck_assert(!find().either);
}

TEST(slurm_tells_less)
{
    ENVIRONMENT("SLURM_STEP_NUM_TASKS=6", "SLURM_PROCID=4", "SLURM_LOCALID=1");
    expect(find(), "Open MPI", 4, 6, 1, 0);
    ck_assert(find().either);
    ENVIRONMENT("PMI_SIZE=6", "PMI_RANK=4"); /* srun --mpi=pmi2 */
    expect(find(), "MPICH", 4, 6, -1, 0);
}

TEST(a_script_in_a_job_is_alone)
{
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=6", "SLURM_LOCALID=0");
    expect(find(), NULL, 0, 1, 0, 1);
}

TEST(pmix_tells_the_rank_only)
{
    ENVIRONMENT("PMIX_RANK=3");
    expect_state("PMIX_RANK is 3, but PMIX_NAMESPACE is not set");
    ENVIRONMENT("PMIX_NAMESPACE=job");
    expect(find(), "Open MPI", 3, 0, -1, 0);
    ck_assert(find().either);
}

TEST(a_launcher_of_one_needs_no_mpi)
{
    const ek_transport *transport = (const ek_transport *)&transport;
    ENVIRONMENT("OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                "OMPI_COMM_WORLD_LOCAL_SIZE=1", "EVENKEEL_DIST_LIBRARY=/nowhere/lib.so");
    ek_launched launched = find();
    expect(launched, "Open MPI", 0, 1, 0, 1);
    assert_ok(ek_launcher_transport(&launched, &transport));
    ck_assert_ptr_null(transport);
}

TEST(variables_of_torch_alone_are_refused)
{
    ENVIRONMENT("RANK=1", "WORLD_SIZE=4");
    expect_state("RANK is 1 and WORLD_SIZE is 4, but no MPI launcher started this process: start "
                 "all ranks with mpirun -n 4 PROGRAM");
}

TEST(variables_that_contradict_each_other_are_refused)
{
    ENVIRONMENT("PMI_SIZE=2");
    expect_state("PMI_SIZE is 2 and PMI_RANK is not set");
    ENVIRONMENT("PMI_RANK=2");
    expect_state("PMI_SIZE is 2 and PMI_RANK is 2: ranks are smaller");
    ENVIRONMENT("PMI_SIZE=0");
    expect_state("PMI_SIZE is 0 and PMI_RANK is 2");
    static const char *const words[] = {"-1", "2x", "x", "99999999999", "1 2", " "};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char part[64];
        setenv("PMI_RANK", words[i], 1);
        snprintf(part, sizeof part, "PMI_RANK is \"%s\"", words[i]);
        expect_state(part);
    }
    ENVIRONMENT("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALNRANKS=two");
    expect_state("MPI_LOCALNRANKS is \"two\"");
}

/* ---- plugins ---- */

static ek_launched launched_by(const char *mpi, bool either)
{
    return (ek_launched){
        .several = true, .rank = 1, .size = 2, .local_rank = -1, .mpi = mpi, .either = either};
}

static int open_named(const char *path, const ek_transport **transport)
{
    setenv("EVENKEEL_DIST_LIBRARY", path, 1);
    ek_launched launched = launched_by("MPICH", false);
    *transport = (const ek_transport *)transport;
    return ek_launcher_transport(&launched, transport);
}

TEST(a_named_plugin_is_opened)
{
    const ek_transport *transport, *again;
    assert_ok(open_named(FAKE_PLUGIN, &transport));
    ck_assert_str_eq(transport->name, "a fake");
    ck_assert_uint_eq(transport->version, EK_TRANSPORT_VERSION);
    assert_ok(open_named(FAKE_PLUGIN, &again));
    ck_assert_ptr_eq(transport, again);
}

static void expect_refused(const char *path, const char *part)
{
    const ek_transport *transport;
    assert_refused(open_named(path, &transport), EK_E_BACKEND, part);
    ck_assert_ptr_null(transport);
}

TEST(plugins_that_do_not_fit_are_refused)
{
    expect_refused("/nowhere/lib.so", "EVENKEEL_DIST_LIBRARY: /nowhere/lib.so could not be opened");
    expect_refused(__FILE__, "could not be opened");
    expect_refused(FAKE_PLUGIN_OLD, "is a plugin of version 99, and this library's is 2: take both "
                                    "from one build");
    expect_refused(FAKE_PLUGIN_EMPTY, "is no plugin of Evenkeel: it has no ek_transport_of_plugin");
}

/* The plugin of the build, or what to install. */
static void expect_found(const char *mpi, bool built, const char *packages)
{
    ek_launched launched = launched_by(mpi, false);
    const ek_transport *transport = NULL;
    if (built) {
        assert_ok(ek_launcher_transport(&launched, &transport));
        ck_assert_msg(strncmp(transport->name, mpi, strlen(mpi)) == 0, "%s", transport->name);
    } else {
        assert_refused(ek_launcher_transport(&launched, &transport), EK_E_BACKEND, packages);
        ck_assert_ptr_null(transport);
    }
}

TEST(open_mpis_plugin_is_found)
{
    expect_found("Open MPI", BUILT_OPENMPI, "install libopenmpi-dev openmpi-bin");
}

TEST(mpichs_plugin_is_found)
{
    expect_found("MPICH", BUILT_MPICH, "install libmpich-dev mpich");
}

TEST(slurm_takes_either)
{
    ek_launched launched = launched_by("Open MPI", true);
    const ek_transport *transport = NULL;
    if (BUILT_OPENMPI || BUILT_MPICH)
        assert_ok(ek_launcher_transport(&launched, &transport));
    else
        assert_refused(ek_launcher_transport(&launched, &transport), EK_E_BACKEND,
                       "EVENKEEL_DIST_LIBRARY");
}

/* Beside the program, which comes before the folder of the build. */
TEST(a_plugin_beside_the_program_is_found)
{
    ek_launched launched = launched_by("Open MPI", false);
    const ek_transport *transport = NULL;
    char program[4096], folder[4096 + 16], link[4096 + 64];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    ck_assert_int_gt(length, 0);
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    snprintf(folder, sizeof folder, "%s/evenkeel", program);
    snprintf(link, sizeof link, "%s/libevenkeel_mpi_openmpi.so", folder);
    unlink(link);
    ck_assert(mkdir(folder, 0700) == 0 || errno == EEXIST);
    ck_assert_int_eq(symlink(FAKE_PLUGIN, link), 0);
    int rc = ek_launcher_transport(&launched, &transport);
    unlink(link);
    rmdir(folder);
    assert_ok(rc);
    ck_assert_str_eq(transport->name, "a fake");
}

/* ---- EK_DIST_NCCL ---- */

TEST(nccl_without_gpus_is_refused)
{
    setenv("EK_EMULATOR_DEVICES", "0", 1);
    if (ek_device_count(EK_CUDA) > 0)
        return;
    ek_error_clear();
    assert_refused(ek_dist_init_process_group(.backend = EK_DIST_NCCL), EK_E_BACKEND,
                   "EK_DIST_NCCL, but NCCL cannot be used: ");
    ck_assert(!ek_dist_is_initialized());
    assert_refused(ek_dist_init_process_group(.backend = EK_DIST_NCCL + 1), EK_E_INVALID,
                   "backend 3 is unknown");
}
