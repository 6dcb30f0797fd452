/* norm_runs.c: the loops of normalisation over runs, which have parameters per element. A run is a
 * group of a sample in one piece of memory. With one group (layer norm) the dimensions of a sample
 * may have any order. Weight and bias are copied to the order of a sample, which is cheap, because
 * they are as long as one sample. */
#ifndef EK_REAL
#include "host/host.h"
#include "host/norm.h"

enum { GRAIN = 16384 };

#define EK_FOR_REALS "host/norm_runs.c"
#include "kernels/for_reals.h"

/* ---- parameters per element, in the order that a sample of x has in memory ---- */

/* Makes `view` show `data` in the order of a sample of x in memory, with a sample's first `ndim`
 * dimensions. */
static void runs_sample_view(ek_tensor *view, ek_storage *storage, const ek_norm_pass *pass,
                             int ndim, const void *data, ek_dtype dtype)
{
    const ek_tensor *x = pass->stage[EK_NORM_X].tensor;
    *storage = (ek_storage){.dev = pass->dev, .data = (void *)data};
    *view = (ek_tensor){.dtype = dtype, .ndim = ndim, .storage = storage};
    for (int d = 1; d <= ndim; d++) {
        view->shape[d - 1] = x->shape[d];
        view->stride[d - 1] = x->stride[d];
    }
}

int ek_norm_load_elements(const ek_norm_pass *pass)
{
    const ek_tensor *const from[] = {pass->args->weight, pass->args->bias};
    const void *const into[] = {pass->weight, pass->bias};
    ek_tensor view;
    ek_storage storage;
    for (int i = 0; i < 2; i++) {
        if (!from[i])
            continue;
        runs_sample_view(&view, &storage, pass, from[i]->ndim, into[i],
                         pass->is_f64 ? EK_F64 : EK_F32);
        EK_TRY(ek_host_copy(pass->dev, &view, from[i]));
    }
    return 0;
}

/* Adds the sums of all blocks to the first block. */
static void runs_join_elements(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    const int64_t sample = plan->channels * plan->inner;
    for (int64_t block = 1; block < plan->sample_blocks; block++)
        for (int64_t i = begin; i < end; i++) {
            pass->dweight[i] += pass->dweight[block * sample + i];
            pass->dbias[i] += pass->dbias[block * sample + i];
        }
}

int ek_norm_store_elements(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->plan;
    ek_tensor *const into[] = {pass->sums->dweight, pass->sums->dbias};
    const double *const from[] = {pass->dweight, pass->dbias};
    ek_tensor view;
    ek_storage storage;
    ek_parallel_for(pass->dev, plan->channels * plan->inner, 1 + GRAIN / plan->sample_blocks,
                    runs_join_elements, pass);
    for (int i = 0; i < 2; i++) {
        runs_sample_view(&view, &storage, pass, into[i]->ndim, from[i], EK_F64);
        EK_TRY(ek_host_copy(pass->dev, into[i], &view));
    }
    return 0;
}

#else /* for each EK_REAL */

/* ---- sums over runs and by element ---- */

/* Returns value * weight[i]; a weight of NULL counts as 1. */
static inline EK_REAL EK_NAME(runs_times)(EK_REAL value, const EK_REAL *weight, int64_t i)
{
    return weight ? value * weight[i] : value;
}

static inline void EK_NAME(runs_sum)(const EK_REAL *dy, const EK_REAL *x, int64_t n, EK_REAL center,
                                     const EK_REAL *weight, double *first, double *second)
{
    enum { LANES = 16 };
    EK_REAL sum[LANES] = {0}, product[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            EK_REAL g = EK_NAME(runs_times)(dy[i + j], weight, i + j);
            sum[j] += g;
            product[j] += g * (x[i + j] - center);
        }
    for (int j = 0; i + j < n; j++) {
        EK_REAL g = EK_NAME(runs_times)(dy[i + j], weight, i + j);
        sum[j] += g;
        product[j] += g * (x[i + j] - center);
    }
    *first = *second = 0;
    for (int j = 0; j < LANES; j++) {
        *first += (double)sum[j];
        *second += (double)product[j];
    }
}

/* Sums weight * dy and weight * dy * (x - center) over a part of a run. Each lane adds few values,
 * so that the tensor's own type is precise enough. */
EK_MULTIVERSION
static void EK_NAME(runs_sum_part)(const EK_REAL *dy, const EK_REAL *x, int64_t n, EK_REAL center,
                                   const EK_REAL *weight, double *first, double *second)
{
    if (weight)
        EK_NAME(runs_sum)(dy, x, n, center, weight, first, second);
    else
        EK_NAME(runs_sum)(dy, x, n, center, NULL, first, second);
}

EK_MULTIVERSION
static void EK_NAME(runs_add_part)(EK_REAL *restrict sum, EK_REAL *restrict product,
                                   const EK_REAL *restrict dy, const EK_REAL *restrict x, int64_t n,
                                   EK_REAL center, EK_REAL scale)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i] += dy[i];
        product[i] += dy[i] * ((x[i] - center) * scale);
    }
}

