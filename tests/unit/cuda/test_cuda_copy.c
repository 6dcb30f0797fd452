/* Copies between the host and CUDA devices on one GPU and on two, and their order. */
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "cuda_setup.h"

/* Device 0 and 1 on one GPU, 2 on the other. */
static const char devices[] = "0,0,1";

/* Around the borders of what small copies, pinned buffers and bridges hold. */
static const size_t sizes[] = {1,
                               3,
                               64,
                               4095,
                               65535,
                               65536,
                               65537,
                               (2u << 20) - 1,
                               2u << 20,
                               (2u << 20) + 1,
                               (4u << 20) - 1,
                               4u << 20,
                               (4u << 20) + 1,
                               12582917,
                               20u << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], LARGEST = 20 << 20 };

static void fill_pattern(unsigned char *bytes, size_t nbytes, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < nbytes; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(state >> 24);
    }
}

static void assert_pattern(const unsigned char *bytes, size_t nbytes, uint32_t seed,
                           const char *what)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < nbytes; i++) {
        state = state * 1664525u + 1013904223u;
        if (bytes[i] != (unsigned char)(state >> 24))
            ck_abort_msg("%s, %zu bytes: byte %zu is %u, wanted %u", what, nbytes, i, bytes[i],
                         state >> 24);
    }
}

static unsigned char *host_memory(size_t nbytes)
{
    unsigned char *bytes = malloc(nbytes);
    if (!bytes) /* no ck_assert: it writes to Check's pipe, and threads call this */
        ck_abort_msg("no memory for %zu bytes", nbytes);
    return bytes;
}

static void *device_memory(int index, size_t nbytes)
{
    void *pointer;
    assert_ok(ek_dev_alloc(cuda_dev(index), nbytes, EK_MEMORY_ACTIVATION, &pointer));
    return pointer;
}

static void device_free(int index, void *pointer, size_t nbytes)
{
    ek_dev_free(cuda_dev(index), pointer, nbytes, EK_MEMORY_ACTIVATION);
}

/* Up and down again; the source is overwritten as soon as the upload returns. */
static void there_and_back(int index, size_t nbytes, uint32_t seed)
{
    unsigned char *bytes = host_memory(nbytes);
    void *memory = device_memory(index, nbytes);
    fill_pattern(bytes, nbytes, seed);
    assert_ok(ek_dev_copy(cuda_dev(index), memory, cpu_dev(), bytes, nbytes));
    memset(bytes, 0xEE, nbytes);
    assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(index), memory, nbytes));
    assert_pattern(bytes, nbytes, seed, "there and back");
    device_free(index, memory, nbytes);
    free(bytes);
}

TEST(bytes_come_back_from_a_device)
{
    open_cuda(devices);
    for (int i = 0; i < SIZES; i++)
        there_and_back(i % 3, sizes[i], (uint32_t)i + 1);
    close_cuda();
}

/* Up to `from`, over to `to` and down. What comes before and after on either device (the target is
 * zeroed before, the source after) must not disturb. */
static void across(int from, int to, size_t nbytes, uint32_t seed)
{
    char what[64];
    unsigned char *bytes = host_memory(nbytes);
    void *source = device_memory(from, nbytes), *target = device_memory(to, nbytes);
    snprintf(what, sizeof what, "cuda:%d to cuda:%d", from, to);
    fill_pattern(bytes, nbytes, seed);
    assert_ok(ek_dev_copy(cuda_dev(from), source, cpu_dev(), bytes, nbytes));
    memset(bytes, 0xEE, nbytes);
    assert_ok(ek_dev_zero(cuda_dev(to), target, nbytes));
    assert_ok(ek_dev_copy(cuda_dev(to), target, cuda_dev(from), source, nbytes));
    assert_ok(ek_dev_zero(cuda_dev(from), source, nbytes));
    assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(to), target, nbytes));
    assert_pattern(bytes, nbytes, seed, what);
    assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(from), source, nbytes));
    for (size_t i = 0; i < nbytes; i++)
        if (bytes[i] != 0)
            ck_abort_msg("%s: byte %zu of the source is %u after zeroing", what, i, bytes[i]);
    device_free(from, source, nbytes);
    device_free(to, target, nbytes);
    free(bytes);
}

static void all_pairs(void)
{
    open_cuda(devices);
    for (int i = 0; i < SIZES; i++)
        across(i % 3, (i / 3 + i % 3) % 3, sizes[i], (uint32_t)i + 100);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            across(from, to, 5000, (uint32_t)(from * 3 + to));
            across(from, to, (6 << 20) + 77, (uint32_t)(from * 3 + to) + 50);
        }
    close_cuda();
}

