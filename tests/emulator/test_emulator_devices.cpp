// test_emulator_devices.cpp: devices, their memory, and failures.
#include "fiber.h" // tells which sanitizer there is
#include "test_emulator.h"

TEST(memory)
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

#if !defined(EK_EMULATOR_ASAN) && !defined(EK_EMULATOR_TSAN)

// The traffic of the kernels that were watched, which all have one signature.
static ek_emulator_traffic kernels_watched()
{
    ek_emulator_traffic rows[8];
    size_t count = ek_emulator_watched(rows, 8);
    for (size_t i = 0; i < count; i++)
        if (strstr(rows[i].name, "float"))
            return rows[i];
    return {};
}

TEST(operations_are_watched)
{
    enum { COUNT = 4096, BLOCKS = COUNT * sizeof(float) / 4096 };
    setenv("EK_EMULATOR_WATCH", "1", 1);
    cudaStream_t stream = new_stream();
    std::vector<float> values(COUNT, 3);
    float *x = device_copy(values, stream), *y = device_array<float>(COUNT);
    OK(launch_copy(stream, COUNT, y, x));
    OK(cudaStreamSynchronize(stream));
    ek_emulator_traffic copied = kernels_watched();
    ck_assert_uint_eq(copied.operations, 1);
    ck_assert_uint_eq(copied.read, BLOCKS * 4096);
    ck_assert_uint_eq(copied.written, BLOCKS * 4096);
    ek_emulator_reset_counters();
    OK(launch_add(stream, 1, x, 1)); // one element of one block, read and written
    OK(launch_add(stream, 1, x, 1));
    OK(cudaStreamSynchronize(stream));
    ek_emulator_traffic added = kernels_watched();
    ck_assert_uint_eq(added.operations, 2);
    ck_assert_uint_eq(added.read, 2 * 4096);
    ck_assert_uint_eq(added.written, 2 * 4096);
    std::vector<float> results = host_copy(x, COUNT, stream);
    OK(cudaStreamSynchronize(stream));
    ck_assert(results[0] == 5 && results[1] == 3);
    OK(cudaFree(x));
    OK(cudaFree(y));
}

#endif

TEST(copies_stay_inside)
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

TEST(no_device)
{
    setenv("EK_EMULATOR_DEVICES", "0", 1);
    int count = 7;
    void *memory;
    FAILS(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    ck_assert_int_eq(count, 0);
    FAILS(cudaMalloc(&memory, 1), cudaErrorNoDevice);
    FAILS(cudaSetDevice(0), cudaErrorNoDevice);
}

TEST(devices)
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

static float *on_device(int device)
{
    OK(cudaSetDevice(device));
    float *x = device_array<float>(1);
    OK(cudaMemsetAsync(x, 0, sizeof(float), 0));
    OK(cudaDeviceSynchronize());
    return x;
}

TEST_LOOP(peers, 0, 2)
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
#if !defined(__SANITIZE_ADDRESS__) // whose addresses of small blocks look like numbers
        FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
#endif
    }
}

// ---- failures ----

TEST(failures)
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

TEST(broken_devices)
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
    FAILS(cudaGetLastError(), cudaSuccess);
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

TEST(errors_have_names)
{
    ck_assert_str_eq(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
    ck_assert_str_eq(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    ck_assert_str_eq(cudaGetErrorString((cudaError_t)12345), "unrecognized error code");
}
