/* What goes wrong on CUDA devices is said, leaves nothing behind, and can be tried again. */
#include <pthread.h>

#include "cuda/runtime.h"
#include "cuda_setup.h"
#include "kernels/kernels.h"

/* ---- faults that kernels note ---- */

/* As a kernel does. */
static void raise_fault(ek_dev *dev, int kind, int64_t value, int64_t bound, const char *operation)
{
    ek_cuda_fault *fault = ek_cuda_of(dev)->fault;
    fault->value = value;
    fault->bound = bound;
    fault->operation = operation;
    fault->kind = kind;
}

typedef int fault_call(ek_dev *dev, void *memory);

static int call_zero(ek_dev *dev, void *memory)
{
    return ek_dev_zero(dev, memory, 64);
}

static int call_upload(ek_dev *dev, void *memory)
{
    static unsigned char bytes[64];
    return ek_dev_copy(dev, memory, cpu_dev(), bytes, sizeof bytes);
}

static int call_download(ek_dev *dev, void *memory)
{
    static unsigned char bytes[64];
    return ek_dev_copy(cpu_dev(), bytes, dev, memory, sizeof bytes);
}

static int call_order(ek_dev *dev, void *memory)
{
    return ek_dev_wait(cpu_dev(), dev);
}

static int call_synchronize(ek_dev *dev, void *memory)
{
    return ek_synchronize(dev->id);
}

TEST(a_fault_is_the_result_of_the_next_call)
{
    static fault_call *const calls[] = {call_zero, call_upload, call_download, call_order,
                                        call_synchronize};
    open_cuda("0,0");
    ek_dev *dev = cuda_dev(1);
    void *memory;
    assert_ok(ek_dev_alloc(dev, 64, EK_MEMORY_ACTIVATION, &memory));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        raise_fault(dev, EK_CUDA_FAULT_INDEX, 7, 5, "gather");
        assert_ok(ek_synchronize(ek_cuda(0))); /* another device's */
        assert_refused(calls[i](dev, memory), EK_E_INVALID,
                       "gather on cuda:1: index 7 is out of range for a dimension of "
                       "size 5; it must be from 0 to 4");
        assert_ok(calls[i](dev, memory)); /* said once */
    }
    raise_fault(dev, EK_CUDA_FAULT_TARGET, -3, 10, "cross entropy");
    assert_refused(call_zero(dev, memory), EK_E_INVALID,
                   "cross entropy on cuda:1: target -3 is out of range for 10 classes; "
                   "it must be from 0 to 9");
    raise_fault(dev, EK_CUDA_FAULT_POSITION, 16, 16, "max pooling");
    assert_refused(call_zero(dev, memory), EK_E_INVALID,
                   "max pooling on cuda:1: position 16 of a maximum is out of range");
    raise_fault(dev, EK_CUDA_FAULT_FILLING, 0, 0, NULL); /* not yet there */
    assert_ok(call_zero(dev, memory));
    raise_fault(dev, EK_CUDA_FAULT_NONE, 0, 0, NULL);
    ek_dev_free(dev, memory, 64, EK_MEMORY_ACTIVATION);
    close_cuda();
}

/* Whoever sends ahead drops errors: this one isn't his. */
TEST(what_is_sent_takes_no_fault)
{
    static unsigned char bytes[64];
    void *memory;
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    assert_ok(ek_dev_alloc(dev, sizeof bytes, EK_MEMORY_ACTIVATION, &memory));
    raise_fault(dev, EK_CUDA_FAULT_INDEX, 7, 5, "gather");
    ek_cuda_tell(ek_cuda_of(dev), "cuda:1 is missing");
    assert_ok(ek_dev_upload(dev, memory, cpu_dev(), bytes, sizeof bytes));
    assert_refused(call_zero(dev, memory), EK_E_BACKEND, "cuda:1 is missing");
    assert_refused(call_zero(dev, memory), EK_E_INVALID, "gather on cuda:0: index 7");
    ek_dev_free(dev, memory, sizeof bytes, EK_MEMORY_ACTIVATION);
    close_cuda();
}

static void *ask(void *user)
{
    ek_dev *dev = user;
    return ek_cuda_fault_check(dev) < 0 ? user : NULL;
}

