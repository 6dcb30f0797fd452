// watch.cpp: which memory of devices each operation reads and writes (EK_EMULATOR_WATCH). Before an
// operation all of that memory is made inaccessible, and the fault of the first access to a block
// counts the block.
#include "machine.h"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <ucontext.h>

namespace emulator
{
namespace
{

enum { PAGE = 4096, MOST_BLOCKS = 32768 }; // a process may have twice as many mappings

enum { READ = 1, WRITTEN = 2 };

struct Range {
    char *base;
    size_t size;
    std::vector<unsigned char> touched; // by block
};

std::vector<Range> ranges; // while an operation runs
size_t block;              // bytes

bool is_write(const void *context)
{
#ifdef __x86_64__
    return static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    (void)context;
    return true;
#endif
}

void note_access(int, siginfo_t *info, void *context)
{
    char *at = static_cast<char *>(info->si_addr);
    for (Range &range : ranges) {
        if (at < range.base || at >= range.base + range.size)
            continue;
        size_t first = (size_t)(at - range.base) / block * block;
        size_t length = range.size - first < block ? range.size - first : block;
        bool write = is_write(context);
        range.touched[first / block] |= write ? WRITTEN : READ;
        if (mprotect(range.base + first, length, write ? PROT_READ | PROT_WRITE : PROT_READ) == 0)
            return;
    }
    signal(SIGSEGV, SIG_DFL); // the access is made again, and ends the process
}

void listen()
{
    static thread_local char stack[1 << 16];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = note_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}

} // namespace

size_t watched_size(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

void watch_begin(Machine &m)
{
    size_t all = 0;
    ranges.clear();
    for (const auto &entry : m.allocations) {
        const Allocation &allocation = entry.second;
        if (allocation.device < 0)
            continue;
        ranges.push_back({allocation.base, watched_size(allocation.size), {}});
        all += ranges.back().size;
    }
    for (block = PAGE; all / block > MOST_BLOCKS;)
        block *= 2;
    listen();
    for (Range &range : ranges) {
        range.touched.resize((range.size + block - 1) / block);
        mprotect(range.base, range.size, PROT_NONE);
    }
}

void watch_end(Machine &m, const char *name)
{
    ek_emulator_traffic &traffic = m.traffic[name];
    traffic.name = name;
    traffic.operations++;
    for (const Range &range : ranges) {
        mprotect(range.base, range.size, PROT_READ | PROT_WRITE);
        for (unsigned char touched : range.touched) {
            traffic.read += touched & READ ? block : 0;
            traffic.written += touched & WRITTEN ? block : 0;
        }
    }
}

} // namespace emulator

using namespace emulator;

size_t ek_emulator_watched(ek_emulator_traffic *rows, size_t most)
{
    Machine &m = machine();
    Lock lock(m.lock);
    size_t count = 0;
    for (const auto &entry : m.traffic)
        if (count < most)
            rows[count++] = entry.second;
    return count;
}
