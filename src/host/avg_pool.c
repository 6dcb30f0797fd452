/* avg_pool.c: average pooling, adaptive or by windows, and its gradient. */
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/pool.h"

#define REAL float
#define NAME(x) x##_f32
#include "host/avg_pool_real.h"

#define REAL double
#define NAME(x) x##_f64
#include "host/avg_pool_real.h"

static const ek_pool_job forward = {EK_POOL_COMPUTES_Y, avg_forward_f32, avg_forward_f64, false};
static const ek_pool_job gradient = {EK_POOL_COMPUTES_X, avg_gradient_f32, avg_gradient_f64, true};

int ek_host_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                             const ek_pool_params *params)
{
    return ek_pool_run(dev, &forward, x, y, NULL, params);
}

int ek_host_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_pool_params *params)
{
    return ek_pool_run(dev, &gradient, dx, dy, NULL, params);
}

int ek_host_adaptive_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x)
{
    return ek_pool_run(dev, &forward, x, y, NULL, NULL);
}

int ek_host_adaptive_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy)
{
    return ek_pool_run(dev, &gradient, dx, dy, NULL, NULL);
}
