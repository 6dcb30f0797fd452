// exchange.h: one exchange of NCCL: what each rank gives and gets.
#ifndef EK_EMULATOR_EXCHANGE_H
#define EK_EMULATOR_EXCHANGE_H

#include <cstddef>
#include <vector>

#include <nccl.h>

namespace emulator
{

enum class PartKind { SEND, RECEIVE, BROADCAST, REDUCE, ALL_REDUCE };

struct Part {
    PartKind kind;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; // or the root
    int rank;
};

struct Exchange {
    std::vector<Part> parts; // a send before its receive, else by rank

    // Ends the process where calls don't match: a device would wait for ever, or write nonsense.
    void add(const Part &part);
    void run() const;
};

size_t nccl_element_size(ncclDataType_t type); // 0 for types it doesn't know

} // namespace emulator

#endif
