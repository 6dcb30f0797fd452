/* Memory of CUDA devices: ledger, capacity, running out of it, and closing. */
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "core/device.h"
#include "cuda/runtime.h"
#include "cuda_setup.h"

/* Requests share segments, in builds too for which that isn't the default. */
static void open_sharing(const char *list)
{
    setenv("EVENKEEL_SEGMENTS", "1", 1);
    open_cuda(list);
}

static ek_memory_stats stats_of(int index)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_cuda(index), &stats));
    return stats;
}

TEST(the_ledger_counts_what_lies_on_the_device)
{
    open_sharing("0,0");
    ek_dev *dev = cuda_dev(0);
    void *a, *b;
    assert_ok(ek_dev_alloc(dev, 1000, EK_MEMORY_PARAMETER, &a));
    assert_ok(ek_cuda_scratch(dev, 1, &b));
    ck_assert_uint_eq((uintptr_t)a % 64, 0);
    ck_assert_uint_eq(stats_of(0).now[EK_MEMORY_PARAMETER], 1024);
    ck_assert_uint_eq(stats_of(0).now[EK_MEMORY_WORKSPACE], 64);
    ck_assert_uint_eq(stats_of(1).in_use, 0);
    ek_cuda_scratch_free(dev, b, 1);
    ek_dev_free(dev, a, 1000, EK_MEMORY_PARAMETER);
    ck_assert_uint_eq(stats_of(0).in_use, 0);
    ck_assert_uint_eq(stats_of(0).reserved, 2 << 20);
    assert_ok(ek_memory_trim(ek_cuda(0)));
    ck_assert_uint_eq(stats_of(0).reserved, 0);
    assert_ok(ek_cuda_scratch(dev, 0, &b));
    ck_assert_ptr_null(b);
    close_cuda();
}

TEST(each_logical_device_has_its_capacity)
{
    open_cuda("0:1M,0:2M");
    void *a, *b, *c;
    ck_assert_uint_eq(ek_device_count(EK_CUDA), 2);
    assert_ok(ek_dev_alloc(cuda_dev(0), 600 << 10, EK_MEMORY_PARAMETER, &a));
    ck_assert_int_eq(ek_dev_alloc(cuda_dev(0), 600 << 10, EK_MEMORY_ACTIVATION, &b),
                     EK_E_OUT_OF_MEMORY);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "parameter 600.00 KiB"));
    assert_error(EK_E_OUT_OF_MEMORY, "cuda:0 is out of memory: 600.00 KiB requested");
    assert_ok(ek_dev_alloc(cuda_dev(1), 1200 << 10, EK_MEMORY_PARAMETER, &b));
    assert_ok(ek_dev_alloc(cuda_dev(0), 400 << 10, EK_MEMORY_PARAMETER, &c));
    ek_dev_free(cuda_dev(0), a, 600 << 10, EK_MEMORY_PARAMETER);
    ek_dev_free(cuda_dev(1), b, 1200 << 10, EK_MEMORY_PARAMETER);
    ek_dev_free(cuda_dev(0), c, 400 << 10, EK_MEMORY_PARAMETER);
    close_cuda();
}

/* Freeing waits for the device: what a step has used is kept, and serves other sizes. */
TEST(memory_stays_until_it_is_short)
{
    enum { SIZES = 20 };
    const size_t mb = 1 << 20;
    open_sharing("0:400M");
    ek_dev *dev = cuda_dev(0);
    void *a, *b;
    for (int round = 0; round < 2; round++) {
        for (size_t i = SIZES; i > 0; i--) {
            assert_ok(ek_dev_alloc(dev, i * mb, EK_MEMORY_ACTIVATION, &a));
            ek_dev_free(dev, a, i * mb, EK_MEMORY_ACTIVATION);
        }
        ck_assert_uint_eq(stats_of(0).peak, SIZES * mb);
        ck_assert_uint_eq(stats_of(0).reserved, SIZES * mb);
        ck_assert_uint_eq(stats_of(0).system_allocations, 1);
    }
    assert_ok(ek_dev_alloc(dev, 250 * mb, EK_MEMORY_ACTIVATION, &a));
    assert_ok(ek_dev_alloc(dev, 150 * mb, EK_MEMORY_ACTIVATION, &b));
    ck_assert_uint_eq(stats_of(0).reserved, 400 * mb);
    ck_assert_uint_eq(stats_of(0).dropped, 0);
    ek_dev_free(dev, a, 250 * mb, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, b, 150 * mb, EK_MEMORY_ACTIVATION);
    close_cuda();
}

