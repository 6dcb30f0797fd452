/* norm.c: the slots of normalisation.
 *
 * Sums are made per column (norm.h) and joined by group. Then parameters of columns are set, by
 * which a line makes the results. */
#include <math.h>

#include "host/host.h"
#include "host/norm.h"

enum { GRAIN = 4096 };

static void norm_over_samples(ek_norm_pass *pass, ek_parallel_body *body)
{
    ek_parallel_for(pass->dev, pass->plan.samples, 1 + GRAIN / pass->plan.channels, body, pass);
}

/* ---- moments ---- */

/* Joins the moments of a group's channels. All have equally many values, so that the mean of their
 * means is exact; a second pass over the means adds their distances. */
static void norm_join_moments(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        int64_t sample = i / plan->groups, first = i % plan->groups * plan->each;
        double mean = 0, deviation = 0, count = 0;
        for (int64_t c = first; c < first + plan->each; c++)
            mean += ek_norm_moments(pass, sample, c).mean;
        mean /= (double)plan->each;
        for (int64_t c = first; c < first + plan->each; c++) {
            ek_moments part = ek_norm_moments(pass, sample, c);
            deviation += part.deviation + part.count * (part.mean - mean) * (part.mean - mean);
            count += part.count;
        }
        ek_norm_store(pass->moments[0], i, mean);
        ek_norm_store(pass->moments[1], i, deviation / count);
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

int ek_host_norm_moments(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                         const ek_norm_update *update)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, mean, (double)NAN));
        return ek_host_fill(dev, var, (double)NAN);
    }
    const ek_norm_geometry g = ek_norm_geometry_of(x, mean, NULL);
    /* A single group is a run in any order of memory. */
    ek_norm_pass pass = {.dev = dev,
                         .args = &(ek_norm_args){.x = x},
                         .kind = g.batch                         ? EK_NORM_BATCH
                                 : g.groups == 1                 ? EK_NORM_PIECES
                                 : ek_norm_has_runs(&g, x, NULL) ? EK_NORM_RUNS
                                                                 : EK_NORM_SAMPLES,
                         .moments = {mean, var}};
    EK_TRY(ek_norm_pass_begin(&pass, g.groups, NULL));
    ek_norm_pass_sum(&pass);
    norm_over_samples(&pass, norm_join_moments);
    return ek_norm_pass_end(&pass, update ? norm_update(dev, mean, var, update) : 0);
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

/* ---- lines ---- */

/* Sets the parameters of the line that makes y, or dx if there are sums. */
static void norm_set_parameters(void *context, int64_t begin, int64_t end)
{
    ek_norm_pass *pass = context;
    const ek_norm_args *args = pass->args;
    const ek_norm_plan *plan = &pass->plan;
    const bool runs = pass->kind == EK_NORM_RUNS;
    const ek_tensor *weight = runs ? NULL : args->weight, *bias = runs ? NULL : args->bias;
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        int64_t sample = i / plan->groups, first = i % plan->groups * plan->each;
        double mean = ek_norm_value(args->mean, i, 0), invstd = ek_norm_value(args->invstd, i, 1);
        double sum = ek_norm_value(args->sum, i, 0), product = ek_norm_value(args->sum_xhat, i, 0);
        for (int64_t c = first; c < first + plan->each; c++) {
            double scale = invstd * ek_norm_value(weight, c, 1);
            /* Sums of the batch are without the weight, if invstd is given. */
            double share = (pass->kind == EK_NORM_BATCH && args->invstd ? scale : invstd);
            share = args->sum_xhat ? share / args->count : 0;
            double shift = args->sum_xhat ? share * sum : ek_norm_value(bias, c, 0);
            double slope = runs ? share * invstd * product : share * product * invstd;
            ek_norm_pass_set(pass, EK_NORM_CENTER, sample, c, mean);
            ek_norm_pass_set(pass, EK_NORM_SCALE, sample, c, scale);
            ek_norm_pass_set(pass, EK_NORM_SHIFT, sample, c, shift);
            ek_norm_pass_set(pass, EK_NORM_SLOPE, sample, c, slope);
        }
    }
}

