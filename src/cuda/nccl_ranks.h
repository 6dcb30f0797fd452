/* nccl_ranks.h: rails (core/rail.h) by NCCL: communicators between processes, with one GPU of
 * each. */
#ifndef EK_CUDA_NCCL_RANKS_H
#define EK_CUDA_NCCL_RANKS_H

#include "core/rail.h"

extern const ek_rail_backend ek_cuda_rails;

#endif
