/* sync_batch_norm.h: synchronised batch normalisation, for wrappers that know other ranks. */
#ifndef EK_PARALLEL_SYNC_BATCH_NORM_H
#define EK_PARALLEL_SYNC_BATCH_NORM_H

#include "core/ranks.h"
#include "nn/batch_norm_module.h"

/* Gives these ranks to the synchronised batch normalisations in `module` that have none of their
 * own, with a reference each; NULL takes them away again. */
void ek_sync_batch_norm_inherit(ek_module *module, ek_ranks *ranks);

#endif
