/* group_norm.c: normalisation of each sample over groups of channels.
 *
 * Where a group is one run of memory whose parameters are per element (layer norm), or absent, or
 * where channels are elements, the run is a plane of one column, and sums are the group's at once.
 * Otherwise sums are by channel, as batch normalisation's, of each sample, and joined by group. */
#include <math.h>

#include "cuda/cuda.h"
#include "cuda/norm_call.h"

static const char statistics_name[] = "group_norm_statistics", apply_name[] = "group_norm_apply",
                  reduce_name[] = "group_norm_reduce", gradient_name[] = "group_norm_gradient";

/* Channels of one value each. */
static bool is_flat(const ek_tensor *x)
{
    return ek_count(x) == x->shape[0] * x->shape[1];
}

/* One group, and `affine`, one of the parameters, is per element or absent; or channels are
 * elements. */
static bool is_runs(const ek_tensor *x, const ek_tensor *mean, const ek_tensor *affine)
{
    return is_flat(x) || (mean->shape[1] == 1 && (!affine || affine->ndim == x->ndim - 1));
}

static int take(ek_norm_call *call, const ek_norm_tensors *tensors, bool runs,
                const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight,
                const ek_tensor *bias)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(
        ek_cuda_norm_take(call, runs ? EK_NORM_RUNS : EK_NORM_CHANNELS, mean->shape[1], tensors));
    EK_TRY(ek_cuda_norm_input(call, mean, &norm->mean));
    EK_TRY(ek_cuda_norm_input(call, invstd, &norm->invstd));
    norm->element = runs;
    norm->share = norm->share_xhat = 1.0 / (double)(ek_count(tensors->x) / ek_count(mean));
    if (runs) {
        EK_TRY(ek_cuda_norm_element_input(call, tensors->x, weight, &norm->weight));
        return ek_cuda_norm_element_input(call, tensors->x, bias, &norm->bias);
    }
    EK_TRY(ek_cuda_norm_input(call, weight, &norm->weight));
    return ek_cuda_norm_input(call, bias, &norm->bias);
}

/* ---- statistics ---- */

/* The groups of a sample that is row-major lie one after the other, and so do one group's channels
 * in any order of memory. */
static int run_statistics(ek_norm_call *call, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                          const ek_norm_settle *settle)
{
    ek_cuda_norm *norm = &call->norm;
    const int64_t groups = mean->shape[1];
    bool runs = groups == 1 || is_flat(x) || !ek_cuda_norm_has_rows(x);
    EK_TRY(ek_cuda_norm_take(call, runs ? EK_NORM_RUNS : EK_NORM_CHANNELS, groups,
                             &(ek_norm_tensors){.x = x}));
    EK_TRY(ek_cuda_norm_output(call, mean, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, var, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_take_settle(call, settle));
    EK_TRY(ek_cuda_norm_cut_sums(call, true));
    int rc = ek_cuda_launch_norm_statistics(&call->queue, norm);
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join_moments(&call->queue, norm) : rc;
}

int ek_cuda_group_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                                  const ek_norm_settle *settle)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_cuda_fill(dev, mean, (double)NAN));
        return ek_cuda_fill(dev, var, (double)NAN);
    }
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, statistics_name));
    return ek_cuda_norm_end(&call, run_statistics(&call, mean, var, x, settle));
}

/* ---- apply ---- */

static int run_apply(ek_norm_call *call, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                     const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias)
{
    bool runs = is_runs(x, mean, weight ? weight : bias);
    EK_TRY(take(call, &(ek_norm_tensors){.x = x, .y = y}, runs, mean, invstd, weight, bias));
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_apply(&call->queue, &call->norm);
}

int ek_cuda_group_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, apply_name));
    return ek_cuda_norm_end(&call, run_apply(&call, y, x, mean, invstd, weight, bias));
}

/* ---- reduce ---- */

/* What reduce gives; either pair may be NULL. */
typedef struct group_sums {
    ek_tensor *sum, *sum_xhat, *dweight, *dbias;
} group_sums;

