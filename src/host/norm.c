/* norm.c: the slots of normalisation.
 *
 * Sums are made per channel, over the whole batch or over each sample, and joined by group. Results
 * have parameters per channel (norm_pass.c). If parameters are per element, or one group has none,
 * or channels are single elements, rows are computed instead (norm_rows.c). */
#include <math.h>

#include "host/host.h"
#include "host/norm.h"

enum { GRAIN = 4096 };

/* Statistics are by sample and group. Statistics of the batch have one sample. */
typedef struct norm_call {
    ek_norm_pass pass;
    int64_t channels, groups,
        each;      /* channels and groups of a sample; each: channels of one group */
    double count;  /* the divisor of sums */
    bool weighted; /* the sums are without the weight, which still has to be multiplied in */
    const ek_tensor *mean, *invstd, *weight, *bias, *sum, *sum_xhat;
    const ek_norm_sums *sums;
    ek_tensor *into_mean, *into_var;
} norm_call;

/* Begins a pass with sums per channel. out, dy and mask may be NULL. */
static int norm_begin(norm_call *call, ek_dev *dev, const ek_norm_geometry *g, ek_tensor *out,
                      const ek_tensor *x, const ek_tensor *dy, const ek_tensor *mask, bool sums,
                      bool parameters)
{
    call->channels = g->groups * g->each;
    call->groups = g->groups;
    call->each = g->each;
    EK_TRY(ek_norm_pass_begin(&call->pass, dev, out, x, dy, mask,
                              g->batch ? EK_NORM_BATCH : EK_NORM_SAMPLES));
    return ek_norm_pass_take_room(&call->pass, sums, parameters);
}

static void norm_over_samples(norm_call *call, ek_parallel_body *body)
{
    ek_parallel_for(call->pass.dev, call->pass.job.plan.samples, 1 + GRAIN / call->channels, body,
                    call);
}

/* ---- moments ---- */

/* Joins the moments of a group's channels. All have equally many values, so that the mean of their
 * means is exact; a second pass over the means adds their distances. */
static void norm_join_moments(void *context, int64_t begin, int64_t end)
{
    norm_call *call = context;
    for (int64_t i = begin * call->groups; i < end * call->groups; i++) {
        int64_t sample = i / call->groups, first = i % call->groups * call->each;
        double mean = 0, deviation = 0;
        for (int64_t c = first; c < first + call->each; c++)
            mean += ek_norm_moments(&call->pass, sample, c).mean;
        mean /= (double)call->each;
        for (int64_t c = first; c < first + call->each; c++) {
            ek_moments part = ek_norm_moments(&call->pass, sample, c);
            deviation += part.deviation + part.count * (part.mean - mean) * (part.mean - mean);
        }
        ek_norm_store(call->into_mean, i, mean);
        ek_norm_store(call->into_var, i, deviation / call->count);
    }
}

static int norm_move(ek_dev *dev, ek_tensor *running, const ek_tensor *value, double momentum,
                     double scale)
{
    if (!running)
        return 0;
    EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, running, running, 1 - momentum, 0));
    return ek_host_binary(dev, EK_BINARY_ADD, running, running, value, momentum * scale);
}

/* Updates the running statistics and the number of batches, and turns var into invstd. */
static int norm_update(ek_dev *dev, const ek_tensor *mean, ek_tensor *var,
                       const ek_norm_update *update)
{
    double momentum = update->average
                          ? 1 / (double)*(const int64_t *)ek_tensor_address(update->average)
                          : update->momentum;
    EK_TRY(norm_move(dev, update->running_mean, mean, momentum, 1));
    EK_TRY(norm_move(dev, update->running_var, var, momentum, update->count / (update->count - 1)));
    if (update->batches)
        EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, update->batches, update->batches, 1, 1));
    EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, var, var, 1, update->eps));
    EK_TRY(ek_host_unary(dev, EK_UNARY_SQRT, var, var, 0, 0));
    return ek_host_unary(dev, EK_UNARY_RECIPROCAL, var, var, 0, 0);
}

/* Begins a pass over runs if each group is a run: if channels are single elements, or if there is
 * one group, in any order of memory. */
static int norm_begin_moments(norm_call *call, ek_dev *dev, const ek_norm_geometry *g,
                              const ek_tensor *x)
{
    if (g->batch || (g->groups > 1 && g->inner > 1))
        return norm_begin(call, dev, g, NULL, x, NULL, NULL, true, false);
    EK_TRY(ek_norm_pass_begin(&call->pass, dev, NULL, x, NULL, NULL, EK_NORM_ROWS));
    if (g->groups > 1)
        ek_norm_pass_cut(&call->pass, g->groups);
    call->channels = call->pass.job.plan.channels;
    call->groups = g->groups;
    call->each = call->channels / g->groups;
    return ek_norm_pass_take_room(&call->pass, true, false);
}

