// test_emulator.cpp: what the emulator promises to those who test on it. Each test is a process.
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "emulator.h"
#include "test_kernels.h"

#define OK(call) ck_assert_int_eq((int)(call), (int)cudaSuccess)
#define FAILS(call, error) ck_assert_int_eq((int)(call), (int)(error))

static cudaStream_t new_stream()
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event()
{
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

template <typename T> static T *device_array(size_t count)
{
    T *array;
    OK(cudaMalloc((void **)&array, count * sizeof(T)));
    return array;
}

template <typename T> static T *pinned_array(size_t count)
{
    T *array;
    OK(cudaHostAlloc((void **)&array, count * sizeof(T), cudaHostAllocMapped));
    return array;
}

template <typename T> static T *device_copy(const std::vector<T> &values, cudaStream_t stream)
{
    T *array = device_array<T>(values.size());
    OK(cudaMemcpyAsync(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                       stream));
    return array;
}

template <typename T>
static std::vector<T> host_copy(const T *array, size_t count, cudaStream_t stream)
{
    std::vector<T> values(count);
    OK(cudaMemcpyAsync(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    return values;
}

static uint64_t pending()
{
    return ek_emulator_pending();
}

// ---- kernels ----

START_TEST(test_block_sums)
{
    cudaStream_t stream = new_stream();
    for (int threads = 32; threads <= 1024; threads *= 2) {
        std::vector<float> x(5000);
        std::vector<double> z(5000);
        for (size_t i = 0; i < x.size(); i++)
            z[i] = x[i] = (float)(i % 7);
        float *sums = device_array<float>(3), *values = device_copy(x, stream);
        double *sums64 = device_array<double>(3), *values64 = device_copy(z, stream);
        OK(launch_block_sums_f32(stream, 3, threads, values, (int64_t)x.size(), sums));
        OK(launch_block_sums_f64(stream, 3, threads, values64, (int64_t)x.size(), sums64));
        double wanted[3] = {0};
        for (size_t i = 0; i < x.size(); i++)
            wanted[i / (size_t)threads % 3] += z[i];
        std::vector<float> got = host_copy(sums, 3, stream);
        std::vector<double> got64 = host_copy(sums64, 3, stream);
        for (size_t i = 0; i < 3; i++) {
            ck_assert_float_eq(got[i], (float)wanted[i]);
            ck_assert_double_eq(got64[i], wanted[i]);
        }
    }
}
END_TEST

START_TEST(test_exchanges)
{
    cudaStream_t stream = new_stream();
    int *results = device_array<int>(576);
    OK(launch_exchanges(stream, results));
    std::vector<int> got = host_copy(results, 576, stream);
    for (int self = 0; self < 64; self++) {
        int lane = self % 32, warp = self - lane, ballot = 0;
        for (int i = 0; i < 16; i++)
            ballot |= ((warp + i) % 3 == 0) << i;
        const int wanted[9] = {100 + warp + 5,
                               100 + (self ^ 3),
                               100 + (lane < 30 ? self + 2 : self),
                               100 + (lane < 4 ? self : self - 4),
                               100 + (lane % 8 == 7 ? self : self + 1),
                               ballot,
                               warp == 32,
                               warp == 0,
                               100 + (self ^ 1)};
        for (int i = 0; i < 9; i++)
            ck_assert_int_eq(got[(size_t)(64 * i + self)], wanted[i]);
    }
}
END_TEST

START_TEST(test_atomics)
{
    cudaStream_t stream = new_stream();
    int *results = device_array<int>(6);
    float *sum = device_array<float>(1);
    OK(cudaMemsetAsync(results, 0, 6 * sizeof(int), stream));
    OK(cudaMemsetAsync(sum, 0, sizeof(float), stream));
    OK(launch_atomics(stream, 100, results, sum));
    std::vector<int> got = host_copy(results, 6, stream);
    ck_assert_int_eq(got[0], 4950);
    ck_assert_int_eq(got[1], 99);
    ck_assert_int_eq(got[2], -99);
    ck_assert_int_ge(got[3], 1);
    ck_assert_int_eq(got[4], 1);
    ck_assert_int_eq(got[5], 0);
    ck_assert_float_eq(host_copy(sum, 1, stream)[0], 50);
}
END_TEST

START_TEST(test_places)
{
    cudaStream_t stream = new_stream();
    const dim3 shapes[][2] = {{dim3(1), dim3(1)},
                              {dim3(7), dim3(1024)},
                              {dim3(3, 4, 5), dim3(6, 7, 8)},
                              {dim3(2, 3), dim3(32, 32)},
                              {dim3(1, 1, 9), dim3(5, 1, 64)}};
    for (const auto &shape : shapes) {
        const dim3 &g = shape[0], &b = shape[1];
        size_t count = (size_t)g.x * g.y * g.z * b.x * b.y * b.z;
        unsigned *numbers = device_array<unsigned>(count);
        OK(launch_places(stream, g, b, numbers));
        std::vector<unsigned> got = host_copy(numbers, count, stream);
        for (size_t i = 0; i < count; i++)
            ck_assert_uint_eq(got[i], i);
    }
    unsigned *numbers = device_array<unsigned>(1);
    const dim3 wrong[][2] = {{dim3(1), dim3(1025)},
                             {dim3(1), dim3(32, 33)},
                             {dim3(1), dim3(1, 1, 65)},
                             {dim3(1, 65536), dim3(1)},
                             {dim3(0), dim3(1)}};
    for (const auto &shape : wrong)
        FAILS(launch_places(stream, shape[0], shape[1], numbers), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaErrorInvalidConfiguration);
    FAILS(cudaGetLastError(), cudaSuccess);
}
END_TEST

START_TEST(test_transpose)
{
    cudaStream_t stream = new_stream();
    const int size = 70;
    std::vector<float> x(size * size);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)i;
    float *from = device_copy(x, stream), *to = device_array<float>(x.size());
    OK(launch_transpose(stream, size, from, to));
    std::vector<float> got = host_copy(to, x.size(), stream);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            ck_assert_float_eq(got[(size_t)(i * size + j)], (float)(j * size + i));
}
END_TEST

START_TEST(test_votes)
{
    cudaStream_t stream = new_stream();
    for (int threads : {8, 50, 1024}) {
        int *results = device_array<int>((size_t)threads);
        OK(launch_vote(stream, threads, results));
        for (int got : host_copy(results, (size_t)threads, stream))
            ck_assert_int_eq(got, threads / 2 * 16 + 8 + 4);
    }
}
END_TEST

// The process that runs body ends by itself, and says something with these words.
template <typename Body> static void dies(Body body, const char *first, const char *second)
{
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        body();
        _exit(0);
    }
    close(ends[1]);
    char said[4096];
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "it goes on: %s", said);
    ck_assert_msg(strstr(said, first) && strstr(said, second), "it says %s", said);
}

