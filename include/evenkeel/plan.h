/** @file
 * plan.h: plans: how many samples of a batch each device gets.
 *
 * A plan has one number of samples per device of a data-parallel wrapper, in the order of its
 * device_ids. A device with zero samples takes no part. Loss and gradients are those of one device
 * for any plan (evenkeel/balance.h), so that plans are chosen for memory and time alone. Runs with
 * equal plans are equal to the bit. */
#ifndef EVENKEEL_PLAN_H
#define EVENKEEL_PLAN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/device.h"

EK_BEGIN_DECLARATIONS

typedef enum ek_split_policy {
    EK_SPLIT_CHUNK = 0, /**< as torch.chunk: ceil(batch / devices) each, until none are left */
    EK_SPLIT_EVEN = 1,  /**< sizes that differ by at most one, larger ones first */
    /** By measurement. The first forwards are cut by capacity or speed, each a little differently,
     * to learn each device's fixed memory and time, and those per sample. From these a plan for
     * `goal` is made. Measuring continues; a new plan is made if it promises a sufficient gain, or
     * after a device ran out of memory. Each new plan is one log line: EK_LOG_INFO, or EK_LOG_DEBUG
     * for the first ones, which only measure. */
    EK_SPLIT_AUTO = 2
} ek_split_policy;

/** What EK_SPLIT_AUTO optimises. */
typedef enum ek_plan_goal {
    /** Devices are filled alike: the largest used share of a device's capacity, at its peak,
     * becomes as small as possible. A device without a capacity counts as if it had the largest of
     * all capacities; if no device has a capacity, the largest peak is minimised. Plans depend on
     * memory alone, so that they are the same in every run. */
    EK_GOAL_MEMORY = 0,
    /** Devices finish together, as far as their capacities allow. */
    EK_GOAL_TIME = 1
} ek_plan_goal;

/* ---- plans as text, for command lines, logs and checkpoints ----
 *
 *     "12,20,20"                 12 samples for the first device, 20 for each other
 *     "16,16,16; 4: 22,13,13"    at first 16 each; from the wrapper's fifth forward on 22, 13, 13
 *
 * An entry gives the sizes for batches of its sum. Other batches are cut in its proportions: sizes
 * are rounded down, and the largest remainders up, the first of equal remainders. White space is
 * allowed between numbers. */

/** Checks a plan. Returns 0, or EK_E_INVALID with the position and the expected text: entries must
 * be in ascending order of their forwards, with `devices` sizes each, not all zero. */
EK_API int ek_plan_check(const char *text, int devices);

EK_END_DECLARATIONS
#endif
