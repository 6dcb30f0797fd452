// stream.cpp: streams and events.
#include "machine.h"

#include <algorithm>
#include <chrono>

using namespace emulator;

namespace
{

double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

cudaError_t create_stream(Machine &m, cudaStream_t *handle, unsigned flags)
{
    if (!handle || flags > cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    Stream stream = std::make_shared<CUstream_st>();
    stream->device = current_device();
    stream->blocking = !(flags & cudaStreamNonBlocking);
    static std::vector<int> made(m.devices.size());
    stream->index = ++made[(size_t)stream->device];
    m.streams.push_back(stream);
    *handle = stream.get();
    return cudaSuccess;
}

cudaError_t create_event(Machine &m, cudaEvent_t *event, unsigned flags)
{
    if (!event || flags > 3)
        return cudaErrorInvalidValue;
    *event = new CUevent_st;
    (*event)->device = current_device();
    (*event)->flags = flags;
    m.events.insert(*event);
    return cudaSuccess;
}

cudaError_t broken(Machine &m, const Stream &stream)
{
    return m.devices[(size_t)stream->device].broken;
}

} // namespace

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return call("cudaStreamCreate", true,
                [&](Machine &m, Lock &) { return create_stream(m, stream, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return call("cudaStreamCreateWithFlags", true,
                [&](Machine &m, Lock &) { return create_stream(m, stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    return call("cudaStreamCreateWithPriority", true,
                [&](Machine &m, Lock &) { return create_stream(m, stream, flags); });
}

// Returns at once; what is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    return call("cudaStreamDestroy", true, [&](Machine &m, Lock &) {
        Stream stream = handle ? stream_of(m, handle) : nullptr;
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        stream->destroyed = true;
        if (stream->queue.empty())
            m.streams.erase(std::find(m.streams.begin(), m.streams.end(), stream));
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    return call("cudaStreamSynchronize", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        m.counters.waits++;
        run_until(m, lock, {stream, stream->issued});
        return broken(m, stream);
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    return call("cudaStreamQuery", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        run_one(m, lock, {stream, stream->issued});
        Position end = {stream, stream->issued}; // what was issued in the meantime counts
        return broken(m, stream) ? broken(m, stream) : end.done() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
    return call("cudaStreamWaitEvent", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (!stream || !m.events.count(event))
            return cudaErrorInvalidResourceHandle;
        if (flags)
            return cudaErrorInvalidValue;
        Operation operation;
        operation.name = "a wait for an event";
        if (event->record)
            operation.after = event->record->position;
        after_issue(m, lock, issue(m, stream, std::move(operation))->self);
        return cudaSuccess;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument)
{
    return call("cudaLaunchHostFunc", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!function)
            return cudaErrorInvalidValue;
        Operation operation;
        operation.name = "a host function";
        operation.run = [=] {
            inside_host_function() = true;
            function(argument);
            inside_host_function() = false;
        };
        after_issue(m, lock, issue(m, stream, std::move(operation))->self);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return call("cudaEventCreate", true,
                [&](Machine &m, Lock &) { return create_event(m, event, 0); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    return call("cudaEventCreateWithFlags", true,
                [&](Machine &m, Lock &) { return create_event(m, event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return call("cudaEventDestroy", false, [&](Machine &m, Lock &) {
        if (!m.events.erase(event))
            return cudaErrorInvalidResourceHandle;
        delete event; // also where the device is lost, which is said
        cudaError_t error = m.devices[(size_t)current_device()].broken;
        if (!error)
            make_context(m);
        return error;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    return call("cudaEventRecord", true, [&](Machine &m, Lock &lock) {
        Stream stream = stream_of(m, handle);
        if (!stream || !m.events.count(event) || event->device != stream->device)
            return cudaErrorInvalidResourceHandle;
        auto record = std::make_shared<Record>();
        Operation operation;
        operation.name = "an event";
        operation.run = [record] {
            Machine &here = machine();
            Lock reading(here.lock);
            record->seconds = now() + here.slow_seconds;
        };
        record->position = issue(m, stream, std::move(operation))->self;
        event->record = record;
        after_issue(m, lock, record->position);
        return cudaSuccess;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return call("cudaEventQuery", true, [&](Machine &m, Lock &lock) {
        if (!m.events.count(event))
            return cudaErrorInvalidResourceHandle;
        if (!event->record)
            return cudaSuccess;
        Position position = event->record->position;
        run_one(m, lock, position);
        if (broken(m, position.stream))
            return broken(m, position.stream);
        return position.done() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return call("cudaEventSynchronize", true, [&](Machine &m, Lock &lock) {
        if (!m.events.count(event))
            return cudaErrorInvalidResourceHandle;
        m.counters.waits++;
        if (!event->record)
            return cudaSuccess;
        Position position = event->record->position;
        run_until(m, lock, position);
        return broken(m, position.stream);
    });
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    return call("cudaEventElapsedTime", true, [&](Machine &m, Lock &) {
        if (!m.events.count(start) || !m.events.count(end) || !start->record || !end->record ||
            ((start->flags | end->flags) & cudaEventDisableTiming))
            return cudaErrorInvalidResourceHandle;
        if (!start->record->position.done() || !end->record->position.done())
            return cudaErrorNotReady;
        *milliseconds = (float)((end->record->seconds - start->record->seconds) * 1e3);
        return cudaSuccess;
    });
}
