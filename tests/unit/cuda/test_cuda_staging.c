/* Page-locked memory: what is sent from it arrives, in order, also if it is given back at once. */
#include <pthread.h>

#include "core/staging.h"
#include "cuda/runtime.h"
#include "cuda_setup.h"
#include "held_stream.h"

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
TEST_LOOP(what_is_given_back_at_once_arrives, 0, 6)
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
        sent[i] = ek_scope_return(&scope, ek_staging_copy(staged, cuda_dev(0)));
        assert_made(sent[i]);
        ck_assert(ek_device_equal(ek_tensor_device(sent[i]), ek_cuda(0)));
    }
    for (int i = 0; i < TENSORS; i++)
        assert_rows(sent[i], 1 + i * 7, (uint8_t)i);
    close_cuda();
}

/* Small downloads go by the compute stream, which waits for what is sent. */
TEST_LOOP(what_is_issued_later_sees_what_was_sent, 0, 6)
{
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i + 1);
    emulator_set("ORDER", order);
    open_cuda(devices);
    for (int i = 0; i < 10; i++)
        assert_rows(ek_staging_copy(staged_rows(cuda_dev(0), 3, (uint8_t)i), cuda_dev(0)), 3,
                    (uint8_t)i);
    close_cuda();
}

TEST(for_any_device)
{
    open_cuda(devices);
    for (int index = 0; index < 3; index++)
        for (int other = 0; other < 3; other++) {
            ek_tensor *staged = staged_rows(cuda_dev(index), ROWS, 9);
            ek_tensor *sent = ek_staging_copy(staged, cuda_dev(other));
            assert_made(sent);
            ck_assert(ek_device_equal(ek_tensor_device(sent), ek_cuda(other)));
            assert_rows(sent, ROWS, 9);
        }
    ek_tensor *staged = staged_rows(cuda_dev(0), 3, 1);
    ck_assert_ptr_eq(ek_staging_copy(staged, cpu_dev()), staged);
    close_cuda();
}

TEST(nothing_is_sent_of_nothing)
{
    open_cuda(devices);
    ek_shape shape = EK_SHAPE(0, 4);
    ek_tensor *staged = ek_staging_new(cuda_dev(0), EK_F32, &shape);
    assert_made(staged);
    assert_made(ek_staging_copy(staged, cuda_dev(0)));
    close_cuda();
}

/* Memory that is used again is not allocated again. */
#ifdef EK_CUDA_EMULATED
TEST(memory_is_kept)
{
    open_cuda(devices);
    size_t after_first = 0;
    for (int i = 0; i < 20; i++) {
        ek_scope scope = ek_scope_begin();
        assert_rows(ek_staging_copy(staged_rows(cuda_dev(0), ROWS - i, 3), cuda_dev(0)), ROWS - i,
                    3);
        ek_scope_end(&scope);
        if (i == 0)
            after_first = ek_emulator_pinned_allocations();
    }
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), after_first);
    close_cuda();
}
#endif

TEST(a_size_that_overflows_is_refused)
{
    open_cuda(devices);
    ek_shape shape = EK_SHAPE(INT64_MAX / 4, 4);
    assert_refused(ek_staging_new(cuda_dev(0), EK_F64, &shape), EK_E_SHAPE,
                   "more than memory can have");
    close_cuda();
}

/* ---- beside what the device computes ---- */

/* Filled with a pattern of `first`: page-locked, or plain memory. */
static ek_tensor *source_of(bool locked, int64_t count, uint8_t first)
{
    ek_shape shape = EK_SHAPE(count);
    ek_tensor *source =
        locked ? ek_staging_new(cuda_dev(0), EK_U8, &shape) : ek_empty(shape, .dtype = EK_U8);
    assert_made(source);
    uint8_t *bytes = ek_tensor_data(source);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(first + i % 251);
    return source;
}

static void drive_uploads(void)
{
    ck_assert_int_eq((int)cudaStreamSynchronize(ek_cuda_of(cuda_dev(0))->upload), 0);
}

/* Also if it is more than the buffers hold through which plain memory travels. */
TEST_LOOP(sending_does_not_wait_for_kernels, 0, 6)
{
    static const int64_t counts[] = {100, 300 << 10, 20 << 20};
    hold h = {.patience = 2};
    bool locked = _i % 2;
    int64_t count = counts[_i / 2];
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    /* Memory that was used before, and buffers. */
    ek_release(ek_keep(ek_staging_copy(source_of(locked, count, 1), dev)));
    hold_compute(dev, &h);
    ek_tensor *sent = ek_staging_send(source_of(locked, count, 2), dev);
    assert_made(sent);
    drive_uploads();
    ck_assert_msg(!atomic_load(&h.gave_up), "the copy waited for the compute stream");
    atomic_store(&h.released, true);
    uint8_t last;
    ek_staging_receive(sent, dev);
    ek_tensor *part = ek_tensor_view(sent, 1, &(int64_t){1}, &(int64_t){1}, count - 1);
    assert_ok(ek_to_data(part, &last, 1));
    ck_assert_uint_eq(last, (uint8_t)(2 + (count - 1) % 251));
    close_cuda();
}

