/* plan.h: plans which ranges of memory a step updates, in as few kernel calls as possible. */
#ifndef EK_OPTIM_PLAN_H
#define EK_OPTIM_PLAN_H

#include "core/lane.h"
#include "optim/algorithm.h"

/* A range of memory: parts [begin, end) of a plan, which are neighbours. Ranges of equal device,
 * dtype, group, phase (algorithm.h) and carried number share a call. */
typedef struct ek_step_range {
    int begin, end;
    ek_dev *dev;
    ek_dtype dtype;
    int group;
    int64_t phase, step;
    double carried, next; /* slot->carried before and after the call */
    bool done;
} ek_step_range;

/* The operands of a kernel: parameter, gradient and states. */
enum { EK_STEP_PARAMETER, EK_STEP_GRADIENT, EK_STEP_STATE };
enum { EK_STEP_OPERANDS = EK_STEP_STATE + EK_STATES };

/* What a step updates. All zero before ek_step_plan_make. */
typedef struct ek_step_plan {
    ek_optimizer *optimizer;
    ek_part **parts; /* the parts to step, in the order of the table */
    int part_count;
    ek_step_range *ranges; /* sorted by device, then by call */
    int range_count;
    ek_tensor **operands[EK_STEP_OPERANDS]; /* a tensor per range; borrowed */
    ek_dev_set devs;
} ek_step_plan;

/* Plans the step of the parameters that take part. Operands may be handles in the scope.
 * ek_step_plan_clear frees everything else, also after an error. */
int ek_step_plan_make(ek_step_plan *plan, ek_optimizer *optimizer);
void ek_step_plan_clear(ek_step_plan *plan);

/* Returns the index after the last range that one kernel call steps, if range `begin` is its
 * first. */
int ek_step_plan_call_end(const ek_step_plan *plan, int begin);

#endif
