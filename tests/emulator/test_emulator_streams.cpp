// test_emulator_streams.cpp: work runs as late as it may, in the order that was asked for.
#include <pthread.h>

#include "test_emulator.h"

#include <cub/device/device_radix_sort.cuh>

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

TEST(events_order_streams)
{
    ck_assert_float_eq(across_streams(true), 1);
}

TEST(missing_event_shows)
{
    float got = across_streams(false);
    ck_assert(isnan(got));
}

TEST_LOOP(random_orders, 0, 10)
{
    char order[32];
    snprintf(order, sizeof order, "random:%d", _i);
    setenv("EK_EMULATOR_ORDER", order, 1);
    for (int i = 0; i < 10; i++)
        ck_assert_float_eq(across_streams(true), 1);
}

// Without an event, random orders go wrong sometimes, and sometimes not.
TEST(random_orders_differ)
{
    setenv("EK_EMULATOR_ORDER", "random:1", 1);
    int wrong = 0;
    for (int i = 0; i < 100; i++)
        wrong += across_streams(false) != 1;
    ck_assert_int_gt(wrong, 0);
    ck_assert_int_lt(wrong, 100);
}

TEST(eager)
{
    setenv("EK_EMULATOR_ORDER", "eager", 1);
    ck_assert_float_eq(across_streams(false), 1);
    cudaStream_t stream = new_stream();
    OK(launch_add(stream, 1, device_array<float>(1), 1));
    ck_assert_uint_eq(pending(), 0);
}

TEST(nothing_runs_before_it_must)
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

// Pairs are sorted when their stream comes to it, by the bits that count. What CUB doesn't promise
// to keep is lost.
TEST(pairs_are_sorted_when_their_stream_comes_to_it)
{
    cudaStream_t stream = new_stream();
    uint32_t *keys = device_copy<uint32_t>({0x305, 0x101, 0x203, 0x401}, stream);
    uint32_t *places = device_copy<uint32_t>({0, 1, 2, 3}, stream);
    cub::DoubleBuffer<uint32_t> in(keys, device_array<uint32_t>(4));
    cub::DoubleBuffer<uint32_t> at(places, device_array<uint32_t>(4));
    size_t nbytes = 0;
    OK(cub::DeviceRadixSort::SortPairs(nullptr, nbytes, in, at, 4, 0, 8, stream));
    void *room = device_array<char>(nbytes);
    nbytes--;
    FAILS(cub::DeviceRadixSort::SortPairs(room, nbytes, in, at, 4, 0, 8, stream),
          cudaErrorInvalidValue);
    nbytes++;
    OK(cudaStreamSynchronize(stream));
    OK(cub::DeviceRadixSort::SortPairs(room, nbytes, in, at, 4, 0, 8, stream));
    ck_assert_uint_eq(pending(), 1);
    ck_assert(in.Current() != keys); // after one pass
    std::vector<uint32_t> order = host_copy(at.Current(), 4, stream);
    ck_assert(order == std::vector<uint32_t>({1, 3, 2, 0}));
    ck_assert(host_copy(in.Alternate(), 1, stream)[0] != 0x305);
}

TEST(queries_bring_work_forward)
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

TEST(waits_are_for_the_last_record)
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

TEST(destroyed_streams_still_run)
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

TEST(pageable_memory_is_copied_at_once)
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

TEST(memcpy_waits_for_blocking_streams_only)
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

static void note_order(void *argument)
{
    int *order = (int *)argument;
    order[1] = cudaDeviceSynchronize() == cudaErrorNotPermitted;
    order[0]++;
}

TEST(host_functions)
{
    cudaStream_t stream = new_stream();
    int order[2] = {0, 0};
    OK(cudaLaunchHostFunc(stream, note_order, order));
    ck_assert_int_eq(order[0], 0);
    OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(order[0], 1);
    ck_assert_int_eq(order[1], 1);
}

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

TEST(threads)
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
