// launch.cpp: launches of kernels.
#include "block.h"
#include "machine.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

using namespace emulator;

namespace
{

bool valid(const cudaLaunchConfig_t &config)
{
    const dim3 &grid = config.gridDim, &block = config.blockDim;
    bool some = grid.x && grid.y && grid.z && block.x && block.y && block.z;
    bool grid_fits = grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535;
    bool block_fits =
        block.x <= 1024 && block.y <= 1024 && block.z <= 64 && block.x * block.y * block.z <= 1024;
    return some && grid_fits && block_fits && config.dynamicSmemBytes == 0;
}

// A small number of 32 bits, followed by padding that still holds half of some address, reads like
// an address whose lower half is the number. AddressSanitizer has large blocks begin there;
// elsewhere an address may well be so.
bool is_number(const void *word)
{
#if defined(__SANITIZE_ADDRESS__)
    return (uint32_t)(uintptr_t)word < 1 << 16;
#else
    (void)word;
    return false;
#endif
}

// Returns an argument that points into memory which the device cannot reach; NULL if there is none.
const void *unreachable(Machine &m, const ek_emulator_call &call, int device)
{
    if (m.devices.size() < 2)
        return nullptr;
    const char *arguments = static_cast<const char *>(call.arguments);
    const std::set<int> &peers = m.devices[(size_t)device].peers;
    for (size_t at = 0; at + sizeof(void *) <= call.size; at += sizeof(void *)) {
        void *word;
        memcpy(&word, arguments + at, sizeof word);
        const Allocation *allocation = is_number(word) ? nullptr : m.find(word);
        if (allocation && allocation->device >= 0 && allocation->device != device &&
            !peers.count(allocation->device))
            return word;
    }
    return nullptr;
}

// Runs a kernel without the lock. No other operation runs meanwhile.
void run_kernel(const ek_emulator_call &call, const cudaLaunchConfig_t &config, int device)
{
    Machine &m = machine();
    uint64_t order;
    {
        Lock lock(m.lock);
        order = m.order == Order::RANDOM ? m.draw() : 0;
        m.counters.kernels++;
        int failure = take_failure(m, "kernel");
        const void *word = unreachable(m, call, device);
        if (word) {
            fprintf(stderr,
                    "emulator: a kernel of device %d is given %p, memory of device %d without peer "
                    "access\n  launched as %s\n",
                    device, word, m.find(word)->device, call.signature);
            failure = cudaErrorIllegalAddress;
        }
        if (failure) {
            m.break_device(device, (cudaError_t)failure);
            return;
        }
    }
    run_grid(call, config.gridDim, config.blockDim, order);
}

} // namespace

cudaError_t ek_emulator_launch(const cudaLaunchConfig_t *config, ek_emulator_call *kernel)
{
    std::shared_ptr<ek_emulator_call> owned(kernel);
    return call("cudaLaunchKernelEx", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, config->stream);
        if (!stream || stream->device != current_device())
            return cudaErrorInvalidResourceHandle;
        if (!valid(*config))
            return cudaErrorInvalidConfiguration;
        Device &gpu = m.devices[(size_t)stream->device];
        gpu.beside += gpu.launched ? 0 : m.later;
        gpu.launched = true;
        Operation operation;
        operation.name = owned->signature;
        cudaLaunchConfig_t copied = *config;
        int device = stream->device;
        operation.run = [owned, copied, device] { run_kernel(*owned, copied, device); };
        after_issue(m, lock, issue(m, stream, std::move(operation))->self);
        return cudaSuccess;
    });
}
