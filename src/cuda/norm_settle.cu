/* norm_settle.cu: what follows from statistics that are there already, and those of chunks merged.
 * A thread has a channel. */
#include "cuda/norm.cuh"

template <typename R>
EK_KERNEL settle_values(const R *mean, const R *var, int64_t count, const ek_norm_settling settle)
{
    EK_GRID_LOOP(i, count)
    {
        ek_norm_follow(settle, i, mean[i], var[i]);
    }
}

template <typename R>
static int settle_all(const ek_cuda_queue *queue, const void *mean, const void *var, int64_t count,
                      const ek_norm_settling *settle)
{
    return ek_launch(queue, dim3(ek_grid(queue, count)), dim3(EK_BLOCK), settle_values<R>,
                     (const R *)mean, (const R *)var, count, *settle);
}

int ek_cuda_launch_norm_settle(const ek_cuda_queue *queue, bool wide, const void *mean,
                               const void *var, int64_t count, const ek_norm_settling *settle)
{
    return wide ? settle_all<double>(queue, mean, var, count, settle)
                : settle_all<float>(queue, mean, var, count, settle);
}

/* ---- moments of chunks: in f64, in the chunks' order ---- */

template <typename R> EK_KERNEL merge_chunks(const ek_norm_merging m)
{
    EK_GRID_LOOP(c, m.channels)
    {
        const R *const moments = (const R *)m.moments + c;
        double mean = 0, var = 0;
        for (int k = 0; k < m.chunks; k++)
            mean += m.shares[k] * (double)moments[2 * k * m.channels];
        for (int k = 0; k < m.chunks; k++) {
            const double apart = (double)moments[2 * k * m.channels] - mean;
            var += m.shares[k] * ((double)moments[(2 * k + 1) * m.channels] + apart * apart);
        }
        ((R *)m.mean)[c] = (R)mean;
        ((R *)m.var)[c] = (R)var;
        ((R *)m.invstd)[c] = 1 / ek_norm_root((R)var + (R)m.eps);
    }
}

/* With r = invstd: dr/dvar = -r^3 / 2. */
template <typename R> EK_KERNEL merge_gradient(const ek_norm_merging m)
{
    EK_GRID_LOOP(c, m.channels)
    {
        const R *const moments = (const R *)m.moments + c;
        R *const dmoments = (R *)m.dmoments + c;
        const double mean = (double)((const R *)m.merged_mean)[c];
        const double r = (double)((const R *)m.merged_invstd)[c];
        const double dmean = (double)ek_norm_value(m.dmean, c, R(0));
        const double dvar = (double)ek_norm_value(m.dvar, c, R(0)) -
                            0.5 * r * r * r * (double)ek_norm_value(m.dinvstd, c, R(0));
        for (int k = 0; k < m.chunks; k++) {
            const double apart = (double)moments[2 * k * m.channels] - mean;
            dmoments[2 * k * m.channels] = (R)(m.shares[k] * (dmean + 2 * apart * dvar));
            dmoments[(2 * k + 1) * m.channels] = (R)(m.shares[k] * dvar);
        }
    }
}

int ek_cuda_launch_norm_merge(const ek_cuda_queue *queue, bool wide, const ek_norm_merging *merging)
{
    return ek_launch(queue, dim3(ek_grid(queue, merging->channels)), dim3(EK_BLOCK),
                     wide ? merge_chunks<double> : merge_chunks<float>, *merging);
}

int ek_cuda_launch_norm_merge_gradient(const ek_cuda_queue *queue, bool wide,
                                       const ek_norm_merging *merging)
{
    return ek_launch(queue, dim3(ek_grid(queue, merging->channels)), dim3(EK_BLOCK),
                     wide ? merge_gradient<double> : merge_gradient<float>, *merging);
}
