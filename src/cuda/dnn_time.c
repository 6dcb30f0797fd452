/* dnn_time.c: finds the fastest of cuDNN's plans for a problem, measured on this GPU. Heuristics
 * order plans by a model of the GPU, which is often wrong by a tenth and sometimes by half. */
#include "cuda/dnn_plan.h"
#include "cuda/stream.h"

#ifdef EK_HAVE_CUDNN

enum { RUNS = 3 }; /* after a first run, which loads the kernels */

/* Runs a plan once between two events. *milliseconds becomes negative if cuDNN refuses the plan. */
static int time_run(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                    const ek_dnn_plan *plan, const ek_dnn_memory *memory,
                    const cudaEvent_t events[2], float *milliseconds)
{
    cudaStream_t stream = ek_cuda_of(dev)->compute;
    *milliseconds = -1;
    EK_TRY(ek_cuda_record(dev, events[0], stream));
    cudnnStatus_t status = ek_dnn_plan_run(api, handle, plan, memory);
    EK_TRY(ek_cuda_record(dev, events[1], stream));
    EK_TRY(ek_cuda_check(dev, "timing a convolution", ek_cuda_wait_event(events[1])));
    if (status != CUDNN_STATUS_SUCCESS)
        return ek_cuda_check(dev, "timing a convolution", ek_cuda_late(dev));
    return ek_cuda_check(dev, "timing a convolution",
                         (int)cudaEventElapsedTime(milliseconds, events[0], events[1]));
}

/* Sets *best to the milliseconds of the shortest run; negative if the plan fails or memory is
 * short. */
static int time_plan(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                     const ek_dnn_plan *plan, ek_dnn_memory memory, const cudaEvent_t events[2],
                     float *best)
{
    size_t nbytes = ek_cuda_padded((size_t)plan->workspace);
    void *workspace = NULL;
    float milliseconds = 0;
    *best = -1;
    int rc = ek_cuda_try_scratch(dev, nbytes, &workspace);
    if (rc <= 0)
        return rc;
    memory.workspace = ek_cuda_aligned(workspace);
    for (int i = 0; i <= RUNS && rc >= 0 && milliseconds >= 0; i++) {
        rc = time_run(dev, api, handle, plan, &memory, events, &milliseconds);
        if (milliseconds < 0 || i == 1 || (i > 1 && milliseconds < *best))
            *best = milliseconds;
    }
    if (workspace)
        ek_cuda_scratch_free(dev, workspace, nbytes);
    return rc;
}

static int time_all(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                    const ek_dnn_plan *plans, int count, const ek_dnn_memory *memory,
                    const cudaEvent_t events[2], ek_dnn_time *times)
{
    for (int i = 0; i < count; i++) {
        times[i].engine = plans[i].engine;
        EK_TRY(time_plan(dev, api, handle, &plans[i], *memory, events, &times[i].milliseconds));
        (void)cudaGetLastError(); /* clears the plan's error, which the next launch would return */
    }
    return 0;
}

/* Returns the index of the fastest plan, the first of equal ones; -1 if all have failed. */
static int time_least(const ek_dnn_time *times, int count)
{
    int least = -1;
    for (int i = 0; i < count; i++)
        if (times[i].milliseconds >= 0 &&
            (least < 0 || times[i].milliseconds < times[least].milliseconds))
            least = i;
    return least;
}

/* Times plans. `output` points to the address in `memory` of the tensor that is computed. The
 * address is set to scratch memory. */
static int time_into_scratch(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                             const ek_dnn_plan *plans, int count, const ek_dnn_memory *memory,
                             void **output, size_t nbytes, ek_dnn_time *times)
{
    cudaEvent_t events[2] = {NULL, NULL};
    void *scratch = NULL;
    int rc = ek_cuda_try_scratch(dev, ek_cuda_padded(nbytes), &scratch);
    if (rc <= 0)
        return rc;
    *output = ek_cuda_aligned(scratch);
    rc = 0;
    for (int i = 0; i < 2 && rc >= 0; i++)
        rc = ek_cuda_check(dev, "making an event", (int)cudaEventCreate(&events[i]));
    if (rc >= 0)
        rc = time_all(dev, api, handle, plans, count, memory, events, times);
    for (int i = 0; i < 2; i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    ek_cuda_scratch_free(dev, scratch, ek_cuda_padded(nbytes));
    return rc < 0 ? rc : 1;
}

int ek_dnn_plan_choose_fastest(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                               const ek_dnn_problem *problem, int64_t most,
                               const ek_dnn_memory *memory, ek_dnn_plan *plan)
{
    ek_dnn_plan plans[EK_DNN_TIMED];
    ek_dnn_time times[EK_DNN_TIMED];
    ek_dnn_memory copy = *memory;
    const bool images = problem->operation == EK_DNN_INPUT_GRADIENT;
    const bool weights = problem->operation == EK_DNN_WEIGHT_GRADIENT;
    void **output = &copy.tensors[images ? EK_DNN_X : weights ? EK_DNN_W : EK_DNN_Y];
    const int64_t *shape = images ? problem->x : weights ? problem->w : problem->y;
    size_t nbytes = ek_dtype_size(problem->dtype);
    for (int64_t d = 0; d < 2 + problem->dims; d++)
        nbytes *= (size_t)shape[d];
    int count = ek_dnn_plans_make(api, &(ek_dnn_target){.handle = handle}, problem, most, plans,
                                  EK_DNN_TIMED);
    int rc = count == 0
                 ? 0
                 : time_into_scratch(dev, api, handle, plans, count, &copy, output, nbytes, times);
    int least = rc > 0 ? time_least(times, count) : -1;
    if (least < 0) {
        ek_dnn_plans_free(api, plans, count);
        return rc < 0 ? rc : 0;
    }
    ek_dnn_plan_free(api, plan);
    ek_dnn_plans_keep(api, plans, count, least, plan);
    plan->timed = count;
    for (int i = 0; i < count; i++)
        plan->times[i] = times[i];
    return 1;
}

#endif
