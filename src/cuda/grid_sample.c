/* grid_sample.c: images at places between their pixels, the adjoint, and the slope. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* Returns the kernels' arguments. `image` is x or dx, `result` y or dy. */
static ek_cuda_grid_job grid_job(const ek_tensor *image, const ek_tensor *result,
                                 const ek_tensor *grid, const ek_grid_params *params)
{
    ek_cuda_grid_job job = {.image = ek_cuda_image_of(image),
                            .result = ek_cuda_image_of(result),
                            .params = *params,
                            .grid = ek_tensor_address(grid),
                            .by_sample = grid->stride[0],
                            .by_coordinate = grid->stride[grid->ndim - 1]};
    for (int d = 0; d < params->dims; d++)
        job.step[3 - params->dims + d] = grid->stride[1 + d];
    return job;
}

int ek_cuda_grid_sample(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *grid,
                        const ek_grid_params *params)
{
    ek_cuda_grid_job job = grid_job(x, y, grid, params);
    EK_CUDA_RUN(dev, "grid_sample", ek_cuda_launch_grid_sample(&stream, &job));
}

int ek_cuda_grid_sample_adjoint(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                const ek_tensor *grid, const ek_grid_params *params)
{
    EK_TRY(ek_cuda_fill(dev, dx, 0));
    if (ek_count(dy) == 0)
        return 0;
    ek_cuda_grid_job job = grid_job(dx, dy, grid, params);
    EK_CUDA_RUN(dev, "grid_sample_adjoint", ek_cuda_launch_grid_adjoint(&stream, &job));
}

int ek_cuda_grid_sample_slope(ek_dev *dev, ek_tensor *dgrid, const ek_tensor *dy,
                              const ek_tensor *x, const ek_tensor *grid,
                              const ek_grid_params *params)
{
    if (ek_count(x) == 0)
        return ek_cuda_fill(dev, dgrid, 0);
    ek_cuda_grid_job job = grid_job(x, dy, grid, params);
    job.slope = ek_tensor_address(dgrid); /* row-major */
    EK_CUDA_RUN(dev, "grid_sample_slope", ek_cuda_launch_grid_slope(&stream, &job));
}
