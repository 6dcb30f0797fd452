// test_emulator.h: what the programs of the emulator's tests share. Each test is a process.
#ifndef EK_EMULATOR_TEST_H
#define EK_EMULATOR_TEST_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "emulator.h"
#include "test_kernels.h"

#define OK(call) ck_assert_int_eq((int)(call), (int)cudaSuccess)
#define FAILS(call, error) ck_assert_int_eq((int)(call), (int)(error))

static inline cudaStream_t new_stream()
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static inline cudaEvent_t new_event()
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

static inline uint64_t pending()
{
    return ek_emulator_pending();
}

static inline int run_tests(TCase *tests, const char *name)
{
    tcase_set_timeout(tests, 120);
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
