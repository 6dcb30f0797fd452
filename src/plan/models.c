/* models.c: models of a device's memory and time as functions of its samples.
 *
 * Note [Memory is piecewise linear]
 *
 * Measured memory is exact, but isn't a single plane over n (the device's samples) and the batch,
 * because the sizes decide which part of a step has the peak. So each batch size for which a line
 * is wanted gets a separate plane, nbytes = fixed + per_sample * n + per_batch * batch. The plane
 * is fitted by least squares, in which points of other batches weigh less, and shifted to the
 * nearest points. If all points have one size, or n is always in proportion to the batch, the
 * points don't determine both slopes. A weak prior then decides that all growth is per sample, and
 * that nothing is fixed.
 *
 * Measured time is noisy, so the model of time is a line through the medians at each size. */

#include "plan/auto.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

typedef struct ek_memory_point memory_point;

/* The prior weighs as much as points whose sizes differ by this fraction. */
static const double prior = 1.0 / 2048;

static double memory_value(const memory_point *p)
{
    return p->nbytes > p->before ? p->nbytes : p->before;
}

/* Returns how near two batch sizes are: the smaller divided by the larger. */
static double memory_nearness(int64_t batch, int64_t other)
{
    double a = (double)batch, b = (double)other;
    return a < b ? a / b : b / a;
}

static double memory_weight(const memory_point *p, int64_t batch)
{
    double near = memory_nearness(batch, p->batch);
    return near * near * near * near;
}

/* Weighted means and second moments of all points. */
typedef struct memory_moments {
    double n, batch, nbytes;               /* means */
    double n_n, n_batch, batch_batch;      /* mean products of two deviations */
    double n_nbytes, batch_nbytes, lowest; /* lowest: the least bytes per sample of any point */
} memory_moments;

static memory_moments memory_moments_of(const ek_memory_model *model, int64_t batch)
{
    memory_moments m = {0};
    double weights = 0;
    for (int i = 0; i < model->count; i++) {
        const memory_point *p = &model->points[i];
        double weight = memory_weight(p, batch), each = memory_value(p) / (double)p->n;
        weights += weight;
        m.n += weight * (double)p->n;
        m.batch += weight * (double)p->batch;
        m.nbytes += weight * memory_value(p);
        m.lowest = i == 0 || each < m.lowest ? each : m.lowest;
    }
    m.n /= weights;
    m.batch /= weights;
    m.nbytes /= weights;
    for (int i = 0; i < model->count; i++) {
        const memory_point *p = &model->points[i];
        double weight = memory_weight(p, batch) / weights;
        double n = (double)p->n - m.n, b = (double)p->batch - m.batch;
        double nbytes = memory_value(p) - m.nbytes;
        m.n_n += weight * n * n;
        m.n_batch += weight * n * b;
        m.batch_batch += weight * b * b;
        m.n_nbytes += weight * n * nbytes;
        m.batch_nbytes += weight * b * nbytes;
    }
    return m;
}

/* Fits both slopes, neither of them negative. per_sample is at most m->lowest, so that fixed memory
 * is not negative. */
static void memory_fit(const memory_moments *m, double *per_sample, double *per_batch)
{
    double own = prior * prior * m->n * m->n, all = prior * prior * m->batch * m->batch;
    double n_n = m->n_n + own, batch_batch = m->batch_batch + all;
    double n_nbytes = m->n_nbytes + own * m->nbytes / m->n, batch_nbytes = m->batch_nbytes;
    double determinant = n_n * batch_batch - m->n_batch * m->n_batch;
    *per_sample = (n_nbytes * batch_batch - batch_nbytes * m->n_batch) / determinant;
    *per_batch = (batch_nbytes * n_n - n_nbytes * m->n_batch) / determinant;
    if (!(*per_batch > 0)) {
        *per_batch = 0;
        *per_sample = n_nbytes / n_n;
    }
    if (!(*per_sample > 0)) {
        *per_sample = 0;
        *per_batch = batch_nbytes > 0 ? batch_nbytes / batch_batch : 0;
    }
    if (*per_sample > m->lowest)
        *per_sample = m->lowest;
}

bool ek_memory_model_line(const ek_memory_model *model, int64_t batch, ek_line *line)
{
    *line = (ek_line){0, 0};
    if (!model->count)
        return false;
    const memory_moments m = memory_moments_of(model, batch);
    double per_batch, nearest = 0, fixed = 0;
    memory_fit(&m, &line->per_sample, &per_batch);
    for (int i = 0; i < model->count; i++) {
        const memory_point *p = &model->points[i];
        double near = memory_nearness(batch, p->batch);
        double rest = memory_value(p) - line->per_sample * (double)p->n +
                      per_batch * (double)(batch - p->batch);
        if (near > nearest || (near == nearest && rest > fixed)) {
            nearest = near;
            fixed = rest;
        }
    }
    line->fixed = fixed > 0 ? fixed : 0;
    return true;
}

