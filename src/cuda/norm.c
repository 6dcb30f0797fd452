/* norm.c: the slots of normalisation.
 *
 * The sums of a group are made at once, as those of a plane with one column, if the group is one
 * run of memory and its parameters are absent or per element: layer norm, or channels of one value
 * each (ek_norm_has_runs). Otherwise sums are made by channel, of the batch or of each sample, and
 * those of a sample's channels are joined by group. */
#include <math.h>

#include "cuda/norm_call.h"
#include "cuda/runtime.h"
#include "kernels/norm.h"

/* Takes the tensors in one form for all, and the statistics and parameters for them. */
static int norm_take(ek_norm_call *call, const ek_norm_tensors *tensors, const ek_norm_geometry *g,
                     bool runs, const ek_tensor *mean, const ek_tensor *invstd,
                     const ek_tensor *weight, const ek_tensor *bias)
{
    ek_cuda_norm *norm = &call->norm;
    const ek_norm_kind kind = g->batch ? EK_NORM_BATCH : runs ? EK_NORM_RUNS : EK_NORM_CHANNELS;
    EK_TRY(ek_cuda_norm_take(call, kind, g->groups, tensors));
    EK_TRY(ek_cuda_norm_input(call, mean, &norm->mean));
    EK_TRY(ek_cuda_norm_input(call, invstd, &norm->invstd));
    norm->element = runs;
    EK_TRY(ek_cuda_norm_parameter(call, tensors->x, weight, &norm->weight));
    return ek_cuda_norm_parameter(call, tensors->x, bias, &norm->bias);
}

static int norm_fill(ek_dev *dev, ek_tensor *const *tensors, int count, double value)
{
    for (int i = 0; i < count; i++)
        if (tensors[i])
            EK_TRY(ek_cuda_fill(dev, tensors[i], value));
    return 0;
}

/* ---- moments ---- */

/* The groups of a row-major sample lie one after the other. The channels of a single group do so in
 * any order of memory. */
static int norm_run_moments(ek_norm_call *call, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                            const ek_norm_update *update)
{
    ek_cuda_norm *norm = &call->norm;
    const ek_norm_geometry g = ek_norm_geometry_of(x, mean, NULL);
    const bool runs = g.groups == 1 || g.inner == 1 || !ek_cuda_norm_has_rows(x);
    EK_TRY(norm_take(call, &(ek_norm_tensors){.x = x}, &g, runs, NULL, NULL, NULL, NULL));
    EK_TRY(ek_cuda_norm_output(call, mean, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, var, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_take_update(call, update));
    EK_TRY(ek_cuda_norm_cut_sums(call, true));
    int rc = ek_cuda_launch_norm_moments(&call->stream, norm);
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join(&call->stream, norm, true, false) : rc;
}

int ek_cuda_norm_moments(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                         const ek_norm_update *update)
{
    if (ek_count(x) == 0)
        return norm_fill(dev, (ek_tensor *[]){mean, var}, 2, (double)NAN);
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, "norm_moments"));
    return ek_cuda_norm_end(&call, norm_run_moments(&call, mean, var, x, update));
}

/* ---- merge ---- */

/* Sets *values to the elements of t (chunks, ...) and *step to the elements from one chunk to the
 * next; t is copied if its dtype or innermost stride doesn't fit. */
static int norm_take_chunks(ek_norm_call *call, const ek_tensor *t, const void **values,
                            int64_t *step)
{
    const int last = t->ndim - 1;
    const bool keep = t->dtype == call->norm.dtype && t->stride[last] == 1;
    *step = keep && last > 0 ? t->stride[0] : t->shape[last];
    if (!keep)
        return ek_cuda_norm_input(call, t, values);
    *values = ek_tensor_address(t);
    return 0;
}

static int norm_run_merge(ek_norm_call *call, ek_tensor *mean, ek_tensor *invstd,
                          const ek_tensor *means, const ek_tensor *vars, const double *shares,
                          const ek_norm_update *update)
{
    ek_norm_merging m = {.channels = ek_count(mean),
                         .chunks = means->ndim > 1 ? (int)means->shape[0] : 1};
    call->norm.dtype = mean->dtype == EK_F64 ? EK_F64 : EK_F32;
    for (int k = 0; k < m.chunks; k++)
        m.shares[k] = shares[k];
    EK_TRY(norm_take_chunks(call, means, &m.means, &m.means_step));
    EK_TRY(norm_take_chunks(call, vars, &m.vars, &m.vars_step));
    EK_TRY(ek_cuda_norm_output(call, mean, &m.mean));
    EK_TRY(ek_cuda_norm_output(call, invstd, &m.invstd));
    EK_TRY(ek_cuda_norm_take_update(call, update));
    m.update = call->norm.update;
    return ek_cuda_launch_norm_merge(&call->stream, call->norm.dtype == EK_F64, &m);
}

int ek_cuda_norm_merge(ek_dev *dev, ek_tensor *mean, ek_tensor *invstd, const ek_tensor *means,
                       const ek_tensor *vars, const double *shares, const ek_norm_update *update)
{
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, "norm_merge"));
    return ek_cuda_norm_end(&call,
                            norm_run_merge(&call, mean, invstd, means, vars, shares, update));
}

