/* test_spawn.c: ek_spawn. Started without mpirun: it starts processes of its own, in which main
 * comes by here again. With the argument "daemon FILE" it leaves processes that write their numbers
 * to the file. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

#include <evenkeel/evenkeel.h>

static bool spawned_here; /* this process is one that ek_spawn has started */

/* In a spawned process earlier calls are 0, whatever they were. */
static void expect(int rc, int status, const char *text, int line)
{
    if (spawned_here)
        return;
    if (rc != status || (text && !strstr(ek_error_message(), text)))
        job_fail(__FILE__, line, "ek_spawn", "%d (%s), wanted %d with \"%s\"", rc,
                 ek_error_message(), status, text ? text : "");
    ek_error_clear();
}
#define EXPECT(call, status, text) expect((call), (status), (text), __LINE__)

/* ---- functions of ranks ---- */

typedef struct expected {
    int argc, size;
    const char *last;
} expected;

static int works(int rank, void *user)
{
    const expected *given = user;
    CHECK_OK(ek_dist_init_process_group());
    CHECK(given->size == ek_dist_get_world_size(NULL), "%d ranks", ek_dist_get_world_size(NULL));
    CHECK(rank == ek_dist_get_rank(NULL), "rank %d", rank);
    CHECK(given->argc == 3 && strcmp(given->last, "two words") == 0, "%s", given->last);
    CHECK(!getenv("EVENKEEL_SPAWN"), "the mark is left");
    ek_scope scope = ek_scope_begin();
    double sum = 0;
    ek_tensor *ones = ek_ones(EK_SHAPE(1));
    CHECK_OK(ek_dist_all_reduce(ones, .op = EK_DIST_SUM));
    CHECK_OK(ek_item(ones, &sum));
    CHECK(sum == given->size, "the sum is %g", sum);
    ek_scope_end(&scope);
    CHECK(ek_spawn(works, .nprocs = 2) == EK_E_STATE, "spawned in spawned");
    ek_error_clear();
    return 0;
}

static int fails(int rank, void *user)
{
    (void)user;
    CHECK_OK(ek_dist_init_process_group());
    if (rank == 1)
        return ek_error(EK_E_SHAPE, "layer 3 does not fit");
    return ek_dist_barrier();
}

static int leaves_an_error(int rank, void *user)
{
    (void)user;
    if (rank == 1)
        ek_error(EK_E_DTYPE, "of a kind that is not read");
    return 0;
}

static int is_killed(int rank, void *user)
{
    (void)user;
    CHECK_OK(ek_dist_init_process_group());
    CHECK_OK(ek_dist_barrier());
    if (rank == 1)
        raise(SIGKILL);
    sleep(100);
    return 0;
}

/* Without MPI nobody else ends the rank that is left. */
static int exits(int rank, void *user)
{
    (void)user;
    if (rank == 0)
        exit(3);
    sleep(100);
    return 0;
}

static int waits(int rank, void *user)
{
    (void)rank, (void)user;
    usleep(300000);
    return 0;
}

static int does_nothing(int rank, void *user)
{
    *(int *)user = 10 + rank;
    return 0;
}

static int writes_its_number(int rank, void *user)
{
    (void)rank;
    FILE *stream = fopen(user, "a");
    fprintf(stream, "%ld\n", (long)getpid());
    fclose(stream);
    sleep(100);
    return 0;
}

/* ---- what the caller is told ---- */

static int run_daemon(char *file)
{
    ek_spawned *left;
    CHECK_OK(ek_spawn(writes_its_number, .user = file, .nprocs = 2, .join = false, .daemon = true,
                      .result = &left));
    sleep(100);
    return 1;
}

