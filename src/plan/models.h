/* models.h: what a device's memory and time are as functions of its samples, from what it showed.
 *
 * Both keep the last points only, so that they follow changes. */
#ifndef EK_PLAN_MODELS_H
#define EK_PLAN_MODELS_H

#include <stdbool.h>
#include <stdint.h>

/* What a device needs for n > 0 samples: fixed + per_sample * n. */
typedef struct ek_line {
    double fixed, per_sample;
} ek_line;

enum { EK_MODEL_POINTS = 15 };

/* ---- memory: exact, so that maxima count ---- */

typedef struct ek_memory_model {
    struct ek_memory_point {
        int64_t batch, n;
        double nbytes;         /* what it needed last */
        double before;         /* what it needed the time before that */
    } points[EK_MODEL_POINTS]; /* of different sizes, the newest last */
    int count;
    bool stale; /* what is fixed has changed since the points were added */
} ek_memory_model;

/* n > 0 samples of a batch needed nbytes. */
void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes);
/* What is fixed has changed: the next point says by how much. */
void ek_memory_model_outdate(ek_memory_model *model);
/* The line for batches of this size; false if there are no points. */
bool ek_memory_model_line(const ek_memory_model *model, int64_t batch, ek_line *line);

/* ---- time: noisy, so that medians count ---- */

typedef struct ek_time_model {
    struct ek_time_point {
        int64_t n;
        double ns;
    } points[EK_MODEL_POINTS];
    int count, next;
    ek_line shape; /* a line through points of sizes apart; the last points scale it */
    bool shaped;   /* `shape` comes from such points */
} ek_time_model;

void ek_time_model_add(ek_time_model *model, int64_t n, double ns);
bool ek_time_model_line(const ek_time_model *model, ek_line *line);

#endif