TEST(bytes_travel_between_devices)
{
    all_pairs();
}

/* A chain over all devices, issued at once, in memory that is used again. */
static void chain(size_t nbytes, int rounds)
{
    open_cuda(devices);
    unsigned char *bytes = host_memory(nbytes);
    void *memory[3];
    for (int i = 0; i < 3; i++)
        memory[i] = device_memory(i, nbytes);
    for (int round = 0; round < rounds; round++) {
        fill_pattern(bytes, nbytes, (uint32_t)round);
        assert_ok(ek_dev_copy(cuda_dev(0), memory[0], cpu_dev(), bytes, nbytes));
        for (int step = 0; step < 7; step++) {
            int from = step % 3, to = (step + 1) % 3;
            assert_ok(ek_dev_copy(cuda_dev(to), memory[to], cuda_dev(from), memory[from], nbytes));
            assert_ok(ek_dev_zero(cuda_dev(from), memory[from], nbytes));
        }
        assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(1), memory[1], nbytes));
        assert_pattern(bytes, nbytes, (uint32_t)round, "chain");
    }
    for (int i = 0; i < 3; i++)
        device_free(i, memory[i], nbytes);
    free(bytes);
    close_cuda();
}

TEST(copies_in_a_row_keep_their_order)
{
    chain((5 << 20) + 3, 6);
}

/* Memory that is given back and taken again while work on it is still queued. */
TEST(memory_is_used_again_in_order)
{
    enum { LENGTH = 300000, ROUNDS = 20 };
    open_cuda(devices);
    unsigned char *bytes = host_memory(LENGTH);
    void *sums[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        void *temporary = device_memory(0, LENGTH);
        sums[round] = device_memory(1, LENGTH);
        fill_pattern(bytes, LENGTH, (uint32_t)round);
        assert_ok(ek_dev_copy(cuda_dev(0), temporary, cpu_dev(), bytes, LENGTH));
        assert_ok(ek_dev_copy(cuda_dev(1), sums[round], cuda_dev(0), temporary, LENGTH));
        device_free(0, temporary, LENGTH);
    }
    for (int round = 0; round < ROUNDS; round++) {
        assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(1), sums[round], LENGTH));
        assert_pattern(bytes, LENGTH, (uint32_t)round, "memory used again");
        device_free(1, sums[round], LENGTH);
    }
    free(bytes);
    close_cuda();
}

/* ---- several threads on the same devices ---- */

typedef struct part {
    int number;
    bool across;
} part;

static void *thread_main(void *user)
{
    part *p = user;
    for (int i = 0; i < 4; i++) {
        size_t nbytes = i % 2 ? 9000000u : 30000u;
        uint32_t seed = (uint32_t)(p->number * 100 + i);
        if (p->across)
            across(p->number % 3, (p->number + 1 + i) % 3, nbytes, seed);
        else
            there_and_back(0, nbytes, seed);
    }
    return NULL;
}

static void run_threads(bool across_devices)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    part parts[THREADS];
    open_cuda(devices);
    for (int i = 0; i < 3; i++)
        cuda_dev(i);
    for (int i = 0; i < THREADS; i++) {
        parts[i] = (part){i, across_devices};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, thread_main, &parts[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    close_cuda();
}

#ifdef EK_CUDA_EMULATED

/* Later ones could wait for the device in the midst of a step. */
TEST(pinned_memory_is_allocated_with_the_first_upload)
{
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    static unsigned char bytes[8 << 20];
    void *data;
    assert_ok(ek_dev_alloc(dev, sizeof bytes, EK_MEMORY_ACTIVATION, &data));
    assert_ok(ek_dev_copy(dev, data, cpu_dev(), bytes, 1));
    assert_ok(ek_dev_copy(dev, data, cpu_dev(), bytes, 1 << 20));
    size_t allocations = ek_emulator_pinned_allocations();
    for (int i = 0; i < 40; i++)
        assert_ok(ek_dev_copy(dev, data, cpu_dev(), bytes, 1));
    assert_ok(ek_dev_copy(dev, data, cpu_dev(), bytes, sizeof bytes));
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), allocations);
    ek_dev_free(dev, data, sizeof bytes, EK_MEMORY_ACTIVATION);
    close_cuda();
}

#endif

TEST(threads_share_the_pinned_buffers)
{
    run_threads(false);
}

TEST(threads_copy_between_devices_in_all_directions)
{
    run_threads(true);
}

/* ---- the caller's CUDA device ---- */

static void assert_current(int wanted)
{
    int now;
    ck_assert_int_eq(cudaGetDevice(&now), cudaSuccess);
    ck_assert_int_eq(now, wanted);
}