TEST(one_thread_gets_a_fault)
{
    enum { THREADS = 4, ROUNDS = 20 };
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        int told = 0;
        raise_fault(dev, EK_CUDA_FAULT_INDEX, 1, 1, "gather");
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, ask, dev), 0);
        for (int i = 0; i < THREADS; i++) {
            void *result;
            pthread_join(threads[i], &result);
            told += result != NULL;
        }
        ck_assert_int_eq(told, 1);
    }
    close_cuda();
}

/* A fault that nobody asked for any more does not keep a device from closing. */
TEST(a_late_fault_does_not_outlive_its_device)
{
    open_cuda("0");
    raise_fault(cuda_dev(0), EK_CUDA_FAULT_INDEX, 1, 1, "gather");
    close_cuda();
    assert_ok(ek_synchronize(ek_cuda(0)));
    close_cuda();
}

#ifdef EK_CUDA_EMULATED

/* ---- every call fails once ---- */

enum { LENGTH = (4 << 20) + 5, SMALL = 100 };

typedef struct run {
    void *memory[3];
    unsigned char *bytes;
} run;

static void fill_pattern(unsigned char *bytes)
{
    for (int i = 0; i < LENGTH; i++)
        bytes[i] = (unsigned char)(i * 13 + i / 251);
}

/* Up to device 0, around all devices and down. */
static int steps(run *r)
{
    ek_dev *devs[3], *cpu = cpu_dev();
    EK_TRY(ek_cuda_devices_configure("0,0,1"));
    for (int i = 0; i < 3; i++) {
        devs[i] = ek_dev_get(ek_cuda(i));
        if (!devs[i])
            return ek_error_pending();
        EK_TRY(ek_dev_alloc(devs[i], LENGTH, EK_MEMORY_ACTIVATION, &r->memory[i]));
        EK_TRY(ek_dev_zero(devs[i], r->memory[i], LENGTH));
    }
    EK_TRY(ek_dev_copy(devs[0], r->memory[0], cpu, r->bytes, LENGTH));
    EK_TRY(ek_dev_copy(devs[0], r->memory[0], cpu, r->bytes, SMALL));
    memset(r->bytes, 0, LENGTH);
    for (int i = 0; i < 3; i++)
        EK_TRY(
            ek_dev_copy(devs[(i + 1) % 3], r->memory[(i + 1) % 3], devs[i], r->memory[i], LENGTH));
    EK_TRY(ek_dev_copy(cpu, r->bytes, devs[0], r->memory[0], LENGTH));
    EK_TRY(ek_dev_copy(cpu, r->bytes, devs[0], r->memory[0], SMALL));
    for (int i = 0; i < 3; i++)
        EK_TRY(ek_synchronize(devs[i]->id));
    return 0;
}

static int run_steps(unsigned char *bytes, const unsigned char *wanted)
{
    run r = {.bytes = bytes};
    memcpy(bytes, wanted, LENGTH);
    int rc = steps(&r);
    for (int i = 0; i < 3; i++)
        if (r.memory[i])
            ek_dev_free(cuda_dev(i), r.memory[i], LENGTH, EK_MEMORY_ACTIVATION);
    if (rc >= 0 && memcmp(bytes, wanted, LENGTH) != 0)
        ck_abort_msg("wrong bytes arrived");
    return rc;
}

typedef struct failing {
    const char *function;
    int error, status;
    const char *part;
    bool hidden; /* another way is taken if it fails: of copies; a smaller segment */
} failing;

