/* schedule.h: what a schedule is made of, for checkpoints. */
#ifndef EK_OPTIM_SCHEDULE_H
#define EK_OPTIM_SCHEDULE_H

#include "evenkeel/optim.h"

ek_optimizer *ek_schedule_optimizer(const ek_schedule *schedule);

/* The rates that it began with, of the `*count` groups that it has seen. */
const double *ek_schedule_initial(const ek_schedule *schedule, int *count);

/* Makes it one of `count` groups with these, after `steps` steps. Rates of the optimizer stay. */
int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count);

#endif