START_TEST(test_divergence_ends_the_process)
{
    struct {
        int (*launch)(cudaStream_t, float *);
        const char *words, *function;
    } const cases[] = {{launch_early_return, "returned", "early_return"},
                       {launch_two_barriers, "different barriers", "two_barriers"},
                       {launch_half_shuffle, "never reach", "half_shuffle"}};
    for (const auto &c : cases)
        dies(
            [&] {
                cudaStream_t stream = new_stream();
                c.launch(stream, device_array<float>(64));
                cudaStreamSynchronize(stream);
            },
            c.words, c.function);
}
END_TEST

START_TEST(test_missing_barrier_shows)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(64);
    OK(launch_missing_barrier(stream, x));
    ck_assert_float_ne(host_copy(x, 64, stream)[0], 63);
}
END_TEST

// ---- streams and events ----

// b = a + 1 where a is filled in another stream: 1 if ordered, NaN if not.
static float across_streams(bool ordered)
{
    cudaStream_t first = new_stream(), second = new_stream();
    float *a = device_array<float>(1), *b = device_array<float>(1);
    cudaEvent_t filled = new_event();
    OK(cudaMemsetAsync(a, 0, sizeof(float), first));
    OK(cudaEventRecord(filled, first));
    if (ordered)
        OK(cudaStreamWaitEvent(second, filled, 0));
    OK(launch_copy(second, 1, b, a));
    OK(launch_add(second, 1, b, 1));
    return host_copy(b, 1, second)[0];
}