static const failing failings[] = {
    {"cuCtxPushCurrent", cudaErrorDevicesUnavailable, EK_E_BACKEND, "busy or unavailable", false},
    {"cudaGetDevice", cudaErrorInvalidValue, 0, "", true},
    {"cudaDeviceGetAttribute", cudaErrorInvalidValue, EK_E_BACKEND, "invalid argument", false},
    {"cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, EK_E_OUT_OF_MEMORY, "out of memory",
     false},
    {"cudaEventCreateWithFlags", cudaErrorMemoryAllocation, EK_E_OUT_OF_MEMORY, "out of memory",
     false},
    {"cudaHostAlloc", cudaErrorMemoryAllocation, EK_E_OUT_OF_MEMORY, "out of memory", false},
    {"cudaHostGetDevicePointer", cudaErrorInvalidValue, EK_E_BACKEND, "invalid argument", false},
    {"cudaMalloc", cudaErrorMemoryAllocation, EK_E_OUT_OF_MEMORY, "is out of memory", true},
    {"cudaMalloc", cudaErrorInvalidValue, EK_E_BACKEND, "allocating memory on cuda:", false},
    {"cudaMemsetAsync", cudaErrorInvalidValue, EK_E_BACKEND, "zeroing memory on cuda:", false},
    {"cudaMemcpyAsync", cudaErrorInvalidValue, EK_E_BACKEND, "a copy", false},
    {"cudaMemcpyPeerAsync", cudaErrorInvalidValue, EK_E_BACKEND,
     "a copy between GPUs on cuda:", true},
    {"cudaEventRecord", cudaErrorInvalidResourceHandle, EK_E_BACKEND, "recording an event", false},
    {"cudaStreamWaitEvent", cudaErrorInvalidResourceHandle, EK_E_BACKEND, "waiting for an event",
     false},
    {"cudaEventSynchronize", cudaErrorInvalidResourceHandle, EK_E_BACKEND, "waiting for", false},
    {"cudaStreamSynchronize", cudaErrorInvalidResourceHandle, EK_E_BACKEND, "waiting for its",
     false},
    {"cudaDeviceCanAccessPeer", cudaErrorInvalidDevice, 0, "", true},
    {"cudaDeviceEnablePeerAccess", cudaErrorTooManyPeers, 0, "", true},
    {"cudaLaunchKernelEx", cudaErrorInvalidConfiguration, 0, "", true},
};
enum { FAILINGS = sizeof failings / sizeof failings[0] };

/* The `after`-th call of the function fails. Returns true if it was noticed, and in *reached
 * whether the function was called that often. */
static bool fail_once(const failing *f, int after, unsigned char *bytes,
                      const unsigned char *wanted, bool *reached)
{
    ek_emulator_fail_next(f->function, f->error, after);
    int rc = run_steps(bytes, wanted);
    if (rc < 0) {
        if (rc != f->status || !strstr(ek_error_message(), f->part))
            ck_abort_msg("%s after %d: %s, \"%s\"", f->function, after, ek_status_name(rc),
                         ek_error_message());
    } else if (ek_error_status()) {
        ck_abort_msg("%s after %d: all was well, but \"%s\"", f->function, after,
                     ek_error_message());
    }
    ek_error_clear();
    *reached = ek_emulator_recover() == 0;
    if (rc < 0 && run_steps(bytes, wanted) < 0)
        ck_abort_msg("%s after %d, again: %s", f->function, after, ek_error_message());
    close_cuda();
    return rc < 0;
}

static void fail_each(const failing *f, bool peers)
{
    unsigned char *wanted = malloc(LENGTH), *bytes = malloc(LENGTH);
    ck_assert_ptr_nonnull(wanted);
    ck_assert_ptr_nonnull(bytes);
    fill_pattern(wanted);
    emulator_set("DEVICES", "2");
    emulator_set("PEERS", peers ? "1" : "0");
    int noticed = 0;
    bool reached = true;
    for (int after = 0; after < 40 && reached; after += 1 + after / 4)
        noticed += fail_once(f, after, bytes, wanted, &reached);
    if (noticed == 0 && !f->hidden)
        ck_abort_msg("no failure of %s was noticed", f->function);
    free(wanted);
    free(bytes);
}

TEST_LOOP(each_call_can_fail_once, 0, FAILINGS)
{
    fail_each(&failings[_i], true);
}

TEST_LOOP(each_call_can_fail_once_without_peers, 0, FAILINGS)
{
    fail_each(&failings[_i], false);
}

