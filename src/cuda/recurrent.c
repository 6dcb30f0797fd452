/* recurrent.c: a step of recurrent networks and its gradient, one launch each. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* Returns the address of an operand; NULL if it is absent. */
static void *recurrent_data(const ek_tensor *tensor)
{
    return tensor ? ek_tensor_address(tensor) : NULL;
}

int ek_cuda_recurrent_forward(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell, ek_tensor *c,
                              ek_tensor *gates, const ek_tensor *x, const ek_tensor *product,
                              const ek_tensor *before)
{
    if (ek_count(h) == 0)
        return 0;
    ek_cuda_recurrent_job job = {.dtype = h->dtype,
                                 .cell = cell,
                                 .count = ek_count(h),
                                 .hidden = h->shape[1],
                                 .x_row = x->stride[0],
                                 .out = {recurrent_data(h), recurrent_data(c),
                                         recurrent_data(gates)},
                                 .in = {recurrent_data(x), recurrent_data(product),
                                        recurrent_data(before)}};
    EK_CUDA_RUN(dev, "recurrent", ek_cuda_launch_recurrent(&stream, &job));
}

int ek_cuda_recurrent_gradient(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                               ek_tensor *dbefore, const ek_tensor *dh, const ek_tensor *more,
                               const ek_tensor *dc, const ek_tensor *gates, const ek_tensor *before,
                               const ek_tensor *c)
{
    if (ek_count(dx) == 0)
        return 0;
    ek_cuda_recurrent_job job = {.dtype = dx->dtype,
                                 .cell = cell,
                                 .count = ek_count(gates) / (before ? 4 : 1),
                                 .hidden = gates->shape[1] / (before ? 4 : 1),
                                 .out = {recurrent_data(dx), recurrent_data(dbefore)},
                                 .in = {recurrent_data(dh), recurrent_data(more),
                                        recurrent_data(dc), recurrent_data(gates),
                                        recurrent_data(before), recurrent_data(c)}};
    EK_CUDA_RUN(dev, "recurrent_gradient", ek_cuda_launch_recurrent_gradient(&stream, &job));
}

/* Steps are launched one by one. */
int ek_cuda_recurrent_steps(ek_dev *dev, const ek_recurrent_steps *steps)
{
    (void)dev, (void)steps;
    return 0;
}

int ek_cuda_recurrent_steps_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                     const ek_recurrent_steps_back *back)
{
    (void)dev, (void)steps, (void)back;
    return 0;
}

int ek_cuda_recurrent_parameters_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                          const ek_tensor *dsums,
                                          const ek_recurrent_parameters *gradients)
{
    (void)dev, (void)steps, (void)dsums, (void)gradients;
    return 0;
}