START_TEST(test_events_order_streams)
{
    ck_assert_float_eq(across_streams(true), 1);
}
END_TEST

START_TEST(test_missing_event_shows)
{
    float got = across_streams(false);
    ck_assert(isnan(got));
}
END_TEST

START_TEST(test_random_orders)
{
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i);
    setenv("EK_EMULATOR_ORDER", order, 1);
    for (int i = 0; i < 10; i++)
        ck_assert_float_eq(across_streams(true), 1);
}
END_TEST

// Without an event, random orders go wrong sometimes, and sometimes not.
START_TEST(test_random_orders_differ)
{
    setenv("EK_EMULATOR_ORDER", "random:1", 1);
    int wrong = 0;
    for (int i = 0; i < 100; i++)
        wrong += across_streams(false) != 1;
    ck_assert_int_gt(wrong, 0);
    ck_assert_int_lt(wrong, 100);
}
END_TEST

START_TEST(test_eager)
{
    setenv("EK_EMULATOR_ORDER", "eager", 1);
    ck_assert_float_eq(across_streams(false), 1);
    cudaStream_t stream = new_stream();
    OK(launch_add(stream, 1, device_array<float>(1), 1));
    ck_assert_uint_eq(pending(), 0);
}
END_TEST

START_TEST(test_nothing_runs_before_it_must)
{
    cudaStream_t stream = new_stream(), other = new_stream();
    float *x = device_array<float>(1);
    cudaEvent_t middle = new_event();
    OK(cudaMemsetAsync(x, 0, sizeof(float), stream));
    OK(cudaEventRecord(middle, stream));
    OK(launch_add(stream, 1, x, 1));
    OK(cudaMemsetAsync(x, 0, sizeof(float), other));
    ck_assert_uint_eq(pending(), 4);
    OK(cudaEventSynchronize(middle));
    ck_assert_uint_eq(pending(), 2);
    OK(cudaStreamSynchronize(stream));
    ck_assert_uint_eq(pending(), 1);
    OK(cudaDeviceSynchronize());
    ck_assert_uint_eq(pending(), 0);
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.issued, 4);
    ck_assert_uint_eq(counters.executed, 4);
    ck_assert_uint_eq(counters.kernels, 1);
    ck_assert_uint_eq(counters.waits, 3);
}
END_TEST

START_TEST(test_queries_bring_work_forward)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(1);
    cudaEvent_t event = new_event();
    OK(cudaEventQuery(event));
    OK(cudaMemsetAsync(x, 0, sizeof(float), stream));
    OK(launch_add(stream, 1, x, 1));
    OK(cudaEventRecord(event, stream));
    FAILS(cudaEventQuery(event), cudaErrorNotReady);
    FAILS(cudaStreamQuery(stream), cudaErrorNotReady);
    ck_assert_uint_eq(pending(), 1);
    OK(cudaEventQuery(event));
    OK(cudaStreamQuery(stream));
}
END_TEST

START_TEST(test_waits_are_for_the_last_record)
{
    cudaStream_t first = new_stream(), second = new_stream();
    float *x = device_array<float>(1);
    cudaEvent_t event = new_event();
    OK(cudaStreamWaitEvent(second, event, 0)); // never recorded: no wait
    OK(cudaMemsetAsync(x, 0, sizeof(float), first));
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(launch_add(first, 1, x, 1));
    OK(cudaEventRecord(event, first)); // not what second waits for
    OK(cudaEventDestroy(event));
    ck_assert_float_eq(host_copy(x, 1, second)[0], 0);
    ck_assert_float_eq(host_copy(x, 1, first)[0], 1);
}
END_TEST

