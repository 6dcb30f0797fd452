/* models.h: models of a device's memory and time (Note [Memory is piecewise linear], models.c).
 *
 * Both keep only the last points, so that they follow changes. */
#ifndef EK_PLAN_MODELS_H
#define EK_PLAN_MODELS_H

#include <stdbool.h>
#include <stdint.h>

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
    } points[EK_MODEL_POINTS]; /* no two for the same batch and n; the newest is last */
    int count;
    bool stale; /* fixed memory has changed since the points were added */
} ek_memory_model;

/* Adds a measurement: n > 0 samples, of a batch of this size, needed nbytes. */
void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes);
/* Says that fixed memory has changed; the next measurement shows by how much. */
void ek_memory_model_outdate(ek_memory_model *model);
/* Writes the line for batches of this size. False if there are no points. */
bool ek_memory_model_line(const ek_memory_model *model, int64_t batch, ek_line *line);

/* ---- time: noisy, so medians count ---- */

typedef struct ek_time_model {
    struct ek_time_point {
        int64_t n;
        double ns;
    } points[EK_MODEL_POINTS];
    int count, next;
    ek_line shape; /* a line through points of clearly different sizes; the last points scale it */
    bool shaped;   /* `shape` was fitted to points */
} ek_time_model;

void ek_time_model_add(ek_time_model *model, int64_t n, double ns);
bool ek_time_model_line(const ek_time_model *model, ek_line *line);

#endif
