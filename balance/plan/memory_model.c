/* memory_model.c: a device's memory by its samples and the batch. */
#include "plan/models.h"

#include <string.h>

typedef struct ek_memory_point point;

/* Sizes that differ by less tell more about the noise than about the slope. */
static bool differ(int64_t a, int64_t b)
{
    int64_t larger = a > b ? a : b, smaller = a > b ? b : a;
    return larger != smaller && larger - smaller >= larger / 64;
}

/* The maxima of points that agree in batch and n. */
static int maxima(const ek_memory_model *model, point *result)
{
    int count = 0;
    for (int i = 0; i < model->count; i++) {
        const point *seen = &model->points[i];
        int at = 0;
        while (at < count && (result[at].batch != seen->batch || result[at].n != seen->n))
            at++;
        if (at == count)
            result[count++] = *seen;
        else if (seen->nbytes > result[at].nbytes)
            result[at].nbytes = seen->nbytes;
    }
    return count;
}

/* The means of those of the batch of points[of]; false where an earlier one is of that batch. */
static bool means(const point *points, int count, int of, double *n, double *nbytes, bool *tilted)
{
    double members = 0;
    *n = *nbytes = 0;
    *tilted = false;
    for (int i = 0; i < count; i++) {
        if (points[i].batch != points[of].batch)
            continue;
        if (i < of)
            return false;
        members++;
        *n += (double)points[i].n;
        *nbytes += points[i].nbytes;
        *tilted = *tilted || differ(points[i].n, points[of].n);
    }
    *n /= members;
    *nbytes /= members;
    return true;
}

/* By how much memory grows with n while the batch stays; 0 or less where that isn't known. */
static double slope_within(const point *points, int count)
{
    double above = 0, below = 0;
    for (int g = 0; g < count; g++) {
        double n, nbytes;
        bool tilted;
        if (!means(points, count, g, &n, &nbytes, &tilted) || !tilted)
            continue;
        for (int i = g; i < count; i++) {
            if (points[i].batch == points[g].batch) {
                above += ((double)points[i].n - n) * (points[i].nbytes - nbytes);
                below += ((double)points[i].n - n) * ((double)points[i].n - n);
            }
        }
    }
    return below > 0 ? above / below : 0;
}

/* By how much it grows from batch to batch beside `per_sample`, per sample of the batch, or of the
 * device's own where by_n. */
static double slope_between(const point *points, int count, double per_sample, bool by_n)
{
    double x[EK_MODEL_POINTS], y[EK_MODEL_POINTS], mean_x = 0, mean_y = 0, above = 0, below = 0;
    int groups = 0;
    bool differs = false;
    for (int g = 0; g < count; g++) {
        double n, nbytes;
        bool tilted;
        if (!means(points, count, g, &n, &nbytes, &tilted))
            continue;
        differs = differs || differ(points[g].batch, points[0].batch);
        x[groups] = by_n ? n : (double)points[g].batch;
        y[groups] = nbytes - per_sample * n;
        mean_x += x[groups];
        mean_y += y[groups++];
    }
    for (int g = 0; g < groups && differs; g++) {
        above += (x[g] - mean_x / groups) * (y[g] - mean_y / groups);
        below += (x[g] - mean_x / groups) * (x[g] - mean_x / groups);
    }
    return below > 0 && above > 0 ? above / below : 0;
}

static bool several_batches(const point *points, int count)
{
    for (int i = 1; i < count; i++)
        if (differ(points[i].batch, points[0].batch))
            return true;
    return false;
}

/* All of the memory per sample: as much as the slope can be. */
static double steepest(const point *points, int count)
{
    double steep = points[0].nbytes / (double)points[0].n;
    for (int i = 1; i < count; i++) {
        double slope = points[i].nbytes / (double)points[i].n;
        steep = slope < steep ? slope : steep;
    }
    return steep;
}

static void fit(ek_memory_model *model)
{
    point points[EK_MODEL_POINTS];
    int count = maxima(model, points);
    if (!count)
        return;
    double slope = slope_within(points, count), most = steepest(points, count);
    if (slope > 0) {
        model->per_sample = slope < most ? slope : most;
        model->tilted = true;
    }
    if (model->tilted) {
        if (several_batches(points, count))
            model->per_batch = slope_between(points, count, model->per_sample, false);
        return;
    }
    /* A device whose part of the batch never differed: all growth is by its own samples. */
    slope = slope_between(points, count, 0, true);
    model->per_sample = slope > 0 && slope < most ? slope : most;
}

void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes)
{
    if (model->stale)
        model->count = model->next = 0;
    model->stale = false;
    model->points[model->next] = (point){batch, n, nbytes};
    model->next = (model->next + 1) % EK_MODEL_POINTS;
    model->count += model->count < EK_MODEL_POINTS;
    fit(model);
}

void ek_memory_model_outdate(ek_memory_model *model)
{
    model->stale = true;
}

bool ek_memory_model_line(const ek_memory_model *model, int64_t batch, ek_line *line)
{
    double nearest = 0, fixed = 0, at = (double)batch;
    for (int i = 0; i < model->count; i++) {
        const point *seen = &model->points[i];
        double own = (double)seen->batch, near = own < at ? own / at : at / own;
        double rest =
            seen->nbytes - model->per_sample * (double)seen->n + model->per_batch * (at - own);
        if (near > nearest || (near == nearest && rest > fixed)) {
            nearest = near;
            fixed = rest;
        }
    }
    *line = (ek_line){fixed > 0 ? fixed : 0, model->per_sample};
    return model->count > 0;
}
