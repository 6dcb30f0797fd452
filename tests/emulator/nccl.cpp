// nccl.cpp: NCCL's exchanges between streams of one process. What a rank does within a group is one
// operation of its stream; an exchange runs when all who take part have come to it.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>

#include "exchange.h"
#include "machine.h"

using namespace emulator;

namespace
{

// The ranks of a communicator, and exchanges that wait for some of them.
struct Clique {
    std::vector<int> devices;           // by rank; -1: it has yet to come (ncclCommInitRankConfig)
    ncclResult_t refused = ncclSuccess; // why these ranks make no communicator
    std::shared_ptr<std::set<int>> aborted = std::make_shared<std::set<int>>();
    std::vector<std::shared_ptr<Meeting>> meetings; // that are not over
    std::vector<Position> last;                     // operation of each rank
    std::set<int> failed;              // ranks whose group did: nothing but an abort is left
    std::vector<uint64_t> collectives; // that each rank has issued
    std::map<uint64_t, std::pair<std::shared_ptr<Meeting>, std::shared_ptr<Exchange>>> open;
    typedef std::pair<int, int> Pair; // from, to
    typedef std::deque<std::pair<std::shared_ptr<Meeting>, std::shared_ptr<Exchange>>> Waiting;
    std::map<Pair, Waiting> sends, receives; // that have no counterpart yet
};

} // namespace

namespace
{
struct Call;
}

struct ncclComm {
    std::shared_ptr<Clique> clique;
    int rank;
    std::shared_ptr<std::vector<Call>> begun; // what a non-blocking one has yet to issue; else NULL
    bool asked = false;                       // for its state since
};