/* No part of a copy that failed is still on its way: what is written afterwards stays. */
static void nothing_is_under_way(const char *function, int after, bool across)
{
    enum { NBYTES = (4 << 20) + 5 };
    static unsigned char bytes[NBYTES];
    ek_dev *from = cuda_dev(0), *to = across ? cuda_dev(1) : cuda_dev(0);
    void *source, *target;
    assert_ok(ek_dev_alloc(from, NBYTES, EK_MEMORY_ACTIVATION, &source));
    assert_ok(ek_dev_alloc(to, NBYTES, EK_MEMORY_ACTIVATION, &target));
    memset(bytes, 0xEE, NBYTES);
    assert_ok(ek_dev_copy(from, source, cpu_dev(), bytes, NBYTES));
    ek_emulator_fail_next(function, cudaErrorInvalidValue, after);
    int rc = across ? ek_dev_copy(to, target, from, source, NBYTES)
                    : ek_dev_copy(to, target, cpu_dev(), bytes, NBYTES);
    ek_emulator_recover();
    if (rc < 0) {
        ek_error_clear();
        assert_ok(ek_dev_zero(to, target, NBYTES));
        assert_ok(ek_synchronize(from->id));
        assert_ok(ek_synchronize(to->id));
        assert_ok(ek_dev_copy(cpu_dev(), bytes, to, target, NBYTES));
        for (int i = 0; i < NBYTES; i++)
            if (bytes[i] != 0)
                ck_abort_msg("%s after %d: byte %d is %u", function, after, i, bytes[i]);
    }
    ek_dev_free(from, source, NBYTES, EK_MEMORY_ACTIVATION);
    ek_dev_free(to, target, NBYTES, EK_MEMORY_ACTIVATION);
}

TEST(a_copy_that_failed_has_ended)
{
    static const char *const functions[] = {"cudaEventRecord", "cudaStreamWaitEvent",
                                            "cudaMemcpyAsync", "cudaEventSynchronize"};
    emulator_set("PEERS", "0");
    open_cuda("0,1");
    for (int i = 0; i < 4; i++)
        for (int after = 0; after < 12; after++) {
            nothing_is_under_way(functions[i], after, false);
            nothing_is_under_way(functions[i], after, true);
        }
    for (int i = 0; i < 8; i++) /* more often than there are pinned buffers */
        nothing_is_under_way("cudaEventSynchronize", 0, false);
    close_cuda();
}

/* ---- a driver that doesn't do ---- */

static int lines;

static void count_line(ek_log_level level, const char *line, void *user)
{
    lines += strstr(line, "no CUDA devices: CUDA driver version is insufficient") != NULL;
}

TEST(an_old_driver_means_no_devices)
{
    ek_set_log(count_line, NULL);
    ek_emulator_fail_next("cudaGetDeviceCount", cudaErrorInsufficientDriver, 0);
    ck_assert_int_eq(ek_device_count(EK_CUDA), 0);
    ck_assert_int_eq(ek_device_count(EK_CUDA), 0);
    ck_assert_int_eq(ek_error_status(), 0);
    ck_assert_int_eq(lines, 1);
    ck_assert_int_eq(ek_devices(EK_CUDA, 2).count, -1);
    assert_error(EK_E_DEVICE, "2 cuda devices wanted, but there are 0: CUDA driver version is "
                              "insufficient for CUDA runtime version");
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
}

