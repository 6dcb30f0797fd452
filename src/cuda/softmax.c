/* softmax.c: softmax, cross entropy and their gradients. If a target is out of range, the kernel
 * records a fault (view.h), and treats the target as ignored. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

typedef int softmax_launch(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job);

/* Runs softmax or its gradient. `tensors` are out, a and b (NULL for softmax itself). */
static int softmax_run(ek_dev *dev, const char *operation, softmax_launch *launch,
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
                               .size = ek_cuda_size_along(out, dim)};
    for (int k = 0; k < operands; k++)
        job.stride[k] = ek_cuda_stride_along(tensors[k], dim);
    ek_cuda_strides_without(&job.lines, operands, tensors, NULL, dim);
    job.team = ek_cuda_team_along(ek_cuda_of(dev)->multiprocessors, &job.lines, 0, job.size,
                                  job.stride[0], EK_CUDA_TEAM_WRITES);
    EK_CUDA_RUN(dev, operation, launch(&stream, &job));
}

int ek_cuda_softmax(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim, bool logarithm)
{
    return softmax_run(dev, logarithm ? "log_softmax" : "softmax", ek_cuda_launch_softmax,
                       (const ek_tensor *[]){y, x, NULL}, dim, logarithm);
}

int ek_cuda_softmax_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *y,
                             int dim, bool logarithm)
{
    return softmax_run(dev, "softmax_gradient", ek_cuda_launch_softmax_gradient,
                       (const ek_tensor *[]){dx, dy, y}, dim, logarithm);
}

/* ---- cross entropy ---- */

static ek_cuda_values entropy_values_of(const ek_tensor *tensor)
{
    if (tensor == NULL)
        return (ek_cuda_values){.data = NULL};
    return (ek_cuda_values){ek_tensor_address(tensor), tensor->dtype};
}

static int entropy_dim(const ek_tensor *x)
{
    return x->ndim > 1 ? 1 : 0;
}

/* Returns the arguments of cross entropy or its gradient. dx is NULL in forward. */
static ek_cuda_entropy_job entropy_job(const ek_tensor *x, const ek_tensor *target,
                                       const ek_tensor *loss, const ek_tensor *lse,
                                       const ek_tensor *dx, const ek_tensor *weight,
                                       const ek_cross_entropy_params *params)
{
    int dim = entropy_dim(x);
    ek_cuda_entropy_job job = {.params = *params,
                               .dtype = x->dtype,
                               .x = ek_tensor_address(x),
                               .dx = dx != NULL ? ek_tensor_address(dx) : NULL,
                               .target = ek_tensor_address(target),
                               .loss = entropy_values_of(loss),
                               .lse = entropy_values_of(lse),
                               .weight = entropy_values_of(weight),
                               .weight_stride = weight != NULL ? weight->stride[0] : 0,
                               .classes = x->shape[dim],
                               .stride_x = x->stride[dim],
                               .stride_dx = dx != NULL ? dx->stride[dim] : 0};
    ek_cuda_strides_without(&job.lines, dx != NULL ? 5 : 4,
                            (const ek_tensor *[]){x, target, loss, lse, dx},
                            (const bool[]){true, false, false, false, true}, dim);
    return job;
}

typedef int entropy_launch(const ek_cuda_stream *stream, const ek_cuda_entropy_job *job);

static int entropy_run(ek_dev *dev, const char *operation, entropy_launch *launch,
                       ek_cuda_entropy_job *job, int each)
{
    job->team = ek_cuda_team_along(ek_cuda_of(dev)->multiprocessors, &job->lines, 0, job->classes,
                                   job->stride_x, each);
    EK_CUDA_RUN(dev, operation, launch(&stream, job));
}

int ek_cuda_cross_entropy_forward(ek_dev *dev, ek_tensor *loss, ek_tensor *lse, const ek_tensor *x,
                                  const ek_tensor *target, const ek_tensor *weight,
                                  const ek_cross_entropy_params *params)
{
    if (ek_count(target) == 0)
        return 0;
    if (x->shape[entropy_dim(x)] == 0)
        return EK_FAIL(EK_E_SHAPE, "cross entropy over 0 classes; at least 1 is needed");
    ek_cuda_entropy_job job = entropy_job(x, target, loss, lse, NULL, weight, params);
    return entropy_run(dev, "cross_entropy", ek_cuda_launch_cross_entropy, &job,
                       EK_CUDA_TEAM_READS);
}

int ek_cuda_cross_entropy_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                   const ek_tensor *lse, const ek_tensor *x,
                                   const ek_tensor *target, const ek_tensor *weight,
                                   const ek_cross_entropy_params *params)
{
    if (ek_count(x) == 0)
        return 0;
    ek_cuda_entropy_job job = entropy_job(x, target, gradient, lse, dx, weight, params);
    return entropy_run(dev, "cross_entropy_gradient", ek_cuda_launch_cross_entropy_gradient, &job,
                       EK_CUDA_TEAM_WRITES);
}

int ek_cuda_target_weight(ek_dev *dev, ek_tensor *out, const ek_tensor *target,
                          const ek_tensor *weight, int64_t ignore_index)
{
    ek_cuda_target_job job = {.target = ek_tensor_address(target),
                              .weight = entropy_values_of(weight),
                              .out = entropy_values_of(out),
                              .weight_stride = weight != NULL ? weight->stride[0] : 0,
                              .classes = weight != NULL ? weight->shape[0] : 0,
                              .ignore_index = ignore_index};
    ek_cuda_strides_without(&job.strides, 1, (const ek_tensor *[]){target}, NULL, -1);
    job.blocks = (job.strides.count + EK_CUDA_TARGET_BLOCK - 1) / EK_CUDA_TARGET_BLOCK;
    if (job.blocks < 1)
        job.blocks = 1;
    void *partial = NULL;
    size_t nbytes = job.blocks > 1 ? (size_t)job.blocks * sizeof(double) : 0;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &partial));
    job.partial = partial;
    ek_cuda_stream stream;
    int rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0)
        rc =
            ek_cuda_end(dev, &stream, "target_weight", ek_cuda_launch_target_weight(&stream, &job));
    ek_cuda_scratch_free(dev, partial, nbytes);
    return rc;
}
