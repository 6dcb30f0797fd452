/* replication_callback.h: what the modules of one forward are told about their replication. */
#ifndef EK_PARALLEL_REPLICATION_CALLBACK_H
#define EK_PARALLEL_REPLICATION_CALLBACK_H

#include "core/device.h"
#include "evenkeel/module.h"

/* One for each module of the original whose type has `replicated`, in order of registration. All
 * zero is none. */
typedef struct ek_replications {
    ek_replication *items;
    int count;
} ek_replications;

/* Calls `replicated` of all modules of replicas[0], then of replicas[1], ... End it with
 * ek_replications_end, also if it fails, once the replicas' forwards have ended. */
int ek_replications_call(ek_replications *replications, ek_module *original,
                         ek_module *const *replicas, ek_dev *const *devs, int count);
void ek_replications_end(ek_replications *replications);

#endif
