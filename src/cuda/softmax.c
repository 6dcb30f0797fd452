#include "cuda/softmax.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

typedef int launcher(const ek_cuda_queue *queue, const ek_cuda_softmax_job *job);

/* tensors: out, a, b (NULL for softmax itself) */
static int run(ek_dev *dev, const char *operation, launcher *launch,
               const ek_tensor *const *tensors, int dim, bool logarithm)
{
    const ek_tensor *out = tensors[0], *a = tensors[1], *b = tensors[2];
    int operands = b != NULL ? 3 : 2;
    if (ek_count(out) == 0)
        return 0;
    ek_cuda_softmax_job job = {.logarithm = logarithm,
                               .dtype = out->dtype,
                               .out = ek_tensor_address(out),
                               .a = ek_tensor_address(a),
                               .b = b != NULL ? ek_tensor_address(b) : NULL,
                               .size = out->ndim == 0 ? 1 : out->shape[dim]};
    for (int k = 0; k < operands; k++)
        job.stride[k] = tensors[k]->ndim == 0 ? 1 : tensors[k]->stride[dim];
    ek_cuda_places_without(&job.lines, operands, tensors, NULL, dim);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    job.team = ek_cuda_team_along(queue.multiprocessors, &job.lines, 0, job.size, job.stride[0],
                                  EK_CUDA_TEAM_WRITES);
    return ek_cuda_end(dev, &queue, operation, launch(&queue, &job));
}

int ek_cuda_softmax(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim, bool logarithm)
{
    return run(dev, logarithm ? "log_softmax" : "softmax", ek_cuda_launch_softmax,
               (const ek_tensor *[]){y, x, NULL}, dim, logarithm);
}

int ek_cuda_softmax_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *y,
                             int dim, bool logarithm)
{
    return run(dev, "softmax_gradient", ek_cuda_launch_softmax_gradient,
               (const ek_tensor *[]){dx, dy, y}, dim, logarithm);
}
