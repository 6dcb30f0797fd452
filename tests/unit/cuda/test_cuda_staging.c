/* Page-locked memory: what is sent from it arrives, in order, also where it is given back at once.
 */
#include <pthread.h>

#include "core/staging.h"
#include "cuda_setup.h"

/* Device 0 and 1 on one GPU, 2 on the other. */
static const char devices[] = "0,0,1";

enum { ROWS = 300, COLUMNS = 784 };

static ek_tensor *staged_rows(ek_dev *dev, int64_t rows, uint8_t first)
{
    ek_shape shape = EK_SHAPE(rows, COLUMNS);
    ek_tensor *staged = ek_staging_new(dev, EK_U8, &shape);
    assert_made(staged);
    ck_assert(ek_device_equal(ek_tensor_device(staged), ek_cpu()));
    uint8_t *bytes = ek_tensor_data(staged);
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        bytes[i] = (uint8_t)(first + i % 251);
    return staged;
}

static void assert_rows(ek_tensor *sent, int64_t rows, uint8_t first)
{
    static uint8_t bytes[ROWS * COLUMNS];
    size_t nbytes = (size_t)(rows * COLUMNS);
    assert_ok(ek_to_data(sent, bytes, nbytes));
    for (size_t i = 0; i < nbytes; i++)
        if (bytes[i] != (uint8_t)(first + i % 251))
            ck_abort_msg("byte %zu of %zu is %u, wanted %u", i, nbytes, bytes[i],
                         (uint8_t)(first + i % 251));
}

/* The next tensor may get the memory of the one before, but not while that is being read. */
START_TEST(what_is_given_back_at_once_arrives)
{
    enum { TENSORS = 40 };
    ek_tensor *sent[TENSORS];
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i + 1);
    emulator_set("ORDER", order);
    open_cuda(devices);
    for (int i = 0; i < TENSORS; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *staged = staged_rows(cuda_dev(0), 1 + i * 7, (uint8_t)i);
        sent[i] = ek_scope_end_with(&scope, ek_staging_send(staged, cuda_dev(0)));
        assert_made(sent[i]);
        ck_assert(ek_device_equal(ek_tensor_device(sent[i]), ek_cuda(0)));
    }
    for (int i = 0; i < TENSORS; i++)
        assert_rows(sent[i], 1 + i * 7, (uint8_t)i);
    close_cuda();
}
END_TEST

/* Small downloads go by the compute stream, which waits for what is sent. */
START_TEST(what_is_issued_later_sees_what_was_sent)
{
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i + 1);
    emulator_set("ORDER", order);
    open_cuda(devices);
    for (int i = 0; i < 10; i++)
        assert_rows(ek_staging_send(staged_rows(cuda_dev(0), 3, (uint8_t)i), cuda_dev(0)), 3,
                    (uint8_t)i);
    close_cuda();
}
END_TEST

START_TEST(for_any_device)
{
    open_cuda(devices);
    for (int index = 0; index < 3; index++)
        for (int other = 0; other < 3; other++) {
            ek_tensor *staged = staged_rows(cuda_dev(index), ROWS, 9);
            ek_tensor *sent = ek_staging_send(staged, cuda_dev(other));
            assert_made(sent);
            ck_assert(ek_device_equal(ek_tensor_device(sent), ek_cuda(other)));
            assert_rows(sent, ROWS, 9);
        }
    ek_tensor *staged = staged_rows(cuda_dev(0), 3, 1);
    ck_assert_ptr_eq(ek_staging_send(staged, cpu_dev()), staged);
    close_cuda();
}
END_TEST

START_TEST(nothing_is_sent_of_nothing)
{
    open_cuda(devices);
    ek_shape shape = EK_SHAPE(0, 4);
    ek_tensor *staged = ek_staging_new(cuda_dev(0), EK_F32, &shape);
    assert_made(staged);
    assert_made(ek_staging_send(staged, cuda_dev(0)));
    close_cuda();
}
END_TEST

/* Memory that is used again is not allocated again. */
#ifdef EK_CUDA_EMULATED
START_TEST(memory_is_kept)
{
    open_cuda(devices);
    size_t after_first = 0;
    for (int i = 0; i < 20; i++) {
        ek_scope scope = ek_scope_begin();
        assert_rows(ek_staging_send(staged_rows(cuda_dev(0), ROWS - i, 3), cuda_dev(0)), ROWS - i,
                    3);
        ek_scope_end(&scope);
        if (i == 0)
            after_first = ek_emulator_pinned_allocations();
    }
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), after_first);
    close_cuda();
}
END_TEST
#endif

START_TEST(a_size_that_overflows_is_refused)
{
    open_cuda(devices);
    ek_shape shape = EK_SHAPE(INT64_MAX / 4, 4);
    ck_assert_ptr_null(ek_staging_new(cuda_dev(0), EK_F64, &shape));
    assert_error(EK_E_SHAPE, "more than memory can have");
    close_cuda();
}
END_TEST

/* ---- two threads fill, one sends ---- */

static ek_tensor *filled[2];

static void *fill(void *user)
{
    int which = *(int *)user;
    ek_scope scope = ek_scope_begin();
    filled[which] = ek_keep(staged_rows(cuda_dev(which), ROWS, (uint8_t)(40 + which)));
    ek_scope_end(&scope);
    return NULL;
}

START_TEST(filled_by_other_threads)
{
    pthread_t threads[2];
    int which[2] = {0, 1};
    open_cuda(devices);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, fill, &which[i]), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            ek_tensor *sent = ek_staging_send(filled[i], cuda_dev(i));
            ek_release(filled[i]);
            assert_rows(sent, ROWS, (uint8_t)(40 + i));
        }
    }
    close_cuda();
}
END_TEST

Suite *suite(void)
{
    Suite *s = cuda_suite("cuda_staging");
    TCase *t = tcase_create("staging");

    tcase_add_loop_test(t, what_is_given_back_at_once_arrives, 0, 6);
    tcase_add_loop_test(t, what_is_issued_later_sees_what_was_sent, 0, 6);
    tcase_add_test(t, for_any_device);
    tcase_add_test(t, nothing_is_sent_of_nothing);
#ifdef EK_CUDA_EMULATED
    tcase_add_test(t, memory_is_kept);
#endif
    tcase_add_test(t, a_size_that_overflows_is_refused);
    tcase_add_test(t, filled_by_other_threads);
    suite_add_tcase(s, t);
    return s;
}
