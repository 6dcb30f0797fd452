/* route.h: what the routes of buckets have in common. */
#ifndef EK_TRAIN_ROUTE_H
#define EK_TRAIN_ROUTE_H

#include "train/reducer.h"

/* Slabs in a window, and units of which pieces lie in a window (route_window.c). The other routes
 * are in bucket.c. */
extern const ek_route ek_route_window, ek_route_shared_unit;

/* Tells whether the bucket's elements travel as bf16. */
bool ek_bucket_is_narrow(const ek_reducer *reducer, const ek_bucket *bucket);
/* Returns where the elements travel from. A unit without a gradient on this rank travels as
 * zeros. */
char *ek_bucket_address(const ek_reducer_lane *lane);
/* Begins the sum of the lane's bucket. */
void ek_bucket_begin_sum(const ek_reducer *reducer, ek_reducer_lane *lane, ek_sum_way way);

/* Copies a unit's gradients to memory of the host, and drops them. */
int ek_unit_fetch(ek_reducer *reducer, ek_bucket *bucket);
/* Gives the shards this rank's slice of the mean, and releases the unit's memory. */
void ek_unit_deliver(ek_reducer *reducer, const ek_reducer_lane *lane);

#endif
