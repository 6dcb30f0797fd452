/* The cores that a process computes on: those of its affinity mask, shared by the machine's ranks.
 * This program's sched_getaffinity and sysconf stand before the system's. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "core/world.h"
#include "host_cases.h"

/* ---- a machine ---- */

/* ThreadSanitizer itself calls these, before any instrumented function may run. */
#if defined(__SANITIZE_THREAD__)
#define PLAIN_FUNCTION __attribute__((visibility("default"), no_sanitize("thread")))
#else
#define PLAIN_FUNCTION __attribute__((visibility("default")))
#endif

static int allowed = 1, online = 1; /* cores; no core allowed: the mask is refused */

PLAIN_FUNCTION int sched_getaffinity(pid_t process, size_t nbytes, cpu_set_t *mask)
{
    ck_assert_int_eq(process, getpid());
    if (allowed == 0) {
        errno = EPERM;
        return -1;
    }
    CPU_ZERO_S(nbytes, mask);
    for (int core = 0; core < allowed; core++)
        CPU_SET_S((size_t)(7 * core), nbytes, mask); /* on large machines, beyond the first 1024 */
    return 0;
}

PLAIN_FUNCTION long sysconf(int name)
{
    long (*next)(int);
    if (name == _SC_NPROCESSORS_ONLN)
        return online;
    void *symbol = dlsym(RTLD_NEXT, "sysconf");
    memcpy(&next, &symbol, sizeof next);
    return next(name);
}

static void machine(int cores, int of_mask, int ranks)
{
    online = cores;
    allowed = of_mask;
    ek_world.local_size = ranks;
    ck_assert_int_eq(unsetenv("EVENKEEL_HOST_DEVICES"), 0);
    ck_assert_int_eq(unsetenv("EVENKEEL_THREADS"), 0);
    ck_assert_int_eq(unsetenv("OMP_NUM_THREADS"), 0);
}

/* ---- counts ---- */