enum { ROUNDS = 8, BYTES = 100 << 10 };

/* What is sent in round i, in one piece or in two, is copied by the compute stream, late, and given
 * back; the next take its memory early, in parts or put together. */
TEST_LOOP(memory_is_not_written_before_its_last_use, 0, 4)
{
    static uint8_t bytes[30 * BYTES];
    const size_t nbytes = _i / 2 ? sizeof bytes : BYTES; /* in large segments, or in small ones */
    void *copies[ROUNDS];
    setenv("EVENKEEL_SEGMENTS", "1", 1);
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    for (int i = 0; i < ROUNDS; i++)
        assert_ok(ek_dev_alloc(dev, nbytes, EK_MEMORY_ACTIVATION, &copies[i]));
    for (int i = 0; i < ROUNDS; i++) {
        ek_scope scope = ek_scope_begin();
        const size_t pieces = i % 4 < 2 ? 1 : 2, each = nbytes / pieces;
        for (size_t k = 0; k < pieces; k++) {
            ek_tensor *sent =
                ek_staging_copy(source_of(_i % 2, (int64_t)each, (uint8_t)(20 * i + 10 * (int)k)),
                                dev);
            assert_made(sent);
            if (i % 3 == 1) /* one that nobody receives, nor uses */
                assert_made(ek_staging_send(source_of(_i % 2, BYTES, 5), dev));
            drive_uploads();
            assert_ok(
                ek_dev_copy(dev, (char *)copies[i] + k * each, dev, ek_tensor_address(sent), each));
        }
        ek_scope_end(&scope);
    }
    for (int i = 0; i < ROUNDS; i++) {
        const size_t each = nbytes / (i % 4 < 2 ? 1 : 2);
        assert_ok(ek_dev_copy(cpu_dev(), bytes, dev, copies[i], nbytes));
        for (size_t at = 0; at < nbytes; at++)
            if (bytes[at] != (uint8_t)(20 * i + 10 * (int)(at / each) + (int)(at % each % 251)))
                ck_abort_msg("copy %d: byte %zu is %u", i, at, bytes[at]);
        ek_dev_free(dev, copies[i], nbytes, EK_MEMORY_ACTIVATION);
    }
    close_cuda();
}

/* Each queue has memory of its own: two batches in flight, and a use elsewhere. */
TEST(blocks_stay_with_their_queue)
{
    ek_memory_stats stats;
    void *other;
    setenv("EVENKEEL_SEGMENTS", "1", 1);
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    for (int i = 0; i < ROUNDS; i++) {
        ek_scope scope = ek_scope_begin();
        assert_made(ek_staging_copy(source_of(true, BYTES, 1), dev));
        assert_made(ek_staging_send(source_of(true, BYTES, 2), dev));
        ek_scope_end(&scope);
        assert_ok(ek_dev_alloc(dev, BYTES, EK_MEMORY_ACTIVATION, &other));
        ek_dev_free(dev, other, BYTES, EK_MEMORY_ACTIVATION);
        assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
        ck_assert_uint_eq(stats.reserved, 2 * (2 << 20));
        ck_assert_uint_eq(stats.in_use, 0);
    }
    assert_ok(ek_memory_trim(ek_cuda(0)));
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    ck_assert_uint_eq(stats.reserved, 0);
    close_cuda();
}

#ifdef EK_CUDA_EMULATED
/* An error, or the right bytes, also of what was in the memory before. */
TEST_LOOP(calls_that_fail_leave_memory_whole, 0, 5)
{
    static const char *const functions[] = {"cudaEventRecord", "cudaStreamWaitEvent",
                                            "cudaMemcpyAsync", "cudaEventCreateWithFlags",
                                            "cudaEventSynchronize"};
    static uint8_t bytes[BYTES];
    void *copy;
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    assert_ok(ek_dev_alloc(dev, BYTES, EK_MEMORY_ACTIVATION, &copy));
    for (int after = 0; after < 12; after++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *first = ek_staging_copy(source_of(false, BYTES, 1), dev);
        assert_made(first);
        assert_ok(ek_dev_copy(dev, copy, dev, ek_tensor_address(first), BYTES));
        ek_emulator_fail_next(functions[_i], cudaErrorInvalidValue, after);
        ek_scope_end(&scope);
        ek_tensor *sent = ek_staging_copy(source_of(after % 2, BYTES, 3), dev);
        ek_emulator_recover();
        if (sent) {
            drive_uploads();
            assert_ok(ek_to_data(sent, bytes, BYTES));
            ck_assert_uint_eq(bytes[BYTES - 1], (uint8_t)(3 + (BYTES - 1) % 251));
        }
        ek_error_clear();
        assert_ok(ek_dev_copy(cpu_dev(), bytes, dev, copy, BYTES));
        ck_assert_uint_eq(bytes[BYTES - 1], (uint8_t)(1 + (BYTES - 1) % 251));
    }
    ek_dev_free(dev, copy, BYTES, EK_MEMORY_ACTIVATION);
    close_cuda();
}
#endif

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