typedef struct warnings {
    int count;
    char last[400];
} warnings;

static void count_warnings(ek_log_level level, const char *line, void *user)
{
    warnings *seen = user;
    if (level != EK_LOG_WARNING || !strstr(line, "cuda:0: to stay within "))
        return;
    seen->count++;
    snprintf(seen->last, sizeof seen->last, "%s", line);
}

TEST(dropping_memory_is_named_once)
{
    const size_t mb = 1 << 20;
    warnings seen = {.count = 0};
    void *a;
    open_sharing("0:100M");
    ek_set_log(count_warnings, &seen);
    for (size_t i = 1; i <= 4; i++) {
        assert_ok(ek_dev_alloc(cuda_dev(0), (50 + 10 * i) * mb, EK_MEMORY_ACTIVATION, &a));
        ek_dev_free(cuda_dev(0), a, (50 + 10 * i) * mb, EK_MEMORY_ACTIVATION);
    }
    ck_assert_int_eq(seen.count, 1);
    ck_assert_uint_eq(stats_of(0).dropped, 3);
    ck_assert_msg(strstr(seen.last, "to stay within its capacity, cached memory was given back"),
                  "%s", seen.last);
    ck_assert_msg(strstr(seen.last, "(70.00 MiB in use, 70.00 MiB reserved)"), "%s", seen.last);
    ek_set_log(NULL, NULL);
    close_cuda();
}

TEST(memory_in_use_forbids_another_list)
{
    open_cuda("0");
    void *a;
    assert_ok(ek_dev_alloc(cuda_dev(0), 64, EK_MEMORY_PARAMETER, &a));
    assert_refused(ek_cuda_devices_configure("0,0"), EK_E_STATE,
                   "cuda:0 still has 64 bytes in use");
    ck_assert_int_eq(ek_device_count(EK_CUDA), 1);
    ck_assert_int_eq(ek_shutdown(), EK_E_STATE);
    ek_error_clear();
    ek_dev_free(cuda_dev(0), a, 64, EK_MEMORY_PARAMETER);
    assert_refused(ek_cuda_devices_configure("0,nonsense"), EK_E_INVALID, "the number of a GPU");
    assert_refused(ek_cuda_devices_configure(NULL), EK_E_INVALID, "NULL");
    assert_refused(ek_cuda_devices_configure("63"), EK_E_DEVICE, "there is no GPU 63");
    ck_assert_int_eq(ek_device_count(EK_CUDA), 1);
    assert_ok(ek_cuda_devices_configure("0,0"));
    ck_assert_int_eq(ek_device_count(EK_CUDA), 2);
    assert_refused(ek_dev_get(ek_cuda(2)), EK_E_DEVICE, "there is no device cuda:2");
    close_cuda();
}

TEST(bad_settings_of_the_environment_are_errors)
{
    static const struct {
        const char *name, *bad, *good, *sentence;
    } cases[] = {
        {"EVENKEEL_SEGMENTS", "x", "1", "EVENKEEL_SEGMENTS is \"x\"; it can be 0 or 1"},
        {"EVENKEEL_CUDA_PLANS", "yes", "0", "EVENKEEL_CUDA_PLANS is \"yes\"; it can be 0 or 1"},
        {"EVENKEEL_CUDA_WITHOUT", "nccl,cudn", "NCCL,cudnn",
         "EVENKEEL_CUDA_WITHOUT names \"cudn\", which is not cublas, cublaslt, cudnn or nccl"}};
    open_cuda("0");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].bad, 1);
        assert_refused(ek_dev_get(ek_cuda(0)), EK_E_INVALID, cases[i].sentence);
        setenv(cases[i].name, cases[i].good, 1);
    }
    ck_assert(cuda_dev(0) != NULL);
    close_cuda();
}

