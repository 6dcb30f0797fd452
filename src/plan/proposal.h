/* proposal.h: the plan that models call for. */
#ifndef EK_PLAN_PROPOSAL_H
#define EK_PLAN_PROPOSAL_H

#include "evenkeel/plan.h"
#include "plan/models.h"
#include "plan/split.h"

/* What is known of a device. */
typedef struct ek_plan_device {
    ek_memory_model memory; /* without state */
    ek_time_model time;
    double state;    /* bytes of parameters and optimizer state now */
    double capacity; /* 0: none */
    double speed;    /* as configured, if no time was measured */
    /* It ran out of memory: what it takes at most of a batch of this size or a larger one, less
     * than failed. And what was tried then, fewer by more each time: of this batch it gets no more
     * for good, since a failure costs its user a step; of larger ones until it does a forward
     * again. */
    struct ek_plan_bound {
        int64_t batch, most;
    } bounds[4], retry;
    int bounded;
    int failures; /* since it last did a forward without */
} ek_plan_device;

/* Both lines are per device and for one batch. */
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

#endif