static void one_process(void)
{
    int value = 0;
    ek_spawned *spawned;
    EXPECT(ek_spawn(does_nothing, .user = &value, .nprocs = 1), 0, NULL);
    CHECK(spawned_here || value == 10, "%d", value);
    EXPECT(ek_spawn(does_nothing, .user = &value, .nprocs = 1, .join = false, .result = &spawned),
           0, NULL);
    EXPECT(ek_spawn_join(spawned, 0), 1, NULL);
    expected given = {3, 1, "two words"};
    EXPECT(ek_spawn(works, .user = &given, .nprocs = 1), 0, NULL);
    CHECK(spawned_here || !ek_dist_is_initialized(), "the world of one is left");
}

static void several_processes(int argc, char **argv)
{
    char known[] = "known";
    expected given = {argc, 3, argc > 1 ? argv[argc - 1] : known};
    EXPECT(ek_spawn(works, .user = &given, .nprocs = 3), 0, NULL);
    EXPECT(ek_spawn(fails, .nprocs = 2), EK_E_SHAPE, "rank 1: layer 3 does not fit");
    EXPECT(ek_spawn(leaves_an_error, .nprocs = 2), EK_E_DTYPE, "rank 1: of a kind");
    EXPECT(ek_spawn(is_killed, .nprocs = 2), EK_E_ABORTED, "rank 1 was ended by signal 9");
    EXPECT(ek_spawn(exits, .nprocs = 2), EK_E_ABORTED, "rank 0 ended with status 3");
}

static void processes_not_waited_for(void)
{
    ek_spawned *spawned = NULL;
    EXPECT(ek_spawn(waits, .nprocs = 2, .join = false, .result = &spawned), 0, NULL);
    EXPECT(ek_spawn_join(spawned, 0), spawned ? 0 : 1, NULL);
    EXPECT(ek_spawn_join(spawned, -1), 1, NULL);
}

static void refusals(void)
{
    EXPECT(ek_spawn(NULL), EK_E_INVALID, "function is NULL");
    EXPECT(ek_spawn(waits, .nprocs = 0), EK_E_INVALID, "0 processes");
    EXPECT(ek_spawn(waits, .nprocs = 2, .join = false), EK_E_INVALID, "result is NULL");
    if (!spawned_here) { /* these would not be found again in a new process */
        char *mpirun = getenv("MPIRUN"), kept[4096] = "";
        snprintf(kept, sizeof kept, "%s", mpirun ? mpirun : "");
        setenv("MPIRUN", "/nowhere/mpirun", 1);
        EXPECT(ek_spawn(waits, .nprocs = 2), EK_E_BACKEND, "/nowhere/mpirun, which MPIRUN names");
        unsetenv("MPIRUN");
        char *path = getenv("PATH"), kept_path[4096];
        snprintf(kept_path, sizeof kept_path, "%s", path ? path : "");
        setenv("PATH", "/nowhere", 1);
        EXPECT(ek_spawn(waits, .nprocs = 2), EK_E_BACKEND, "libopenmpi-dev and openmpi-bin");
        setenv("PATH", kept_path, 1);
        if (*kept)
            setenv("MPIRUN", kept, 1);
        setenv("PMI_SIZE", "2", 1); /* as if a launcher had started this process beside another */
        setenv("PMI_RANK", "1", 1);
        for (int nprocs = 1; nprocs <= 2; nprocs++)
            EXPECT(ek_spawn(waits, .nprocs = nprocs), EK_E_STATE,
                   "as rank 1 of several (PMI_RANK)");
        unsetenv("PMI_SIZE");
        unsetenv("PMI_RANK");
    }
}

int main(int argc, char **argv)
{
    spawned_here = getenv("SPAWNED_HERE") != NULL;
    setenv("SPAWNED_HERE", "1", 1);
    if (argc == 3 && strcmp(argv[1], "daemon") == 0)
        return run_daemon(argv[2]);
    one_process();
    several_processes(argc, argv);
    processes_not_waited_for();
    if (spawned_here) /* never comes to the next call */
        return 0;
    EXPECT(ek_spawn(waits, .nprocs = 2), EK_E_STATE, "main ended on rank 0 before");
    refusals();
    return ek_shutdown() < 0;
}