namespace
{

struct Call {
    ncclComm comm;
    cudaStream_t handle;
    Part part;
};

int &group_depth()
{
    static thread_local int depth = 0;
    return depth;
}

std::vector<Call> &group_calls()
{
    static thread_local std::vector<Call> calls;
    return calls;
}

// A call of the group failed: then all of it does, and nothing is launched.
ncclResult_t &group_error()
{
    static thread_local ncclResult_t error = ncclSuccess;
    return error;
}

void join(const std::shared_ptr<Meeting> &meeting, const std::shared_ptr<Exchange> &exchange,
          const std::shared_ptr<Operation> &operation, const Part &part)
{
    exchange->add(part);
    meeting->members.push_back(operation);
    meeting->ranks.push_back(part.rank);
    operation->meetings.push_back(meeting);
}

std::pair<std::shared_ptr<Meeting>, std::shared_ptr<Exchange>> open_exchange(Clique &clique,
                                                                             size_t wanted)
{
    auto exchange = std::make_shared<Exchange>();
    auto meeting = std::make_shared<Meeting>();
    meeting->wanted = wanted;
    meeting->aborted = clique.aborted;
    meeting->run = [exchange] { exchange->run(); };
    std::vector<std::shared_ptr<Meeting>> open;
    for (const std::shared_ptr<Meeting> &other : clique.meetings)
        if (!other->done)
            open.push_back(other);
    open.push_back(meeting);
    clique.meetings.swap(open);
    return {meeting, exchange};
}

// The n-th send of a rank to another meets the other's n-th receive from it.
void join_pair(Clique &clique, const std::shared_ptr<Operation> &operation, const Part &part)
{
    bool sends = part.kind == PartKind::SEND;
    Clique::Pair pair =
        sends ? Clique::Pair(part.rank, part.peer) : Clique::Pair(part.peer, part.rank);
    Clique::Waiting &others = sends ? clique.receives[pair] : clique.sends[pair];
    Clique::Waiting &own = sends ? clique.sends[pair] : clique.receives[pair];
    if (others.empty()) {
        own.push_back(open_exchange(clique, 2));
        join(own.back().first, own.back().second, operation, part);
    } else {
        auto opened = others.front();
        others.pop_front();
        join(opened.first, opened.second, operation, part);
    }
}

void join_collective(Clique &clique, const std::shared_ptr<Operation> &operation, const Part &part)
{
    uint64_t number = clique.collectives[(size_t)part.rank]++;
    auto &opened = clique.open[number];
    if (!opened.first)
        opened = open_exchange(clique, clique.devices.size());
    join(opened.first, opened.second, operation, part);
    if (opened.first->members.size() == opened.first->wanted)
        clique.open.erase(number);
}

// A root's broadcast, and what a rank gives to a sum, leave their GPU once.
size_t bytes_sent(const Part &part)
{
    bool root = part.peer == part.rank;
    bool sends = part.kind == PartKind::SEND || part.kind == PartKind::ALL_REDUCE ||
                 (part.kind == PartKind::BROADCAST && root) ||
                 (part.kind == PartKind::REDUCE && !root);
    return sends ? part.count * nccl_element_size(part.type) : 0;
}

// One operation for all calls of the same rank and stream. As with NCCL, which launches one
// device's kernel after the other, other threads may issue something in between.
ncclResult_t issue_group(Machine &m, Lock &lock, const std::vector<Call> &calls)
{
    std::map<std::pair<CUstream_st *, int>, std::shared_ptr<Operation>> operations;
    std::vector<Position> issued;
    m.counters.groups += !calls.empty();
    for (const Call &call : calls) {
        m.counters.sent += bytes_sent(call.part);
        Clique &clique = *call.comm.clique;
        Stream stream = stream_of(m, call.handle);
        auto &operation = operations[{stream.get(), call.part.rank}];
        if (!operation) {
            if (!issued.empty()) {
                lock.unlock();
                std::this_thread::sleep_for(std::chrono::microseconds(20));
                lock.lock();
            }
            Operation fresh;
            fresh.name = "an exchange of NCCL";
            operation = issue(m, stream, std::move(fresh));
            issued.push_back(operation->self);
            clique.last[(size_t)call.part.rank] = operation->self;
        }
        if (call.part.kind == PartKind::SEND || call.part.kind == PartKind::RECEIVE)
            join_pair(clique, operation, call.part);
        else
            join_collective(clique, operation, call.part);
    }
    for (const Position &position : issued)
        after_issue(m, lock, position);
    return ncclSuccess;
}

// A non-blocking communicator issues what it was given when it is asked for the second time.
ncclResult_t begin_group(Machine &m, Lock &lock, const std::vector<Call> &calls)
{
    if (calls.empty() || !calls[0].comm.begun)
        return issue_group(m, lock, calls);
    *calls[0].comm.begun = calls;
    return ncclInProgress;
}

bool buffer_fits(Machine &m, const void *pointer, const Part &part, int device)
{
    size_t size = part.count * nccl_element_size(part.type);
    return size == 0 || lies_in(m, pointer, size, device);
}

ncclResult_t check(Machine &m, ncclComm_t comm, const Part &part, cudaStream_t handle)
{
    if (comm->clique->failed.count(comm->rank))
        return ncclInternalError;
    if (comm->begun && !comm->begun->empty())
        return ncclInvalidUsage; // before ncclCommGetAsyncError has said that all is issued
    int ranks = (int)comm->clique->devices.size(),
        device = comm->clique->devices[(size_t)comm->rank];
    Stream stream = handle ? stream_of(m, handle) : m.devices[(size_t)device].null_stream;
    if (!stream || stream->device != device || nccl_element_size(part.type) == 0)
        return ncclInvalidArgument;
    if (part.peer < 0 || part.peer >= ranks || part.op >= ncclNumOps)
        return ncclInvalidArgument;
    bool reads = part.kind != PartKind::RECEIVE &&
                 (part.kind != PartKind::BROADCAST || part.peer == part.rank);
    bool writes =
        part.kind != PartKind::SEND && (part.kind != PartKind::REDUCE || part.peer == part.rank);
    if ((reads && !buffer_fits(m, part.from, part, device)) ||
        (writes && !buffer_fits(m, part.to, part, device))) {
        fprintf(stderr,
                "emulator: a buffer of %zu elements for NCCL does not lie in one allocation "
                "of device %d\n",
                part.count, device);
        return ncclInvalidArgument;
    }
    return m.devices[(size_t)device].broken ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t add_call(const char *name, ncclComm_t comm, Part part, cudaStream_t handle)
{
    ncclResult_t result = library_call(name, ncclUnhandledCudaError, [&](Machine &m, Lock &lock) {
        if (!comm)
            return ncclInvalidArgument;
        part.rank = comm->rank;
        ncclResult_t status = check(m, comm, part, handle);
        if (status != ncclSuccess)
            return status;
        int device = comm->clique->devices[(size_t)comm->rank];
        Stream stream = handle ? stream_of(m, handle) : m.devices[(size_t)device].null_stream;
        Call call = {*comm, stream.get(), part};
        if (group_depth() == 0)
            return begin_group(m, lock, {call});
        group_calls().push_back(call);
        return ncclSuccess;
    });
    if (result != ncclSuccess && group_depth() > 0)
        group_error() = result;
    return result;
}

// Counts a communicator of one rank that begins or ends.
void count_communicator(Machine &m, int device, bool begins)
{
    m.communicators += begins ? 1 : -1;
    m.devices[(size_t)device].beside += begins ? m.later : -m.later;
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress"};
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
    return library_call("ncclCommInitAll", ncclUnhandledCudaError, [&](Machine &m, Lock &) {
        if (!comms || ndev < 1)
            return ncclInvalidArgument;
        auto clique = std::make_shared<Clique>();
        std::set<int> seen;
        for (int i = 0; i < ndev; i++) {
            int device = devlist ? devlist[i] : i;
            if (device < 0 || (size_t)device >= m.devices.size())
                return ncclInvalidArgument;
            if (!seen.insert(device).second)
                return ncclInvalidUsage;
            clique->devices.push_back(device);
        }
        clique->collectives.resize((size_t)ndev);
        clique->last.resize((size_t)ndev);
        for (int i = 0; i < ndev; i++)
            comms[i] = new ncclComm{clique, i, nullptr};
        for (int device : clique->devices)
            count_communicator(m, device, true);
        return ncclSuccess;
    });
}

// Waits for the rank's exchanges: for ever if the part of another rank never comes.
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    Machine &m = machine();
    Lock lock(m.lock);
    make_context(m); // NCCL puts back the device that it finds current
    run_until(m, lock, comm->clique->last[(size_t)comm->rank]);
    count_communicator(m, comm->clique->devices[(size_t)comm->rank], false);
    delete comm;
    return ncclSuccess;
}

// Ends the rank's exchanges unfinished. Other ranks wait for this rank until they are aborted, too.
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    Machine &m = machine();
    Lock lock(m.lock);
    Clique &clique = *comm->clique;
    make_context(m);
    clique.aborted->insert(comm->rank);
    if (clique.aborted->size() == clique.devices.size()) {
        for (const std::shared_ptr<Meeting> &meeting : clique.meetings)
            meeting->members.clear();
        clique.meetings.clear();
    }
    if (comm->begun)
        comm->begun->clear();
    count_communicator(m, clique.devices[(size_t)comm->rank], false);
    m.aborts++;
    m.changed.notify_all();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = (int)comm->clique->devices.size();
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->clique->devices[(size_t)comm->rank];
    return ncclSuccess;
}

