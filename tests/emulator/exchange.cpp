// exchange.cpp: see exchange.h.
#include "exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "half.h"

namespace emulator
{

size_t nccl_element_size(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclBfloat16:
    case ncclFloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

void Exchange::add(const Part &part)
{
    if (!parts.empty()) {
        const Part &first = parts[0];
        bool pair = part.kind == PartKind::SEND || part.kind == PartKind::RECEIVE;
        bool same =
            first.count == part.count && first.type == part.type &&
            (pair || (first.kind == part.kind && first.peer == part.peer && first.op == part.op));
        if (!same) {
            fprintf(stderr,
                    "emulator: NCCL calls of ranks %d and %d don't match: kinds %d and %d, %zu and "
                    "%zu elements of types %d and %d\n",
                    first.rank, part.rank, (int)first.kind, (int)part.kind, first.count, part.count,
                    (int)first.type, (int)part.type);
            fflush(nullptr);
            abort();
        }
    }
    parts.push_back(part);
    std::sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) {
        return a.kind != b.kind ? a.kind < b.kind : a.rank < b.rank;
    });
}

namespace
{

// bf16 and f16 are added in f32 and rounded after each addition.
struct Narrow {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

template <typename T> T widen(T value)
{
    return value;
}
float widen(Narrow value)
{
    return bf16_value(value.bits);
}
float widen(Half value)
{
    return half_value(value.bits);
}
template <typename T> void put(T *to, T value)
{
    *to = value;
}
void put(Narrow *to, float value)
{
    to->bits = bf16_of(value);
}
void put(Half *to, float value)
{
    to->bits = half_of(value);
}

template <typename T> T combine(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return (T)(a * b);
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return (T)(a + b);
    }
}

template <typename T> std::vector<char> reduce(const std::vector<Part> &parts)
{
    size_t count = parts[0].count;
    std::vector<char> result(count * sizeof(T));
    T *to = reinterpret_cast<T *>(result.data());
    memcpy(result.data(), parts[0].from, result.size());
    for (size_t rank = 1; rank < parts.size(); rank++) {
        const T *from = static_cast<const T *>(parts[rank].from);
        for (size_t i = 0; i < count; i++)
            put(to + i, combine(widen(to[i]), widen(from[i]), parts[0].op));
    }
    if (parts[0].op == ncclAvg) {
        typedef decltype(widen(T())) Wide;
        for (size_t i = 0; i < count; i++)
            put(to + i, (Wide)(widen(to[i]) / (Wide)parts.size()));
    }
    return result;
}

std::vector<char> reduce_any(const std::vector<Part> &parts)
{
    switch (parts[0].type) {
    case ncclInt8:
        return reduce<int8_t>(parts);
    case ncclUint8:
        return reduce<uint8_t>(parts);
    case ncclInt32:
        return reduce<int32_t>(parts);
    case ncclUint32:
        return reduce<uint32_t>(parts);
    case ncclInt64:
        return reduce<int64_t>(parts);
    case ncclUint64:
        return reduce<uint64_t>(parts);
    case ncclFloat32:
        return reduce<float>(parts);
    case ncclFloat64:
        return reduce<double>(parts);
    case ncclFloat16:
        return reduce<Half>(parts);
    default:
        return reduce<Narrow>(parts);
    }
}

} // namespace

void Exchange::run() const
{
    const Part &first = parts[0];
    size_t size = first.count * nccl_element_size(first.type);
    if (size == 0)
        return;
    if (first.kind == PartKind::SEND) {
        memmove(parts[1].to, first.from, size);
    } else if (first.kind == PartKind::BROADCAST) {
        const void *from = parts[(size_t)first.peer].from;
        for (const Part &part : parts)
            if (part.to != from)
                memmove(part.to, from, size);
    } else {
        std::vector<char> result = reduce_any(parts);
        for (const Part &part : parts)
            if (part.kind == PartKind::ALL_REDUCE || part.rank == part.peer)
                memcpy(part.to, result.data(), size);
    }
}

} // namespace emulator
