/* Workers and gangs: one thread per device, errors handed over, no deadlock between callers. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/object.h"
#include "core/rendezvous.h"
#include "core/tensor.h"
#include "core/worker.h"
#include "unit.h"

enum { DEVICES = 4 };
static ek_dev *devs[DEVICES];

static void setup(void)
{
    assert_ok(ek_host_devices_configure("4"));
    for (int i = 0; i < DEVICES; i++) {
        devs[i] = ek_dev_get(ek_host(i));
        assert_made(devs[i]);
    }
}

FIXTURE(setup, NULL)

typedef struct record {
    pthread_t thread[DEVICES];
    ek_dev *worker[DEVICES];
    ek_thread_modes modes[DEVICES];
    ek_tensor *made[DEVICES];
    int fail[DEVICES];
} record;

static int part(void *user, int index)
{
    record *seen = user;
    seen->thread[index] = pthread_self();
    seen->worker[index] = ek_thread_self()->own_device;
    seen->modes[index] = ek_thread_self()->modes;
    ek_empty(EK_SHAPE(100), .device = ek_host(index)); /* gone with the job's scope */
    seen->made[index] = ek_keep(ek_empty(EK_SHAPE(16), .device = ek_host(index)));
    return seen->fail[index] ? ek_error(EK_E_USER, "part %d fails", index) : 0;
}

TEST(parts_run_on_their_devices_with_the_submitters_modes)
{
    record first = {0}, second = {0};
    ek_thread_self()->modes.flags = EK_MODE_NO_GRAD;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    assert_ok(ek_jobs_run(devs, DEVICES, part, &first, NULL));
    ek_thread_self()->modes.flags = 0;
    ek_memory_set_category(before);
    assert_ok(ek_jobs_run(devs, DEVICES, part, &second, NULL));
    for (int i = 0; i < DEVICES; i++) {
        ck_assert_ptr_eq(first.worker[i], devs[i]);
        ck_assert(pthread_equal(first.thread[i], second.thread[i]));
        ck_assert(!pthread_equal(first.thread[i], pthread_self()));
        ck_assert_uint_eq(first.modes[i].flags, EK_MODE_NO_GRAD);
        ck_assert_uint_eq(second.modes[i].flags, 0);
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(ek_host(i), &stats));
        ck_assert_uint_eq(stats.now[EK_MEMORY_PARAMETER], 64);
        ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 64);
        ek_release(first.made[i]);
        ek_scope_adopt(second.made[i]);
    }
}

TEST(one_part_runs_on_the_caller)
{
    record seen = {0};
    assert_ok(ek_jobs_run(&devs[2], 1, part, &seen, NULL));
    ck_assert(pthread_equal(seen.thread[0], pthread_self()));
    ek_release(seen.made[0]);
}

TEST(the_first_error_by_index_is_raised)
{
    record seen = {.fail = {0, 0, 1, 1}};
    assert_refused(ek_jobs_run(devs, DEVICES, part, &seen, "replica"), EK_E_USER,
                   "replica 2 on host:2: part 2 fails");
    for (int i = 0; i < DEVICES; i++) {
        ck_assert_ptr_nonnull(seen.made[i]); /* all have run */
        ek_release(seen.made[i]);
    }
    memset(&seen, 0, sizeof seen);
    assert_ok(ek_jobs_run(devs, DEVICES, part, &seen, "replica"));
    for (int i = 0; i < DEVICES; i++)
        ek_release(seen.made[i]);
    /* An error that was pending before stays the first. */
    ek_error(EK_E_IO, "older");
    seen.fail[0] = 1;
    ck_assert_int_eq(ek_jobs_run(devs, DEVICES, part, &seen, NULL), EK_E_USER);
    for (int i = 0; i < DEVICES; i++)
        ek_release(seen.made[i]);
    assert_error(EK_E_IO, "older");
}

static int nested(void *user, int index)
{
    record inner = {0};
    int rc = ek_jobs_run(devs, DEVICES, part, &inner, NULL);
    for (int i = 0; i < DEVICES; i++) {
        if (!pthread_equal(inner.thread[i], pthread_self()))
            rc = ek_error(EK_E_USER, "a nested gang left its thread");
        ek_release(inner.made[i]);
    }
    ((int *)user)[index] = 1;
    return rc;
}

TEST(a_nested_gang_runs_inline)
{
    int ran[DEVICES] = {0};
    assert_ok(ek_jobs_run(devs, DEVICES, nested, ran, NULL));
    for (int i = 0; i < DEVICES; i++)
        ck_assert_int_eq(ran[i], 1);
}

static int leave_modes_changed(void *user, int index)
{
    ek_thread_modes *modes = &ek_thread_self()->modes;
    ((unsigned *)user)[index] = modes->flags;
    modes->flags = EK_MODE_NO_GRAD;
    return 0;
}

TEST(parts_on_the_caller_leave_its_modes)
{
    ek_dev *cpu = ek_dev_get(ek_cpu());
    assert_made(cpu);
    ek_dev *const mixed[] = {cpu, devs[0], cpu};
    unsigned seen[3] = {7, 7, 7};
    assert_ok(ek_jobs_run(mixed, 3, leave_modes_changed, seen, NULL));
    ck_assert_uint_eq(ek_thread_self()->modes.flags, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(seen[i], 0);
}

static int meet(void *user, int index)
{
    pthread_barrier_wait(user);
    return index * 0;
}

static void *caller(void *user)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, DEVICES);
    for (int i = 0; i < 200; i++)
        if (ek_jobs_run(devs, DEVICES, meet, &barrier, NULL) < 0)
            *(int *)user = 1;
    pthread_barrier_destroy(&barrier);
    return NULL;
}