TEST(cores_are_those_of_the_mask_over_the_ranks)
{
    static const int cases[][4] = {
        /* cores, of the mask, ranks; this process's */
        {8, 8, 1, 8}, {8, 3, 1, 3}, {8, 8, 2, 4},       {8, 8, 3, 2},
        {8, 6, 4, 1}, {8, 1, 2, 1}, {8, 8, 9, 1},       {1, 1, 1, 1},
        {8, 0, 1, 8}, {8, 0, 2, 4}, {300, 300, 2, 150}, {4000, 4000, 1, 4000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine(cases[i][0], cases[i][1], cases[i][2]);
        ck_assert_int_eq(ek_world_cores(), cases[i][3]);
    }
}

/* A process group is made before a device is used, but the devices may have been counted. */
TEST(devices_and_threads_are_those_of_a_ranks_share)
{
    machine(24, 24, 1);
    ck_assert_int_eq(ek_device_count(EK_HOST), 12); /* one per two cores */
    ek_world.local_size = 2;
    ck_assert_int_eq(ek_device_count(EK_HOST), 6);
    ck_assert_int_eq(ek_device_threads(ek_cpu()), 12);
    ck_assert_int_eq(ek_device_threads(ek_host(5)), 2);
    assert_refused(ek_device_threads(ek_host(6)), EK_E_DEVICE, "this process has 6");
    ek_world.local_size = 1;
    ck_assert_int_eq(ek_device_count(EK_HOST), 12);
}

TEST(devices_that_were_asked_for_stay)
{
    machine(24, 24, 1);
    assert_ok(ek_host_devices_configure("3"));
    ek_world.local_size = 2;
    ck_assert_int_eq(ek_device_count(EK_HOST), 3);
    ck_assert_int_eq(ek_device_threads(ek_host(2)), 4);
}

TEST(the_environments_devices_stay)
{
    machine(24, 24, 1);
    ck_assert_int_eq(setenv("EVENKEEL_HOST_DEVICES", "5", 1), 0);
    ck_assert_int_eq(ek_device_count(EK_HOST), 5);
    ek_world.local_size = 2;
    ck_assert_int_eq(ek_device_count(EK_HOST), 5);
}

/* ---- variables: EVENKEEL_THREADS before OMP_NUM_THREADS, and both before the mask ---- */

TEST(threads_are_those_that_the_environment_names)
{
    static const struct {
        const char *ours, *openmp;
        int cores;
    } cases[] = {{NULL, NULL, 24}, {NULL, "1", 1}, {NULL, "6,2", 6}, {NULL, "many", 24},
                 {NULL, "0", 24},  {"", "4", 4},   {"3", "8", 3},    {"48", NULL, 48}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine(48, 24, 1);
        if (cases[i].ours)
            ck_assert_int_eq(setenv("EVENKEEL_THREADS", cases[i].ours, 1), 0);
        if (cases[i].openmp)
            ck_assert_int_eq(setenv("OMP_NUM_THREADS", cases[i].openmp, 1), 0);
        ck_assert_int_eq(ek_world_cores(), cases[i].cores);
        ek_world.local_size = 2; /* each rank has the variable's number */
        ck_assert_int_eq(ek_world_cores(), cases[i].cores == 24 ? 12 : cases[i].cores);
    }
}

TEST(host_devices_share_the_environments_threads)
{
    machine(24, 24, 1);
    setenv("EVENKEEL_THREADS", "8", 1);
    ck_assert_int_eq(ek_device_count(EK_HOST), 4); /* one per two */
    ck_assert_int_eq(ek_device_threads(ek_host(3)), 2);
    ck_assert_int_eq(ek_device_threads(ek_cpu()), 8);
}

TEST_LOOP(threads_that_are_no_count_are_refused, 0, 6)
{
    static const char *const bad[] = {"0", "-1", "two", "2x", " 2", "65537"};
    ek_memory_stats stats;
    machine(8, 8, 1);
    setenv("EVENKEEL_THREADS", bad[_i], 1);
    assert_refused(ek_memory_get_stats(ek_host(0), &stats), EK_E_INVALID,
                   "it can be a number from 1 to 65536");
}

/* ---- the warning ---- */

static char warning[512];
static int warnings;

static void keep_warning(ek_log_level level, const char *line, void *user)
{
    if (level != EK_LOG_WARNING)
        return;
    warnings++;
    snprintf(warning, sizeof warning, "%s", line);
    ck_assert_int_ge(ek_device_count(EK_HOST), 1); /* no lock is held */
}

static const struct {
    int cores, of_mask, ranks;
    bool warned;
} bindings[] = {
    {8, 1, 2, true},  /* as mpirun binds two ranks */
    {8, 3, 4, true},  /* to three */
    {8, 1, 1, false}, /* alone: by taskset, say */
    {8, 4, 2, false}, /* to a part of the machine with room for all */
    {2, 2, 4, false}, /* not bound: more ranks than cores */
};

TEST_LOOP(a_rank_bound_to_few_cores_is_warned_once, 0, sizeof bindings / sizeof *bindings)
{
    machine(bindings[_i].cores, bindings[_i].of_mask, bindings[_i].ranks);
    ek_set_log(keep_warning, NULL);
    ck_assert_int_ge(ek_device_threads(ek_cpu()), 1);
    ck_assert_int_ge(ek_device_count(EK_HOST), 1);
    ck_assert_int_ge(ek_device_threads(ek_host(0)), 1);
    ck_assert_int_eq(warnings, bindings[_i].warned);
    if (bindings[_i].warned)
        ck_assert_ptr_nonnull(strstr(warning, "--bind-to none"));
    ek_set_log(NULL, NULL);
}

TEST(a_bad_setting_of_the_host_is_an_error)
{
    ek_memory_stats stats;
    setenv("EVENKEEL_HOST_ISA", "avx3", 1);
    assert_refused(ek_memory_get_stats(ek_host(0), &stats), EK_E_INVALID,
                   "EVENKEEL_HOST_ISA is \"avx3\", not plain, avx2 or avx512");
    setenv("EVENKEEL_HOST_ISA", "avx2", 1);
    setenv("EVENKEEL_HOST_WITHOUT", "winograd,fft", 1);
    assert_refused(ek_memory_get_stats(ek_host(0), &stats), EK_E_INVALID,
                   "EVENKEEL_HOST_WITHOUT names \"fft\", which is not winograd");
    setenv("EVENKEEL_HOST_WITHOUT", ",winograd,,", 1); /* empty words are none */
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
}
