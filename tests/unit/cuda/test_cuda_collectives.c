/* Collectives of several GPUs by NCCL. On a machine with one GPU there is nothing to test. */
#include <pthread.h>

#include "cuda/nccl.h"
#include "cuda/transfer.h"
#include "cuda_setup.h"

enum { NBYTES = 256, ROUNDS = 300 };

/* Two GPUs that NCCL serves, each with a block of memory that is zero. False where there are not.
 */
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

START_TEST(a_broadcast_arrives)
{
    pair p;
    if (open_pair(&p)) {
        send_numbers(&p);
        assert_ok(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES));
        check_arrived(&p);
    }
    close_pair(&p);
}
END_TEST

/* Each device waits for the other, again and again. */
static void *order_both_ways(void *user)
{
    const pair *p = user;
    for (int i = 0; i < ROUNDS; i++)
        if (ek_cuda_order(p->devs[1], p->devs[0]) < 0 || ek_cuda_order(p->devs[0], p->devs[1]) < 0)
            return user;
    return NULL;
}

/* The parts of a collective wait for each other: a wait between devices that another thread issued
 * between two parts would never end. */
START_TEST(waits_of_other_threads_close_no_circle)
{
    pair p;
    if (open_pair(&p)) {
        pthread_t other;
        void *failed = NULL;
        send_numbers(&p);
        ck_assert_int_eq(pthread_create(&other, NULL, order_both_ways, &p), 0);
        for (int i = 0; i < ROUNDS; i++)
            assert_ok(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES));
        pthread_join(other, &failed);
        ck_assert_ptr_null(failed);
        check_arrived(&p);
    }
    close_pair(&p);
}
END_TEST

#ifdef EK_CUDA_EMULATED

/* The error is the caller's, and the next collective has new communicators. */
START_TEST(a_failed_group_is_survived)
{
    pair p;
    ck_assert(open_pair(&p));
    assert_ok(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES));
    send_numbers(&p);
    ek_emulator_fail_next("ncclGroupEnd", 3, 0);
    ck_assert_int_eq(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES), EK_E_BACKEND);
    assert_error(EK_E_BACKEND, "NCCL: ending a group on cuda:0: internal error");
    ek_emulator_fail_next("ncclBroadcast", 4, 1);
    ck_assert_int_eq(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES), EK_E_BACKEND);
    assert_error(EK_E_BACKEND, "NCCL: broadcast on cuda:1: invalid argument");
    assert_ok(ek_cuda_broadcast(p.devs, 2, p.data, NBYTES));
    check_arrived(&p);
    close_pair(&p);
}
END_TEST

#endif

Suite *suite(void)
{
    Suite *s = cuda_suite("cuda_collectives");
    TCase *t = tcase_create("all");
    tcase_add_test(t, a_broadcast_arrives);
    tcase_add_test(t, waits_of_other_threads_close_no_circle);
#ifdef EK_CUDA_EMULATED
    tcase_add_test(t, a_failed_group_is_survived);
#endif
    suite_add_tcase(s, t);
    return s;
}
