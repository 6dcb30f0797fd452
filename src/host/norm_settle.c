/* norm_settle.c: what follows from means and variances, in elementwise operations; and those of
 * chunks merged, in f64. */
#include "host/host.h"
#include "host/norm.h"

static int move(ek_dev *dev, ek_tensor *running, const ek_tensor *value, double momentum,
                double scale)
{
    if (!running)
        return 0;
    EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, running, running, 1 - momentum, 0));
    return ek_host_binary(dev, EK_BINARY_ADD, running, running, value, momentum * scale);
}

static int invert(ek_dev *dev, ek_tensor *invstd, const ek_tensor *var, double eps)
{
    EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, invstd, var, 1, eps));
    EK_TRY(ek_host_unary(dev, EK_UNARY_SQRT, invstd, invstd, 0, 0));
    return ek_host_unary(dev, EK_UNARY_RECIPROCAL, invstd, invstd, 0, 0);
}

/* invstd comes last: it may lie over var. */
int ek_host_norm_settle(ek_dev *dev, const ek_tensor *mean, const ek_tensor *var,
                        const ek_norm_settle *settle)
{
    const double momentum = settle->average
                                ? 1 / (double)*(const int64_t *)ek_tensor_address(settle->average)
                                : settle->momentum;
    EK_TRY(move(dev, settle->running_mean, mean, momentum, 1));
    EK_TRY(move(dev, settle->running_var, var, momentum, settle->count / (settle->count - 1)));
    if (settle->batches)
        EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, settle->batches, settle->batches, 1, 1));
    if (settle->mean)
        EK_TRY(ek_host_copy(dev, settle->mean, mean));
    return settle->invstd ? invert(dev, settle->invstd, var, settle->eps) : 0;
}

/* ---- moments of chunks ---- */

/* Row 0 (means) or 1 (variances) of chunk k. */
static double moment(const ek_tensor *moments, int64_t k, int row, int64_t c)
{
    const int64_t at = k * moments->stride[0] + row * moments->stride[1] + c * moments->stride[2];
    const void *values = ek_tensor_address(moments);
    return moments->dtype == EK_F64 ? ((const double *)values)[at]
                                    : (double)((const float *)values)[at];
}

static void store_moment(ek_tensor *moments, int64_t k, int row, int64_t c, double value)
{
    const int64_t at = k * moments->stride[0] + row * moments->stride[1] + c * moments->stride[2];
    void *values = ek_tensor_address(moments);
    if (moments->dtype == EK_F64)
        ((double *)values)[at] = value;
    else
        ((float *)values)[at] = (float)value;
}

int ek_host_norm_merge(ek_dev *dev, ek_tensor *mean, ek_tensor *var, ek_tensor *invstd,
                       const ek_tensor *moments, const double *shares, double eps)
{
    for (int64_t c = 0; c < moments->shape[2]; c++) {
        double m = 0, v = 0;
        for (int64_t k = 0; k < moments->shape[0]; k++)
            m += shares[k] * moment(moments, k, 0, c);
        for (int64_t k = 0; k < moments->shape[0]; k++) {
            const double apart = moment(moments, k, 0, c) - m;
            v += shares[k] * (moment(moments, k, 1, c) + apart * apart);
        }
        ek_norm_store(mean, c, m);
        ek_norm_store(var, c, v);
    }
    return invert(dev, invstd, var, eps);
}

/* With r = invstd: dr/dvar = -r^3 / 2. */
int ek_host_norm_merge_gradient(ek_dev *dev, ek_tensor *dmoments, const ek_tensor *dmean,
                                const ek_tensor *dvar, const ek_tensor *dinvstd,
                                const ek_tensor *moments, const ek_tensor *mean,
                                const ek_tensor *invstd, const double *shares)
{
    (void)dev;
    for (int64_t c = 0; c < moments->shape[2]; c++) {
        const double m = ek_norm_value(mean, c, 0), r = ek_norm_value(invstd, c, 0);
        const double dm = ek_norm_value(dmean, c, 0);
        const double dv =
            ek_norm_value(dvar, c, 0) - 0.5 * r * r * r * ek_norm_value(dinvstd, c, 0);
        for (int64_t k = 0; k < moments->shape[0]; k++) {
            const double apart = moment(moments, k, 0, c) - m;
            store_moment(dmoments, k, 0, c, shares[k] * (dm + 2 * apart * dv));
            store_moment(dmoments, k, 1, c, shares[k] * dv);
        }
    }
    return 0;
}
