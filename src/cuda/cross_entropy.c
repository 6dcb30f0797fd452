/* cross_entropy.c: tensors of cross entropy taken apart. A target out of range is found by the
 * kernel, and then counts as an ignored one. */
#include "cuda/cross_entropy.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

static ek_cuda_values values_of(const ek_tensor *tensor)
{
    if (tensor == NULL)
        return (ek_cuda_values){.data = NULL};
    return (ek_cuda_values){ek_tensor_address(tensor), tensor->dtype};
}

static int dimension_of_classes(const ek_tensor *x)
{
    return x->ndim > 1 ? 1 : 0;
}

/* dx is NULL in forward. */
static ek_cuda_entropy_job job_of(const ek_tensor *x, const ek_tensor *target,
                                  const ek_tensor *loss, const ek_tensor *lse, const ek_tensor *dx,
                                  const ek_tensor *weight, const ek_cross_entropy_params *params)
{
    int dim = dimension_of_classes(x);
    ek_cuda_entropy_job job = {.params = *params,
                               .dtype = x->dtype,
                               .x = ek_tensor_address(x),
                               .dx = dx != NULL ? ek_tensor_address(dx) : NULL,
                               .target = ek_tensor_address(target),
                               .loss = values_of(loss),
                               .lse = values_of(lse),
                               .weight = values_of(weight),
                               .weight_stride = weight != NULL ? weight->stride[0] : 0,
                               .classes = x->shape[dim],
                               .stride_x = x->stride[dim],
                               .stride_dx = dx != NULL ? dx->stride[dim] : 0};
    ek_cuda_places_without(&job.lines, dx != NULL ? 5 : 4,
                           (const ek_tensor *[]){x, target, loss, lse, dx},
                           (const bool[]){true, false, false, false, true}, dim);
    return job;
}

int ek_cuda_cross_entropy_forward(ek_dev *dev, ek_tensor *loss, ek_tensor *lse, const ek_tensor *x,
                                  const ek_tensor *target, const ek_tensor *weight,
                                  const ek_cross_entropy_params *params)
{
    if (ek_count(target) == 0)
        return 0;
    if (x->shape[dimension_of_classes(x)] == 0)
        return EK_FAIL(EK_E_SHAPE, "cross entropy over 0 classes; at least 1 is needed");
    ek_cuda_entropy_job job = job_of(x, target, loss, lse, NULL, weight, params);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    job.team = ek_cuda_team_along(queue.multiprocessors, &job.lines, 0, job.classes, job.stride_x,
                                  EK_CUDA_TEAM_READS);
    return ek_cuda_end(dev, &queue, "cross_entropy", ek_cuda_launch_cross_entropy(&queue, &job));
}

int ek_cuda_cross_entropy_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                   const ek_tensor *lse, const ek_tensor *x,
                                   const ek_tensor *target, const ek_tensor *weight,
                                   const ek_cross_entropy_params *params)
{
    if (ek_count(x) == 0)
        return 0;
    ek_cuda_entropy_job job = job_of(x, target, gradient, lse, dx, weight, params);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    job.team = ek_cuda_team_along(queue.multiprocessors, &job.lines, 0, job.classes, job.stride_x,
                                  EK_CUDA_TEAM_WRITES);
    return ek_cuda_end(dev, &queue, "cross_entropy_gradient",
                       ek_cuda_launch_cross_entropy_gradient(&queue, &job));
}

int ek_cuda_target_weight(ek_dev *dev, ek_tensor *out, const ek_tensor *target,
                          const ek_tensor *weight, int64_t ignore_index)
{
    ek_cuda_target_job job = {.target = ek_tensor_address(target),
                              .weight = values_of(weight),
                              .out = values_of(out),
                              .weight_stride = weight != NULL ? weight->stride[0] : 0,
                              .classes = weight != NULL ? weight->shape[0] : 0,
                              .ignore_index = ignore_index};
    ek_cuda_places_without(&job.places, 1, (const ek_tensor *[]){target}, NULL, -1);
    job.blocks = (job.places.count + EK_CUDA_TARGET_BLOCK - 1) / EK_CUDA_TARGET_BLOCK;
    if (job.blocks < 1)
        job.blocks = 1;
    void *partial = NULL;
    size_t nbytes = job.blocks > 1 ? (size_t)job.blocks * sizeof(double) : 0;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &partial));
    job.partial = partial;
    ek_cuda_queue queue;
    int rc = ek_cuda_begin(dev, &queue);
    if (rc >= 0)
        rc = ek_cuda_end(dev, &queue, "target_weight", ek_cuda_launch_target_weight(&queue, &job));
    ek_cuda_scratch_free(dev, partial, nbytes);
    return rc;
}
