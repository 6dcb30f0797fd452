/* batch_norm.c: batch normalisation over all but dimension 1. */
#include <math.h>

#include "cuda/cuda.h"
#include "cuda/norm_call.h"

static const char statistics_name[] = "batch_norm_statistics", apply_name[] = "batch_norm_apply",
                  reduce_name[] = "batch_norm_reduce", gradient_name[] = "batch_norm_gradient",
                  moments_gradient_name[] = "norm_moments_gradient";

static int run_statistics(ek_norm_call *call, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                          const ek_norm_settle *settle)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(ek_cuda_norm_take(call, EK_NORM_BATCH, 1, &(ek_norm_tensors){.x = x}));
    EK_TRY(ek_cuda_norm_output(call, mean, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, var, &norm->by_group[1]));
    EK_TRY(ek_cuda_norm_take_settle(call, settle));
    EK_TRY(ek_cuda_norm_cut_sums(call, true));
    int rc = ek_cuda_launch_norm_statistics(&call->queue, norm);
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join_moments(&call->queue, norm) : rc;
}

int ek_cuda_batch_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
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

/* The statistics and parameters of a channel. */
static int take_channels(ek_norm_call *call, const ek_tensor *mean, const ek_tensor *invstd,
                         const ek_tensor *weight, const ek_tensor *bias)
{
    EK_TRY(ek_cuda_norm_input(call, mean, &call->norm.mean));
    EK_TRY(ek_cuda_norm_input(call, invstd, &call->norm.invstd));
    EK_TRY(ek_cuda_norm_input(call, weight, &call->norm.weight));
    return ek_cuda_norm_input(call, bias, &call->norm.bias);
}

static int run_apply(ek_norm_call *call, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                     const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias,
                     bool relu)
{
    EK_TRY(ek_cuda_norm_take(call, EK_NORM_BATCH, 1, &(ek_norm_tensors){.x = x, .y = y}));
    EK_TRY(take_channels(call, mean, invstd, weight, bias));
    call->norm.relu = relu;
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_apply(&call->queue, &call->norm);
}

int ek_cuda_batch_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias, bool relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, apply_name));
    return ek_cuda_norm_end(&call, run_apply(&call, y, x, mean, invstd, weight, bias, relu));
}

static int take_chain(ek_norm_call *call, const ek_norm_chain *chain)
{
    ek_norm_chaining *into = &call->norm.chain;
    if (!chain)
        return 0;
    EK_TRY(ek_cuda_norm_input(call, chain->weight, &into->weight));
    EK_TRY(ek_cuda_norm_output(call, chain->dmean, &into->dmean));
    EK_TRY(ek_cuda_norm_output(call, chain->dinvstd, &into->dinvstd));
    return ek_cuda_norm_output(call, chain->scale, &into->scale);
}

static int run_reduce(ek_norm_call *call, ek_tensor *sum_dy, ek_tensor *sum_dy_xhat,
                      const ek_norm_tensors *tensors, const ek_tensor *mean,
                      const ek_tensor *invstd, const ek_norm_chain *chain)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(ek_cuda_norm_take(call, EK_NORM_BATCH, 1, tensors));
    EK_TRY(take_channels(call, mean, invstd, NULL, NULL));
    EK_TRY(ek_cuda_norm_output(call, sum_dy, &norm->by_group[0]));
    EK_TRY(ek_cuda_norm_output(call, sum_dy_xhat, &norm->by_group[1]));
    EK_TRY(take_chain(call, chain));
    EK_TRY(ek_cuda_norm_cut_sums(call, true));
    int rc = ek_cuda_launch_norm_reduce(&call->queue, norm);
    return rc == 0 && norm->first ? ek_cuda_launch_norm_join_groups(&call->queue, norm) : rc;
}

int ek_cuda_batch_norm_reduce(ek_dev *dev, ek_tensor *sum_dy, ek_tensor *sum_dy_xhat,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *mean,
                              const ek_tensor *invstd, const ek_tensor *y_relu,
                              const ek_norm_chain *chain)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_cuda_fill(dev, sum_dy, 0));
        return ek_cuda_fill(dev, sum_dy_xhat, 0);
    }
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, reduce_name));
    const ek_norm_tensors tensors = {.x = x, .dy = dy, .mask = y_relu};
    return ek_cuda_norm_end(&call,
                            run_reduce(&call, sum_dy, sum_dy_xhat, &tensors, mean, invstd, chain));
}

static int run_gradient(ek_norm_call *call, const ek_norm_tensors *tensors, const ek_tensor *mean,
                        const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *sum_dy,
                        const ek_tensor *sum_dy_xhat, double count)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(ek_cuda_norm_take(call, EK_NORM_BATCH, 1, tensors));
    EK_TRY(take_channels(call, mean, invstd, weight, NULL));
    EK_TRY(ek_cuda_norm_input(call, sum_dy, &norm->sum));
    EK_TRY(ek_cuda_norm_input(call, sum_dy_xhat, &norm->sum_xhat));
    norm->weighted = true;
    norm->share = norm->share_xhat = 1 / count;
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_gradient(&call->queue, norm);
}

int ek_cuda_batch_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum_dy,
                                const ek_tensor *sum_dy_xhat, double count, const ek_tensor *y_relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, gradient_name));
    const ek_norm_tensors tensors = {.x = x, .dy = dy, .mask = y_relu, .y = dx};
    return ek_cuda_norm_end(&call, run_gradient(&call, &tensors, mean, invstd, weight, sum_dy,
                                                sum_dy_xhat, count));
}

static int run_moments_gradient(ek_norm_call *call, const ek_norm_tensors *tensors,
                                const ek_tensor *scale, const ek_tensor *mean,
                                const ek_tensor *dmean, const ek_tensor *dvar)
{
    ek_cuda_norm *norm = &call->norm;
    EK_TRY(ek_cuda_norm_take(call, EK_NORM_BATCH, 1, tensors));
    EK_TRY(take_channels(call, mean, NULL, scale, NULL));
    EK_TRY(ek_cuda_norm_input(call, dmean, &norm->sum));
    EK_TRY(ek_cuda_norm_input(call, dvar, &norm->sum_xhat));
    norm->share = -(double)tensors->x->shape[1] / (double)ek_count(tensors->x);
    norm->share_xhat = 2 * norm->share;
    ek_cuda_norm_cut_elements(call);
    return ek_cuda_launch_norm_gradient(&call->queue, norm);
}

int ek_cuda_norm_moments_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                  const ek_tensor *scale, const ek_tensor *x, const ek_tensor *mean,
                                  const ek_tensor *dmean, const ek_tensor *dvar)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, moments_gradient_name));
    const ek_norm_tensors tensors = {.x = x, .dy = dy, .y = dx};
    return ek_cuda_norm_end(&call, run_moments_gradient(&call, &tensors, scale, mean, dmean, dvar));
}
