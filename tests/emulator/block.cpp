// block.cpp: see block.h.
//
// A fiber runs thread after thread of a block, as a plain loop would, until a thread has to wait
// for others: then another fiber goes on with the threads that follow, and the thread that waits
// keeps its fiber until it is through. A kernel without barriers thus needs one fiber.
#define EK_EMULATOR_PLACE // written between the turns of threads
#include "block.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>

#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator
{
namespace
{

enum { WARP = 32, MOST = 1024 };

struct Thread {
    Fiber *fiber; // while it waits
    ek_emulator_site site;
    uint64_t bits;
    unsigned mask;
    ek_emulator_warp_kind kind;
    int source;
};

struct Block {
    const ek_emulator_call *call;
    uint64_t left, order; // blocks after this one
    int size;
    int started, exited;
    int self; // the thread that runs
    Thread threads[MOST];
    unsigned waiting[MOST / WARP]; // lanes in an exchange
    int at_barrier;                // threads that wait there
    ek_emulator_barrier_kind barrier_kind;
    ek_emulator_site barrier_site;
    int barrier_value, barrier_result;
    int ready[MOST]; // a ring of threads that can go on
    unsigned ready_first, ready_count;
    Fiber host, *running;
    std::vector<Fiber *> idle;
} block;

void print_kernel()
{
    Dl_info info = {};
    char *name = nullptr;
    if (dladdr(block.call->kernel, &info) && info.dli_sname)
        name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr);
    fprintf(stderr, "  kernel %s, launched as %s\n",
            name             ? name
            : info.dli_sname ? info.dli_sname
                             : "?",
            block.call->signature);
    fprintf(stderr, "  block (%u, %u, %u) of %d threads: %d have returned\n", blockIdx.x,
            blockIdx.y, blockIdx.z, block.size, block.exited);
    free(name);
}

[[noreturn]] void die(const char *what, const ek_emulator_site &site)
{
    fprintf(stderr, "emulator: %s\n  at %s:%d in %s\n", what, site.file, site.line, site.function);
    print_kernel();
    if (block.at_barrier)
        fprintf(stderr, "  %d wait at the __syncthreads of %s:%d in %s\n", block.at_barrier,
                block.barrier_site.file, block.barrier_site.line, block.barrier_site.function);
    for (int warp = 0; warp * WARP < block.size; warp++)
        if (block.waiting[warp])
            fprintf(stderr, "  lanes %08x of warp %d wait for others of their mask\n",
                    block.waiting[warp], warp);
    fflush(nullptr);
    abort();
}

void continue_with(Fiber *fiber)
{
    Fiber *from = block.running;
    block.running = fiber;
    if (fiber != from)
        fiber_switch(from, fiber);
}

void make_ready(int thread)
{
    block.ready[(block.ready_first + block.ready_count++) % MOST] = thread;
}

Fiber *next_ready()
{
    int thread = block.ready[block.ready_first];
    block.ready_first = (block.ready_first + 1) % MOST;
    block.ready_count--;
    return block.threads[thread].fiber;
}

void work();

Fiber *take_idle()
{
    if (block.idle.empty())
        return fiber_create(work);
    Fiber *fiber = block.idle.back();
    block.idle.pop_back();
    return fiber;
}

// The running thread waits: another goes on. Returns when it is its turn again.
void wait_for_others(const ek_emulator_site &site)
{
    uint3 place = threadIdx;
    int self = block.self;
    block.threads[self].fiber = block.running;
    block.threads[self].site = site;
    if (block.ready_count)
        continue_with(next_ready());
    else if (block.started < block.size)
        continue_with(take_idle());
    else
        die("threads wait for others that never come", site);
    block.self = self;
    threadIdx = place;
}

void begin_block()
{
    block.started = block.exited = 0;
}

void advance_block()
{
    if (++blockIdx.x < gridDim.x)
        return;
    blockIdx.x = 0;
    if (++blockIdx.y < gridDim.y)
        return;
    blockIdx.y = 0;
    blockIdx.z++;
}

void run_thread(int thread)
{
    block.self = thread;
    unsigned row = (unsigned)thread / blockDim.x;
    threadIdx.x = (unsigned)thread % blockDim.x;
    threadIdx.y = row % blockDim.y;
    threadIdx.z = row / blockDim.y;
    block.call->run();
    block.exited++;
    if (block.at_barrier)
        die("a thread has returned while others wait at a barrier", block.barrier_site);
}

// With an order, warps and the lanes in them start elsewhere than at the first.
int ordered(int i)
{
    if (!block.order)
        return i;
    int turned = (int)((i + block.order % (uint64_t)block.size) % (uint64_t)block.size);
    return block.order & 1 ? turned : block.size - 1 - turned;
}

// What each fiber does, for ever.
void work()
{
    for (;;) {
        while (block.started < block.size)
            run_thread(ordered(block.started++));
        if (block.ready_count) {
            block.idle.push_back(block.running);
            continue_with(next_ready());
        } else if (block.exited < block.size) {
            for (int i = 0; i < block.size; i++)
                if (block.waiting[i / WARP] >> (i % WARP) & 1)
                    die("lanes of a mask never reach the exchange", block.threads[i].site);
            die("threads are lost", block.barrier_site);
        } else if (block.left) {
            block.left--;
            advance_block();
            begin_block();
        } else {
            block.idle.push_back(block.running);
            continue_with(&block.host);
        }
    }
}

int barrier_outcome()
{
    switch (block.barrier_kind) {
    case EK_EMULATOR_AND:
        return block.barrier_value == block.size;
    case EK_EMULATOR_OR:
        return block.barrier_value != 0;
    default:
        return block.barrier_value;
    }
}

bool all_in_exchange(int warp, unsigned mask, ek_emulator_warp_kind kind)
{
    if ((block.waiting[warp] & mask) != mask)
        return false;
    for (int lane = 0; lane < WARP; lane++) {
        const Thread &other = block.threads[warp * WARP + lane];
        if ((mask >> lane & 1) && (other.mask != mask || other.kind != kind))
            return false;
    }
    return true;
}

void finish_exchange(int warp, unsigned mask, ek_emulator_warp_kind kind, int self)
{
    Thread *threads = block.threads + warp * WARP;
    uint64_t given[WARP], ballot = 0;
    for (int lane = 0; lane < WARP; lane++) {
        given[lane] = threads[lane].bits;
        if ((mask >> lane & 1) && given[lane])
            ballot |= (uint64_t)1 << lane;
    }
    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1))
            continue;
        // What a lane outside of the mask holds is anybody's guess.
        bool known = mask >> (threads[lane].source & 31) & 1;
        if (kind == EK_EMULATOR_BALLOT)
            threads[lane].bits = ballot;
        else if (kind == EK_EMULATOR_SHUFFLE)
            threads[lane].bits = known ? given[threads[lane].source & 31] : ~(uint64_t)0;
        if (warp * WARP + lane != self)
            make_ready(warp * WARP + lane);
    }
    block.waiting[warp] &= ~mask;
}

} // namespace

