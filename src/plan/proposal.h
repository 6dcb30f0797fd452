/* proposal.h: the plan that models call for, and its log line. */
#ifndef EK_PLAN_PROPOSAL_H
#define EK_PLAN_PROPOSAL_H

#include "core/device.h"
#include "evenkeel/plan.h"
#include "plan/models.h"
#include "plan/split.h"

/* What is known of a device. */
typedef struct ek_plan_device {
    ek_memory_model memory; /* without state */
    ek_time_model time;
    double state;    /* bytes of parameters and optimizer state now */
    double capacity; /* 0: none */
    double speed;    /* as configured; used if no time was measured */
    /* Of a batch of this size or a larger one the device takes `most` samples at most. */
    struct ek_plan_bound {
        int64_t batch, most;
    } bounds[4]; /* it ran out of memory with one sample more */
    int bounded; /* how many of `bounds` there are */
    /* What was tried after the last failure. It holds for good for this very batch, because each
     * failure costs a step, and for larger ones until a forward succeeds. */
    struct ek_plan_bound retry;
    int failures; /* since the last forward that succeeded */
} ek_plan_device;

/* The lines `memory` and `time` are per device and for one batch. */
typedef struct ek_proposal {
    int64_t sizes[EK_MAX_DEVICES];
    int64_t most[EK_MAX_DEVICES];    /* by capacity and what failed */
    ek_cost memory[EK_MAX_DEVICES];  /* bytes, state included */
    ek_cost time[EK_MAX_DEVICES];    /* ns */
    double capacity[EK_MAX_DEVICES]; /* what memory is compared with */
    ek_plan_goal goal;               /* what was levelled: memory if no plan is within its limits */
} ek_proposal;

/* False if nothing was measured that a plan could be made from. */
bool ek_propose(const ek_plan_device *known, int devices, ek_plan_goal goal, int64_t batch,
                ek_proposal *proposal);

/* The largest cost of any plan, in the proposal's terms; devices without samples cost nothing. */
double ek_proposal_cost(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* No device is given more than `most`. */
bool ek_proposal_allows(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* What a device takes at most of a batch by what failed; INT64_MAX if nothing did. */
int64_t ek_plan_bound_of(const ek_plan_device *known, int64_t batch);
/* n samples of a batch were too many. */
void ek_plan_bound_add(ek_plan_device *known, int64_t batch, int64_t n);

/* Logs the plan of a forward. proposal: what it is levelled by; NULL if it was made to measure. */
void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal);

#endif