/* Begins a pass with parameters. */
static int norm_begin(ek_norm_pass *pass, ek_dev *dev, const ek_norm_args *args, ek_tensor *out,
                      const ek_norm_sums *sums)
{
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    const ek_tensor *parameter = args->weight ? args->weight : sums ? sums->dweight : args->bias;
    *pass = (ek_norm_pass){.dev = dev,
                           .args = args,
                           .kind = g.batch                                    ? EK_NORM_BATCH
                                   : ek_norm_has_runs(&g, args->x, parameter) ? EK_NORM_RUNS
                                                                              : EK_NORM_SAMPLES,
                           .sums = sums};
    EK_TRY(ek_norm_pass_begin(pass, g.groups, out));
    norm_over_samples(pass, norm_set_parameters);
    return 0;
}

int ek_host_norm_line(ek_dev *dev, ek_tensor *out, const ek_norm_args *args)
{
    ek_norm_pass pass;
    if (ek_count(args->x) == 0)
        return 0;
    EK_TRY(norm_begin(&pass, dev, args, out, NULL));
    ek_norm_pass_line(&pass);
    return ek_norm_pass_end(&pass, 0);
}

/* ---- reduce ---- */

static void norm_join_groups(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    const ek_tensor *weight = pass->kind == EK_NORM_RUNS ? NULL : pass->args->weight;
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        int64_t sample = i / plan->groups, first = i % plan->groups * plan->each;
        double sum = 0, product = 0;
        for (int64_t c = first; c < first + plan->each; c++) {
            double own_sum, own_product, factor = ek_norm_value(weight, c, 1);
            ek_norm_sums_of(pass, sample, c, &own_sum, &own_product);
            sum += factor * own_sum;
            product += factor * own_product;
        }
        ek_norm_store(pass->sums->sum, i, sum);
        ek_norm_store(pass->sums->sum_xhat, i, product * ek_norm_value(pass->args->invstd, i, 1));
    }
}

/* Stores the line that makes dx from the sums of channel c. */
static void norm_store_line(const ek_norm_pass *pass, int64_t c, double dbias, double dweight)
{
    const ek_norm_sums *sums = pass->sums;
    double invstd = ek_norm_value(pass->args->invstd, c, 1);
    double scale = ek_norm_value(pass->args->weight, c, 1) * invstd;
    ek_norm_store(sums->scale, c, scale);
    ek_norm_store(sums->shift, c, -scale * dbias / sums->count);
    ek_norm_store(sums->slope, c, -scale * invstd * dweight / sums->count);
}

static void norm_join_channels(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0, product = 0;
        for (int64_t sample = 0; sample < plan->samples; sample++) {
            int64_t group = sample * plan->groups + c / plan->each;
            double own_sum, own_product;
            ek_norm_sums_of(pass, sample, c, &own_sum, &own_product);
            sum += own_sum;
            product += own_product * ek_norm_value(pass->args->invstd, group, 1);
        }
        ek_norm_store(pass->sums->dbias, c, sum);
        ek_norm_store(pass->sums->dweight, c, product);
        if (pass->sums->scale)
            norm_store_line(pass, c, sum, product);
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

int ek_host_norm_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_norm_args *args)
{
    ek_norm_pass pass;
    if (ek_count(args->x) == 0)
        return norm_fill_zero(dev, sums);
    EK_TRY(norm_begin(&pass, dev, args, NULL, sums));
    ek_norm_pass_sum(&pass);
    if (sums->sum)
        norm_over_samples(&pass, norm_join_groups);
    if (sums->dweight && pass.kind == EK_NORM_RUNS)
        return ek_norm_pass_end(&pass, ek_norm_store_elements(&pass));
    if (sums->dweight)
        ek_parallel_for(dev, pass.plan.channels, 1 + GRAIN / pass.plan.samples, norm_join_channels,
                        &pass);
    return ek_norm_pass_end(&pass, 0);
}
