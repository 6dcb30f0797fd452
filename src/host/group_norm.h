/* group_norm.h: group normalisation with one group and parameters per element: rows. */
#ifndef EK_HOST_GROUP_NORM_H
#define EK_HOST_GROUP_NORM_H

#include "host/norm.h"

/* Statistics, sums and parameters as doubles. */
static inline double ek_group_value(const ek_tensor *tensor, int64_t i)
{
    return tensor->dtype == EK_F64 ? ((const double *)ek_tensor_address(tensor))[i]
                                   : (double)((const float *)ek_tensor_address(tensor))[i];
}

static inline void ek_group_store(ek_tensor *tensor, int64_t i, double value)
{
    if (tensor->dtype == EK_F64)
        ((double *)ek_tensor_address(tensor))[i] = value;
    else
        ((float *)ek_tensor_address(tensor))[i] = (float)value;
}

int ek_norm_rows_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                       const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias);
int ek_norm_rows_reduce(ek_dev *dev, ek_tensor *sum, ek_tensor *sum_xhat, ek_tensor *dweight,
                        ek_tensor *dbias, const ek_tensor *dy, const ek_tensor *x,
                        const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight);
int ek_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                          const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight,
                          const ek_tensor *sum, const ek_tensor *sum_xhat);

#endif