TEST(the_callers_device_stays_current)
{
    int count;
    open_cuda(devices);
    ck_assert_int_eq(cudaGetDeviceCount(&count), cudaSuccess);
    for (int own = 0; own < count && own < 2; own++) {
        ck_assert_int_eq(cudaSetDevice(own), cudaSuccess);
        for (int i = 0; i < 3; i++) {
            across(i, (i + 1) % 3, 100000, 1);
            assert_current(own);
            there_and_back(i, 10, 3);
            assert_current(own);
            assert_ok(ek_synchronize(ek_cuda(i)));
            assert_current(own);
            assert_ok(ek_memory_trim(ek_cuda(i)));
            assert_current(own);
        }
        assert_ok(ek_shutdown());
        assert_current(own);
    }
}

#ifdef EK_CUDA_EMULATED

TEST(without_peers_bytes_go_through_the_host)
{
    emulator_set("PEERS", "0");
    open_cuda(devices);
    ck_assert(!ek_dev_reaches(cuda_dev(0), cuda_dev(2)));
    ck_assert(ek_dev_reaches(cuda_dev(0), cuda_dev(1)));
    across(0, 2, LARGEST, 1);
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.peer, 0);
    all_pairs();
}

TEST(without_peers_copies_keep_their_order)
{
    emulator_set("PEERS", "0");
    chain((5 << 20) + 3, 6);
}

TEST(without_peers_threads_copy_in_all_directions)
{
    emulator_set("PEERS", "0");
    run_threads(true);
}

TEST_LOOP(any_schedule_gives_the_same, 0, 24)
{
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i + 1);
    emulator_set("ORDER", order);
    emulator_set("PEERS", _i % 2 ? "0" : "1");
    chain(_i < 4 ? (5 << 20) + 3 : 5003, _i < 4 ? 2 : 6);
}

TEST(issuing_at_once_gives_the_same)
{
    emulator_set("ORDER", "eager");
    chain((5 << 20) + 3, 2);
}

/* GPUs that say that they reach each other, and fail when it is tried. */
TEST(peers_that_do_not_work_are_not_used)
{
    emulator_set("DEVICES", "2");
    open_cuda(devices);
    cuda_dev(0);
    cuda_dev(2);
    ek_emulator_fail_next("cudaMemcpyPeerAsync", cudaErrorInvalidValue, 0);
    ck_assert(!ek_dev_reaches(cuda_dev(0), cuda_dev(2)));
    ck_assert_int_eq(ek_error_status(), 0);
    across(0, 2, LARGEST, 1);
    across(2, 0, 100, 2);
    close_cuda();
}

TEST_LOOP(copies_between_devices_do_not_wait, 0, 2)
{
    enum { LENGTH = 30 << 20 };
    emulator_set("PEERS", _i ? "0" : "1");
    open_cuda(devices);
    void *a = device_memory(0, LENGTH), *b = device_memory(2, LENGTH),
         *c = device_memory(1, LENGTH);
    ek_dev_reaches(cuda_dev(0), cuda_dev(2)); /* tried out now */
    assert_ok(ek_dev_zero(cuda_dev(0), a, LENGTH));
    ek_emulator_counters before, after;
    ek_emulator_count(&before);
    assert_ok(ek_dev_copy(cuda_dev(2), b, cuda_dev(0), a, LENGTH));
    assert_ok(ek_dev_copy(cuda_dev(1), c, cuda_dev(2), b, LENGTH));
    ek_emulator_count(&after);
    ck_assert_uint_eq(after.waits, before.waits);
    ck_assert_uint_eq(after.executed, before.executed);
    device_free(0, a, LENGTH);
    device_free(1, c, LENGTH);
    device_free(2, b, LENGTH);
    close_cuda();
}

/* A few small uploads don't wait for the device to catch up. */
TEST(small_uploads_are_only_issued)
{
    open_cuda("0");
    unsigned char bytes[100] = {0};
    void *a = device_memory(0, sizeof bytes);
    ek_emulator_counters before, after;
    ek_emulator_count(&before);
    for (int i = 0; i < 20; i++)
        assert_ok(ek_dev_copy(cuda_dev(0), a, cpu_dev(), bytes, sizeof bytes));
    ek_emulator_count(&after);
    ck_assert_uint_eq(after.executed, before.executed);
    for (int i = 0; i < 200; i++)
        assert_ok(ek_dev_copy(cuda_dev(0), a, cpu_dev(), bytes, sizeof bytes));
    device_free(0, a, sizeof bytes);
    close_cuda();
}

#endif
