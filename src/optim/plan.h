/* plan.h: what a step updates, in as few kernel calls as the parameters' places in memory allow. */
#ifndef EK_OPTIM_PLAN_H
#define EK_OPTIM_PLAN_H

#include "core/lane.h"
#include "optim/algorithm.h"

/* Parts [begin, end) of a plan, which are neighbours in memory. The phase is the count of updates
 * if the formula depends on that count. */
typedef struct ek_step_range {
    int begin, end;
    ek_dev *dev;
    ek_dtype dtype;
    int group;
    int64_t phase, step;
    double carried, next; /* the number that its parameters carry, and will carry after the call */
    bool done;
} ek_step_range;

/* The operands of a kernel: parameter, gradient and states. */
enum { EK_STEP_PARAMETER, EK_STEP_GRADIENT, EK_STEP_STATE };
enum { EK_STEP_OPERANDS = EK_STEP_STATE + EK_STATES };

/* All zero before. */
typedef struct ek_step_plan {
    ek_optimizer *optimizer;
    ek_part **parts; /* the parts to step, in the order of the table */
    int part_count;
    ek_step_range *ranges; /* sorted by device, then by call */
    int range_count;
    ek_tensor **operands[EK_STEP_OPERANDS]; /* flat handles, by range */
    ek_dev_set devs;
} ek_step_plan;

/* Plans the step of the parameters that take part. Handles are in the scope. ek_step_plan_clear
 * frees the rest, also after an error. */
int ek_step_plan_make(ek_step_plan *plan, ek_optimizer *optimizer);
void ek_step_plan_clear(ek_step_plan *plan);

/* Where the call of the range at `begin` ends: one call steps these ranges. */
int ek_step_plan_call_end(const ek_step_plan *plan, int begin);

#endif
