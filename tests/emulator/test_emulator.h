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

/* ---- tests, as in unit.h ---- */

static inline TCase *all_tests()
{
    static TCase *tests = tcase_create("emulator");
    return tests;
}

#define TEST(name) TEST_LOOP(name, 0, 1)
#define TEST_LOOP(name, first, end)                                     \
    static void name(int _i);                                           \
    static const TTest name##_test = {#name, name, __FILE__, __LINE__}; \
    __attribute__((constructor)) static void name##_add()               \
    {                                                                   \
        tcase_add_loop_test(all_tests(), &name##_test, first, end);     \
    }                                                                   \
    static void name(int _i __attribute__((unused)))

int main()
{
    tcase_set_timeout(all_tests(), 120);
    Suite *suite = suite_create("emulator");
    suite_add_tcase(suite, all_tests());
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
