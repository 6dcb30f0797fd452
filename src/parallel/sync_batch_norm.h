/* sync_batch_norm.h: synchronised batch normalisation, for wrappers over several ranks. */
#ifndef EK_PARALLEL_SYNC_BATCH_NORM_H
#define EK_PARALLEL_SYNC_BATCH_NORM_H

#include "core/ranks.h"
#include "nn/batch_norm_module.h"

/* Gives `ranks`, one reference each, to the synchronised batch normalisations in `module` that were
 * made without a process group. NULL removes the ranks again. */
void ek_sync_batch_norm_inherit(ek_module *module, ek_ranks *ranks);

#endif