int ek_host_norm_moments(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                         const ek_norm_update *update)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, mean, (double)NAN));
        return ek_host_fill(dev, var, (double)NAN);
    }
    ek_norm_geometry g = ek_norm_geometry_of(x, mean, NULL);
    norm_call call = {.into_mean = mean,
                      .into_var = var,
                      .count = (double)(ek_count(x) / ek_count(mean))};
    EK_TRY(norm_begin_moments(&call, dev, &g, x));
    ek_norm_pass_sum(&call.pass);
    norm_over_samples(&call, norm_join_moments);
    return ek_norm_pass_end(&call.pass, update ? norm_update(dev, mean, var, update) : 0);
}

/* Element c of chunk k. */
static double norm_chunk_value(const ek_tensor *values, int64_t k, int64_t c)
{
    int last = values->ndim - 1;
    int64_t at = c * values->stride[last] + (last > 0 ? k * values->stride[0] : 0);
    const void *data = ek_tensor_address(values);
    return values->dtype == EK_F64 ? ((const double *)data)[at] : (double)((const float *)data)[at];
}

int ek_host_norm_merge(ek_dev *dev, ek_tensor *mean, ek_tensor *invstd, const ek_tensor *means,
                       const ek_tensor *vars, const double *shares, const ek_norm_update *update)
{
    int64_t chunks = means->ndim > 1 ? means->shape[0] : 1;
    for (int64_t c = 0; c < ek_count(mean); c++) {
        double m = 0, v = 0;
        for (int64_t k = 0; k < chunks; k++)
            m += shares[k] * norm_chunk_value(means, k, c);
        for (int64_t k = 0; k < chunks; k++) {
            double apart = norm_chunk_value(means, k, c) - m;
            v += shares[k] * (norm_chunk_value(vars, k, c) + apart * apart);
        }
        ek_norm_store(mean, c, m);
        ek_norm_store(invstd, c, v);
    }
    return norm_update(dev, mean, invstd, update);
}

/* ---- apply ---- */

/* Sets the parameters of the line that makes y, or dx if there are sums. */
static void norm_set_parameters(void *context, int64_t begin, int64_t end)
{
    norm_call *call = context;
    for (int64_t i = begin * call->groups; i < end * call->groups; i++) {
        int64_t sample = i / call->groups, first = i % call->groups * call->each;
        double mean = ek_norm_value(call->mean, i, 0), invstd = ek_norm_value(call->invstd, i, 1);
        double sum = ek_norm_value(call->sum, i, 0), product = ek_norm_value(call->sum_xhat, i, 0);
        for (int64_t c = first; c < first + call->each; c++) {
            double scale = invstd * ek_norm_value(call->weight, c, 1);
            double share = (call->weighted ? scale : invstd) / call->count;
            double shift = call->sum_xhat ? share * sum : ek_norm_value(call->bias, c, 0);
            ek_norm_pass_set(&call->pass, EK_NORM_CENTER, sample, c, mean);
            ek_norm_pass_set(&call->pass, EK_NORM_SCALE, sample, c, scale);
            ek_norm_pass_set(&call->pass, EK_NORM_SHIFT, sample, c, shift);
            ek_norm_pass_set(&call->pass, EK_NORM_SLOPE, sample, c, share * product * invstd);
        }
    }
}

int ek_host_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                       const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias,
                       bool relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_geometry g = ek_norm_geometry_of(x, mean, invstd);
    if (ek_norm_has_runs(&g, x, weight ? weight : bias))
        return ek_norm_rows_apply(dev, y, x, mean, invstd, weight, bias);
    norm_call call = {.count = 1, .mean = mean, .invstd = invstd, .weight = weight, .bias = bias};
    EK_TRY(norm_begin(&call, dev, &g, y, x, NULL, NULL, false, true));
    call.pass.job.relu = relu;
    norm_over_samples(&call, norm_set_parameters);
    ek_norm_pass_apply(&call.pass);
    return ek_norm_pass_end(&call.pass, 0);
}

/* ---- reduce ---- */