TEST(devices_open_again_after_shutdown)
{
    open_cuda("0,1");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) {
            void *a;
            unsigned char bytes[64];
            assert_ok(ek_dev_alloc(cuda_dev(i), 64, EK_MEMORY_PARAMETER, &a));
            assert_ok(ek_dev_zero(cuda_dev(i), a, 64));
            memset(bytes, 1, sizeof bytes);
            assert_ok(ek_dev_copy(cpu_dev(), bytes, cuda_dev(i), a, 64));
            for (int k = 0; k < 64; k++)
                if (bytes[k] != 0)
                    ck_abort_msg("byte %d is %d", k, bytes[k]);
            ek_dev_free(cuda_dev(i), a, 64, EK_MEMORY_PARAMETER);
        }
        close_cuda();
    }
}

#ifdef EK_CUDA_EMULATED

enum { MB = 1 << 20 };

TEST(a_full_gpu_is_survived)
{
    emulator_set("MEMORY", "64M");
    open_sharing("0");
    ek_dev *dev = cuda_dev(0);
    void *a, *b;
    assert_ok(ek_dev_alloc(dev, 40 * MB, EK_MEMORY_PARAMETER, &a));
    assert_refused(ek_dev_alloc(dev, 40 * MB, EK_MEMORY_ACTIVATION, &b), EK_E_OUT_OF_MEMORY,
                   "cuda:0 is out of memory: 40.00 MiB requested");
    assert_ok(ek_dev_alloc(dev, 16 * MB, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 16 * MB, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, a, 40 * MB, EK_MEMORY_PARAMETER);
    /* What is cached gives way. */
    assert_ok(ek_dev_alloc(dev, 50 * MB, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 50 * MB, EK_MEMORY_ACTIVATION);
    close_cuda();
}

/* A workspace that one can do without, and for which the capacity has no room, is no failure, and
 * nothing is given back for it. */
TEST(what_may_be_refused_is_no_failure)
{
    ek_memory_stats stats;
    void *a, *b, *workspace;
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    assert_ok(ek_memory_set_capacity(ek_cuda(0), 64 * MB));
    assert_ok(ek_dev_alloc(dev, 30 * MB, EK_MEMORY_ACTIVATION, &a));
    assert_ok(ek_dev_alloc(dev, 30 * MB, EK_MEMORY_ACTIVATION, &b));
    ek_dev_free(dev, b, 30 * MB, EK_MEMORY_ACTIVATION);
    ck_assert_int_eq(ek_cuda_try_scratch(dev, 35 * MB, &workspace), 0);
    ck_assert_ptr_null(workspace);
    ck_assert_int_eq(ek_error_status(), 0);
    stats = stats_of(0);
    ck_assert_uint_eq(stats.failures, 0);
    ck_assert_uint_eq(stats.dropped, 0);
    ck_assert_int_eq(ek_cuda_try_scratch(dev, 30 * MB, &workspace), 1);
    ek_cuda_scratch_free(dev, workspace, 30 * MB);
    ek_dev_free(dev, a, 30 * MB, EK_MEMORY_ACTIVATION);
    close_cuda();
}

/* The GPU is full, and another device has cached what would do. */
TEST(what_may_be_refused_takes_from_nobody)
{
    void *a, *workspace;
    emulator_set("MEMORY", "64M");
    open_sharing("0,0");
    assert_ok(ek_dev_alloc(cuda_dev(1), 40 * MB, EK_MEMORY_ACTIVATION, &a));
    ek_dev_free(cuda_dev(1), a, 40 * MB, EK_MEMORY_ACTIVATION);
    ck_assert_int_eq(ek_cuda_try_scratch(cuda_dev(0), 30 * MB, &workspace), 0);
    ck_assert_uint_eq(stats_of(0).failures, 0);
    ck_assert_uint_eq(stats_of(1).reserved, 40 * MB);
    ck_assert_int_eq(ek_error_status(), 0);
    assert_ok(ek_cuda_scratch(cuda_dev(0), 30 * MB, &workspace));
    ck_assert_uint_eq(stats_of(1).reserved, 0);
    ek_cuda_scratch_free(cuda_dev(0), workspace, 30 * MB);
    close_cuda();
}

/* The GPU is full, because another device has its share. */
TEST(dropping_memory_of_a_full_gpu_is_named_once)
{
    warnings seen = {.count = 0};
    void *a, *other;
    emulator_set("MEMORY", "64M");
    open_sharing("0,0");
    ek_set_log(count_warnings, &seen);
    assert_ok(ek_dev_alloc(cuda_dev(0), 60 * MB, EK_MEMORY_ACTIVATION, &a));
    ek_dev_free(cuda_dev(0), a, 60 * MB, EK_MEMORY_ACTIVATION);
    assert_ok(ek_memory_trim(ek_cuda(0)));
    assert_ok(ek_dev_alloc(cuda_dev(1), 30 * MB, EK_MEMORY_PARAMETER, &other));
    for (size_t i = 20; i <= 32; i += 6) {
        ck_assert_int_eq(seen.count, i > 26);
        assert_ok(ek_dev_alloc(cuda_dev(0), i * MB, EK_MEMORY_ACTIVATION, &a));
        ek_dev_free(cuda_dev(0), a, i * MB, EK_MEMORY_ACTIVATION);
    }
    ck_assert_int_eq(seen.count, 1);
    ck_assert_uint_eq(stats_of(0).dropped, 2);
    ck_assert_msg(strstr(seen.last, "to stay within its memory, cached memory was given back"),
                  "%s", seen.last);
    ck_assert_msg(strstr(seen.last, "(26.00 MiB in use, 26.00 MiB reserved)"), "%s", seen.last);
    ek_set_log(NULL, NULL);
    ek_dev_free(cuda_dev(1), other, 30 * MB, EK_MEMORY_PARAMETER);
    close_cuda();
}

TEST(logical_devices_give_each_other_what_they_have_cached)
{
    emulator_set("MEMORY", "64M");
    open_cuda("0,0,1");
    void *a, *b, *c;
    assert_ok(ek_dev_alloc(cuda_dev(0), 40 * MB, EK_MEMORY_PARAMETER, &a));
    assert_ok(ek_dev_alloc(cuda_dev(2), 40 * MB, EK_MEMORY_PARAMETER, &c));
    ek_dev_free(cuda_dev(0), a, 40 * MB, EK_MEMORY_PARAMETER);
    ek_dev_free(cuda_dev(2), c, 40 * MB, EK_MEMORY_PARAMETER);
    assert_ok(ek_dev_alloc(cuda_dev(1), 40 * MB, EK_MEMORY_PARAMETER, &b));
    ck_assert_uint_eq(stats_of(0).reserved, 0);
    ck_assert_uint_eq(stats_of(2).reserved, 40 * MB); /* another GPU's */
    ek_dev_free(cuda_dev(1), b, 40 * MB, EK_MEMORY_PARAMETER);
    close_cuda();
}

typedef struct holder {
    ek_dev *dev;
    atomic_bool holds;
} holder;

/* As in the midst of an allocation. */
static void *hold_allocator(void *user)
{
    holder *h = user;
    const struct timespec moment = {0, 10000000};
    ek_ledger_hold(h->dev);
    atomic_store(&h->holds, true);
    nanosleep(&moment, NULL);
    ek_ledger_release(h->dev);
    return NULL;
}

TEST(logical_devices_wait_for_what_another_thread_will_give)
{
    emulator_set("MEMORY", "64M");
    open_cuda("0,0");
    void *a, *b;
    pthread_t thread;
    assert_ok(ek_dev_alloc(cuda_dev(0), 40 * MB, EK_MEMORY_PARAMETER, &a));
    ek_dev_free(cuda_dev(0), a, 40 * MB, EK_MEMORY_PARAMETER);
    holder h = {cuda_dev(0), false};
    ck_assert_int_eq(pthread_create(&thread, NULL, hold_allocator, &h), 0);
    while (!atomic_load(&h.holds))
        sched_yield();
    assert_ok(ek_dev_alloc(cuda_dev(1), 40 * MB, EK_MEMORY_PARAMETER, &b));
    pthread_join(thread, NULL);
    assert_refused(ek_dev_alloc(cuda_dev(0), 40 * MB, EK_MEMORY_PARAMETER, &a), EK_E_OUT_OF_MEMORY,
                   "cuda:0 is out of memory");
    ek_dev_free(cuda_dev(1), b, 40 * MB, EK_MEMORY_PARAMETER);
    close_cuda();
}

/* What the GPU has in use beside the logical devices' memory: counted once, however many there are.
 */
TEST(what_the_ledger_cannot_see_is_measured)
{
    void *a;
    emulator_set("CONTEXT", "100M");
    open_cuda("0,0");
    ck_assert_uint_eq(stats_of(0).system, 100 * MB);
    assert_ok(ek_dev_alloc(cuda_dev(0), 10 * MB, EK_MEMORY_PARAMETER, &a));
    ck_assert_uint_eq(stats_of(1).system, 0);
    ck_assert_uint_eq(stats_of(0).now[EK_MEMORY_PARAMETER], 10 * MB);
    ek_dev_free(cuda_dev(0), a, 10 * MB, EK_MEMORY_PARAMETER);
    close_cuda();
}

/* Modules of kernels are loaded when the first one is launched. */
TEST(what_the_ledger_cannot_see_is_measured_again)
{
    emulator_set("CONTEXT", "100M");
    emulator_set("LATER", "10M");
    open_cuda("0");
    ck_assert_uint_eq(stats_of(0).system, 100 * MB);
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_empty(EK_SHAPE(64), .device = ek_cuda(0));
    assert_made(x);
    assert_ok(ek_cuda_fill(cuda_dev(0), x, 1));
    ck_assert_uint_eq(stats_of(0).system, 110 * MB);
    ek_scope_end(&scope);
    close_cuda();
}

/* Memory that queued work uses goes back to the system only after it. */
TEST(freeing_waits_for_work_that_uses_the_memory)
{
    open_cuda("0,1");
    ek_dev *dev = cuda_dev(0), *other = cuda_dev(1);
    static unsigned char bytes[MB];
    void *a, *b, *c;
    memset(bytes, 7, sizeof bytes);
    assert_ok(ek_dev_alloc(dev, MB, EK_MEMORY_ACTIVATION, &a));
    assert_ok(ek_dev_alloc(dev, MB, EK_MEMORY_ACTIVATION, &b));
    assert_ok(ek_dev_alloc(other, MB, EK_MEMORY_ACTIVATION, &c));
    assert_ok(ek_dev_copy(dev, a, cpu_dev(), bytes, MB));
    assert_ok(ek_dev_copy(dev, b, dev, a, MB));
    assert_ok(ek_dev_copy(other, c, dev, b, MB));
    ek_dev_free(dev, a, MB, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, b, MB, EK_MEMORY_ACTIVATION);
    assert_ok(ek_memory_trim(ek_cuda(0)));
    memset(bytes, 0, sizeof bytes);
    assert_ok(ek_dev_copy(cpu_dev(), bytes, other, c, MB));
    for (int i = 0; i < MB; i++)
        if (bytes[i] != 7)
            ck_abort_msg("byte %d is %d", i, bytes[i]);
    ek_dev_free(other, c, MB, EK_MEMORY_ACTIVATION);
    close_cuda();
}

TEST(without_a_gpu_there_are_no_devices)
{
    emulator_set("DEVICES", "0");
    ck_assert_int_eq(ek_device_count(EK_CUDA), 0);
    ck_assert_int_eq(ek_default_device_kind(), EK_HOST);
    assert_refused(ek_dev_get(ek_cuda(0)), EK_E_DEVICE,
                   "there is no device cuda:0; this process has 0 of this kind: no "
                   "CUDA-capable device is detected (cudaErrorNoDevice)");
    ck_assert_int_eq(ek_synchronize(ek_cuda(0)), EK_E_DEVICE);
    ek_error_clear();
    assert_refused(ek_cuda_devices_configure("0"), EK_E_DEVICE, "there is no GPU 0");
}

TEST(the_environment_is_believed_or_refused)
{
    emulator_set("DEVICES", "2");
    setenv("EVENKEEL_CUDA_DEVICES", "0,2", 1);
    assert_refused(ek_device_count(EK_CUDA), EK_E_DEVICE,
                   "EVENKEEL_CUDA_DEVICES: device list \"0,2\": there is no GPU 2");
    setenv("EVENKEEL_CUDA_DEVICES", "3x1:1M", 1);
    ck_assert_int_eq(ek_device_count(EK_CUDA), 3);
    ck_assert_int_eq(ek_cuda_of(cuda_dev(2))->physical, 1);
    ck_assert_uint_eq(stats_of(2).capacity, MB);
    close_cuda();
}

#endif
