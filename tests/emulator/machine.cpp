// machine.cpp: the machine as the environment describes it; failures that tests ask for.
#include "machine.h"

#include <cuda.h>

#include <cstdlib>
#include <cstring>

namespace emulator
{

static const char *variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static size_t bytes_of(const char *text)
{
    char *end;
    unsigned long long bytes = strtoull(text, &end, 10);
    switch (*end) {
    case 'G':
        return (size_t)bytes << 30;
    case 'M':
        return (size_t)bytes << 20;
    case 'K':
        return (size_t)bytes << 10;
    default:
        return (size_t)bytes;
    }
}

static Machine *build()
{
    Machine *m = new Machine;
    const char *order = variable("EK_EMULATOR_ORDER", "late");
    if (!strcmp(order, "eager")) {
        m->order = Order::EAGER;
    } else if (!strncmp(order, "random", 6)) {
        m->order = Order::RANDOM;
        m->random = order[6] == ':' ? strtoull(order + 7, nullptr, 10) : 0;
    }
    m->memory = bytes_of(variable("EK_EMULATOR_MEMORY", "1G"));
    m->context = bytes_of(variable("EK_EMULATOR_CONTEXT", "0"));
    m->peers = atoi(variable("EK_EMULATOR_PEERS", "1")) != 0;
    m->capability = atoi(variable("EK_EMULATOR_CAPABILITY", "90"));
    m->multiprocessors = atoi(variable("EK_EMULATOR_MULTIPROCESSORS", "4"));
    m->libraries = variable("EK_EMULATOR_LIBRARIES", "cublas,cublasLt,cudnn,nccl");
    m->kind = atoi(variable("EK_EMULATOR_KIND", "0")) != 0;
    m->watch = atoi(variable("EK_EMULATOR_WATCH", "0")) != 0;
    m->later = bytes_of(variable("EK_EMULATOR_LATER", "0"));
    const char *log = getenv("EK_EMULATOR_LOG");
    m->log = log && *log ? fopen(log, "w") : nullptr;
    m->devices.resize((size_t)atoi(variable("EK_EMULATOR_DEVICES", "1")));
    for (size_t i = 0; i < m->devices.size(); i++) {
        Stream stream = std::make_shared<CUstream_st>();
        stream->device = (int)i;
        stream->blocking = true;
        m->devices[i].null_stream = stream;
        m->streams.push_back(stream);
    }
    return m;
}

Machine &machine()
{
    static Machine *const m = build();
    return *m;
}

uint64_t Machine::draw()
{
    random += 0x9e3779b97f4a7c15u;
    uint64_t z = random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

Allocation *Machine::find(const void *pointer)
{
    char *at = static_cast<char *>(const_cast<void *>(pointer));
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin())
        return nullptr;
    Allocation &candidate = std::prev(next)->second;
    return at < candidate.base + candidate.size ? &candidate : nullptr;
}

void Machine::break_device(int device, cudaError_t error)
{
    Device &d = devices[(size_t)device];
    if (!d.broken)
        d.broken = error;
}

size_t Machine::available(int device) const
{
    const Device &d = devices[(size_t)device];
    return d.used + d.beside < memory ? memory - d.used - d.beside : 0;
}

// ---- calls ----

static thread_local int chosen_device = 0;

// Devices of the contexts that are current, the last on top.
static std::vector<int> &contexts()
{
    static thread_local std::vector<int> stack;
    return stack;
}

int current_device()
{
    return contexts().empty() ? chosen_device : contexts().back();
}

void set_device(int device)
{
    chosen_device = device;
    if (contexts().empty())
        contexts().push_back(device);
    contexts().back() = device;
    machine().devices[(size_t)device].context = true;
}

void make_context(Machine &m)
{
    if (contexts().empty())
        contexts().push_back(chosen_device);
    m.devices[(size_t)contexts().back()].context = true;
}

bool &inside_host_function()
{
    static thread_local bool inside = false;
    return inside;
}

bool is_sticky(int error)
{
    return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable ||
           error == cudaErrorContained || error == cudaErrorContextIsDestroyed ||
           error == cudaErrorAssert || error == cudaErrorIllegalAddress ||
           error == cudaErrorLaunchTimeout || error == cudaErrorUnknown ||
           (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

int take_failure(Machine &m, const char *name)
{
    auto found = m.failures.find(name);
    if (found == m.failures.end() || found->second.empty())
        return 0;
    Failure &failure = found->second.front();
    if (failure.after-- > 0)
        return 0;
    int error = failure.error;
    found->second.pop_front();
    if (!strncmp(name, "cuda", 4) && is_sticky(error) && !m.devices.empty())
        m.break_device(current_device(), (cudaError_t)error);
    return error;
}

static cudaError_t &last_error()
{
    static thread_local cudaError_t error = cudaSuccess;
    return error;
}

cudaError_t note_error(cudaError_t error)
{
    if (error)
        last_error() = error;
    return error;
}

void spoil(char *workspace, size_t size)
{
    size_t some = size < 4096 ? size : 4096;
    if (some > 0) {
        memset(workspace, 0xff, some);
        memset(workspace + size - some, 0xff, some);
    }
}

bool lies_in(Machine &m, const void *pointer, size_t size, int device)
{
    const Allocation *allocation = m.find(pointer);
    if (!allocation || allocation->device != device)
        return false;
    size_t offset = (size_t)(static_cast<const char *>(pointer) - allocation->base);
    return size <= allocation->size - offset;
}

Stream stream_of(Machine &m, cudaStream_t handle)
{
    // cudaStreamLegacy and cudaStreamPerThread, here the same, are 1 and 2.
    if ((uintptr_t)handle <= 2)
        return m.devices[(size_t)current_device()].null_stream;
    for (const Stream &stream : m.streams)
        if (stream.get() == handle && !stream->destroyed)
            return stream;
    return nullptr;
}

} // namespace emulator

using namespace emulator;

// ---- the driver's contexts: the primary ones, known by their devices ----

struct CUctx_st {
    int device;
};

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    Machine &m = machine();
    Lock lock(m.lock);
    if (int failure = take_failure(m, "cuDevicePrimaryCtxRetain"))
        return (CUresult)failure;
    if (device < 0 || (size_t)device >= m.devices.size())
        return (CUresult)cudaErrorInvalidDevice;
    static std::vector<CUctx_st> primary(m.devices.size());
    primary[(size_t)device].device = device;
    m.devices[(size_t)device].context = true;
    *context = &primary[(size_t)device];
    return (CUresult)m.devices[(size_t)device].broken;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    Machine &m = machine();
    Lock lock(m.lock);
    if (int failure = take_failure(m, "cuCtxPushCurrent"))
        return (CUresult)failure;
    if (!context)
        return (CUresult)cudaErrorInvalidValue;
    contexts().push_back(context->device);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (contexts().empty())
        return (CUresult)cudaErrorDeviceUninitialized;
    *context = nullptr; // nobody asks which it was
    contexts().pop_back();
    return CUDA_SUCCESS;
}

// As the oldest driver of those that are supported, which knows no version after its own.
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned int version, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    const unsigned int own = 12000;
    static const struct {
        const char *name;
        void *function;
    } table[] = {
        {"cuDevicePrimaryCtxRetain", reinterpret_cast<void *>(cuDevicePrimaryCtxRetain)},
        {"cuCtxPushCurrent", reinterpret_cast<void *>(cuCtxPushCurrent)},
        {"cuCtxPopCurrent", reinterpret_cast<void *>(cuCtxPopCurrent)},
    };
    *function = nullptr;
    if (version > own)
        return cudaErrorInvalidValue;
    for (const auto &entry : table)
        if (!strcmp(entry.name, symbol))
            *function = entry.function;
    *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// What calls of this runtime have returned to this thread: nothing of a device that broke since,
// nor of what libraries have met, which have runtimes of their own.
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error();
    last_error() = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error();
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name, value, text) \
    case value:                 \
        return #name;
        EK_EMULATOR_ERRORS(NAME)
