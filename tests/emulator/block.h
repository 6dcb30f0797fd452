// block.h: the execution of a kernel: one block after the other, the threads of a block in turn.
#ifndef EK_EMULATOR_BLOCK_H
#define EK_EMULATOR_BLOCK_H

#include <cstdint>

#include <cuda_runtime.h>

namespace emulator
{

// Runs all of it. One caller at a time. Threads are visited in another order for each `order` that
// isn't 0.
void run_grid(const ek_emulator_call &call, dim3 grid, dim3 block, uint64_t order);

} // namespace emulator

#endif