static void norm_join_groups(void *context, int64_t begin, int64_t end)
{
    norm_call *call = context;
    for (int64_t i = begin * call->groups; i < end * call->groups; i++) {
        int64_t sample = i / call->groups, first = i % call->groups * call->each;
        double sum = 0, product = 0;
        for (int64_t c = first; c < first + call->each; c++) {
            double own_sum, own_product, weight = ek_norm_value(call->weight, c, 1);
            ek_norm_sums_of(&call->pass, sample, c, &own_sum, &own_product);
            sum += weight * own_sum;
            product += weight * own_product;
        }
        ek_norm_store(call->sums->sum, i, sum);
        ek_norm_store(call->sums->sum_xhat, i, product * ek_norm_value(call->invstd, i, 1));
    }
}

/* Stores the line that makes dx from the sums of channel c. */
static void norm_store_line(const norm_call *call, int64_t c, double dbias, double dweight)
{
    const ek_norm_sums *sums = call->sums;
    double invstd = ek_norm_value(call->invstd, c, 1);
    double scale = ek_norm_value(call->weight, c, 1) * invstd;
    ek_norm_store(sums->scale, c, scale);
    ek_norm_store(sums->shift, c, -scale * dbias / sums->count);
    ek_norm_store(sums->slope, c, -scale * invstd * dweight / sums->count);
}

static void norm_join_channels(void *context, int64_t begin, int64_t end)
{
    norm_call *call = context;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0, product = 0;
        for (int64_t sample = 0; sample < call->pass.job.plan.samples; sample++) {
            double own_sum, own_product;
            ek_norm_sums_of(&call->pass, sample, c, &own_sum, &own_product);
            sum += own_sum;
            product += own_product *
                       ek_norm_value(call->invstd, sample * call->groups + c / call->each, 1);
        }
        ek_norm_store(call->sums->dbias, c, sum);
        ek_norm_store(call->sums->dweight, c, product);
        if (call->sums->scale)
            norm_store_line(call, c, sum, product);
    }
}

static int norm_fill_zero(ek_dev *dev, const ek_norm_sums *sums)
{
    ek_tensor *const all[] = {sums->sum,   sums->sum_xhat, sums->dweight, sums->dbias,
                              sums->shift, sums->slope,    sums->scale};
    for (int i = 0; i < 7; i++)
        if (all[i])
            EK_TRY(ek_host_fill(dev, all[i], 0));
    return 0;
}

int ek_host_norm_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_tensor *dy,
                        const ek_tensor *x, const ek_tensor *mean, const ek_tensor *invstd,
                        const ek_tensor *weight, const ek_tensor *y_relu)
{
    if (ek_count(x) == 0)
        return norm_fill_zero(dev, sums);
    ek_norm_geometry g = ek_norm_geometry_of(x, mean, invstd);
    if (ek_norm_has_runs(&g, x, weight ? weight : sums->dweight))
        return ek_norm_rows_reduce(dev, sums, dy, x, mean, invstd, weight);
    norm_call call = {.count = 1, .mean = mean, .invstd = invstd, .weight = weight, .sums = sums};
    EK_TRY(norm_begin(&call, dev, &g, NULL, x, dy, y_relu, true, true));
    norm_over_samples(&call, norm_set_parameters);
    ek_norm_pass_sum(&call.pass);
    if (sums->sum)
        norm_over_samples(&call, norm_join_groups);
    if (sums->dweight)
        ek_parallel_for(dev, call.channels, 1 + GRAIN / call.pass.job.plan.samples,
                        norm_join_channels, &call);
    return ek_norm_pass_end(&call.pass, 0);
}

/* ---- gradient ---- */

int ek_host_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                          const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight,
                          const ek_tensor *sum, const ek_tensor *sum_xhat, double count,
                          const ek_tensor *y_relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_geometry g = ek_norm_geometry_of(x, mean, invstd);
    if (ek_norm_has_runs(&g, x, weight))
        return ek_norm_rows_gradient(dev, dx, dy, x, mean, invstd, weight, sum, sum_xhat);
    norm_call call = {.count = count,
                      .weighted = g.batch && invstd,
                      .mean = mean,
                      .invstd = invstd,
                      .weight = weight,
                      .sum = sum,
                      .sum_xhat = sum_xhat};
    EK_TRY(norm_begin(&call, dev, &g, dx, x, dy, y_relu, false, true));
    norm_over_samples(&call, norm_set_parameters);
    if (!sum_xhat)
        call.pass.job.shift = call.pass.job.slope = NULL;
    ek_norm_pass_apply(&call.pass);
    return ek_norm_pass_end(&call.pass, 0);
}
