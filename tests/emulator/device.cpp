// device.cpp: what devices are there, which is current, and which reach each other's memory.
#include "machine.h"

#include <cstdio>
#include <cstring>

using namespace emulator;

static bool exists(Machine &m, int device)
{
    return device >= 0 && (size_t)device < m.devices.size();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return call("cudaDriverGetVersion", false, [&](Machine &m, Lock &) {
        *version = m.devices.empty() ? 0 : CUDART_VERSION;
        return cudaSuccess;
    });
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    return call("cudaRuntimeGetVersion", false, [&](Machine &, Lock &) {
        *version = CUDART_VERSION;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceCount(int *count)
{
    return call("cudaGetDeviceCount", false, [&](Machine &m, Lock &) {
        *count = (int)m.devices.size();
        return m.devices.empty() ? cudaErrorNoDevice : cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device)
{
    return call("cudaSetDevice", false, [&](Machine &m, Lock &) {
        if (m.devices.empty())
            return cudaErrorNoDevice;
        if (!exists(m, device))
            return cudaErrorInvalidDevice;
        set_device(device);
        return m.devices[(size_t)device].broken;
    });
}

cudaError_t cudaGetDevice(int *device)
{
    return call("cudaGetDevice", false, [&](Machine &m, Lock &) {
        if (m.devices.empty())
            return cudaErrorNoDevice;
        *device = current_device();
        return cudaSuccess;
    });
}

static cudaDeviceProp properties_of(const Machine &m, int device)
{
    cudaDeviceProp p = {};
    snprintf(p.name, sizeof p.name, "Emulated device");
    p.totalGlobalMem = m.memory;
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.totalConstMem = 64 << 10;
    p.major = m.capability / 10;
    p.minor = m.capability % 10;
    p.multiProcessorCount = m.multiprocessors;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
    p.pciBusID = device + 1;
    p.asyncEngineCount = 2;
    p.memoryBusWidth = 384;
    p.l2CacheSize = 4 << 20;
    p.maxThreadsPerMultiProcessor = 2048;
    p.sharedMemPerMultiprocessor = 100 << 10;
    p.sharedMemPerBlockOptin = 99 << 10;
    return p;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    return call("cudaGetDeviceProperties", false, [&](Machine &m, Lock &) {
        if (!exists(m, device))
            return m.devices.empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice;
        *properties = properties_of(m, device);
        return cudaSuccess;
    });
}

static cudaError_t attribute_of(const cudaDeviceProp &p, cudaDeviceAttr attribute, int *value)
{
    switch (attribute) {
#define IS(name, expression)      \
    case name:                    \
        *value = (int)expression; \
        return cudaSuccess;
        IS(cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock)
        IS(cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0])
        IS(cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1])
        IS(cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2])
        IS(cudaDevAttrMaxGridDimX, p.maxGridSize[0])
        IS(cudaDevAttrMaxGridDimY, p.maxGridSize[1])
        IS(cudaDevAttrMaxGridDimZ, p.maxGridSize[2])
        IS(cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock)
        IS(cudaDevAttrTotalConstantMemory, p.totalConstMem)
        IS(cudaDevAttrWarpSize, p.warpSize)
        IS(cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock)
        IS(cudaDevAttrMultiProcessorCount, p.multiProcessorCount)
        IS(cudaDevAttrIntegrated, p.integrated)
        IS(cudaDevAttrCanMapHostMemory, p.canMapHostMemory)
        IS(cudaDevAttrConcurrentKernels, p.concurrentKernels)
        IS(cudaDevAttrPciBusId, p.pciBusID)
        IS(cudaDevAttrPciDeviceId, p.pciDeviceID)
        IS(cudaDevAttrL2CacheSize, p.l2CacheSize)
        IS(cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor)
        IS(cudaDevAttrAsyncEngineCount, p.asyncEngineCount)
        IS(cudaDevAttrUnifiedAddressing, p.unifiedAddressing)
        IS(cudaDevAttrPciDomainId, p.pciDomainID)
        IS(cudaDevAttrComputeCapabilityMajor, p.major)
        IS(cudaDevAttrComputeCapabilityMinor, p.minor)
        IS(cudaDevAttrStreamPrioritiesSupported, 1)
        IS(cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor)
        IS(cudaDevAttrCanUseHostPointerForRegisteredMem, 1)
        IS(cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin)
        IS(cudaDevAttrMemoryPoolsSupported, 0)
#undef IS
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    return call("cudaDeviceGetAttribute", false, [&](Machine &m, Lock &) {
        if (!exists(m, device))
            return m.devices.empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice;
        return attribute_of(properties_of(m, device), attribute, value);
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    return call("cudaFuncGetAttributes", false, [&](Machine &m, Lock &) {
        if (!kernel)
            return cudaErrorInvalidDeviceFunction;
        *attributes = {properties_of(m, 0).maxThreadsPerBlock};
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    return call("cudaDeviceGetPCIBusId", false, [&](Machine &m, Lock &) {
        if (!exists(m, device))
            return m.devices.empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice;
        char text[16];
        int length = snprintf(text, sizeof text, "0000:%02x:00.0", (unsigned)(device + 1) & 255);
        if (!id || size <= length)
            return cudaErrorInvalidValue;
        memcpy(id, text, (size_t)length + 1);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return call("cudaDeviceSynchronize", true, [&](Machine &m, Lock &lock) {
        m.counters.waits++;
        run_device(m, lock, current_device(), false);
        return m.devices[(size_t)current_device()].broken;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return call("cudaDeviceGetStreamPriorityRange", true, [&](Machine &, Lock &) {
        if (least)
            *least = 0;
        if (greatest)
            *greatest = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return call("cudaDeviceCanAccessPeer", false, [&](Machine &m, Lock &) {
        if (!exists(m, device) || !exists(m, peer))
            return m.devices.empty() ? cudaErrorNoDevice : cudaErrorInvalidDevice;
        *can = m.peers && device != peer;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    return call("cudaDeviceEnablePeerAccess", true, [&](Machine &m, Lock &) {
        if (flags)
            return cudaErrorInvalidValue;
        if (!exists(m, peer) || peer == current_device())
            return cudaErrorInvalidDevice;
        if (!m.peers)
            return cudaErrorPeerAccessUnsupported;
        bool fresh = m.devices[(size_t)current_device()].peers.insert(peer).second;
        return fresh ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
    });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    return call("cudaDeviceDisablePeerAccess", true, [&](Machine &m, Lock &) {
        if (!exists(m, peer))
            return cudaErrorInvalidDevice;
        bool was = m.devices[(size_t)current_device()].peers.erase(peer) != 0;
        return was ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
    });
}
