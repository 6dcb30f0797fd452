/* planner.h: decides the plan of each forward of one data-parallel wrapper.
 *
 * A planner is for one thread at a time, as its wrapper is. */
#ifndef EK_PLAN_PLANNER_H
#define EK_PLAN_PLANNER_H

#include "core/device.h"
#include "evenkeel/plan.h"

/* The plan options of ek_data_parallel_options. If all are zero and NULL, batches are cut as by
 * torch.chunk. At most one of chunks, weights, first_device_batch and plan may be given, and only
 * with the default policy. EK_SPLIT_AUTO also takes a plan, and continues from its last entry. */
typedef struct ek_split_options {
    ek_split_policy policy;
    ek_plan_goal goal;
    const int64_t *chunks; /* chunks and weights: EK_MAX_DEVICES numbers each; copied */
    const double *weights;
    const int64_t *first_device_batch;
    const char *plan; /* text of evenkeel/plan.h; copied */
} ek_split_options;

typedef struct ek_planner ek_planner;

/* Makes a planner. `what` begins error messages and log lines; it must be static. Returns NULL with
 * EK_E_INVALID if options are invalid, contradict each other, or do not fit the number of
 * devices. */
ek_planner *ek_planner_new(const char *what, const ek_split_options *options, int devices);
void ek_planner_free(ek_planner *planner);

/* Returns true if every plan is torch.chunk's, so that the wrapper may use plain scatter. */
bool ek_planner_is_chunk(const ek_planner *planner);

/* Begins a forward of `batch` > 0 samples on devs, which are the same in every call. Writes to
 * `sizes` how many samples each device gets. With EK_SPLIT_AUTO also ends the measurement of the
 * last forward, which includes its backward and step, and begins the measurement of this
 * forward. */
int ek_planner_begin(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* Writes the sizes that ek_planner_begin would write now. Counts and measures nothing. */
int ek_planner_peek(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* Writes the last plan's sizes in proportion to `batch`, for a forward without a backward. Makes no
 * new plan, and counts and measures nothing. With EK_SPLIT_AUTO, notes the forward as other work
 * (ek_planner_disturb). */
int ek_planner_hold(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* Notes that the wrapper does work on its devices which must not be measured as part of a
 * forward. */
void ek_planner_disturb(ek_planner *planner);

/* Writes all plans so far as text (evenkeel/plan.h), including a plan that the planner was given;
 * "" if there are no plans, as for torch.chunk. Writes at most `room` bytes with the NUL. Returns
 * the length of the whole text, as snprintf does. */
size_t ek_planner_text(const ek_planner *planner, char *text, size_t room);

#endif
