/* norm.c: the slots of normalisation. A slot is one pass over memory (norm.h): statistics are sums
 * per column that are joined by group, and y and dx are lines whose parameters are set per
 * column. Runs (layer norm) go to norm_rows.c. */
#include <math.h>

#include "host/norm.h"

enum { GRAIN = 4096 };

/* ---- values of a channel, sample or group ---- */

/* Returns the address of element i in row-major order. Tensors of two dimensions are contiguous. */
static void *norm_address(const ek_tensor *tensor, int64_t i)
{
    const int64_t at = tensor->ndim == 1 ? i * tensor->stride[0] : i;
    return (char *)ek_tensor_address(tensor) + at * (int64_t)ek_dtype_size(tensor->dtype);
}

/* Returns element i, or `otherwise` if the tensor is NULL. */
static double norm_value(const ek_tensor *tensor, int64_t i, double otherwise)
{
    return tensor ? ek_element_double(norm_address(tensor, i), tensor->dtype) : otherwise;
}

static void norm_store(ek_tensor *out, int64_t i, double value)
{
    if (out->dtype == EK_F64)
        *(double *)norm_address(out, i) = value;
    else
        *(float *)norm_address(out, i) = (float)value;
}

/* Returns true if x is normalised by runs. `parameter` is a weight, a bias or a weight's gradient
 * that is given, or NULL. */
static bool norm_has_runs(const ek_norm_args *args, const ek_tensor *parameter)
{
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    return ek_norm_has_runs(&g, args->x, parameter);
}

/* Begins a pass over args->x. */
static int norm_begin(ek_norm_pass *pass, const ek_norm_args *args, const ek_tensor *out)
{
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    pass->args = args;
    pass->batch = g.batch;
    return ek_norm_pass_begin(pass, g.groups, out);
}

static void norm_over_samples(ek_norm_pass *pass, ek_parallel_body *body)
{
    ek_parallel_for(pass->dev, pass->plan.samples, 1 + GRAIN / pass->plan.channels, body, pass);
}

/* ---- moments ---- */

/* Joins the moments of a group's columns. All columns have equally many values, so that the mean of
 * their means is exact. Then the squared distances of the columns' means from the mean are added to
 * the deviation. */
static void norm_join_moments(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    const double count = (double)(ek_count(pass->args->x) / (plan->samples * plan->channels));
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        const int64_t at =
            ek_norm_columns_at(pass, i / plan->groups) + i % plan->groups * plan->each;
        const double *means = pass->first + at, *deviations = pass->second + at;
        double mean = 0, deviation = 0;
        for (int64_t c = 0; c < plan->each; c++)
            mean += means[c];
        mean /= (double)plan->each;
        for (int64_t c = 0; c < plan->each; c++)
            deviation += deviations[c] + count * (means[c] - mean) * (means[c] - mean);
        norm_store(pass->moments[0], i, mean);
        norm_store(pass->moments[1], i, deviation / (count * (double)plan->each));
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
    const ek_norm_args args = {.x = x, .mean = mean};
    ek_norm_pass pass = {.dev = dev, .moments = {mean, var}};
    int rc;
    if (norm_has_runs(&args, NULL)) {
        rc = ek_norm_runs(dev, NULL, mean, var, &args, -1);
    } else {
        EK_TRY(norm_begin(&pass, &args, NULL));
        ek_norm_pass_sum(&pass);
        norm_over_samples(&pass, norm_join_moments);
        rc = ek_norm_pass_end(&pass, 0);
    }
    return rc >= 0 && update ? norm_update(dev, mean, var, update) : rc;
}

/* Returns element c of chunk k. */
static double norm_chunk_value(const ek_tensor *values, int64_t k, int64_t c)
{
    const int last = values->ndim - 1;
    const int64_t at = c * values->stride[last] + (last > 0 ? k * values->stride[0] : 0);
    return ek_element_double((const char *)ek_tensor_address(values) +
                                 at * (int64_t)ek_dtype_size(values->dtype),
                             values->dtype);
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
        norm_store(mean, c, m);
        norm_store(invstd, c, v);
    }
    return norm_update(dev, mean, invstd, update);
}

/* ---- lines ---- */

/* Sets the parameters of the lines by which columns are computed: of y, or if sum_xhat is given, of
 * dx. */