/* ---- points ---- */

/* Shifts all points by the difference between the new point and the model's line. */
static void memory_shift(ek_memory_model *model, int64_t batch, int64_t n, double nbytes)
{
    ek_line line;
    model->stale = false;
    if (!ek_memory_model_line(model, batch, &line))
        return;
    double change = nbytes - line.fixed - line.per_sample * (double)n;
    for (int i = 0; i < model->count; i++) {
        memory_point *p = &model->points[i];
        p->nbytes = memory_value(p) + change > 0 ? memory_value(p) + change : 0;
        p->before = 0;
    }
}

/* Each pair of batch and n has one point, which keeps the last two values of the pair; the larger
 * value counts. */
void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes)
{
    if (model->stale)
        memory_shift(model, batch, n, nbytes);
    memory_point added = {batch, n, nbytes, 0};
    int at = 0;
    while (at < model->count && (model->points[at].batch != batch || model->points[at].n != n))
        at++;
    if (at < model->count)
        added.before = model->points[at].nbytes;
    else if (model->count < EK_MODEL_POINTS)
        at = model->count++;
    else
        at = 0;
    memmove(&model->points[at], &model->points[at + 1],
            (size_t)(model->count - 1 - at) * sizeof added);
    model->points[model->count - 1] = added;
}

void ek_memory_model_outdate(ek_memory_model *model)
{
    model->stale = true;
}

/* ---- time ---- */

typedef struct ek_time_point time_point;

static int time_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double time_median(double *numbers, int count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, time_compare);
    return count % 2 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2;
}

/* Writes the median of the times at the size of points[of], and returns how many points have this
 * size. If an earlier point has this size, returns 0. */
static int time_at_size(const ek_time_model *model, int of, double *ns)
{
    double same[EK_MODEL_POINTS];
    int count = 0;
    for (int i = 0; i < model->count; i++) {
        if (model->points[i].n != model->points[of].n)
            continue;
        if (i < of)
            return 0;
        same[count++] = model->points[i].ns;
    }
    *ns = time_median(same, count);
    return count;
}

/* Returns true if the largest n is at least 5/4 of the smallest. With closer sizes, noise hides the
 * slope. */
static bool time_differs(const ek_time_model *model)
{
    int64_t least = model->points[0].n, most = least;
    for (int i = 1; i < model->count; i++) {
        int64_t n = model->points[i].n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    return most - least > 0 && most - least >= least / 4;
}

/* Returns the median time per sample, which is the slope of a line through the origin. */
static double time_proportion(const ek_time_model *model)
{
    double each[EK_MODEL_POINTS];
    for (int i = 0; i < model->count; i++)
        each[i] = model->points[i].ns / (double)model->points[i].n;
    return time_median(each, model->count);
}

static void time_fit(ek_time_model *model)
{
    double weight = 0, n = 0, ns = 0, above = 0, below = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < model->count; i++) {
            double size = (double)model->points[i].n, at;
            int count = time_at_size(model, i, &at);
            if (!count)
                continue;
            if (pass == 0) {
                weight += count;
                n += count * size;
                ns += count * at;
            } else {
                above += count * (size - n / weight) * (at - ns / weight);
                below += count * (size - n / weight) * (size - n / weight);
            }
        }
    }
    double slope = below > 0 ? above / below : 0, fixed = (ns - slope * n) / weight;
    if (!(slope > 0 && fixed > 0))
        model->shape = (ek_line){0, time_proportion(model)};
    else
        model->shape = (ek_line){fixed, slope};
}

void ek_time_model_add(ek_time_model *model, int64_t n, double ns)
{
    model->points[model->next] = (time_point){n, ns};
    model->next = (model->next + 1) % EK_MODEL_POINTS;
    model->count += model->count < EK_MODEL_POINTS;
    if (time_differs(model)) {
        time_fit(model);
        model->shaped = true;
    } else if (!model->shaped) {
        model->shape = (ek_line){0, time_proportion(model)};
    }
}

bool ek_time_model_line(const ek_time_model *model, ek_line *line)
{
    double factors[EK_MODEL_POINTS];
    *line = (ek_line){0, 0};
    if (!model->count)
        return false;
    for (int i = 0; i < model->count; i++) {
        double expected = model->shape.fixed + model->shape.per_sample * (double)model->points[i].n;
        factors[i] = expected > 0 ? model->points[i].ns / expected : 1;
    }
    double factor = time_median(factors, model->count);
    *line = (ek_line){model->shape.fixed * factor, model->shape.per_sample * factor};
    return true;
}
