/* group_norm.c: normalisation of each sample over groups of channels.
 *
 * Sums are made per sample and channel, as batch normalisation makes them per channel, and joined
 * by group; what is applied has parameters per sample and channel. Where parameters are per
 * element, or one group has none, there are rows instead: see group_norm_rows.c. */
#include "host/group_norm.h"

#include <math.h>

#include "host/host.h"

enum { GRAIN = 4096 };

typedef struct group_call {
    ek_norm_batch batch;
    int64_t channels, groups;
    double count; /* values per group */
    ek_tensor *mean, *var;
    const ek_tensor *center, *invstd, *weight, *bias, *sum, *sum_xhat;
    ek_tensor *into_sum, *into_sum_xhat, *dweight, *dbias;
} group_call;

/* Channels of one value each. */
static bool is_flat(const ek_tensor *x)
{
    return ek_count(x) == x->shape[0] * x->shape[1];
}

/* One group, and `affine`, one of the parameters, is per element or absent; or channels are
 * elements. */
static bool is_rows(const ek_tensor *x, const ek_tensor *mean, const ek_tensor *affine)
{
    return is_flat(x) || (mean->shape[1] == 1 && (affine == NULL || affine->ndim == x->ndim - 1));
}

static void over_samples(group_call *call, ek_parallel_body *body)
{
    ek_parallel_for(call->batch.dev, call->batch.job.plan.samples, 1 + GRAIN / call->channels, body,
                    call);
}

static double weight_of(const group_call *call, int64_t c)
{
    const ek_tensor *weight = call->weight;
    return weight != NULL ? ek_group_value(weight, c * weight->stride[0]) : 1;
}

/* ---- statistics ---- */

/* All channels have equally many values: the mean of their means is exact, and a second pass over
 * these adds what lies between channels. */
static void join_moments(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t channels = call->batch.job.plan.channels, each = channels / call->groups;
    for (int64_t i = begin * call->groups; i < end * call->groups; i++) {
        int64_t sample = i / call->groups, first = i % call->groups * each;
        double mean = 0, deviation = 0;
        for (int64_t c = first; c < first + each; c++)
            mean += ek_norm_moments(&call->batch, sample, c).mean;
        mean /= (double)each;
        for (int64_t c = first; c < first + each; c++) {
            ek_moments part = ek_norm_moments(&call->batch, sample, c);
            deviation += part.deviation + part.count * (part.mean - mean) * (part.mean - mean);
        }
        ek_group_store(call->mean, i, mean);
        ek_group_store(call->var, i, deviation / call->count);
    }
}

int ek_host_group_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                                  const ek_norm_settle *settle)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, mean, (double)NAN));
        return ek_host_fill(dev, var, (double)NAN);
    }
    group_call call = {.groups = mean->shape[1], .mean = mean, .var = var};
    EK_TRY(ek_norm_begin(&call.batch, dev, (const ek_tensor *[]){x}, 1, false,
                         call.groups == 1 || is_flat(x) ? EK_NORM_ROWS : EK_NORM_SAMPLES));
    if (is_flat(x) && call.groups > 1)
        ek_norm_cut(&call.batch, call.groups);
    int rc = ek_norm_begin_sums(&call.batch);
    if (rc >= 0) {
        call.channels = call.batch.job.plan.channels;
        call.count = (double)(ek_count(x) / ek_count(mean));
        call.batch.job.x = ek_norm_data(&call.batch, 0);
        ek_norm_run_statistics(&call.batch);
        over_samples(&call, join_moments);
        rc = settle ? ek_host_norm_settle(dev, mean, var, settle) : 0;
    }
    return ek_norm_end(&call.batch, rc);
}

/* ---- apply ---- */

static void set_apply(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t each = call->channels / call->groups;
    const ek_tensor *bias = call->bias;
    for (int64_t sample = begin; sample < end; sample++)
        for (int64_t c = 0; c < call->channels; c++) {
            int64_t group = sample * call->groups + c / each;
            ek_norm_set(&call->batch, EK_NORM_CENTER, sample, c,
                        ek_group_value(call->center, group));
            ek_norm_set(&call->batch, EK_NORM_SCALE, sample, c,
                        ek_group_value(call->invstd, group) * weight_of(call, c));
            ek_norm_set(&call->batch, EK_NORM_SHIFT, sample, c,
                        bias != NULL ? ek_group_value(bias, c * bias->stride[0]) : 0);
        }
}

int ek_host_group_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias)
{
    if (ek_count(x) == 0)
        return 0;
    if (is_rows(x, mean, weight != NULL ? weight : bias))
        return ek_norm_rows_apply(dev, y, x, mean, invstd, weight, bias);
    group_call call = {.channels = x->shape[1],
                       .groups = mean->shape[1],
                       .center = mean,
                       .invstd = invstd,
                       .weight = weight,
                       .bias = bias};
    EK_TRY(ek_norm_begin(&call.batch, dev, (const ek_tensor *[]){y, x}, 2, true, EK_NORM_SAMPLES));
    int rc = ek_norm_begin_parameters(&call.batch);
    if (rc >= 0) {
        call.batch.job.y = ek_norm_data(&call.batch, 0);
        call.batch.job.x = ek_norm_data(&call.batch, 1);
        over_samples(&call, set_apply);
        ek_norm_run_apply(&call.batch);
    }
    return ek_norm_end(&call.batch, rc);
}

/* ---- reduce ---- */

static void set_center(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t each = call->channels / call->groups;
    for (int64_t sample = begin; sample < end; sample++)
        for (int64_t c = 0; c < call->channels; c++)
            ek_norm_set(&call->batch, EK_NORM_CENTER, sample, c,
                        ek_group_value(call->center, sample * call->groups + c / each));
}