// NCCL knows nothing of a rank whose GPU is lost in the same process. Tests can let it report more.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    Machine &m = machine();
    Lock lock(m.lock);
    *error = (ncclResult_t)take_failure(m, "ncclCommGetAsyncError");
    if (*error != ncclSuccess || !comm->begun)
        return ncclSuccess;
    Clique &clique = *comm->clique;
    if (clique.refused != ncclSuccess) {
        *error = clique.refused;
    } else if (std::count(clique.devices.begin(), clique.devices.end(), -1) > 0) {
        *error = ncclInProgress;
    } else if (!comm->begun->empty() && !comm->asked) {
        comm->asked = true;
        *error = ncclInProgress;
    } else if (!comm->begun->empty()) {
        comm->asked = false;
        std::vector<Call> calls;
        calls.swap(*comm->begun);
        *error = issue_group(m, lock, calls);
    }
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return library_call("ncclGetUniqueId", ncclUnhandledCudaError, [&](Machine &, Lock &) {
        static int made = 0;
        memset(id, 0, sizeof *id);
        snprintf(id->internal, sizeof id->internal, "emulated %d %d", (int)getpid(), ++made);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return library_call("ncclCommInitRankConfig", ncclUnhandledCudaError, [&](Machine &m, Lock &) {
        static std::map<std::string, std::weak_ptr<Clique>> cliques;
        if (!config || config->blocking || rank < 0 || rank >= ranks)
            return ncclInvalidArgument;
        std::shared_ptr<Clique> clique = cliques[id.internal].lock();
        if (!clique) {
            clique = std::make_shared<Clique>();
            clique->devices.assign((size_t)ranks, -1);
            clique->collectives.resize((size_t)ranks);
            clique->last.resize((size_t)ranks);
            cliques[id.internal] = clique;
        }
        int device = current_device(), pid = 0;
        if (sscanf(id.internal, "emulated %d ", &pid) != 1 || pid != (int)getpid())
            clique->refused = ncclSystemError; // another process's GPUs are not to be reached
        if (std::count(clique->devices.begin(), clique->devices.end(), device) > 0)
            clique->refused = ncclInvalidUsage;
        clique->devices[(size_t)rank] = device;
        *comm = new ncclComm{clique, rank, std::make_shared<std::vector<Call>>()};
        count_communicator(m, device, true);
        return ncclInProgress;
    });
}

size_t ek_emulator_live_communicators(void)
{
    Machine &m = machine();
    Lock lock(m.lock);
    return m.communicators;
}

ncclResult_t ncclGroupStart(void)
{
    group_depth()++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth() == 0)
        return ncclInvalidUsage;
    if (--group_depth() > 0)
        return ncclSuccess;
    std::vector<Call> calls;
    calls.swap(group_calls());
    ncclResult_t status = group_error();
    group_error() = ncclSuccess;
    if (status == ncclSuccess)
        status = library_call("ncclGroupEnd", ncclUnhandledCudaError,
                              [&](Machine &m, Lock &lock) { return begin_group(m, lock, calls); });
    if (status == ncclSuccess || status == ncclInProgress)
        return status;
    Machine &m = machine();
    Lock lock(m.lock);
    for (const Call &call : calls) {
        Clique &clique = *call.comm.clique;
        for (int rank = 0; rank < (int)clique.devices.size(); rank++)
            if (!call.comm.begun || rank == call.comm.rank) // ranks of one call, or this one
                clique.failed.insert(rank);
    }
    return status;
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    Part part = {PartKind::SEND, sendbuff, nullptr, count, datatype, ncclSum, peer, 0};
    return add_call("ncclSend", comm, part, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    Part part = {PartKind::RECEIVE, nullptr, recvbuff, count, datatype, ncclSum, peer, 0};
    return add_call("ncclRecv", comm, part, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    Part part = {PartKind::BROADCAST, sendbuff, recvbuff, count, datatype, ncclSum, root, 0};
    return add_call("ncclBroadcast", comm, part, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    Part part = {PartKind::REDUCE, sendbuff, recvbuff, count, datatype, op, root, 0};
    return add_call("ncclReduce", comm, part, stream);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    Part part = {PartKind::ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, 0, 0};
    return add_call("ncclAllReduce", comm, part, stream);
}
