// work.cpp: streams as lazy queues. What is issued waits until a call needs it done; then what it
// depends on runs, in the order that streams and events give, and nothing more.
#include "machine.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace emulator
{

bool Position::done() const
{
    return !stream || stream->done >= number;
}

bool Meeting::left_by(const Operation &operation) const
{
    for (size_t i = 0; i < members.size(); i++)
        if (members[i].get() == &operation)
            return aborted->count(ranks[i]) != 0;
    return true; // all have left
}

bool Meeting::impossible(const Machine &m) const
{
    for (size_t i = 0; i < members.size(); i++)
        if (aborted->count(ranks[i]) || m.devices[(size_t)members[i]->self.stream->device].broken)
            return true;
    return false;
}

namespace
{

// How long a call waits for another thread to issue what it depends on.
const std::chrono::seconds PATIENCE(60);

enum class Outcome {
    DONE,
    PROGRESS, // did the one operation that it may do
    BLOCKED   // needs an operation that nobody has issued yet, or one of a broken device
};

void drop_drained(Machine &m)
{
    for (size_t i = 0; i < m.streams.size();) {
        if (m.streams[i]->destroyed && m.streams[i]->queue.empty()) {
            m.streams[i] = m.streams.back();
            m.streams.pop_back();
        } else {
            i++;
        }
    }
}

void finish(Machine &m, const Stream &stream)
{
    stream->queue.pop_front();
    stream->done++;
    m.counters.executed++;
    if (stream->destroyed && stream->queue.empty())
        drop_drained(m);
}

void run_unlocked(Machine &m, Lock &lock, const Stream &stream, const std::function<void()> &run,
                  const char *name)
{
    if (!run || m.devices[(size_t)stream->device].broken)
        return;
    if (m.watch)
        watch_begin(m);
    lock.unlock();
    run();
    lock.lock();
    if (m.watch)
        watch_end(m, name);
}

// A walk through the queues towards a position, by the one thread that may run work.
struct Walk {
    Machine &m;
    Lock &lock;
    uint64_t budget; // operations that it may still run

    Outcome towards(const Position &position);
    Outcome before(Operation &operation);
    Outcome meet(Operation &operation);
};

Outcome Walk::towards(const Position &position)
{
    const Stream &stream = position.stream;
    while (!position.done()) {
        if (stream->running) {
            fprintf(stderr,
                    "emulator: operations of streams wait for each other (%s): on a device "
                    "they would wait for ever\n",
                    stream->queue.front()->name);
            fflush(nullptr);
            abort();
        }
        if (budget == 0)
            return Outcome::PROGRESS;
        std::shared_ptr<Operation> operation = stream->queue.front();
        stream->running = true;
        Outcome outcome = before(*operation);
        if (outcome == Outcome::DONE) {
            budget--;
            run_unlocked(m, lock, stream, operation->run, operation->name);
            finish(m, stream);
        }
        stream->running = false;
        if (outcome != Outcome::DONE)
            return outcome;
    }
    return Outcome::DONE;
}

Outcome Walk::before(Operation &operation)
{
    operation.started = true;
    if (!operation.after.done()) {
        Outcome outcome = towards(operation.after);
        if (outcome != Outcome::DONE)
            return outcome;
        operation.after.stream.reset();
    }
    return meet(operation);
}

// Brings the other members of its exchanges to where they take part, too.
Outcome Walk::meet(Operation &operation)
{
    Outcome worst = Outcome::DONE;
    for (const std::shared_ptr<Meeting> &meeting : operation.meetings) {
        if (m.devices[(size_t)operation.self.stream->device].broken)
            return Outcome::DONE; // nothing runs there, and nothing waits
        if (meeting->done || meeting->left_by(operation))
            continue;
        Outcome outcome =
            meeting->members.size() < meeting->wanted ? Outcome::BLOCKED : Outcome::DONE;
        for (size_t i = 0; i < meeting->members.size() && outcome == Outcome::DONE; i++) {
            std::shared_ptr<Operation> member = meeting->members[i];
            if (!member->started)
                outcome = towards({member->self.stream, member->self.number - 1});
            if (outcome == Outcome::DONE)
                member->started = true;
        }
        if (outcome == Outcome::DONE && !meeting->done && meeting->impossible(m))
            outcome = Outcome::BLOCKED;
        if (outcome == Outcome::DONE && !meeting->done) {
            meeting->done = true;
            meeting->members.clear();
            m.counters.collectives++;
            run_unlocked(m, lock, operation.self.stream, meeting->run, operation.name);
        }
        if (outcome != Outcome::DONE)
            worst = outcome;
    }
    return worst;
}

void become_runner(Machine &m, Lock &lock)
{
    m.changed.wait(lock, [&] { return !m.busy; });
    m.busy = true;
}

void stop_running(Machine &m)
{
    m.busy = false;
    m.changed.notify_all();
}

Outcome run(Machine &m, Lock &lock, const Position &position, uint64_t budget)
{
    if (position.done())
        return Outcome::DONE;
    become_runner(m, lock);
    Walk walk = {m, lock, budget};
    Outcome outcome = walk.towards(position);
    stop_running(m);
    return outcome;
}

Position end_of(const Stream &stream)
{
    return {stream, stream->issued};
}

} // namespace

std::shared_ptr<Operation> issue(Machine &m, const Stream &stream, Operation &&operation)
{
    auto queued = std::make_shared<Operation>(std::move(operation));
    queued->self = {stream, ++stream->issued};
    stream->queue.push_back(queued);
    if (m.log) {
        static std::atomic<int> threads;
        static thread_local int thread = threads++;
        fprintf(m.log, "thread %d, device %d, stream %d, number %d: %s", thread, stream->device,
                stream->index, (int)stream->issued, queued->name);
        if (const CUstream_st *after = queued->after.stream.get())
            fprintf(m.log, " of device %d, stream %d, number %d", after->device, after->index,
                    (int)queued->after.number);
        fprintf(m.log, "\n");
        fflush(m.log);
    }
    m.counters.issued++;
    m.changed.notify_all();
    return queued;
}

void run_until(Machine &m, Lock &lock, const Position &position)
{
    auto deadline = std::chrono::steady_clock::now() + PATIENCE;
    while (run(m, lock, position, UINT64_MAX) != Outcome::DONE) {
        uint64_t issued = m.counters.issued, aborts = m.aborts;
        bool news = m.changed.wait_until(lock, deadline, [&] {
            return m.counters.issued != issued || m.aborts != aborts;
        });
        if (!news) {
            fprintf(stderr,
                    "emulator: %s waits for an operation that no thread issues, or for a device "
                    "that is broken\n",
                    position.stream->queue.front()->name);
            fflush(nullptr);
            abort();
        }
    }
}

void run_one(Machine &m, Lock &lock, const Position &position)
{
    run(m, lock, position, 1);
}

void run_device(Machine &m, Lock &lock, int device, bool blocking_only)
{
    std::vector<Position> ends;
    for (const Stream &stream : m.streams)
        if (stream->device == device && (stream->blocking || !blocking_only))
            ends.push_back(end_of(stream));
    for (const Position &end : ends)
        run_until(m, lock, end);
}

void run_everything(Machine &m, Lock &lock)
{
    for (size_t device = 0; device < m.devices.size(); device++)
        run_device(m, lock, (int)device, false);
}

void after_issue(Machine &m, Lock &lock, const Position &position)
{
    if (m.order == Order::EAGER)
        run(m, lock, position, UINT64_MAX);
}

void run_some(Machine &m, Lock &lock)
{
    if (m.order != Order::RANDOM)
        return;
    for (uint64_t turns = m.draw() % 3; turns > 0; turns--) {
        const Stream stream = m.streams.empty() ? nullptr : m.streams[m.draw() % m.streams.size()];
        if (!stream || stream->queue.empty())
            continue;
        uint64_t budget = 1 + m.draw() % 4;
        run(m, lock, end_of(stream), budget);
    }
}

} // namespace emulator