static void join_sums(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t each = call->channels / call->groups;
    for (int64_t i = begin * call->groups; i < end * call->groups; i++) {
        int64_t sample = i / call->groups, first = i % call->groups * each;
        double sum = 0, product = 0;
        for (int64_t c = first; c < first + each; c++) {
            double own_sum, own_product;
            ek_norm_sums(&call->batch, sample, c, &own_sum, &own_product);
            sum += weight_of(call, c) * own_sum;
            product += weight_of(call, c) * own_product;
        }
        ek_group_store(call->into_sum, i, sum);
        ek_group_store(call->into_sum_xhat, i, product * ek_group_value(call->invstd, i));
    }
}

static void join_samples(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t each = call->channels / call->groups;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0, product = 0;
        for (int64_t sample = 0; sample < call->batch.job.plan.samples; sample++) {
            double own_sum, own_product;
            ek_norm_sums(&call->batch, sample, c, &own_sum, &own_product);
            sum += own_sum;
            product += own_product * ek_group_value(call->invstd, sample * call->groups + c / each);
        }
        ek_norm_store(call->dbias, c, sum);
        ek_norm_store(call->dweight, c, product);
    }
}

static void run_reduce(group_call *call)
{
    over_samples(call, set_center);
    ek_norm_run_reduce(&call->batch);
    if (call->into_sum != NULL)
        over_samples(call, join_sums);
    if (call->dweight != NULL)
        ek_parallel_for(call->batch.dev, call->channels, 1 + GRAIN / call->batch.job.plan.samples,
                        join_samples, call);
}

static int fill_zero(ek_dev *dev, ek_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL)
            EK_TRY(ek_host_fill(dev, tensors[i], 0));
    return 0;
}

int ek_host_group_norm_reduce(ek_dev *dev, ek_tensor *sum, ek_tensor *sum_xhat, ek_tensor *dweight,
                              ek_tensor *dbias, const ek_tensor *dy, const ek_tensor *x,
                              const ek_tensor *mean, const ek_tensor *invstd,
                              const ek_tensor *weight)
{
    if (ek_count(x) == 0)
        return fill_zero(dev, (ek_tensor *[]){sum, sum_xhat, dweight, dbias}, 4);
    if (is_rows(x, mean, weight != NULL ? weight : dweight))
        return ek_norm_rows_reduce(dev, sum, sum_xhat, dweight, dbias, dy, x, mean, invstd, weight);
    group_call call = {.channels = x->shape[1],
                       .groups = mean->shape[1],
                       .center = mean,
                       .invstd = invstd,
                       .weight = weight,
                       .into_sum = sum,
                       .into_sum_xhat = sum_xhat,
                       .dweight = dweight,
                       .dbias = dbias};
    EK_TRY(
        ek_norm_begin(&call.batch, dev, (const ek_tensor *[]){x, dy}, 2, false, EK_NORM_SAMPLES));
    int rc = ek_norm_begin_parameters(&call.batch);
    if (rc >= 0)
        rc = ek_norm_begin_sums(&call.batch);
    if (rc >= 0) {
        call.batch.job.x = ek_norm_data(&call.batch, 0);
        call.batch.job.dy = ek_norm_data(&call.batch, 1);
        run_reduce(&call);
    }
    return ek_norm_end(&call.batch, rc);
}

/* ---- gradient ---- */

static void set_gradient(void *context, int64_t begin, int64_t end)
{
    group_call *call = context;
    const int64_t each = call->channels / call->groups;
    for (int64_t sample = begin; sample < end; sample++)
        for (int64_t c = 0; c < call->channels; c++) {
            int64_t group = sample * call->groups + c / each;
            double inverse = ek_group_value(call->invstd, group), share = inverse / call->count;
            ek_norm_set(&call->batch, EK_NORM_CENTER, sample, c,
                        ek_group_value(call->center, group));
            ek_norm_set(&call->batch, EK_NORM_SCALE, sample, c, inverse * weight_of(call, c));
            ek_norm_set(&call->batch, EK_NORM_SHIFT, sample, c,
                        share * ek_group_value(call->sum, group));
            ek_norm_set(&call->batch, EK_NORM_SLOPE, sample, c,
                        share * inverse * ek_group_value(call->sum_xhat, group));
        }
}

int ek_host_group_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum,
                                const ek_tensor *sum_xhat)
{
    if (ek_count(x) == 0)
        return 0;
    if (is_rows(x, mean, weight))
        return ek_norm_rows_gradient(dev, dx, dy, x, mean, invstd, weight, sum, sum_xhat);
    group_call call = {.channels = x->shape[1],
                       .groups = mean->shape[1],
                       .count = (double)(ek_count(x) / ek_count(mean)),
                       .center = mean,
                       .invstd = invstd,
                       .weight = weight,
                       .sum = sum,
                       .sum_xhat = sum_xhat};
    EK_TRY(ek_norm_begin(&call.batch, dev, (const ek_tensor *[]){dx, x, dy}, 3, true,
                         EK_NORM_SAMPLES));
    int rc = ek_norm_begin_parameters(&call.batch);
    if (rc >= 0) {
        call.batch.job.y = ek_norm_data(&call.batch, 0);
        call.batch.job.x = ek_norm_data(&call.batch, 1);
        call.batch.job.dy = ek_norm_data(&call.batch, 2);
        over_samples(&call, set_gradient);
        ek_norm_run_gradient(&call.batch);
    }
    return ek_norm_end(&call.batch, rc);
}
