// memory.cpp: allocations of devices and of pinned memory. Each has its exact size from malloc, so
// that AddressSanitizer finds accesses beyond an allocation. All elements are NaN at first.
#include "machine.h"

#include <cstdlib>
#include <cstring>

using namespace emulator;

static void *fresh(size_t size, size_t alignment)
{
    void *memory = nullptr;
    if (posix_memalign(&memory, alignment, size) != 0)
        return nullptr;
    memset(memory, 0xff, size);
    return memory;
}

static cudaError_t release(Machine &m, void *pointer, bool pinned)
{
    auto found = m.allocations.find(static_cast<char *>(pointer));
    if (found == m.allocations.end() || (found->second.device < 0) != pinned)
        return cudaErrorInvalidValue;
    if (!pinned)
        m.devices[(size_t)found->second.device].used -= found->second.size;
    m.allocations.erase(found);
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    return call("cudaMalloc", true, [&](Machine &m, Lock &) {
        if (!pointer)
            return cudaErrorInvalidValue;
        *pointer = nullptr;
        if (size == 0)
            return cudaSuccess;
        Device &device = m.devices[(size_t)current_device()];
        if (size > m.available(current_device()))
            return cudaErrorMemoryAllocation;
        char *base =
            static_cast<char *>(m.watch ? fresh(watched_size(size), 4096) : fresh(size, 256));
        if (!base)
            return cudaErrorMemoryAllocation;
        device.used += size;
        m.allocations[base] = {base, size, current_device()};
        *pointer = base;
        return cudaSuccess;
    });
}

cudaError_t cudaFree(void *pointer)
{
    return call("cudaFree", true, [&](Machine &m, Lock &lock) {
        if (!pointer)
            return cudaSuccess;
        const Allocation *allocation = m.find(pointer);
        if (!allocation || allocation->device < 0)
            return cudaErrorInvalidValue;
        int device = allocation->device;
        m.counters.waits++;
        run_device(m, lock, device, false);
        cudaError_t error = release(m, pointer, false);
        return error ? error : m.devices[(size_t)device].broken;
    });
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    return call("cudaMemGetInfo", true, [&](Machine &m, Lock &) {
        *available = m.available(current_device());
        *total = m.memory + m.context;
        return cudaSuccess;
    });
}

static cudaError_t pin(Machine &m, void **pointer, size_t size)
{
    if (!pointer)
        return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (size == 0)
        return cudaSuccess;
    char *base = static_cast<char *>(fresh(size, 4096));
    if (!base)
        return cudaErrorMemoryAllocation;
    m.allocations[base] = {base, size, -1};
    *pointer = base;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    return call("cudaHostAlloc", true, [&](Machine &m, Lock &) {
        return flags > 7 ? cudaErrorInvalidValue : pin(m, pointer, size);
    });
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return call("cudaMallocHost", true, [&](Machine &m, Lock &) { return pin(m, pointer, size); });
}

cudaError_t cudaFreeHost(void *pointer)
{
    return call("cudaFreeHost", true, [&](Machine &m, Lock &lock) {
        if (!pointer)
            return cudaSuccess;
        m.counters.waits++;
        run_everything(m, lock);
        return release(m, pointer, true);
    });
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    return call("cudaHostGetDevicePointer", true, [&](Machine &m, Lock &) {
        const Allocation *allocation = m.find(host);
        if (flags || !device || !allocation || allocation->device >= 0)
            return cudaErrorInvalidValue;
        *device = host;
        return cudaSuccess;
    });
}
