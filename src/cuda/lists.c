/* lists.c: sums of many tensors and optimizer steps, as lists that are cut to what one launch
 * takes. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* ---- sums ---- */

/* Addends [done, end) of all sums; from the second time on what is there so far comes first. */
static int add_some(const ek_cuda_queue *queue, int count, ek_tensor *const *outs,
                    const ek_tensor *const *inputs, int done, int end)
{
    const int again = done > 0;
    for (int i = 0; i < count;) {
        ek_cuda_list list = {.operands = 1 + again + end - done};
        for (; i < count; i++) {
            int64_t elements = ek_count(outs[i]);
            void **data = elements > 0 ? ek_cuda_list_add(&list, elements) : NULL;
            if (!data && elements > 0)
                break;
            if (!data)
                continue;
            data[0] = data[again] = ek_tensor_address(outs[i]);
            for (int k = done; k < end; k++)
                data[1 + again + k - done] = ek_tensor_address(inputs[(ptrdiff_t)k * count + i]);
        }
        int launched = list.count ? ek_cuda_launch_add_n(queue, outs[0]->dtype, &list) : 0;
        if (launched != 0)
            return launched;
    }
    return 0;
}

/* More addends than one launch takes are added in several: so bf16 is rounded once a launch. */
int ek_cuda_add_n(ek_dev *dev, int count, ek_tensor *const *outs, const ek_tensor *const *inputs,
                  int addends)
{
    enum { MOST = EK_CUDA_LIST_DATA - 2 };
    if (addends < 1)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; at least 1 is needed", addends);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    int launched = 0;
    for (int done = 0; done < addends && launched == 0; done += MOST)
        launched = add_some(&queue, count, outs, inputs, done,
                            addends - done < MOST ? addends : done + MOST);
    return ek_cuda_end(dev, &queue, "add_n", launched);
}

/* ---- optimizer steps ---- */

/* One of `sgd` and `adam` says which. */
typedef struct step_job {
    int count, operands;
    ek_tensor *const *lists[5]; /* parameters, gradients, states */
    const ek_sgd_params *sgd;
    const ek_adam_params *adam;
} step_job;

static int step_check(const step_job *job)
{
    for (int i = 0; i < job->count; i++) {
        ek_dtype dtype = job->lists[0][i]->dtype;
        if (dtype != EK_F32 && dtype != EK_F64)
            return EK_FAIL(EK_E_DTYPE, "%s steps parameters of f32 or f64, not %s",
                           job->sgd ? "SGD" : "Adam", ek_dtype_name(dtype));
    }
    return 0;
}

/* As many of the tensors from `begin` as one launch takes; returns the first that is left. */
static int step_gather(const step_job *job, int begin, ek_cuda_list *list)
{
    *list = (ek_cuda_list){.operands = job->operands};
    int i = begin;
    for (; i < job->count; i++) {
        int64_t elements = ek_count(job->lists[0][i]);
        void **data = elements > 0 ? ek_cuda_list_add(list, elements) : NULL;
        if (!data && elements > 0)
            break;
        for (int k = 0; data && k < job->operands; k++)
            data[k] = ek_tensor_address(job->lists[k][i]);
    }
    return i;
}

static int step_run(ek_dev *dev, const step_job *job)
{
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    int launched = 0;
    for (int i = 0; i < job->count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype dtype = job->lists[0][i]->dtype;
        i = step_gather(job, i, &list);
        if (list.count > 0)
            launched = job->sgd ? ek_cuda_launch_sgd(&queue, dtype, &list, job->sgd)
                                : ek_cuda_launch_adam(&queue, dtype, &list, job->adam);
    }
    return ek_cuda_end(dev, &queue, job->sgd ? "SGD's step" : "Adam's step", launched);
}

int ek_cuda_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params)
{
    const step_job job = {.count = count,
                          .operands = momentum_buffers ? 3 : 2,
                          .lists = {parameters, gradients, momentum_buffers},
                          .sgd = params};
    EK_TRY(step_check(&job));
    if (params->momentum != 0 && !momentum_buffers)
        return EK_FAIL(EK_E_INVALID, "SGD with momentum %g needs a momentum buffer",
                       params->momentum);
    return step_run(dev, &job);
}

int ek_cuda_adam_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                           ek_tensor *const *gradients, ek_tensor *const *exp_avgs,
                           ek_tensor *const *exp_avg_sqs, ek_tensor *const *max_exp_avg_sqs,
                           const ek_adam_params *params)
{
    const step_job job = {.count = count,
                          .operands = max_exp_avg_sqs ? 5 : 4,
                          .lists = {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs},
                          .adam = params};
    EK_TRY(step_check(&job));
    if (params->step < 1)
        return EK_FAIL(EK_E_INVALID, "Adam's first step has number 1, not %lld",
                       (long long)params->step);
    return step_run(dev, &job);
}