TEST(a_gpu_without_kernels_is_refused)
{
    open_cuda("0,1");
    ek_emulator_fail_next("cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice, 0);
    assert_refused(ek_dev_get(ek_cuda(0)), EK_E_DEVICE,
                   "cuda:0: this library was built without kernels for GPU 0, whose compute "
                   "capability is 9.0: by default for 8.0 and later");
    assert_made(ek_dev_get(ek_cuda(1)));
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    close_cuda();
}

/* ---- a GPU that is lost ---- */

static ek_tensor *on(int index)
{
    ek_tensor *x = ek_empty(EK_SHAPE(1000), .device = ek_cuda(index));
    assert_made(x);
    return x;
}

static int fill_on(ek_tensor *x)
{
    ek_dev *dev = ek_tensor_dev(x);
    return dev->backend->kernels->fill(dev, x, 1.5);
}

TEST_LOOP(a_lost_gpu_is_named_and_others_go_on, 0, 6)
{
    static const int errors[] = {cudaErrorIllegalAddress,
                                 cudaErrorLaunchFailure,
                                 cudaErrorMisalignedAddress,
                                 721 /* cudaErrorTensorMemoryLeak */,
                                 911 /* cudaErrorExternalDevice */,
                                 cudaErrorUnknown};
    open_cuda("0,0,1");
    ek_tensor *a = on(0), *b = on(1), *c = on(2);
    ek_emulator_fail_next("kernel", errors[_i], 0);
    assert_ok(fill_on(a));
    ck_assert_int_eq(ek_synchronize(ek_cuda(0)), EK_E_BACKEND);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "can no longer be used by this process"));
    assert_error(EK_E_BACKEND, "waiting for its work on cuda:0");
    /* Every call on either device there says it. */
    float value[1000] = {0};
    void *memory;
    ek_dev *lost[] = {cuda_dev(0), cuda_dev(1)};
    ek_tensor *there[] = {a, b};
    for (int i = 0; i < 2; i++) {
        const char *part = "GPU 0 was lost when waiting for its work on cuda:0 failed";
        assert_refused(fill_on(there[i]), EK_E_BACKEND, part);
        assert_refused(ek_to_data(there[i], value, sizeof value), EK_E_BACKEND, part);
        assert_refused(ek_set_data(there[i], value, sizeof value), EK_E_BACKEND, part);
        assert_refused(ek_dev_alloc(lost[i], 64 << 20, EK_MEMORY_ACTIVATION, &memory), EK_E_BACKEND,
                       i ? "cuda:1 can no longer" : "cuda:0 can no longer");
        assert_refused(ek_dev_copy(cuda_dev(2), ek_tensor_address(c), lost[i],
                                   ek_tensor_address(there[i]), 64),
                       EK_E_BACKEND, part);
        assert_refused(ek_dev_wait(cuda_dev(2), lost[i]), EK_E_BACKEND, part);
        assert_refused(ek_dev_wait(lost[i], cuda_dev(2)), EK_E_BACKEND, part);
        assert_refused(ek_synchronize(lost[i]->id), EK_E_BACKEND,
                       "the host and devices on other GPUs go on");
    }
    /* The other GPU computes. */
    assert_ok(fill_on(c));
    assert_ok(ek_to_data(c, value, sizeof value));
    for (int i = 0; i < 1000; i++)
        ck_assert_msg(value[i] == 1.5f, "element %d is %g", i, (double)value[i]);
    assert_ok(ek_shutdown());
    ck_assert_int_eq(ek_error_status(), 0);
    /* And goes on after a new list; the lost one isn't opened again. */
    assert_ok(ek_cuda_devices_configure("1,0"));
    assert_ok(fill_on(on(0)));
    assert_refused(ek_dev_get(ek_cuda(1)), EK_E_BACKEND,
                   "cuda:1 can no longer be used by this process: GPU 0 was lost");
}

/* A library's call is the first to meet a kernel's error, which its own status doesn't tell. */
TEST(a_library_that_fails_on_a_lost_gpu_says_so)
{
    emulator_set("ORDER", "eager"); /* the kernel has failed before the product is issued */
    open_cuda("0");
    ek_dev *dev = cuda_dev(0);
    ek_tensor *x = ek_empty(EK_SHAPE(1, 4, 4), .device = ek_cuda(0));
    ek_tensor *out = ek_empty(EK_SHAPE(1, 4, 4), .device = ek_cuda(0));
    assert_ok(fill_on(x));
    assert_ok(dev->backend->kernels->matmul(dev, out, x, x, NULL, false));
    ek_emulator_fail_next("kernel", cudaErrorIllegalAddress, 0);
    assert_ok(fill_on(x));
    ck_assert_int_eq(dev->backend->kernels->matmul(dev, out, x, x, NULL, false), EK_E_BACKEND);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "can no longer be used by this process"));
    assert_error(EK_E_BACKEND, "matrix product on cuda:0: an illegal memory access");
}

TEST(a_launch_that_fails_is_only_that)
{
    open_cuda("0");
    ek_tensor *x = on(0);
    ek_emulator_fail_next("cudaLaunchKernelEx", cudaErrorInvalidConfiguration, 0);
    assert_refused(
        fill_on(x), EK_E_BACKEND,
        "fill on cuda:0: invalid configuration argument (cudaErrorInvalidConfiguration)");
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    assert_ok(fill_on(x));
    assert_ok(ek_synchronize(ek_cuda(0)));
    close_cuda();
}

#endif