START_TEST(test_destroyed_streams_still_run)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(1);
    OK(cudaMemsetAsync(x, 0, sizeof(float), stream));
    OK(cudaStreamDestroy(stream));
    FAILS(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    ck_assert_uint_eq(ek_emulator_live_streams(), 0);
    OK(cudaDeviceSynchronize());
    ck_assert_float_eq(host_copy(x, 1, 0)[0], 0);
}
END_TEST

START_TEST(test_pageable_memory_is_copied_at_once)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(1), *pinned = pinned_array<float>(1), value = 1;
    OK(cudaMemcpyAsync(x, &value, sizeof value, cudaMemcpyHostToDevice, stream));
    value = 2;
    ck_assert_float_eq(host_copy(x, 1, stream)[0], 1);
    *pinned = 3;
    OK(cudaMemcpyAsync(x, pinned, sizeof *pinned, cudaMemcpyHostToDevice, stream));
    *pinned = 4; // too early: this is what arrives
    ck_assert_float_eq(host_copy(x, 1, stream)[0], 4);
    *pinned = 5;
    OK(cudaMemcpyAsync(pinned, x, sizeof *pinned, cudaMemcpyDefault, stream));
    ck_assert_float_eq(*pinned, 5);
    *pinned = 6;
    OK(cudaStreamSynchronize(stream));
    ck_assert_float_eq(*pinned, 4);
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.host_to_device, 8);
    ck_assert_uint_eq(counters.device_to_host, 12);
}
END_TEST

START_TEST(test_memcpy_waits_for_blocking_streams_only)
{
    cudaStream_t blocking, free_stream = new_stream();
    OK(cudaStreamCreate(&blocking));
    float *x = device_array<float>(2), got[2];
    OK(cudaMemsetAsync(x, 0, sizeof(float), blocking));
    OK(cudaMemsetAsync(x + 1, 0, sizeof(float), free_stream));
    OK(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    ck_assert_float_eq(got[0], 0);
    ck_assert(isnan(got[1]));
}
END_TEST

static void note_order(void *argument)
{
    int *order = (int *)argument;
    order[1] = cudaDeviceSynchronize() == cudaErrorNotPermitted;
    order[0]++;
}

START_TEST(test_host_functions)
{
    cudaStream_t stream = new_stream();
    int order[2] = {0, 0};
    OK(cudaLaunchHostFunc(stream, note_order, order));
    ck_assert_int_eq(order[0], 0);
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(order[0], 1);
    ck_assert_int_eq(order[1], 1);
}
END_TEST

struct Job {
    cudaEvent_t begun, done;
    float *x;
    int turns;
};

static void *issue_job(void *argument)
{
    Job *job = (Job *)argument;
    cudaStream_t stream = new_stream();
    OK(cudaStreamWaitEvent(stream, job->begun, 0));
    for (int i = 0; i < job->turns; i++) {
        OK(launch_add(stream, 1000, job->x, 1));
        if (i % 10 == 0)
            OK(cudaStreamSynchronize(stream));
    }
    OK(cudaEventRecord(job->done, stream));
    return NULL;
}

START_TEST(test_threads)
{
    pthread_t threads[4];
    Job jobs[4];
    cudaStream_t stream = new_stream();
    cudaEvent_t begun = new_event();
    float *x = device_array<float>(4000);
    OK(cudaMemsetAsync(x, 0, 4000 * sizeof(float), stream));
    OK(cudaEventRecord(begun, stream));
    for (int i = 0; i < 4; i++) {
        jobs[i] = {begun, new_event(), x + 1000 * i, 30 + i};
        pthread_create(&threads[i], NULL, issue_job, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        OK(cudaStreamWaitEvent(stream, jobs[i].done, 0));
    }
    std::vector<float> got = host_copy(x, 4000, stream);
    for (int i = 0; i < 4000; i++)
        ck_assert_float_eq(got[(size_t)i], (float)(30 + i / 1000));
}
END_TEST

// ---- devices and memory ----

START_TEST(test_memory)
{
    setenv("EK_EMULATOR_MEMORY", "1M", 1);
    void *half, *rest;
    size_t available, total;
    OK(cudaMalloc(&half, 512 << 10));
    OK(cudaMemGetInfo(&available, &total));
    ck_assert_uint_eq(available, 512 << 10);
    ck_assert_uint_eq(total, 1 << 20);
    FAILS(cudaMalloc(&rest, (512 << 10) + 1), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(rest);
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&rest, 512 << 10));
    ck_assert_uint_eq((uintptr_t)rest % 256, 0);
    ck_assert(isnan(*(float *)rest));
    ck_assert_uint_eq(ek_emulator_device_allocations(0), 2);
    OK(cudaFree(half));
    OK(cudaFree(rest));
    OK(cudaFree(NULL));
    ck_assert_uint_eq(ek_emulator_device_bytes(0), 0);
    FAILS(cudaFree(&total), cudaErrorInvalidValue);
    OK(cudaMalloc(&rest, 0));
    ck_assert_ptr_null(rest);
    float *pinned = pinned_array<float>(2), *mapped;
    OK(cudaHostGetDevicePointer((void **)&mapped, pinned + 1, 0));
    ck_assert_ptr_eq(mapped, pinned + 1);
    FAILS(cudaFree(pinned), cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), 0);
}
END_TEST

