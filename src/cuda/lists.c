/* lists.c: sums of many tensors and optimizer steps. Lists are cut to what one launch takes. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

typedef const ek_tensor *const *tensor_list;

/* Fills *list with as many entries from `begin` of `count` as one launch takes; an entry has one
 * tensor of each of the lists. Returns the first entry that is left. */
static int list_gather(ek_cuda_list *list, const tensor_list *lists, int operands, int count,
                       int begin)
{
    *list = (ek_cuda_list){.operands = operands};
    int i = begin;
    for (; i < count; i++) {
        int64_t elements = ek_count(lists[0][i]);
        void **data = elements > 0 ? ek_cuda_list_add(list, elements) : NULL;
        if (!data && elements > 0)
            break;
        for (int k = 0; data && k < operands; k++)
            data[k] = ek_tensor_address(lists[k][i]);
    }
    return i;
}

/* ---- sums ---- */

/* Adds the addends [done, end) to all sums. If done > 0, the first addend is the sum so far. */
static int list_add_some(const ek_cuda_stream *stream, int count, ek_tensor *const *outs,
                         const ek_tensor *const *inputs, int done, int end)
{
    tensor_list lists[EK_CUDA_LIST_DATA] = {(tensor_list)outs, (tensor_list)outs};
    int operands = done > 0 ? 2 : 1, launched = 0;
    for (int k = done; k < end; k++)
        lists[operands++] = inputs + (ptrdiff_t)k * count;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        i = list_gather(&list, lists, operands, count, i);
        if (list.count > 0)
            launched = ek_cuda_launch_add_n(stream, outs[0]->dtype, &list);
    }
    return launched;
}

/* If one launch doesn't take all addends, several add them, and each rounds bf16 once. */
int ek_cuda_add_n(ek_dev *dev, int count, ek_tensor *const *outs, const ek_tensor *const *inputs,
                  int addends)
{
    enum { MOST = EK_CUDA_LIST_DATA - 2 };
    if (addends < 1)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; at least 1 is needed", addends);
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int launched = 0;
    for (int done = 0; done < addends && launched == 0; done += MOST)
        launched = list_add_some(&stream, count, outs, inputs, done,
                                 addends - done < MOST ? addends : done + MOST);
    return ek_cuda_end(dev, &stream, "add_n", launched);
}

/* ---- optimizer steps ---- */

/* A step of `sgd` or `adam`; the other one is NULL. */
typedef struct step_job {
    int count, operands;
    tensor_list lists[5]; /* parameters, gradients, states */
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

static int step_run(ek_dev *dev, const step_job *job)
{
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int launched = 0;
    for (int i = 0; i < job->count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype dtype = job->lists[0][i]->dtype;
        i = list_gather(&list, job->lists, job->operands, job->count, i);
        if (list.count > 0)
            launched = job->sgd ? ek_cuda_launch_sgd(&stream, dtype, &list, job->sgd)
                                : ek_cuda_launch_adam(&stream, dtype, &list, job->adam);
    }
    return ek_cuda_end(dev, &stream, job->sgd ? "SGD's step" : "Adam's step", launched);
}

int ek_cuda_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params)
{
    const step_job job = {.count = count,
                          .operands = momentum_buffers ? 3 : 2,
                          .lists = {(tensor_list)parameters, (tensor_list)gradients,
                                    (tensor_list)momentum_buffers},
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
                          .lists = {(tensor_list)parameters, (tensor_list)gradients,
                                    (tensor_list)exp_avgs, (tensor_list)exp_avg_sqs,
                                    (tensor_list)max_exp_avg_sqs},
                          .adam = params};
    EK_TRY(step_check(&job));
    if (params->step < 1)
        return EK_FAIL(EK_E_INVALID, "Adam's first step has number 1, not %lld",
                       (long long)params->step);
    return step_run(dev, &job);
}
