/* ddp.h: what the distributed wrappers (evenkeel/ddp.h) tell other files. */
#ifndef EK_DISTRIBUTED_DDP_H
#define EK_DISTRIBUTED_DDP_H

#include "comm/ranks.h"
#include "evenkeel/module.h"

/* See ek_ranks_of_wrapper; *child is the module itself before. */
ek_ranks *ek_distributed_ranks(ek_module *module, ek_module **child);
/* The same of an ek_distributed_criterion alone. */
ek_ranks *ek_distributed_criterion_ranks(ek_module *module, ek_module **child);

/* See ek_ranks_set_sync. Other modules stay as they are: true. */
bool ek_distributed_set_sync(ek_module *module, bool sync);

#endif
