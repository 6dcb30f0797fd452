/* proposal.h: proposes a plan from the models of all devices, and writes its log line. */
#ifndef EK_PLAN_PROPOSAL_H
#define EK_PLAN_PROPOSAL_H

#include "core/device.h"
#include "evenkeel/plan.h"
#include "plan/models.h"
#include "plan/split.h"

/* What is known of a device. */
typedef struct ek_plan_device {
    ek_memory_model memory; /* bytes without parameters and optimizer state */
    ek_time_model time;
    double state;    /* bytes of parameters and optimizer state now */
    double capacity; /* bytes that the device may use; 0: no limit is known */
    double speed;    /* relative, from the options; used until time is measured */
    /* The most samples that the device takes of a batch of this size or a larger one. */
    struct ek_plan_bound {
        int64_t batch, most;
    } bounds[4]; /* most + 1 samples ran out of memory */
    int bounded; /* how many of `bounds` are in use */
    /* The bound after the last failure. It holds for good for its own batch size, because each
     * failure costs a step. For larger batches it holds until a forward succeeds. */
    struct ek_plan_bound retry;
    int failures; /* failures since the last forward that succeeded */
} ek_plan_device;

/* A plan, and the costs of each device for this batch size. */
typedef struct ek_proposal {
    int64_t sizes[EK_MAX_DEVICES];
    int64_t most[EK_MAX_DEVICES];    /* limits by capacity and by failures */
    ek_cost memory[EK_MAX_DEVICES];  /* bytes, with parameters and optimizer state */
    ek_cost time[EK_MAX_DEVICES];    /* nanoseconds */
    double capacity[EK_MAX_DEVICES]; /* the capacity that memory is compared with */
    ek_plan_goal goal;               /* what was levelled; memory if no plan stays within `most` */
} ek_proposal;

/* Proposes a plan. False if nothing was measured that a plan could be made from. */
bool ek_propose(const ek_plan_device *known, int devices, ek_plan_goal goal, int64_t batch,
                ek_proposal *proposal);

/* Returns the largest cost of any device in this plan. Devices without samples cost nothing. */
double ek_proposal_cost(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* True if no device has more samples than its `most`. */
bool ek_proposal_allows(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* Returns the most samples that a device takes of a batch by its bounds; INT64_MAX: no bound. */
int64_t ek_plan_bound_of(const ek_plan_device *known, int64_t batch);
/* Notes that n samples of a batch ran out of memory. */
void ek_plan_bound_add(ek_plan_device *known, int64_t batch, int64_t n);

/* Logs a forward's plan. `proposal` is what the plan comes from; NULL if it is a probe. */
void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal);

#endif