/* Sums a part of a group's runs in a block of samples, over each run and by element over all runs.
 */
static void EK_NAME(runs_sum_block)(const ek_norm_pass *pass, int64_t block, int64_t group,
                                    int64_t part)
{
    const ek_norm_plan *plan = &pass->plan;
    EK_REAL sum[EK_NORM_PART], product[EK_NORM_PART];
    int64_t own = group * plan->inner + part * EK_NORM_PART;
    int64_t n = ek_smaller(plan->inner - part * EK_NORM_PART, EK_NORM_PART);
    int64_t last = ek_smaller((block + 1) * plan->block_samples, plan->samples);
    const EK_REAL *weight = pass->weight ? (const EK_REAL *)pass->weight + own : NULL;
    double *dweight = pass->dweight + block * plan->channels * plan->inner + own;
    double *dbias = pass->dbias + block * plan->channels * plan->inner + own;
    for (int64_t k = 0; k < n && pass->sums->dbias; k++)
        dbias[k] = dweight[k] = 0;
    for (int64_t begin = block * plan->block_samples; begin < last; begin += EK_NORM_SHORT_RUNS) {
        int64_t end = ek_smaller(begin + EK_NORM_SHORT_RUNS, last);
        for (int64_t k = 0; k < n; k++)
            sum[k] = product[k] = 0;
        for (int64_t sample = begin; sample < end; sample++) {
            int64_t at = sample * plan->sample_stride + own, c = sample * plan->groups + group;
            int64_t into = (sample * plan->blocks + part) * plan->groups + group;
            const EK_REAL *dy = (const EK_REAL *)pass->data[EK_NORM_DY] + at;
            const EK_REAL *x = (const EK_REAL *)pass->data[EK_NORM_X] + at;
            EK_REAL center = ((const EK_REAL *)pass->parameters[EK_NORM_CENTER])[c];
            EK_REAL scale = ((const EK_REAL *)pass->parameters[EK_NORM_SCALE])[c];
            if (pass->sums->sum) {
                EK_NAME(runs_sum_part)
                (dy, x, n, center, weight, &pass->first[into], &pass->second[into]);
            }
            if (pass->sums->dbias)
                EK_NAME(runs_add_part)(sum, product, dy, x, n, center, scale);
        }
        for (int64_t k = 0; k < n && pass->sums->dbias; k++) {
            dbias[k] += (double)sum[k];
            dweight[k] += (double)product[k];
        }
    }
}

void EK_NAME(ek_norm_sum_runs)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const int64_t parts = pass->plan.blocks, groups = pass->plan.groups;
    for (int64_t task = begin; task < end; task++)
        EK_NAME(runs_sum_block)(pass, task / parts / groups, task / parts % groups, task % parts);
}

/* ---- lines ---- */

EK_MULTIVERSION
static void EK_NAME(runs_apply)(EK_REAL *restrict y, const EK_REAL *restrict x, int64_t n,
                                EK_REAL center, EK_REAL scale, const EK_REAL *restrict weight,
                                const EK_REAL *restrict bias)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL v = (x[i] - center) * scale;
        y[i] = weight || bias ? EK_NAME(runs_times)(v, weight, i) + (bias ? bias[i] : 0) : v;
    }
}

EK_MULTIVERSION
static void EK_NAME(runs_gradient)(EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                   const EK_REAL *restrict x, int64_t n, EK_REAL center,
                                   EK_REAL scale, EK_REAL shift, EK_REAL slope,
                                   const EK_REAL *restrict weight)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = EK_NAME(runs_times)(scale, weight, i) * dy[i] - shift - (x[i] - center) * slope;
}

/* A task is a part of a run. */
void EK_NAME(ek_norm_line_runs)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t task = begin; task < end; task++) {
        int64_t run = task / plan->blocks, i = task % plan->blocks * EK_NORM_PART;
        int64_t n = ek_smaller(plan->inner - i, EK_NORM_PART);
        int64_t own = run % plan->groups * plan->inner + i;
        int64_t at = run / plan->groups * plan->sample_stride + own;
        EK_REAL *y = (EK_REAL *)pass->data[EK_NORM_OUT] + at, of[EK_NORM_PARAMETERS];
        const EK_REAL *x = (const EK_REAL *)pass->data[EK_NORM_X] + at;
        const EK_REAL *dy = pass->data[EK_NORM_DY];
        const EK_REAL *weight = pass->weight ? (const EK_REAL *)pass->weight + own : NULL;
        const EK_REAL *bias = pass->bias ? (const EK_REAL *)pass->bias + own : NULL;
        for (int k = 0; k < EK_NORM_PARAMETERS; k++)
            of[k] = ((const EK_REAL *)pass->parameters[k])[run];
        if (!dy) {
            EK_NAME(runs_apply)(y, x, n, of[EK_NORM_CENTER], of[EK_NORM_SCALE], weight, bias);
        } else {
            EK_NAME(runs_gradient)
            (y, dy + at, x, n, of[EK_NORM_CENTER], of[EK_NORM_SCALE], of[EK_NORM_SHIFT],
             of[EK_NORM_SLOPE], weight);
        }
    }
}

#endif
