/* plan.h: how many samples of a batch each device gets.
 *
 * A plan is one number of samples per device of a data-parallel wrapper, in the order of its
 * device_ids; zero is a number too: that device takes no part. Loss and gradients are one device's
 * for any plan (evenkeel/balance.h), so that a plan is chosen for memory and time alone. Runs with
 * equal plans are equal to the bit. */
#ifndef EVENKEEL_PLAN_H
#define EVENKEEL_PLAN_H

#include "evenkeel/device.h"

EK_BEGIN_DECLARATIONS

typedef enum ek_split_policy {
    EK_SPLIT_CHUNK = 0, /* torch.chunk's: ceil(batch / devices) each, until none are left */
    EK_SPLIT_EVEN = 1,  /* sizes that differ by one at most, larger ones first */
    /* Measured: the first forwards are cut by capacity, or speed, and each a little otherwise; from
     * what they show (memory and time of each device, fixed and per sample) follows a plan for
     * `goal`. It is measured on and made anew if that promises a gain that is worth it, and
     * after a device ran out of memory. Each new plan is one log line (EK_LOG_INFO; EK_LOG_DEBUG
     * the first ones, which are there to measure). */
    EK_SPLIT_AUTO = 2
} ek_split_policy;

/* What EK_SPLIT_AUTO is after. */
typedef enum ek_plan_goal {
    /* Devices are filled alike: the largest share of a device's capacity that is used at its peak
     * is as small as it can be (without capacities: the largest peak; a device without one among
     * others counts as the largest of them). These plans depend on memory alone, so that they are
     * the same in every run. */
    EK_GOAL_MEMORY = 0,
    /* Devices finish together, as far as their capacities allow. */
    EK_GOAL_TIME = 1
} ek_plan_goal;

/* ---- plans as text, for command lines, logs and checkpoints ----
 *
 *     "12,20,20"                 12 samples for the first device, 20 for each other
 *     "16,16,16; 4: 22,13,13"    from the wrapper's forward number 4 on (the first is 0) the second
 *
 * An entry is made for batches of its sum; others are cut in its proportions (the largest
 * remainders are rounded up, of equal ones the first). White space is allowed between numbers. */

/* 0, or EK_E_INVALID with the position and what would be right: entries not in ascending order of
 * their forwards, another number of sizes than `devices`, an entry of zeros only. */
EK_API int ek_plan_check(const char *text, int devices);

EK_END_DECLARATIONS
#endif
