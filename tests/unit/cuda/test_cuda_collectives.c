/* Collectives of several GPUs by NCCL. On a machine with one GPU there is nothing to test. */
#include <pthread.h>

#include "cuda/nccl.h"
#include "cuda/runtime.h"
#include "cuda/stream.h"
#include "cuda/transfer.h"
#include "cuda_setup.h"
#include "held_stream.h"

enum { NBYTES = 256, ROUNDS = 300 };

/* Two GPUs that NCCL serves, each with a block of memory that is zero. False if there are not. */
typedef struct pair {
    ek_dev *devs[2];
    void *data[2];
} pair;

static bool open_pair(pair *p)
{
    open_cuda("0,1");
    for (int i = 0; i < 2; i++) {
        p->devs[i] = cuda_dev(i);
        assert_ok(ek_dev_alloc(p->devs[i], NBYTES, EK_MEMORY_ACTIVATION, &p->data[i]));
        assert_ok(ek_dev_zero(p->devs[i], p->data[i], NBYTES));
    }
    return ek_cuda_collective(p->devs, 2) > EK_COLLECTIVE_NONE;
}

static void close_pair(pair *p)
{
    for (int i = 0; i < 2; i++)
        ek_dev_free(p->devs[i], p->data[i], NBYTES, EK_MEMORY_ACTIVATION);
    close_cuda();
}

static void send_numbers(const pair *p)
{
    unsigned char bytes[NBYTES];
    for (int i = 0; i < NBYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + 3);
    assert_ok(ek_dev_copy(p->devs[0], p->data[0], cpu_dev(), bytes, NBYTES));
}

static void check_arrived(const pair *p)
{
    unsigned char bytes[NBYTES] = {0};
    assert_ok(ek_dev_copy(cpu_dev(), bytes, p->devs[1], p->data[1], NBYTES));
    for (int i = 0; i < NBYTES; i++)
        if (bytes[i] != (unsigned char)(i * 7 + 3))
            ck_abort_msg("byte %d is %d", i, bytes[i]);
}

TEST(a_broadcast_arrives)
{
    pair p;
    if (open_pair(&p)) {
        send_numbers(&p);
        assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
        check_arrived(&p);
    }
    close_pair(&p);
}

#ifdef EK_CUDA_EMULATED

TEST(communicators_count_as_memory_of_the_system)
{
    pair p;
    ek_memory_stats stats;
    emulator_set("LATER", "10M");
    ck_assert(open_pair(&p));
    assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
    for (int i = 0; i < 2; i++) {
        ek_ledger_read(p.devs[i], &stats);
        ck_assert_uint_eq(stats.system, 10 << 20);
    }
    close_pair(&p);
}

#endif

/* Each device waits for the other, again and again. */
static void *order_both_ways(void *user)
{
    const pair *p = user;
    for (int i = 0; i < ROUNDS; i++)
        if (ek_cuda_device_wait(p->devs[1], p->devs[0]) < 0 ||
            ek_cuda_device_wait(p->devs[0], p->devs[1]) < 0)
            return user;
    return NULL;
}

/* The parts of a collective wait for each other: a wait between devices that another thread issued
 * between two parts would never end. */
TEST(waits_of_other_threads_close_no_circle)
{
    pair p;
    if (open_pair(&p)) {
        pthread_t other;
        void *failed = NULL;
        send_numbers(&p);
        ck_assert_int_eq(pthread_create(&other, NULL, order_both_ways, &p), 0);
        for (int i = 0; i < ROUNDS; i++)
            assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
        pthread_join(other, &failed);
        ck_assert_ptr_null(failed);
        check_arrived(&p);
    }
    close_pair(&p);
}

/* ---- waits while there are communicators ---- */

static void *synchronize(void *user)
{
    ek_dev *dev = user;
    return ek_synchronize(dev->id) >= 0 ? NULL : user;
}

static void *order(void *user)
{
    return ek_dev_wait(cpu_dev(), user) >= 0 ? NULL : user;
}

/* A device to which another thread issues work all the time is waited for as any other. */
TEST_LOOP(a_wait_is_for_what_came_before, 0, 2)
{
    static void *(*const waits[])(void *) = {synchronize, order};
    const struct timespec moment = {0, 30000000};
    hold before = {.patience = 20}, after = {.patience = 20};
    pthread_t waiter;
    pair p;
    if (open_pair(&p)) {
        void *failed;
        assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
        hold_compute(p.devs[0], &before);
        ck_assert_int_eq(pthread_create(&waiter, NULL, waits[_i], p.devs[0]), 0);
        nanosleep(&moment, NULL);
        hold_compute(p.devs[0], &after);
        atomic_store(&before.released, true);
        pthread_join(waiter, &failed);
        ck_assert_ptr_null(failed);
        ck_assert(!atomic_load(&after.gave_up));
        atomic_store(&after.released, true);
    }
    close_pair(&p);
}

#ifdef EK_CUDA_EMULATED

