/* ddp.h: what the distributed wrappers (evenkeel/ddp.h) tell other files. */
#ifndef EK_TRAIN_DDP_H
#define EK_TRAIN_DDP_H

#include "core/ranks.h"
#include "evenkeel/module.h"

/* See ek_ranks_of_wrapper; of an ek_distributed_criterion alone. *child is the module itself
 * before. */
ek_ranks *ek_distributed_criterion_ranks(ek_module *module, ek_module **child);

#endif
