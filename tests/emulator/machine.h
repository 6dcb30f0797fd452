// machine.h: the machine that is emulated: devices with memory, streams of work that has not run,
// events. One lock guards it all.
#ifndef EK_EMULATOR_MACHINE_H
#define EK_EMULATOR_MACHINE_H

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "emulator.h"

namespace emulator
{

struct Machine;
struct Meeting;
struct Operation;
typedef std::shared_ptr<CUstream_st> Stream;

// Work in a stream up to and with its operation number `number`, counted from 1.
struct Position {
    Stream stream;
    uint64_t number = 0;
    bool done() const;
};

// What an event has recorded.
struct Record {
    Position position;
    double seconds = 0; // when it was reached
};

struct Operation {
    const char *name = "";
    std::function<void()> run; // called without the lock; may be empty
    Position after;            // what has to be done before, if that has a stream
    Position self;
    std::vector<std::shared_ptr<Meeting>> meetings; // exchanges it takes part in
    bool started = false;                           // everything before it in its stream is done
};

// An exchange between operations of several streams: runs when all take part and have started. With
// a member on a broken device, or of a rank that was aborted, it never does: the others wait until
// they are aborted too.
struct Meeting {
    size_t wanted = 0;
    std::vector<std::shared_ptr<Operation>> members;
    std::vector<int> ranks;                 // of the members
    std::shared_ptr<std::set<int>> aborted; // ranks of the communicator
    std::function<void()> run;
    bool done = false;

    bool left_by(const Operation &operation) const;
    bool impossible(const Machine &m) const;
};

struct Allocation {
    char *base;
    size_t size;
    int device; // -1 for pinned memory of the host
};

struct Device {
    size_t used = 0, beside = 0; // bytes of allocations; bytes of modules and communicators
    bool launched = false;       // a kernel was launched
    cudaError_t broken = cudaSuccess;
    std::set<int> peers;  // devices whose memory this device may reach
    bool context = false; // a call has used the device
    Stream null_stream;
};

enum class Order { LATE, EAGER, RANDOM };

struct Failure {
    int error, after;
};

struct Machine {
    std::mutex lock;
    std::condition_variable changed; // work was issued, or whoever ran work is done
    bool busy = false;               // a thread runs operations

    // From the environment.
    Order order = Order::LATE;
    uint64_t random = 0;
    size_t memory = 0, context = 0; // bytes of a device for its users; bytes of its context
    bool peers = true;
    int capability = 90, multiprocessors = 4;
    std::string libraries;
    bool watch = false;         // which memory operations touch
    bool relu_eats_nan = false; // cuBLASLt's
    bool kind = false;          // sums and engines have one order (emulator.h)
    size_t later = 0;           // bytes of a device's modules, and of each of its communicators
    FILE *log = nullptr;        // of what is issued

    std::vector<Device> devices;
    std::map<char *, Allocation> allocations; // by base
    std::vector<Stream> streams;              // that live, or have work left
    std::set<cudaEvent_t> events;
    std::map<std::string, std::deque<Failure>> failures;
    ek_emulator_counters counters = {};
    std::map<std::string, ek_emulator_traffic> traffic; // by name
    double slow_seconds = 0;  // what events see as passed beside the time that has
    uint64_t aborts = 0;      // of communicators: operations that waited for them continue
    size_t communicators = 0; // that live
    uint64_t unordered = 0;   // how many sums had no fixed order

    uint64_t draw(); // a random number
    Allocation *find(const void *pointer);
    void break_device(int device, cudaError_t error);
    size_t available(int device) const; // bytes that may be allocated
};

Machine &machine();

typedef std::unique_lock<std::mutex> Lock;

// ---- work ----

std::shared_ptr<Operation> issue(Machine &m, const Stream &stream, Operation &&operation);
// Runs what must run for the position to be done, and nothing else. Waits, with the lock released,
// while other threads run work, or have to issue what it depends on.
void run_until(Machine &m, Lock &lock, const Position &position);
// Runs at most one operation towards it.
void run_one(Machine &m, Lock &lock, const Position &position);
void run_device(Machine &m, Lock &lock, int device, bool blocking_only);
void run_everything(Machine &m, Lock &lock);
// Runs what the order demands after a call that has issued up to `position`.
void after_issue(Machine &m, Lock &lock, const Position &position);
// Some operations of some streams, where the order is random.
void run_some(Machine &m, Lock &lock);

// ---- watching (Machine::watch) ----

size_t watched_size(size_t size); // of an allocation that begins at a page
void watch_begin(Machine &m);     // before the one operation that runs; the lock is held
void watch_end(Machine &m, const char *name);

// ---- the beginning and the end of every call ----

// The GPU of the context on top of the thread's stack, or the one that cudaSetDevice has chosen (or
// would have: 0), which has no context yet.
int current_device();
void set_device(int device); // as cudaSetDevice, which makes the context
// Before calls that need one; the machine's lock is held.
void make_context(Machine &m);
bool &inside_host_function();
int take_failure(Machine &m, const char *name);
bool is_sticky(int error);
cudaError_t note_error(cudaError_t error);
// Overwrites the beginning and the end of a workspace, whose content nobody may rely on.
void spoil(char *workspace, size_t size);
// Returns true if `size` bytes from `pointer` on lie in one allocation of the device.
bool lies_in(Machine &m, const void *pointer, size_t size, int device);
// Returns NULL if the handle is no stream.
Stream stream_of(Machine &m, cudaStream_t handle);

// Runs the body of a function of the runtime with the lock held, unless the call fails before.
template <typename Body> cudaError_t call(const char *name, bool needs_device, Body body)
{
    if (inside_host_function())
        return note_error(cudaErrorNotPermitted);
    Machine &m = machine();
    Lock lock(m.lock);
    cudaError_t error = (cudaError_t)take_failure(m, name);
    if (!error && needs_device) {
        if (m.devices.empty())
            error = cudaErrorNoDevice;
        else
            error = m.devices[(size_t)current_device()].broken;
        if (!error)
            make_context(m);
    }
    if (!error) {
        run_some(m, lock);
        error = body(m, lock);
    }
    return note_error(error);
}

// Runs the body of a library's function. `broken` is the function's status if there is no device,
// or if the device is broken.
template <typename Status, typename Body>
Status library_call(const char *name, Status broken, Body body)
{
    if (inside_host_function())
        return broken;
    Machine &m = machine();
    Lock lock(m.lock);
    Status status = (Status)take_failure(m, name);
    if (status != (Status)0)
        return status;
    if (m.devices.empty() || m.devices[(size_t)current_device()].broken)
        return broken;
    make_context(m);
    run_some(m, lock);
    return body(m, lock);
}

} // namespace emulator

struct CUstream_st {
    int device = 0;
    bool blocking = false, destroyed = false;
    std::deque<std::shared_ptr<emulator::Operation>> queue;
    uint64_t issued = 0, done = 0;
    bool running = false; // its first operation runs
    int index = 0;        // among the streams made for the device, for the log
};

struct CUevent_st {
    int device = 0;
    unsigned flags = 0;
    std::shared_ptr<emulator::Record> record; // the last; none before
};

#endif
