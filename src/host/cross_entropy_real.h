/* cross_entropy_real.h: blocks of rows of EK_REAL, included by cross_entropy.c for f32 and f64. */

#include "host/soften_real.h"

/* The sum of soften for one long row, of which only a tile is softened at a time. */
EK_MULTIVERSION
static EK_REAL EK_NAME(soften_sum)(int64_t size, const EK_REAL *restrict row, EK_REAL most)
{
    EK_REAL e[EK_TILE];
    double lane[8] = {0}, total = 0;
    for (int64_t at = 0; at < size; at += EK_TILE) {
        int64_t n = size - at < EK_TILE ? size - at : EK_TILE, c = 0;
        for (int64_t i = 0; i < n; i++)
            e[i] = row[at + i] - most;
        for (int64_t i = 0; i < n; i++)
            e[i] = EK_NAME(ek_exp)(e[i]);
        for (; c + 8 <= n; c += 8)
            for (int j = 0; j < 8; j++)
                lane[j] += (double)e[c + j];
        if (at + n < size)
            continue;
        for (int j = 0; j < 8; j++)
            total += lane[j];
        for (; c < n; c++)
            total += (double)e[c];
    }
    return (EK_REAL)total;
}

/* As soften, if nobody asks for e. */
static void EK_NAME(soften_sums)(int64_t rows, int64_t size, const EK_REAL *x, EK_REAL *largest,
                                 EK_REAL *sum)
{
    if (rows * size <= EK_TILE) {
        EK_REAL e[EK_TILE];
        EK_NAME(soften)(rows, size, x, e, largest, sum);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        largest[r] = EK_NAME(largest_of)(size, x + r * size);
        sum[r] = EK_NAME(soften_sum)(size, x + r * size, largest[r]);
    }
}

/* sum = log(sum), lse = largest + sum: the loss takes both apart, for large logits. */
EK_MULTIVERSION
static void EK_NAME(log_sums)(int64_t rows, EK_REAL *restrict lse, const EK_REAL *restrict largest,
                              EK_REAL *restrict sum)
{
    for (int64_t r = 0; r < rows; r++) {
        sum[r] = EK_NAME(ek_log)(sum[r]);
        lse[r] = largest[r] + sum[r];
    }
}

static void EK_NAME(loss_block)(const entropy_job *job, int64_t rows, const EK_REAL *x,
                                const int64_t *target, EK_REAL *loss, EK_REAL *lse)
{
    EK_REAL largest[ROWS], sum[ROWS];
    int64_t size = job->axis.size;
    double smoothing = job->params->label_smoothing;
    EK_NAME(soften_sums)(rows, size, x, largest, sum);
    EK_NAME(log_sums)(rows, lse, largest, sum);
    for (int64_t r = 0; r < rows; r++) {
        const EK_REAL *row = x + r * size;
        int64_t t = target[r];
        if (!counts(job, t)) {
            loss[r] = 0;
            continue;
        }
        double own = weight_of(job, t) * (double)(largest[r] - row[t] + sum[r]);
        if (smoothing != 0) {
            double all = 0;
            for (int64_t c = 0; c < size; c++)
                all += weight_of(job, c) * (double)(largest[r] - row[c] + sum[r]);
            own = (1 - smoothing) * own + smoothing / (double)size * all;
        }
        loss[r] = (EK_REAL)own;
    }
}

/* d = exp(x - lse) */
EK_MULTIVERSION
static void EK_NAME(probabilities)(int64_t rows, int64_t size, EK_REAL *restrict d,
                                   const EK_REAL *restrict x, const EK_REAL *restrict lse)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < size; c++)
            d[r * size + c] = x[r * size + c] - lse[r];
    for (int64_t i = 0; i < rows * size; i++)
        d[i] = EK_NAME(ek_exp)(d[i]);
}

EK_MULTIVERSION
static void EK_NAME(scale_row)(int64_t size, EK_REAL *restrict d, EK_REAL scale)
{
    for (int64_t c = 0; c < size; c++)
        d[c] *= scale;
}

static void EK_NAME(entropy_gradient)(const entropy_job *job, int64_t rows, const EK_REAL *x,
                                      const int64_t *target, const EK_REAL *gradient,
                                      const EK_REAL *lse, EK_REAL *d)
{
    int64_t size = job->axis.size;
    double smoothing = job->params->label_smoothing, share = smoothing / (double)size;
    EK_NAME(probabilities)(rows, size, d, x, lse);
    for (int64_t r = 0; r < rows; r++) {
        EK_REAL *row = d + r * size;
        int64_t t = target[r];
        if (!counts(job, t)) {
            for (int64_t c = 0; c < size; c++)
                row[c] = 0;
            continue;
        }
        double g = (double)gradient[r], own = (1 - smoothing) * weight_of(job, t);
        EK_NAME(scale_row)(size, row, (EK_REAL)(g * (own + share * job->total_weight)));
        if (smoothing != 0)
            for (int64_t c = 0; c < size; c++)
                row[c] -= (EK_REAL)(g * share * weight_of(job, c));
        row[t] -= (EK_REAL)(g * own);
    }
}