/* ---- apply ---- */

static int norm_run_line(ek_norm_call *call, ek_tensor *out, const ek_norm_args *args)
{
    ek_cuda_norm *norm = &call->norm;
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    const bool runs = ek_norm_has_runs(&g, args->x, args->weight ? args->weight : args->bias);
    const ek_norm_tensors tensors = {.x = args->x, .dy = args->dy, .mask = args->y_relu, .y = out};
    EK_TRY(norm_take(call, &tensors, &g, runs, args->mean, args->invstd, args->weight, args->bias));
    EK_TRY(ek_cuda_norm_input(call, args->sum, &norm->sum));
    EK_TRY(ek_cuda_norm_input(call, args->sum_xhat, &norm->sum_xhat));
    norm->relu = args->relu;
    norm->weighted = g.batch && args->invstd;
    norm->share = args->dy ? 1 / args->count : 0;
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_line(&call->stream, norm);
}

int ek_cuda_norm_line(ek_dev *dev, ek_tensor *out, const ek_norm_args *args)
{
    if (ek_count(args->x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, "norm_line"));
    return ek_cuda_norm_end(&call, norm_run_line(&call, out, args));
}

/* ---- reduce ---- */

/* Takes the results that follow from sums of the batch (norm.line). These have the weight; the
 * sums, which are the parameters' gradients, have not. */
static int norm_take_line(ek_norm_call *call, const ek_norm_sums *sums)
{
    ek_norm_line *line = &call->norm.line;
    line->weight = call->norm.weight;
    call->norm.weight = NULL;
    line->share = -1 / sums->count;
    EK_TRY(ek_cuda_norm_output(call, sums->scale, &line->scale));
    EK_TRY(ek_cuda_norm_output(call, sums->shift, &line->shift));
    return ek_cuda_norm_output(call, sums->slope, &line->slope);
}

/* Sums dweight and dbias of single elements: these are columns, and the samples are rows here. */
static int norm_reduce_elements(ek_norm_call *call)
{
    ek_cuda_norm *norm = &call->norm;
    norm->planes = norm->element = false;
    norm->each = norm->inner;
    norm->channels *= norm->inner;
    norm->rows = norm->samples;
    norm->samples = 1;
    norm->x.row = norm->x.sample;
    norm->dy.row = norm->dy.sample;
    norm->x.sample = norm->dy.sample = 0;
    EK_TRY(ek_cuda_norm_cut_sums(call, true));
    int rc = ek_cuda_launch_norm_elements(&call->stream, norm);
    norm->invstd = NULL;
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join(&call->stream, norm, false, true) : rc;
}

/* Sums by group and column. Runs give a group's sums at once; sums of channels are joined. */
static int norm_run_sums(ek_norm_call *call, bool runs)
{
    ek_cuda_norm *norm = &call->norm;
    const bool groups = norm->by_group[0], columns = norm->by_column[0];
    int rc = 0;
    if (groups || !runs) {
        EK_TRY(ek_cuda_norm_cut_sums(call, runs || (groups && !columns && !norm->weight)));
        rc = ek_cuda_launch_norm_sums(&call->stream, norm);
        if (rc == 0 && groups && norm->first)
            rc = ek_cuda_launch_norm_join(&call->stream, norm, false, false);
    }
    if (rc != 0 || !columns)
        return rc;
    return runs ? norm_reduce_elements(call)
                : ek_cuda_launch_norm_join(&call->stream, norm, false, true);
}

static int norm_run_reduce(ek_norm_call *call, const ek_norm_sums *sums, const ek_norm_args *args)
{
    ek_cuda_norm *norm = &call->norm;
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    const bool runs = ek_norm_has_runs(&g, args->x, args->weight ? args->weight : sums->dweight);
    const ek_norm_tensors tensors = {.x = args->x, .dy = args->dy, .mask = args->y_relu};
    EK_TRY(norm_take(call, &tensors, &g, runs, args->mean, args->invstd, args->weight, NULL));
    if (g.batch) {
        EK_TRY(norm_take_line(call, sums));
        EK_TRY(ek_cuda_norm_output(call, sums->dbias, &norm->by_group[0]));
        EK_TRY(ek_cuda_norm_output(call, sums->dweight, &norm->by_group[1]));
        return norm_run_sums(call, false);
    }
    EK_TRY(ek_cuda_norm_output(call, sums->sum, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, sums->sum_xhat, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_parameter_output(call, args->x, sums->dbias, &norm->by_column[0]));
    EK_TRY(ek_cuda_norm_parameter_output(call, args->x, sums->dweight, &norm->by_column[1]));
    return norm_run_sums(call, runs);
}

int ek_cuda_norm_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_norm_args *args)
{
    if (ek_count(args->x) == 0) {
        ek_tensor *const all[] = {sums->sum,   sums->sum_xhat, sums->dweight, sums->dbias,
                                  sums->shift, sums->slope,    sums->scale};
        return norm_fill(dev, all, 7, 0);
    }
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, "norm_reduce"));
    return ek_cuda_norm_end(&call, norm_run_reduce(&call, sums, args));
}
