/* plan_log.h: the line that a new plan is worth. */
#ifndef EK_PLAN_PLAN_LOG_H
#define EK_PLAN_PLAN_LOG_H

#include "core/device.h"
#include "plan/proposal.h"

/* proposal NULL: made to measure. */
void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal);

#endif
