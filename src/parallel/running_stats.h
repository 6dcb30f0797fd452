/* running_stats.h: what the replicas' forwards left in their buffers, averaged. */
#ifndef EK_PARALLEL_RUNNING_STATS_H
#define EK_PARALLEL_RUNNING_STATS_H

#include "parallel/replica_set.h"

/* After a forward of a set that broadcasts buffers, once they are settled: every floating buffer
 * that a replica wrote becomes, in the module itself, the average over the replicas, weighted by
 * their samples; without any sample it stays. Buffers that require a gradient are left out. */
int ek_running_stats_average(const ek_replica_set *set, const ek_places *places,
                             const int64_t *samples);

#endif