START_TEST(test_copies_stay_inside)
{
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(4), *y = device_array<float>(8), host[8];
    size_t size = 5 * sizeof(float);
    FAILS(cudaMemcpyAsync(x, y, size, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
    FAILS(cudaMemcpyAsync(host, x, size, cudaMemcpyDefault, stream), cudaErrorInvalidValue);
    FAILS(cudaMemcpyAsync(host, y, size, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    FAILS(cudaMemsetAsync(x, 0, size, stream), cudaErrorInvalidValue);
    ck_assert_uint_eq(pending(), 0);
}
END_TEST

START_TEST(test_no_device)
{
    setenv("EK_EMULATOR_DEVICES", "0", 1);
    int count = 7;
    void *memory;
    FAILS(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    ck_assert_int_eq(count, 0);
    FAILS(cudaMalloc(&memory, 1), cudaErrorNoDevice);
    FAILS(cudaSetDevice(0), cudaErrorNoDevice);
}
END_TEST

START_TEST(test_devices)
{
    setenv("EK_EMULATOR_DEVICES", "2", 1);
    int count, major, can;
    char id[16], other[16];
    cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 2);
    FAILS(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaGetDeviceProperties(&properties, 1));
    OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 1));
    ck_assert_int_eq(major, properties.major);
    ck_assert_uint_eq(properties.totalGlobalMem, 1 << 30);
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    OK(cudaDeviceGetPCIBusId(other, sizeof other, 1));
    ck_assert_str_ne(id, other);
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    ck_assert_int_eq(can, 1);

    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    float *x = device_array<float>(1);
    OK(cudaSetDevice(1));
    FAILS(launch_add(stream, 1, x, 1), cudaErrorInvalidResourceHandle);
    FAILS(cudaEventRecord(event, new_stream()), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(event, stream));
    OK(cudaMemcpyAsync(pinned_array<float>(1), x, sizeof(float), cudaMemcpyDefault, stream));
    OK(cudaStreamWaitEvent(new_stream(), event, 0));
    OK(cudaDeviceSynchronize());
    ck_assert_uint_eq(pending(), 1); // the other device's copy, which nothing waits for
}
END_TEST

static float *on_device(int device)
{
    OK(cudaSetDevice(device));
    float *x = device_array<float>(1);
    OK(cudaMemsetAsync(x, 0, sizeof(float), 0));
    OK(cudaDeviceSynchronize());
    return x;
}

START_TEST(test_peers)
{
    setenv("EK_EMULATOR_DEVICES", "2", 1);
    setenv("EK_EMULATOR_PEERS", _i ? "1" : "0", 1);
    float *x = on_device(0), *y = on_device(1);
    int can;
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    ck_assert_int_eq(can, _i);
    FAILS(cudaMemcpyAsync(y, x, 4, cudaMemcpyDefault, 0), cudaErrorInvalidValue);
    FAILS(cudaMemcpyPeerAsync(y, 0, x, 1, 4, 0), cudaErrorInvalidValue);
    OK(cudaMemcpyPeerAsync(y, 1, x, 0, 4, 0));
    cudaGetLastError();
    if (_i) {
        OK(cudaDeviceEnablePeerAccess(0, 0));
        FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
        OK(cudaMemcpyAsync(y, x, 4, cudaMemcpyDefault, 0));
        OK(launch_copy(0, 1, y, x));
        OK(cudaDeviceSynchronize());
    } else {
        FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported);
        OK(launch_copy(0, 1, y, x));
        FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    }
}
END_TEST

// ---- failures ----

START_TEST(test_failures)
{
    void *memory;
    ek_emulator_fail_next("cudaMalloc", cudaErrorMemoryAllocation, 2);
    OK(cudaMalloc(&memory, 1));
    OK(cudaMalloc(&memory, 1));
    FAILS(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&memory, 1));
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    FAILS(cudaGetLastError(), cudaSuccess);
}
END_TEST

