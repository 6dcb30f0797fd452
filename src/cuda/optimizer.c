/* optimizer.c: lists of parameters, cut to what one launch takes. */
#include "cuda/optimizer.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

typedef struct step_tensors {
    int count, operands;
    ek_tensor *const *lists[5]; /* parameters, gradients, states */
} step_tensors;

static int check_dtypes(const step_tensors *tensors, const char *name)
{
    ek_tensor *const *parameters = tensors->lists[0];
    for (int i = 0; i < tensors->count; i++)
        if (parameters[i]->dtype != EK_F32 && parameters[i]->dtype != EK_F64)
            return EK_FAIL(EK_E_DTYPE, "%s steps parameters of f32 or f64, not %s", name,
                           ek_dtype_name(parameters[i]->dtype));
    return 0;
}

/* As many of the tensors from `begin` as one launch takes; returns the first that is left. */
static int gather(const step_tensors *tensors, int begin, ek_cuda_list *list)
{
    *list = (ek_cuda_list){.operands = tensors->operands};
    int i = begin;
    for (; i < tensors->count; i++) {
        int64_t elements = ek_count(tensors->lists[0][i]);
        void **data = elements > 0 ? ek_cuda_list_add(list, elements) : NULL;
        if (!data && elements > 0)
            break;
        for (int k = 0; data && k < tensors->operands; k++)
            data[k] = ek_tensor_address(tensors->lists[k][i]);
    }
    return i;
}

int ek_cuda_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params)
{
    const step_tensors tensors = {count,
                                  momentum_buffers ? 3 : 2,
                                  {parameters, gradients, momentum_buffers}};
    EK_TRY(check_dtypes(&tensors, "SGD"));
    if (params->momentum != 0 && !momentum_buffers)
        return EK_FAIL(EK_E_INVALID, "SGD with momentum %g needs a momentum buffer",
                       params->momentum);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    int launched = 0;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype dtype = parameters[i]->dtype;
        i = gather(&tensors, i, &list);
        if (list.count > 0)
            launched = ek_cuda_launch_sgd(&queue, dtype, &list, params);
    }
    return ek_cuda_end(dev, &queue, "SGD's step", launched);
}

int ek_cuda_adam_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                           ek_tensor *const *gradients, ek_tensor *const *exp_avgs,
                           ek_tensor *const *exp_avg_sqs, ek_tensor *const *max_exp_avg_sqs,
                           const ek_adam_params *params)
{
    const step_tensors tensors = {count,
                                  max_exp_avg_sqs ? 5 : 4,
                                  {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}};
    EK_TRY(check_dtypes(&tensors, "Adam"));
    if (params->step < 1)
        return EK_FAIL(EK_E_INVALID, "Adam's first step has number 1, not %lld",
                       (long long)params->step);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    int launched = 0;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype dtype = parameters[i]->dtype;
        i = gather(&tensors, i, &list);
        if (list.count > 0)
            launched = ek_cuda_launch_adam(&queue, dtype, &list, params);
    }
    return ek_cuda_end(dev, &queue, "Adam's step", launched);
}
