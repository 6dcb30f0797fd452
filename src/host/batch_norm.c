/* batch_norm.c: batch normalisation over all but dimension 1. */
#include <math.h>

#include "host/host.h"
#include "host/norm.h"

int ek_host_batch_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                                  const ek_norm_settle *settle)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, mean, (double)NAN));
        return ek_host_fill(dev, var, (double)NAN);
    }
    ek_norm_batch batch;
    EK_TRY(ek_norm_begin(&batch, dev, (const ek_tensor *[]){x}, 1, false, EK_NORM_BATCH));
    int rc = ek_norm_begin_sums(&batch);
    if (rc < 0)
        return ek_norm_end(&batch, rc);
    batch.job.x = ek_norm_data(&batch, 0);
    ek_norm_run_statistics(&batch);
    for (int64_t c = 0; c < x->shape[1]; c++) {
        ek_moments total = ek_norm_moments(&batch, 0, c);
        ek_norm_store(mean, c, total.mean);
        ek_norm_store(var, c, total.deviation / total.count);
    }
    rc = settle ? ek_host_norm_settle(dev, mean, var, settle) : 0;
    return ek_norm_end(&batch, rc);
}

/* ---- apply ---- */

int ek_host_batch_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias, bool relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_batch batch;
    EK_TRY(ek_norm_begin(&batch, dev, (const ek_tensor *[]){y, x}, 2, true, EK_NORM_BATCH));
    int rc = ek_norm_begin_parameters(&batch);
    if (rc < 0)
        return ek_norm_end(&batch, rc);
    batch.job.y = ek_norm_data(&batch, 0);
    batch.job.x = ek_norm_data(&batch, 1);
    batch.job.relu = relu;
    for (int64_t c = 0; c < x->shape[1]; c++) {
        ek_norm_set(&batch, EK_NORM_CENTER, 0, c, ek_norm_value(mean, c, 0));
        ek_norm_set(&batch, EK_NORM_SCALE, 0, c,
                    ek_norm_value(invstd, c, 1) * ek_norm_value(weight, c, 1));
        ek_norm_set(&batch, EK_NORM_SHIFT, 0, c, ek_norm_value(bias, c, 0));
    }
    ek_norm_run_apply(&batch);
    return ek_norm_end(&batch, 0);
}

/* first, second: sums of dy and of dy (x - mean). */
static void store_chain(const ek_norm_chain *chain, int64_t c, double first, double second,
                        double invstd)
{
    const double weight = ek_norm_value(chain->weight, c, 1);
    ek_norm_store(chain->dmean, c, -weight * invstd * first);
    ek_norm_store(chain->dinvstd, c, weight * second);
    ek_norm_store(chain->scale, c, weight * invstd);
}

int ek_host_batch_norm_reduce(ek_dev *dev, ek_tensor *sum_dy, ek_tensor *sum_dy_xhat,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *mean,
                              const ek_tensor *invstd, const ek_tensor *y_relu,
                              const ek_norm_chain *chain)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, sum_dy, 0));
        return ek_host_fill(dev, sum_dy_xhat, 0);
    }
    ek_norm_batch batch;
    EK_TRY(
        ek_norm_begin(&batch, dev, (const ek_tensor *[]){x, dy, y_relu}, 3, false, EK_NORM_BATCH));
    int rc = ek_norm_begin_parameters(&batch);
    if (rc >= 0)
        rc = ek_norm_begin_sums(&batch);
    if (rc < 0)
        return ek_norm_end(&batch, rc);
    batch.job.x = ek_norm_data(&batch, 0);
    batch.job.dy = ek_norm_data(&batch, 1);
    batch.job.mask = ek_norm_data(&batch, 2);
    for (int64_t c = 0; c < x->shape[1]; c++)
        ek_norm_set(&batch, EK_NORM_CENTER, 0, c, ek_norm_value(mean, c, 0));
    ek_norm_run_reduce(&batch);
    for (int64_t c = 0; c < x->shape[1]; c++) {
        double first, second;
        ek_norm_sums(&batch, 0, c, &first, &second);
        ek_norm_store(sum_dy, c, first);
        ek_norm_store(sum_dy_xhat, c, second * ek_norm_value(invstd, c, 1));
        if (chain != NULL)
            store_chain(chain, c, first, second, ek_norm_value(invstd, c, 1));
    }
    return ek_norm_end(&batch, 0);
}

/* ---- gradient ---- */

int ek_host_batch_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum_dy,
                                const ek_tensor *sum_dy_xhat, double count, const ek_tensor *y_relu)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_batch batch;
    EK_TRY(ek_norm_begin(&batch, dev, (const ek_tensor *[]){dx, x, dy, y_relu}, 4, true,
                         EK_NORM_BATCH));
    int rc = ek_norm_begin_parameters(&batch);
    if (rc < 0)
        return ek_norm_end(&batch, rc);
    batch.job.y = ek_norm_data(&batch, 0);
    batch.job.x = ek_norm_data(&batch, 1);
    batch.job.dy = ek_norm_data(&batch, 2);
    batch.job.mask = ek_norm_data(&batch, 3);
    for (int64_t c = 0; c < x->shape[1]; c++) {
        double inverse = ek_norm_value(invstd, c, 1);
        ek_norm_set(&batch, EK_NORM_CENTER, 0, c, ek_norm_value(mean, c, 0));
        double scale = inverse * ek_norm_value(weight, c, 1), share = scale / count;
        ek_norm_set(&batch, EK_NORM_SCALE, 0, c, scale);
        ek_norm_set(&batch, EK_NORM_SHIFT, 0, c, share * ek_norm_value(sum_dy, c, 0));
        ek_norm_set(&batch, EK_NORM_SLOPE, 0, c,
                    share * ek_norm_value(sum_dy_xhat, c, 0) * inverse);
    }
    if (sum_dy == NULL)
        batch.job.shift = batch.job.slope = NULL;
    ek_norm_run_gradient(&batch);
    return ek_norm_end(&batch, 0);
}

int ek_host_norm_moments_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                  const ek_tensor *scale, const ek_tensor *x, const ek_tensor *mean,
                                  const ek_tensor *dmean, const ek_tensor *dvar)
{
    if (ek_count(x) == 0)
        return 0;
    ek_norm_batch batch;
    EK_TRY(ek_norm_begin(&batch, dev, (const ek_tensor *[]){dx, x, dy}, 3, true, EK_NORM_BATCH));
    int rc = ek_norm_begin_parameters(&batch);
    if (rc < 0)
        return ek_norm_end(&batch, rc);
    batch.job.y = ek_norm_data(&batch, 0);
    batch.job.x = ek_norm_data(&batch, 1);
    batch.job.dy = ek_norm_data(&batch, 2);
    const double share = (double)x->shape[1] / (double)ek_count(x);
    for (int64_t c = 0; c < x->shape[1]; c++) {
        ek_norm_set(&batch, EK_NORM_CENTER, 0, c, ek_norm_value(mean, c, 0));
        ek_norm_set(&batch, EK_NORM_SCALE, 0, c, ek_norm_value(scale, c, 1));
        ek_norm_set(&batch, EK_NORM_SHIFT, 0, c, -share * ek_norm_value(dmean, c, 0));
        ek_norm_set(&batch, EK_NORM_SLOPE, 0, c, -2 * share * ek_norm_value(dvar, c, 0));
    }
    ek_norm_run_gradient(&batch);
    return ek_norm_end(&batch, 0);
}