START_TEST(test_broken_devices)
{
    setenv("EK_EMULATOR_DEVICES", "2", 1);
    cudaStream_t stream = new_stream();
    float *x = device_array<float>(1);
    void *memory;
    ek_emulator_fail_next("kernel", cudaErrorIllegalAddress, 1);
    OK(launch_add(stream, 1, x, 1));
    OK(launch_add(stream, 1, x, 1));
    OK(launch_add(stream, 1, x, 1));
    FAILS(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    FAILS(cudaMalloc(&memory, 1), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&memory, 1));
    FAILS(cudaSetDevice(0), cudaErrorIllegalAddress);
    ek_emulator_recover();
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&memory, 1));
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.kernels, 2);
}
END_TEST

START_TEST(test_errors_have_names)
{
    ck_assert_str_eq(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
    ck_assert_str_eq(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    ck_assert_str_eq(cudaGetErrorString((cudaError_t)12345), "unrecognized error code");
}
END_TEST

int main()
{
    TCase *tests = tcase_create("emulator");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_block_sums);
    tcase_add_test(tests, test_exchanges);
    tcase_add_test(tests, test_atomics);
    tcase_add_test(tests, test_places);
    tcase_add_test(tests, test_transpose);
    tcase_add_test(tests, test_votes);
    tcase_add_test(tests, test_divergence_ends_the_process);
    tcase_add_test(tests, test_missing_barrier_shows);
    tcase_add_test(tests, test_events_order_streams);
    tcase_add_test(tests, test_missing_event_shows);
    tcase_add_loop_test(tests, test_random_orders, 0, 10);
    tcase_add_test(tests, test_random_orders_differ);
    tcase_add_test(tests, test_eager);
    tcase_add_test(tests, test_nothing_runs_before_it_must);
    tcase_add_test(tests, test_queries_bring_work_forward);
    tcase_add_test(tests, test_waits_are_for_the_last_record);
    tcase_add_test(tests, test_destroyed_streams_still_run);
    tcase_add_test(tests, test_pageable_memory_is_copied_at_once);
    tcase_add_test(tests, test_memcpy_waits_for_blocking_streams_only);
    tcase_add_test(tests, test_host_functions);
    tcase_add_test(tests, test_threads);
    tcase_add_test(tests, test_memory);
    tcase_add_test(tests, test_copies_stay_inside);
    tcase_add_test(tests, test_no_device);
    tcase_add_test(tests, test_devices);
    tcase_add_loop_test(tests, test_peers, 0, 2);
    tcase_add_test(tests, test_failures);
    tcase_add_test(tests, test_broken_devices);
    tcase_add_test(tests, test_errors_have_names);
    Suite *suite = suite_create("emulator");
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