TEST(filled_by_other_threads)
{
    pthread_t threads[2];
    int which[2] = {0, 1};
    open_cuda(devices);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, fill, &which[i]), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            ek_tensor *sent = ek_staging_copy(filled[i], cuda_dev(i));
            ek_release(filled[i]);
            assert_rows(sent, ROWS, (uint8_t)(40 + i));
        }
    }
    close_cuda();
}

/* ---- to the host, and back ---- */

static ek_tensor *bytes_of(ek_dev *dev, double value)
{
    ek_tensor *x = ek_empty(EK_SHAPE(BYTES), .dtype = EK_U8, .device = dev->id);
    assert_made(x);
    assert_ok(ek_cuda_fill(dev, x, value));
    return x;
}

static void assert_all(const ek_tensor *host, int value)
{
    const uint8_t *bytes = ek_tensor_data((ek_tensor *)host);
    for (int i = 0; i < BYTES; i++)
        if (bytes[i] != value)
            ck_abort_msg("byte %d is %d, wanted %d", i, bytes[i], value);
}

static void drive_event(ek_dev *dev, ek_event *event)
{
    const struct timespec moment = {0, 100000};
    int done;
    while ((done = ek_dev_event_done(dev, event)) == 0)
        nanosleep(&moment, NULL);
    ck_assert_int_eq(done, 1);
}

/* What is fetched is what the kernels before have written, and not what those after will write. */
TEST(fetching_does_not_wait_for_kernels)
{
    hold h = {.patience = 5};
    ek_shape shape = EK_SHAPE(BYTES);
    ek_event *event = NULL;
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    ek_tensor *host = ek_staging_new(dev, EK_U8, &shape), *x = bytes_of(dev, 1);
    assert_made(host);
    hold_compute(dev, &h);
    assert_ok(ek_cuda_fill(dev, x, 2));
    assert_ok(ek_staging_fetch(host, x, &event));
    ek_dev_wait_event(dev, EK_STREAM_COMPUTE, event);
    assert_ok(ek_cuda_fill(dev, x, 3));
    ck_assert_msg(!atomic_load(&h.gave_up), "the call waited for the compute stream");
    atomic_store(&h.released, true);
    drive_event(dev, event);
    assert_all(host, 2);
    assert_ok(ek_synchronize(dev->id));
    assert_all(host, 2);
    ek_dev_free_event(dev, event);
    close_cuda();
}

/* Kernels before read what was there, and kernels after what is delivered. */
TEST(delivering_waits_for_its_turn)
{
    hold h = {.patience = 5};
    ek_shape shape = EK_SHAPE(BYTES);
    ek_event *event = NULL;
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    ek_tensor *host = ek_staging_new(dev, EK_U8, &shape), *x = bytes_of(dev, 1);
    ek_tensor *before = bytes_of(dev, 0), *after = bytes_of(dev, 0);
    assert_made(host);
    memset(ek_tensor_data(host), 7, BYTES);
    hold_compute(dev, &h);
    assert_ok(ek_cuda_copy(dev, before, x));
    assert_ok(ek_staging_deliver(x, host, &event));
    assert_ok(ek_cuda_copy(dev, after, x));
    ck_assert_msg(!atomic_load(&h.gave_up), "the call waited for the compute stream");
    atomic_store(&h.released, true);
    uint8_t first, last;
    assert_ok(ek_to_data(ek_tensor_view(before, 1, &(int64_t){1}, &(int64_t){1}, 0), &first, 1));
    assert_ok(
        ek_to_data(ek_tensor_view(after, 1, &(int64_t){1}, &(int64_t){1}, BYTES - 1), &last, 1));
    ck_assert_uint_eq(first, 1);
    ck_assert_uint_eq(last, 7);
    ek_dev_free_event(dev, event);
    close_cuda();
}

TEST(page_locked_memory_is_counted)
{
    ek_memory_stats stats;
    ek_shape shape = EK_SHAPE(BYTES);
    open_cuda("0");
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    assert_made(ek_staging_new(cuda_dev(0), EK_U8, &shape));
    ek_memory_set_category(before);
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_COMMUNICATION], BYTES);
    ek_scope_end(&scope);
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
    close_cuda();
}
