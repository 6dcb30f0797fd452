/* memory_model.c: a device's memory by its samples and the batch.
 *
 * Memory is exact, but not a plane: which part of a step holds most changes with the size, and what
 * was seen of small batches says little about large ones. So each question is answered by a plane
 * of its own, nbytes = fixed + per_sample n + per_batch batch, by least squares in which points of
 * other batches weigh less, and shifted to the nearest points. If points don't tell slopes apart
 * (one size only, or n in proportion to the batch), a weak wish decides: all growth is by the
 * device's own samples, and nothing is fixed. */
#include "plan/models.h"

#include <string.h>

typedef struct ek_memory_point point;

/* The wish weighs as much as points whose sizes differ by this part. */
static const double wish = 1.0 / 2048;

static double value_of(const point *p)
{
    return p->nbytes > p->before ? p->nbytes : p->before;
}

/* 1 for the batch itself, less for others. */
static double nearness(int64_t batch, int64_t other)
{
    double a = (double)batch, b = (double)other;
    return a < b ? a / b : b / a;
}

static double weight_of(const point *p, int64_t batch)
{
    double near = nearness(batch, p->batch);
    return near * near * near * near;
}

/* Weighted moments around the mean. */
typedef struct moments {
    double n, batch, nbytes;               /* means */
    double n_n, n_batch, batch_batch;      /* mean products of differences */
    double n_nbytes, batch_nbytes, lowest; /* lowest: least bytes per sample of any point */
} moments;

static moments moments_of(const ek_memory_model *model, int64_t batch)
{
    moments m = {0};
    double weights = 0;
    for (int i = 0; i < model->count; i++) {
        const point *p = &model->points[i];
        double weight = weight_of(p, batch), each = value_of(p) / (double)p->n;
        weights += weight;
        m.n += weight * (double)p->n;
        m.batch += weight * (double)p->batch;
        m.nbytes += weight * value_of(p);
        m.lowest = i == 0 || each < m.lowest ? each : m.lowest;
    }
    m.n /= weights;
    m.batch /= weights;
    m.nbytes /= weights;
    for (int i = 0; i < model->count; i++) {
        const point *p = &model->points[i];
        double weight = weight_of(p, batch) / weights;
        double n = (double)p->n - m.n, b = (double)p->batch - m.batch;
        double nbytes = value_of(p) - m.nbytes;
        m.n_n += weight * n * n;
        m.n_batch += weight * n * b;
        m.batch_batch += weight * b * b;
        m.n_nbytes += weight * n * nbytes;
        m.batch_nbytes += weight * b * nbytes;
    }
    return m;
}

/* Both slopes, neither negative, and no more per sample than leaves something of every point. */
static void fit(const moments *m, double *per_sample, double *per_batch)
{
    double own = wish * wish * m->n * m->n, all = wish * wish * m->batch * m->batch;
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
    const moments m = moments_of(model, batch);
    double per_batch, nearest = 0, fixed = 0;
    fit(&m, &line->per_sample, &per_batch);
    for (int i = 0; i < model->count; i++) {
        const point *p = &model->points[i];
        double near = nearness(batch, p->batch);
        double rest =
            value_of(p) - line->per_sample * (double)p->n + per_batch * (double)(batch - p->batch);
        if (near > nearest || (near == nearest && rest > fixed)) {
            nearest = near;
            fixed = rest;
        }
    }
    line->fixed = fixed > 0 ? fixed : 0;
    return true;
}

/* ---- points ---- */

/* What is fixed has changed since the other points: by as much as this one tells. */
static void shift(ek_memory_model *model, int64_t batch, int64_t n, double nbytes)
{
    ek_line line;
    model->stale = false;
    if (!ek_memory_model_line(model, batch, &line))
        return;
    double change = nbytes - line.fixed - line.per_sample * (double)n;
    for (int i = 0; i < model->count; i++) {
        point *p = &model->points[i];
        p->nbytes = value_of(p) + change > 0 ? value_of(p) + change : 0;
        p->before = 0;
    }
}

/* One size is one point, the last two maxima of which count; the newest stands last. */
void ek_memory_model_add(ek_memory_model *model, int64_t batch, int64_t n, double nbytes)
{
    if (model->stale)
        shift(model, batch, n, nbytes);
    point added = {batch, n, nbytes, 0};
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
