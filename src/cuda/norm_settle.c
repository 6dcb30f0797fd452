/* norm_settle.c: what follows from statistics that are there already, and those of chunks merged.
 */
#include "cuda/cuda.h"
#include "cuda/norm_call.h"

static const char settle_name[] = "norm_settle", merge_name[] = "norm_merge",
                  merge_gradient_name[] = "norm_merge_gradient";

/* Whether statistics of the dtype are computed in f64; the call's tensors are to be like them. */
static bool begin_dtype(ek_norm_call *call, const ek_tensor *statistics)
{
    const bool wide = statistics->dtype == EK_F64;
    call->norm.dtype = wide ? EK_F64 : EK_F32;
    return wide;
}

static int run_settle(ek_norm_call *call, const ek_tensor *mean, const ek_tensor *var,
                      const ek_norm_settle *settle)
{
    const void *means, *vars;
    const bool wide = begin_dtype(call, mean);
    EK_TRY(ek_cuda_norm_input(call, mean, &means));
    EK_TRY(ek_cuda_norm_input(call, var, &vars));
    EK_TRY(ek_cuda_norm_take_settle(call, settle));
    return ek_cuda_launch_norm_settle(&call->queue, wide, means, vars, ek_count(mean),
                                      &call->norm.settle);
}

int ek_cuda_norm_settle(ek_dev *dev, const ek_tensor *mean, const ek_tensor *var,
                        const ek_norm_settle *settle)
{
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, settle_name));
    return ek_cuda_norm_end(&call, run_settle(&call, mean, var, settle));
}

/* ---- moments of chunks ---- */

static int take_moments(ek_norm_call *call, ek_norm_merging *m, const ek_tensor *moments,
                        const double *shares)
{
    m->chunks = (int)moments->shape[0];
    m->channels = moments->shape[2];
    for (int k = 0; k < m->chunks; k++)
        m->shares[k] = shares[k];
    return ek_cuda_norm_input(call, moments, &m->moments);
}

static int run_merge(ek_norm_call *call, ek_tensor *mean, ek_tensor *var, ek_tensor *invstd,
                     const ek_tensor *moments, const double *shares, double eps)
{
    const bool wide = begin_dtype(call, moments);
    ek_norm_merging m = {.eps = eps};
    EK_TRY(take_moments(call, &m, moments, shares));
    EK_TRY(ek_cuda_norm_output(call, mean, &m.mean));
    EK_TRY(ek_cuda_norm_output(call, var, &m.var));
    EK_TRY(ek_cuda_norm_output(call, invstd, &m.invstd));
    return ek_cuda_launch_norm_merge(&call->queue, wide, &m);
}

int ek_cuda_norm_merge(ek_dev *dev, ek_tensor *mean, ek_tensor *var, ek_tensor *invstd,
                       const ek_tensor *moments, const double *shares, double eps)
{
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, merge_name));
    return ek_cuda_norm_end(&call, run_merge(&call, mean, var, invstd, moments, shares, eps));
}

static int run_merge_gradient(ek_norm_call *call, ek_tensor *dmoments, const ek_tensor *dmean,
                              const ek_tensor *dvar, const ek_tensor *dinvstd,
                              const ek_tensor *moments, const ek_tensor *mean,
                              const ek_tensor *invstd, const double *shares)
{
    const bool wide = begin_dtype(call, moments);
    ek_norm_merging m = {.eps = 0};
    EK_TRY(take_moments(call, &m, moments, shares));
    EK_TRY(ek_cuda_norm_input(call, mean, &m.merged_mean));
    EK_TRY(ek_cuda_norm_input(call, invstd, &m.merged_invstd));
    EK_TRY(ek_cuda_norm_input(call, dmean, &m.dmean));
    EK_TRY(ek_cuda_norm_input(call, dvar, &m.dvar));
    EK_TRY(ek_cuda_norm_input(call, dinvstd, &m.dinvstd));
    EK_TRY(ek_cuda_norm_output(call, dmoments, &m.dmoments));
    return ek_cuda_launch_norm_merge_gradient(&call->queue, wide, &m);
}

int ek_cuda_norm_merge_gradient(ek_dev *dev, ek_tensor *dmoments, const ek_tensor *dmean,
                                const ek_tensor *dvar, const ek_tensor *dinvstd,
                                const ek_tensor *moments, const ek_tensor *mean,
                                const ek_tensor *invstd, const double *shares)
{
    ek_norm_call call;
    EK_TRY(ek_cuda_norm_begin(&call, dev, merge_gradient_name));
    return ek_cuda_norm_end(&call, run_merge_gradient(&call, dmoments, dmean, dvar, dinvstd,
                                                      moments, mean, invstd, shares));
}