/* dweight and dbias of elements: columns over the samples, which are rows here. */
static int reduce_elements(ek_norm_call *call)
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
    int rc = ek_cuda_launch_norm_elements(&call->queue, norm);
    norm->invstd = NULL;
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join_columns(&call->queue, norm) : rc;
}

static int reduce_runs(ek_norm_call *call, const ek_tensor *x, const group_sums *sums)
{
    ek_cuda_norm *norm = &call->norm;
    int rc = 0;
    EK_TRY(ek_cuda_norm_output(call, sums->sum, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, sums->sum_xhat, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_element_output(call, x, sums->dbias, &norm->by_column[0]));
    EK_TRY(ek_cuda_norm_element_output(call, x, sums->dweight, &norm->by_column[1]));
    if (sums->sum) {
        EK_TRY(ek_cuda_norm_cut_sums(call, true));
        rc = ek_cuda_launch_norm_reduce(&call->queue, norm);
        if (rc == 0 && norm->first)
            rc = ek_cuda_launch_norm_join_groups(&call->queue, norm);
    }
    return rc == 0 && sums->dweight ? reduce_elements(call) : rc;
}

static int reduce_channels(ek_norm_call *call, const group_sums *sums)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(ek_cuda_norm_output(call, sums->sum, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, sums->sum_xhat, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_output(call, sums->dbias, &norm->by_column[0]));
    EK_TRY(ek_cuda_norm_output(call, sums->dweight, &norm->by_column[1]));
    EK_TRY(ek_cuda_norm_cut_sums(call, sums->sum && !sums->dweight && !norm->weight));
    int rc = ek_cuda_launch_norm_reduce(&call->queue, norm);
    if (rc == 0 && norm->first && sums->sum)
        rc = ek_cuda_launch_norm_join_groups(&call->queue, norm);
    if (rc == 0 && sums->dweight)
        rc = ek_cuda_launch_norm_join_columns(&call->queue, norm);
    return rc;
}

static int run_reduce(ek_norm_call *call, const group_sums *sums, const ek_tensor *dy,
                      const ek_tensor *x, const ek_tensor *mean, const ek_tensor *invstd,
                      const ek_tensor *weight)
{
    bool runs = is_runs(x, mean, weight ? weight : sums->dweight);
    EK_TRY(take(call, &(ek_norm_tensors){.x = x, .dy = dy}, runs, mean, invstd, weight, NULL));
    return runs ? reduce_runs(call, x, sums) : reduce_channels(call, sums);
}

int ek_cuda_group_norm_reduce(ek_dev *dev, ek_tensor *sum, ek_tensor *sum_xhat, ek_tensor *dweight,
                              ek_tensor *dbias, const ek_tensor *dy, const ek_tensor *x,
                              const ek_tensor *mean, const ek_tensor *invstd,
                              const ek_tensor *weight)
{
    if (ek_count(x) == 0) {
        ek_tensor *const outputs[] = {sum, sum_xhat, dweight, dbias};
        for (int i = 0; i < 4; i++)
            if (outputs[i])
                EK_TRY(ek_cuda_fill(dev, outputs[i], 0));
        return 0;
    }
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, reduce_name));
    const group_sums sums = {sum, sum_xhat, dweight, dbias};
    return ek_cuda_norm_end(&call, run_reduce(&call, &sums, dy, x, mean, invstd, weight));
}

/* ---- gradient ---- */

static int run_gradient(ek_norm_call *call, const ek_norm_tensors *tensors, const ek_tensor *mean,
                        const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *sum,
                        const ek_tensor *sum_xhat)
{
    bool runs = is_runs(tensors->x, mean, weight);
    EK_TRY(take(call, tensors, runs, mean, invstd, weight, NULL));
    EK_TRY(ek_cuda_norm_input(call, sum, &call->norm.sum));
    EK_TRY(ek_cuda_norm_input(call, sum_xhat, &call->norm.sum_xhat));
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_gradient(&call->queue, &call->norm);
}

int ek_cuda_group_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum,
                                const ek_tensor *sum_xhat)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, gradient_name));
    const ek_norm_tensors tensors = {.x = x, .dy = dy, .y = dx};
    return ek_cuda_norm_end(&call,
                            run_gradient(&call, &tensors, mean, invstd, weight, sum, sum_xhat));
}