void run_grid(const ek_emulator_call &call, dim3 grid, dim3 size, uint64_t order)
{
    gridDim = grid;
    blockDim = size;
    blockIdx = {0, 0, 0};
    block.call = &call;
    block.order = order;
    block.size = (int)(size.x * size.y * size.z);
    block.left = (uint64_t)grid.x * grid.y * grid.z - 1;
    begin_block();
    fiber_adopt(&block.host);
    block.running = &block.host;
    continue_with(take_idle());
}

} // namespace emulator

using namespace emulator;

int ek_emulator_barrier(ek_emulator_barrier_kind kind, int predicate, ek_emulator_site site)
{
    if (block.exited)
        die("a barrier that threads of the block have not reached before they returned", site);
    if (block.at_barrier == 0) {
        block.barrier_kind = kind;
        block.barrier_site = site;
        block.barrier_value = 0;
    } else if (block.barrier_kind != kind || block.barrier_site.line != site.line) {
        die("threads of a block are at different barriers", site);
    }
    block.barrier_value += predicate != 0;
    int self = block.self;
    if (++block.at_barrier < block.size) {
        wait_for_others(site);
        return block.barrier_result;
    }
    block.barrier_result = barrier_outcome();
    block.at_barrier = 0;
    for (int i = 0; i < block.size; i++)
        if (ordered(i) != self)
            make_ready(ordered(i));
    return block.barrier_result;
}

uint64_t ek_emulator_warp(ek_emulator_warp_kind kind, unsigned mask, uint64_t bits, int source,
                          ek_emulator_site site)
{
    int self = block.self, warp = self / WARP, lane = self % WARP;
    Thread &thread = block.threads[self];
    if (!(mask >> lane & 1))
        die("a lane takes part in an exchange whose mask leaves it out", site);
    if (warp * WARP + 32 - __builtin_clz(mask) > block.size)
        die("the mask of an exchange has lanes that the block doesn't have", site);
    thread.kind = kind;
    thread.mask = mask;
    thread.bits = bits;
    thread.source = source;
    block.waiting[warp] |= 1u << lane;
    if (all_in_exchange(warp, mask, kind))
        finish_exchange(warp, mask, kind, self);
    else
        wait_for_others(site);
    return thread.bits;
}

int ek_emulator_lane(void)
{
    return block.self % WARP;
}
