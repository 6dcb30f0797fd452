/* max_pool.c: max pooling, its gradient, and the gradient's adjoint. */
#include <math.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/pool.h"

#define REAL float
#define POSITION int32_t
#define NAME(x) x##_f32
#include "host/max_pool_real.h"

#define REAL double
#define POSITION int64_t
#define NAME(x) x##_f64
#include "host/max_pool_real.h"

int ek_host_max_pool_forward(ek_dev *dev, ek_tensor *y, ek_tensor *index, const ek_tensor *x,
                             const ek_pool_params *params)
{
    static const ek_pool_job job = {EK_POOL_COMPUTES_Y_INDEX, max_forward_f32, max_forward_f64,
                                    false};
    return ek_pool_run(dev, &job, x, y, index, params);
}

int ek_host_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index, const ek_pool_params *params)
{
    (void)params; /* positions say where; windows only bound them */
    static const ek_pool_job job = {EK_POOL_COMPUTES_X, max_gradient_f32, max_gradient_f64, true};
    return ek_pool_run(dev, &job, dx, dy, index, NULL);
}

int ek_host_max_pool_gather(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *index)
{
    static const ek_pool_job job = {EK_POOL_COMPUTES_Y, max_gather_f32, max_gather_f64, false};
    return ek_pool_run(dev, &job, x, y, index, NULL);
}
