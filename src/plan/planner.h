/* planner.h: what decides the plan of each forward of one data-parallel wrapper.
 *
 * For one thread at a time, as the wrapper. */
#ifndef EK_PLAN_PLANNER_H
#define EK_PLAN_PLANNER_H

#include "core/device.h"
#include "evenkeel/plan.h"

/* A user's wishes, as in ek_data_parallel_options; all zero is torch.chunk. At most one of chunks,
 * weights, first_device_batch and plan may be given, and with them no policy but the default; with
 * EK_SPLIT_AUTO a plan, whose last entry is what it goes on from. */
typedef struct ek_split_options {
    ek_split_policy policy;
    ek_plan_goal goal;
    int64_t chunks[EK_MAX_DEVICES];
    double weights[EK_MAX_DEVICES];
    int64_t first_device_batch;
    const char *plan; /* evenkeel/plan.h; copied */
} ek_split_options;

typedef struct ek_planner ek_planner;

/* `what` begins sentences and log lines (static). NULL with EK_E_INVALID for wishes that contradict
 * each other or the number of devices. */
ek_planner *ek_planner_new(const char *what, const ek_split_options *options, int devices);
void ek_planner_free(ek_planner *planner);

/* True if every plan is torch.chunk's: the wrapper may leave the cutting to scatter. */
bool ek_planner_is_chunk(const ek_planner *planner);

/* A forward of `batch` samples (1 or more) begins on devs (the same in every call): writes the size
 * of each device. With EK_SPLIT_AUTO this also ends the measurement of the forward before, its
 * backward and step included, and begins this one's. */
int ek_planner_begin(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* What ek_planner_begin would give now; counts and measures nothing. */
int ek_planner_peek(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* For a forward that no backward follows: the last plan in proportion, for which nothing is planned
 * anew and which isn't counted or measured. */
int ek_planner_hold(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes);

/* Other work of the wrapper on its devices, which measurements must not take for a forward's. */
void ek_planner_disturb(ek_planner *planner);

/* The plans so far as text (evenkeel/plan.h), the first that it was made with included; "" where
 * there is none that a text could say (torch.chunk's). Writes at most `room` bytes with the NUL and
 * returns the length it would have, as snprintf. */
size_t ek_planner_text(const ek_planner *planner, char *text, size_t room);

#endif