/* The error is the caller's, and the next collective has new communicators. */
TEST(a_failed_group_is_survived)
{
    pair p;
    ck_assert(open_pair(&p));
    assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
    send_numbers(&p);
    ek_emulator_fail_next("ncclGroupEnd", 3, 0);
    assert_refused(ek_dev_broadcast(p.devs, 2, p.data, NBYTES), EK_E_BACKEND,
                   "internal error"); /* of either rank */
    ek_emulator_fail_next("ncclBroadcast", 4, 1);
    assert_refused(ek_dev_broadcast(p.devs, 2, p.data, NBYTES), EK_E_BACKEND, "invalid argument");
    assert_ok(ek_dev_broadcast(p.devs, 2, p.data, NBYTES));
    check_arrived(&p);
    close_pair(&p);
}

/* ---- a GPU that is lost while others wait for it ---- */

enum { GPUS = 5, LOST = 2, PARTIES = 4 };

typedef struct many {
    ek_dev *devs[GPUS];
    void *data[GPUS];
} many;

static void open_many(many *m)
{
    emulator_set("DEVICES", "5");
    assert_ok(ek_cuda_devices_configure("0,1,2,3,4"));
    for (int i = 0; i < GPUS; i++) {
        m->devs[i] = cuda_dev(i);
        assert_ok(ek_dev_alloc(m->devs[i], NBYTES, EK_MEMORY_ACTIVATION, &m->data[i]));
        assert_ok(ek_dev_zero(m->devs[i], m->data[i], NBYTES));
    }
    ck_assert_int_gt(ek_cuda_collective(m->devs, PARTIES), EK_COLLECTIVE_NONE);
    assert_ok(ek_dev_broadcast(m->devs, PARTIES, m->data, NBYTES));
    for (int i = 0; i < GPUS; i++)
        assert_ok(ek_synchronize(m->devs[i]->id));
}

/* What lies on a lost GPU can't be given back, but if it is there again. */
static void close_many(many *m, bool again)
{
    for (int i = 0; i < GPUS; i++)
        ek_dev_free(m->devs[i], m->data[i], NBYTES, EK_MEMORY_ACTIVATION);
    if (again) {
        ek_emulator_recover();
        close_cuda();
    }
    assert_ok(ek_shutdown());
    ck_assert_int_eq(ek_error_status(), 0);
    for (int i = 0; i < GPUS; i++)
        if (again || i != LOST)
            ck_assert_uint_eq(ek_emulator_device_allocations(i), 0);
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
}

/* A kernel fails there before its part in a broadcast that all others have begun. */
static void lose_in_broadcast(many *m)
{
    ek_tensor *x = ek_empty(EK_SHAPE(8), .device = m->devs[LOST]->id);
    assert_made(x);
    ek_emulator_fail_next("kernel", cudaErrorIllegalAddress, 0);
    assert_ok(ek_cuda_fill(m->devs[LOST], x, 1));
    assert_ok(ek_dev_broadcast(m->devs, PARTIES, m->data, NBYTES));
}

static const char lost_gpu[] = "GPU 2 was lost when its part in a collective on cuda:2 failed with "
                               "cudaErrorIllegalAddress";

typedef int waiting(many *m, int i);

static int by_synchronize(many *m, int i)
{
    return ek_synchronize(m->devs[i]->id);
}

static int by_read(many *m, int i)
{
    unsigned char bytes[NBYTES];
    return ek_dev_copy(cpu_dev(), bytes, m->devs[i], m->data[i], NBYTES);
}

static int by_order(many *m, int i)
{
    return ek_dev_wait(cpu_dev(), m->devs[i]);
}

static waiting *const ways[] = {by_synchronize, by_read, by_order};

/* All that were in it are told, once, and are as good as before without the one. */
TEST_LOOP(a_lost_member_lets_the_others_go, 0, 3)
{
    many m;
    open_many(&m);
    lose_in_broadcast(&m);
    for (int i = 0; i < PARTIES; i++) {
        if (i == LOST)
            continue;
        ck_assert_int_eq(ways[_i](&m, i), EK_E_BACKEND);
        ck_assert_ptr_nonnull(strstr(ek_error_message(), lost_gpu));
        ck_assert_ptr_nonnull(strstr(ek_error_message(), m.devs[i]->name));
        assert_error(EK_E_BACKEND, "cuda:0, cuda:1, cuda:3 can be used as before");
        assert_ok(ways[_i](&m, i));
    }
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
    assert_refused(ways[_i](&m, LOST), EK_E_BACKEND, lost_gpu);
    assert_refused(ek_dev_broadcast(m.devs, PARTIES, m.data, NBYTES), EK_E_BACKEND,
                   "in a new data-parallel module without it");
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    /* Those that are left have communicators of their own. */
    pair p = {{m.devs[0], m.devs[3]}, {m.data[0], m.data[3]}};
    ek_dev *left[] = {m.devs[0], m.devs[3], m.devs[1]};
    void *data[] = {m.data[0], m.data[3], m.data[1]};
    ck_assert_int_gt(ek_cuda_collective(left, 3), EK_COLLECTIVE_NONE);
    send_numbers(&p);
    assert_ok(ek_dev_broadcast(left, 3, data, NBYTES));
    check_arrived(&p);
    ck_assert_uint_eq(ek_emulator_live_communicators(), 3);
    close_many(&m, true);
}