#undef NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(name, value, text) \
    case value:                 \
        return text;
        EK_EMULATOR_ERRORS(TEXT)
#undef TEXT
    }
    return "unrecognized error code";
}

// ---- what tests ask ----

void ek_emulator_count(ek_emulator_counters *counters)
{
    Machine &m = machine();
    Lock lock(m.lock);
    *counters = m.counters;
}

void ek_emulator_reset_counters(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    m.counters = {};
    m.traffic.clear();
}

uint64_t ek_emulator_pending(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    uint64_t pending = 0;
    for (const Stream &stream : m.streams)
        pending += stream->queue.size();
    return pending;
}

bool ek_emulator_has_context(int device)
{
    Machine &m = machine();
    Lock lock(m.lock);
    return device >= 0 && (size_t)device < m.devices.size() && m.devices[(size_t)device].context;
}

static size_t count_allocations(int device)
{
    Machine &m = machine();
    Lock lock(m.lock);
    size_t count = 0;
    for (const auto &entry : m.allocations)
        count += entry.second.device == device;
    return count;
}

size_t ek_emulator_device_allocations(int device)
{
    return count_allocations(device);
}

size_t ek_emulator_pinned_allocations(void)
{
    return count_allocations(-1);
}

size_t ek_emulator_device_bytes(int device)
{
    Machine &m = machine();
    Lock lock(m.lock);
    bool exists = device >= 0 && (size_t)device < m.devices.size();
    return exists ? m.devices[(size_t)device].used : 0;
}

size_t ek_emulator_live_streams(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    size_t count = 0;
    for (const Stream &stream : m.streams)
        count += !stream->destroyed;
    return count - m.devices.size();
}

size_t ek_emulator_live_events(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    return m.events.size();
}

void ek_emulator_fail_next(const char *function, int error, int after)
{
    Machine &m = machine();
    Lock lock(m.lock);
    std::string name = function;
    if (name.size() > 3 && name.compare(name.size() - 3, 3, "_v2") == 0)
        name.resize(name.size() - 3);
    m.failures[name].push_back({error, after});
}

int ek_emulator_recover(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    int to_come = 0;
    for (const auto &entry : m.failures)
        to_come += !entry.second.empty();
    m.failures.clear();
    for (Device &device : m.devices)
        device.broken = cudaSuccess;
    last_error() = cudaSuccess;
    return to_come;
}
