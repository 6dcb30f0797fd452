// copy.cpp: copies and fills.
#include "machine.h"

#include <cstdio>
#include <cstring>

using namespace emulator;

namespace
{

enum class Place { PAGEABLE, PINNED, DEVICE, WRONG };

struct End {
    Place place;
    int device;
};

// WRONG: leaves its allocation.
End end_of(Machine &m, const void *pointer, size_t size)
{
    const Allocation *allocation = m.find(pointer);
    if (!allocation)
        return {pointer ? Place::PAGEABLE : Place::WRONG, -1};
    size_t offset = (size_t)(static_cast<const char *>(pointer) - allocation->base);
    if (size > allocation->size - offset)
        return {Place::WRONG, -1};
    return {allocation->device < 0 ? Place::PINNED : Place::DEVICE, allocation->device};
}

bool fits(const End &end, bool device)
{
    return end.place != Place::WRONG && (end.place == Place::DEVICE) == device;
}

bool kind_fits(const End &to, const End &from, cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return fits(to, false) && fits(from, false);
    case cudaMemcpyHostToDevice:
        return fits(to, true) && fits(from, false);
    case cudaMemcpyDeviceToHost:
        return fits(to, false) && fits(from, true);
    case cudaMemcpyDeviceToDevice:
        return fits(to, true) && fits(from, true);
    default:
        return to.place != Place::WRONG && from.place != Place::WRONG;
    }
}

bool reachable(Machine &m, int a, int b)
{
    return a == b || m.devices[(size_t)a].peers.count(b) || m.devices[(size_t)b].peers.count(a);
}

void count(Machine &m, const End &to, const End &from, size_t size)
{
    bool to_device = to.place == Place::DEVICE, from_device = from.place == Place::DEVICE;
    if (to_device && from_device)
        (to.device == from.device ? m.counters.device_to_device : m.counters.peer) += size;
    else if (to_device)
        m.counters.host_to_device += size;
    else if (from_device)
        m.counters.device_to_host += size;
}

cudaError_t copy(Machine &m, Lock &lock, void *to, End to_end, const void *from, End from_end,
                 size_t size, const Stream &stream)
{
    Operation operation;
    operation.name = "a copy";
    count(m, to_end, from_end, size);
    m.counters.copies++;
    if (from_end.place == Place::PAGEABLE) {
        // What the host's memory holds now is what is copied.
        const char *bytes = static_cast<const char *>(from);
        auto staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
        operation.run = [=] { memcpy(to, staged->data(), size); };
    } else {
        operation.run = [=] { memmove(to, from, size); };
    }
    Position position = issue(m, stream, std::move(operation))->self;
    if (to_end.place == Place::PAGEABLE) {
        m.counters.waits++;
        run_until(m, lock, position);
        return m.devices[(size_t)stream->device].broken;
    }
    after_issue(m, lock, position);
    return cudaSuccess;
}

cudaError_t checked_copy(Machine &m, Lock &lock, void *to, const void *from, size_t size,
                         cudaMemcpyKind kind, const Stream &stream)
{
    if (size == 0)
        return cudaSuccess;
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    End to_end = end_of(m, to, size), from_end = end_of(m, from, size);
    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (!kind_fits(to_end, from_end, kind))
        return cudaErrorInvalidValue;
    bool devices = to_end.place == Place::DEVICE && from_end.place == Place::DEVICE;
    if (devices && !reachable(m, to_end.device, from_end.device))
        return cudaErrorInvalidValue;
    return copy(m, lock, to, to_end, from, from_end, size, stream);
}

} // namespace

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t handle)
{
    return call("cudaMemcpyAsync", true, [&](Machine &m, Lock &lock) {
        return checked_copy(m, lock, to, from, size, kind, stream_of(m, handle));
    });
}

// In order after the null stream and those that block on it, but not after other streams.
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    return call("cudaMemcpy", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, nullptr);
        m.counters.waits++;
        run_device(m, lock, stream->device, true);
        cudaError_t error = checked_copy(m, lock, to, from, size, kind, stream);
        if (!error)
            run_until(m, lock, {stream, stream->issued});
        return error ? error : m.devices[(size_t)stream->device].broken;
    });
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t handle)
{
    return call("cudaMemcpyPeerAsync", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (size == 0)
            return cudaSuccess;
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        End to_end = end_of(m, to, size), from_end = end_of(m, from, size);
        if (to_end.place != Place::DEVICE || to_end.device != to_device ||
            from_end.place != Place::DEVICE || from_end.device != from_device)
            return cudaErrorInvalidValue;
        return copy(m, lock, to, to_end, from, from_end, size, stream);
    });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t handle)
{
    return call("cudaMemsetAsync", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (size == 0)
            return cudaSuccess;
        if (!stream || stream->device != current_device())
            return cudaErrorInvalidResourceHandle;
        End end = end_of(m, to, size);
        if (end.place != Place::DEVICE && end.place != Place::PINNED)
            return cudaErrorInvalidValue;
        Operation operation;
        operation.name = "a fill";
        operation.run = [=] { memset(to, value, size); };
        m.counters.fills++;
        after_issue(m, lock, issue(m, stream, std::move(operation))->self);
        return cudaSuccess;
    });
}