TEST(two_callers_with_a_rendezvous_do_not_deadlock)
{
    pthread_t threads[3];
    int failed[3] = {0};
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, caller, &failed[i]);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(failed[i], 0);
    }
}

static int shut_library_down(void *user, int index)
{
    return index ? ek_host_devices_configure("2") : ek_shutdown();
}

TEST(a_worker_cannot_end_the_workers)
{
    assert_refused(ek_jobs_run(devs, 2, shut_library_down, NULL, "part"), EK_E_STATE,
                   "part 0 on host:0: ek_shutdown was called on the worker of host:0");
}

static double spin(double seconds)
{
    struct timespec now;
    double began = 0, used = 0;
    while (used < seconds) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        double at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        began = began == 0 ? at : began;
        used = at - began;
    }
    return used;
}

static int work(void *user, int index)
{
    spin(0.02);
    return 0;
}

TEST(a_slow_device_takes_its_time)
{
    assert_ok(ek_host_devices_configure("0,0@0.25"));
    ek_dev *both[2] = {ek_dev_get(ek_host(0)), ek_dev_get(ek_host(1))};
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    assert_ok(ek_jobs_run(both, 2, work, NULL, NULL));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds =
        (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec);
    ck_assert(seconds >= 0.079); /* a lower bound only: machines are noisy */
}

/* ---- how long devices are busy ---- */

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void nap_ms(long milliseconds)
{
    nanosleep(&(struct timespec){0, milliseconds * 1000000}, NULL);
}

static int nothing(void *const *brought, int count)
{
    return 0;
}

static int nap_and_meet(void *user, int index)
{
    if (index == 1)
        nap_ms(60);
    return ek_rendezvous("test", 0, user, nothing);
}

TEST(waiting_for_others_is_no_work)
{
    assert_ok(ek_jobs_run(devs, 2, nap_and_meet, NULL, NULL));
    uint64_t waits = atomic_load(&devs[0]->busy_ns), works = atomic_load(&devs[1]->busy_ns);
    ck_assert_uint_ge(works, 60000000);
    ck_assert_uint_lt(waits, works / 2);
    ck_assert_uint_eq(atomic_load(&devs[2]->busy_ns), 0);
    /* A part within a part is the outer one's. */
    uint64_t before = atomic_load(&devs[3]->busy_ns);
    assert_ok(ek_jobs_run(&devs[0], 1, nap_and_meet, NULL, NULL));
    ck_assert_uint_eq(atomic_load(&devs[3]->busy_ns), before);
    ck_assert_uint_gt(atomic_load(&devs[0]->busy_ns), waits);
}

typedef struct spinning {
    uint64_t used; /* by the parts so far */
    int rests;
} spinning;

static int spin_part(void *user, int index)
{
    spinning *s = user;
    uint64_t began = cpu_ns();
    while (cpu_ns() - began < 700000)
        ;
    for (int i = 0; i < s->rests; i++)
        ek_work_rest();
    s->used += cpu_ns() - began;
    return 0;
}

/* What is not slept at once is slept later, and neither twice. */
TEST(slow_devices_rest_in_proportion)
{
    assert_ok(ek_host_devices_configure("512M@1,256M@0.5"));
    ek_dev *fast = ek_dev_get(ek_host(0)), *slow = ek_dev_get(ek_host(1));
    ck_assert(fast->speed == 1 && slow->speed == 0.5);
    ek_memory_stats stats;
    ek_ledger_read(slow, &stats);
    ck_assert_uint_eq(stats.capacity, 256 << 20);
    spinning s = {.rests = 3};
    for (int i = 0; i < 40; i++)
        assert_ok(ek_jobs_run(&slow, 1, spin_part, &s, NULL));
    int64_t owed = atomic_load(&slow->rest_ns);
    ck_assert_int_lt(owed, 1000000);
    ck_assert_int_ge(owed, -20000000);
    /* But for what is still owed, or was slept too much and counted against it. */
    ck_assert_int_ge((int64_t)atomic_load(&slow->busy_ns), (int64_t)(2 * s.used) - 21000000);
    ck_assert_int_eq(atomic_load(&fast->rest_ns), 0);
}

static int spin_once(void *user, int index)
{
    uint64_t began = cpu_ns();
    while (cpu_ns() - began < 100000)
        ;
    return 0 * index;
}

/* A debt beyond all numbers is the largest there is; a credit as large keeps the test from
 * sleeping. */
TEST(debts_of_sleep_do_not_overflow)
{
    assert_ok(ek_host_devices_configure("1M@0.001"));
    ek_dev *dev = ek_dev_get(ek_host(0));
    const int64_t credit = INT64_MIN / 2, most = INT64_C(1) << 55;
    dev->speed = 1e-300;
    atomic_store(&dev->rest_ns, credit);
    assert_ok(ek_jobs_run(&dev, 1, spin_once, NULL, NULL));
    ck_assert_int_eq(atomic_load(&dev->rest_ns), credit + most);
}