static void norm_set_parameters(void *context, int64_t begin, int64_t end)
{
    ek_norm_pass *pass = context;
    const ek_norm_args *args = pass->args;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        int64_t sample = i / plan->groups, first = i % plan->groups * plan->each;
        double mean = norm_value(args->mean, i, 0), invstd = norm_value(args->invstd, i, 1);
        double sum = norm_value(args->sum, i, 0), product = norm_value(args->sum_xhat, i, 0);
        for (int64_t c = first; c < first + plan->each; c++) {
            double scale = invstd * norm_value(args->weight, c, 1);
            /* The sums of a batch don't contain the weight. They are multiplied by it if invstd is
             * given. */
            double share = pass->batch && args->invstd ? scale : invstd;
            share = args->sum_xhat ? share / args->count : 0;
            double shift = args->sum_xhat ? share * sum : norm_value(args->bias, c, 0);
            const double of[] = {mean, scale, shift, share * product * invstd,
                                 norm_value(args->bias, c, 0)};
            ek_norm_pass_set(pass, sample, c, of);
        }
    }
}

int ek_host_norm_line(ek_dev *dev, ek_tensor *out, const ek_norm_args *args)
{
    ek_norm_pass pass = {.dev = dev};
    if (ek_count(args->x) == 0)
        return 0;
    if (norm_has_runs(args, args->weight ? args->weight : args->bias))
        return args->dy ? ek_norm_runs_gradient(dev, out, &(const ek_norm_sums){0}, args, false)
                        : ek_norm_runs(dev, out, NULL, NULL, args, 0);
    EK_TRY(norm_begin(&pass, args, out));
    norm_over_samples(&pass, norm_set_parameters);
    ek_norm_pass_line(&pass);
    return ek_norm_pass_end(&pass, 0);
}

/* ---- reduce ---- */

static void norm_join_groups(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t i = begin * plan->groups; i < end * plan->groups; i++) {
        int64_t at = ek_norm_columns_at(pass, i / plan->groups),
                first = i % plan->groups * plan->each;
        double sum = 0, product = 0;
        for (int64_t c = first; c < first + plan->each; c++) {
            const double factor = norm_value(pass->args->weight, c, 1);
            sum += factor * pass->first[at + c];
            product += factor * pass->second[at + c];
        }
        norm_store(pass->sums->sum, i, sum);
        norm_store(pass->sums->sum_xhat, i, product * norm_value(pass->args->invstd, i, 1));
    }
}

/* Stores the coefficients of channel c's line for dx, from the channel's sums. */
static void norm_store_line(const ek_norm_pass *pass, int64_t c, double dbias, double dweight)
{
    const ek_norm_sums *sums = pass->sums;
    double invstd = norm_value(pass->args->invstd, c, 1);
    double scale = norm_value(pass->args->weight, c, 1) * invstd;
    norm_store(sums->scale, c, scale);
    norm_store(sums->shift, c, -scale * dbias / sums->count);
    norm_store(sums->slope, c, -scale * invstd * dweight / sums->count);
}

static void norm_join_channels(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0, product = 0;
        for (int64_t sample = 0; sample < plan->samples; sample++) {
            int64_t group = sample * plan->groups + c / plan->each;
            const int64_t at = ek_norm_columns_at(pass, sample) + c;
            sum += pass->first[at];
            product += pass->second[at] * norm_value(pass->args->invstd, group, 1);
        }
        norm_store(pass->sums->dbias, c, sum);
        norm_store(pass->sums->dweight, c, product);
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
    ek_norm_pass pass = {.dev = dev, .sums = sums};
    if (ek_count(args->x) == 0)
        return norm_fill_zero(dev, sums);
    if (norm_has_runs(args, args->weight ? args->weight : sums->dweight))
        return ek_norm_runs_gradient(dev, NULL, sums, args, sums->sum != NULL);
    EK_TRY(norm_begin(&pass, args, NULL));
    norm_over_samples(&pass, norm_set_parameters);
    ek_norm_pass_sum(&pass);
    if (sums->sum)
        norm_over_samples(&pass, norm_join_groups);
    if (sums->dweight)
        ek_parallel_for(dev, pass.plan.channels, 1 + GRAIN / pass.plan.samples, norm_join_channels,
                        &pass);
    return ek_norm_pass_end(&pass, 0);
}
