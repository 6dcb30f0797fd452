/* auto.h: EK_SPLIT_AUTO, which makes plans from the memory and time of earlier forwards. models.c
 * learns what a device needs, proposal.c proposes a plan, and auto.c decides when to take the
 * proposal. */
#ifndef EK_PLAN_AUTO_H
#define EK_PLAN_AUTO_H

#include <stdbool.h>

#include "core/device.h"
#include "plan/plan_text.h"
#include "plan/split.h"

/* ---- models.c: a device's memory and time (Note [Memory is piecewise linear]) ----
 *
 * Both models keep only the latest points, so that they follow changes. */

/* The cost of n > 0 samples on a device: fixed + per_sample * n. */
typedef struct ek_line {
    double fixed, per_sample;
} ek_line;

enum { EK_MODEL_POINTS = 15 };

/* ---- memory: exact, so the maximum of the last values counts ---- */

typedef struct ek_memory_model {
    struct ek_memory_point {
        int64_t batch, n;
        double nbytes;         /* the last measurement */
        double before;         /* the measurement before it */
    } points[EK_MODEL_POINTS]; /* no two with equal batch and n; the newest is last */
    int count;
    bool stale; /* fixed memory has changed since the points were added */
} ek_memory_model;

/* Adds a measurement: n > 0 samples, of a batch of this size, needed nbytes. */
void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes);
/* Notes that fixed memory has changed; the next measurement shows by how much. */
void ek_memory_model_outdate(ek_memory_model *model);
/* Writes the line for batches of this size. Returns false if there are no points. */
bool ek_memory_model_line(const ek_memory_model *model, int64_t batch, ek_line *line);

/* ---- time: noisy, so medians count ---- */

typedef struct ek_time_model {
    struct ek_time_point {
        int64_t n;
        double ns;
    } points[EK_MODEL_POINTS];
    int count, next;
    ek_line shape; /* a line through points of clearly different sizes; ek_time_model_line scales it
                      to the latest points */
    bool shaped;   /* `shape` was fitted to points */
} ek_time_model;

void ek_time_model_add(ek_time_model *model, int64_t n, double ns);
bool ek_time_model_line(const ek_time_model *model, ek_line *line);

/* ---- proposal.c: a plan from the models of all devices, and its log line ---- */

/* What is known of a device. */
typedef struct ek_plan_device {
    ek_memory_model memory; /* bytes without parameters and optimizer state */
    ek_time_model time;
    double state;    /* bytes of parameters and optimizer state now */
    double capacity; /* bytes that the device may use; 0: no limit is known */
    double speed;    /* the device's relative speed (ek_dev), for guesses while times are unknown */
    /* The most samples that the device takes of a batch of size `batch` or larger. */
    struct ek_plan_bound {
        int64_t batch, most;
    } bounds[4]; /* most + 1 samples ran out of memory */
    int bounded; /* how many of `bounds` are in use */
    /* The bound after the last failure. For batches of this size the bound holds for good, because
     * each failure costs a step. For larger batches it holds until a forward succeeds. */
    struct ek_plan_bound retry;
    int failures; /* failures since the last forward that succeeded */
} ek_plan_device;

/* A plan, and the costs of each device for this batch size. */
typedef struct ek_proposal {
    int64_t sizes[EK_MAX_DEVICES];
    int64_t most[EK_MAX_DEVICES];    /* limits by capacity and by failures */
    ek_cost memory[EK_MAX_DEVICES];  /* bytes, with parameters and optimizer state */
    ek_cost time[EK_MAX_DEVICES];    /* nanoseconds */
    double capacity[EK_MAX_DEVICES]; /* the capacity with which memory is compared */
    ek_plan_goal goal; /* what the plan levels; memory if no plan stays within `most` */
} ek_proposal;

/* Proposes a plan. Returns false if no measurement is known from which a plan could be made. */
bool ek_propose(const ek_plan_device *known, int devices, ek_plan_goal goal, int64_t batch,
                ek_proposal *proposal);

/* Returns the largest cost of any device under the plan `sizes`. Devices without samples cost
 * nothing. */
double ek_proposal_cost(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* Returns true if `sizes` gives no device more samples than its `most`. */
bool ek_proposal_allows(const ek_proposal *proposal, int devices, const int64_t *sizes);

/* Returns how many samples of a batch the device's bounds allow at most; INT64_MAX if it has no
 * bound. */
int64_t ek_plan_bound_of(const ek_plan_device *known, int64_t batch);
/* Notes that the device ran out of memory with n samples of a batch. */
void ek_plan_bound_add(ek_plan_device *known, int64_t batch, int64_t n);

/* Logs a forward's plan. `proposal` is the proposal that the plan follows; NULL if the plan is made
 * to measure. */
void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal);

/* ---- auto.c: the plan of each forward ---- */

typedef struct ek_auto ek_auto;

/* Makes a planner that writes each new plan to *plans, which is borrowed. If *plans has an entry,
 * the planner continues from that plan. */
ek_auto *ek_auto_new(const char *what, ek_plan_goal goal, ek_plans *plans);
void ek_auto_free(ek_auto *automatic);

/* Does what ek_planner_begin does, for the forward with this number. */
int ek_auto_begin(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                  int64_t *sizes);
/* Does what ek_planner_peek does, for the forward with this number. */
int ek_auto_peek(const ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                 int64_t *sizes);
/* Does what ek_planner_disturb does. */
void ek_auto_disturb(ek_auto *automatic);
/* Does what ek_planner_hold does. */
int ek_auto_hold(ek_auto *automatic, ek_dev *const *devs, int64_t batch, int64_t *sizes);

#endif