typedef struct waiter {
    many *m;
    int index;
    pthread_t thread;
} waiter;

static void *wait_for_one(void *user)
{
    const waiter *w = user;
    return by_synchronize(w->m, w->index) == EK_E_BACKEND ? NULL : user;
}

/* Whoever waits first sets all free, also those that wait already. */
TEST(threads_that_wait_are_let_go)
{
    many m;
    waiter waiters[PARTIES];
    open_many(&m);
    lose_in_broadcast(&m);
    for (int i = 0; i < PARTIES; i++) {
        waiters[i] = (waiter){.m = &m, .index = i};
        ck_assert_int_eq(pthread_create(&waiters[i].thread, NULL, wait_for_one, &waiters[i]), 0);
    }
    for (int i = 0; i < PARTIES; i++) {
        void *failed;
        pthread_join(waiters[i].thread, &failed);
        ck_assert_ptr_null(failed);
    }
    close_many(&m, true);
}

/* Nobody has waited: what comes next does, and that nobody hears of it is as of other errors. */
TEST(a_lost_member_does_not_keep_devices_from_closing)
{
    many m;
    open_many(&m);
    lose_in_broadcast(&m);
    close_many(&m, false);
}

/* A device that has no part waits for one that has. */
TEST(a_bystander_is_let_go_too)
{
    many m;
    open_many(&m);
    lose_in_broadcast(&m);
    assert_ok(ek_dev_wait(m.devs[4], m.devs[0]));
    assert_ok(ek_synchronize(m.devs[4]->id));
    assert_refused(by_synchronize(&m, 0), EK_E_BACKEND, lost_gpu);
    close_many(&m, true);
}

/* What NCCL itself reports ends communicators as well; they are looked at in long waits. */
TEST(errors_that_nccl_reports_end_a_collective)
{
    many m;
    open_many(&m);
    ek_dev *two[] = {m.devs[3], m.devs[4]};
    void *data[] = {m.data[3], m.data[4]};
    ck_assert_int_gt(ek_cuda_collective(two, 2), EK_COLLECTIVE_NONE);
    ek_dev *three[] = {m.devs[0], m.devs[1], m.devs[LOST]};
    ck_assert_int_gt(ek_cuda_collective(three, 3), EK_COLLECTIVE_NONE);
    ek_tensor *x = ek_empty(EK_SHAPE(8), .device = m.devs[LOST]->id);
    ek_emulator_fail_next("kernel", cudaErrorLaunchFailure, 0);
    assert_ok(ek_cuda_fill(m.devs[LOST], x, 1));
    assert_ok(ek_dev_broadcast(three, 3, m.data, NBYTES));
    assert_ok(ek_dev_wait(m.devs[4], m.devs[0])); /* so that it can't end too soon */
    assert_ok(ek_dev_broadcast(two, 2, data, NBYTES));
    ek_emulator_fail_next("ncclCommGetAsyncError", 6, 0);
    assert_refused(by_synchronize(&m, 1), EK_E_BACKEND, "cudaErrorLaunchFailure");
    assert_refused(by_synchronize(&m, 4), EK_E_BACKEND,
                   "NCCL reports on cuda:3: remote process exited");
    close_many(&m, true);
}

/* ---- lists that NCCL doesn't serve ---- */

TEST(a_gpu_that_stands_twice_is_named)
{
    setenv("EVENKEEL_COMM", "nccl", 1);
    open_cuda("0,1,0");
    ek_dev *devs[] = {cuda_dev(0), cuda_dev(1), cuda_dev(2)};
    assert_refused(ek_dev_collective(devs, 3), EK_E_BACKEND,
                   "EVENKEEL_COMM asks for NCCL among cuda:0 and 2 more, but cuda:0 "
                   "and cuda:2 are both on GPU 0, and NCCL refuses two parts on one");
    close_cuda();
}

static int mixed_lines;

static void count_mixed(ek_log_level level, const char *line, void *user)
{
    mixed_lines += strstr(line, "cuda:0 and 1 more communicate by copies, though EVENKEEL_COMM "
                                "asks for NCCL: cpu is no GPU") != NULL;
}

TEST(lists_with_devices_of_the_host_use_copies)
{
    setenv("EVENKEEL_COMM", "nccl", 1);
    ek_set_log(count_mixed, NULL);
    open_cuda("0,1");
    ek_dev *devs[] = {cuda_dev(0), cpu_dev()}, *turned[] = {cpu_dev(), cuda_dev(0)};
    ck_assert_int_eq(ek_dev_collective(devs, 2), EK_COLLECTIVE_NONE);
    ck_assert_int_eq(ek_dev_collective(turned, 2), EK_COLLECTIVE_NONE);
    ck_assert_int_eq(mixed_lines, 1);
    setenv("EVENKEEL_COMM", "ncll", 1);
    assert_refused(ek_dev_collective(devs, 2), EK_E_INVALID, "EVENKEEL_COMM is \"ncll\"");
    close_cuda();
}

#endif
