/* lists.c: sums of many tensors and optimizer steps. Lists are cut to what one launch takes. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

typedef const ek_tensor *const *tensor_list;

/* Fills *list with entries from `begin` on, as many as one launch takes; an entry has one tensor of
 * each of the lists. Returns the first entry that is left. */
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
            launched = ek_cuda_launch_add_n(stream, outs[0]->dtype, inputs[0]->dtype, &list);
    }
    return launched;
}

/* Adds up many tensors. If one launch doesn't take all addends, several launches add them, and each
 * launch rounds bf16 once. */
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

int ek_cuda_step_list(ek_dev *dev, ek_step_rule rule, int count, ek_tensor *const *parameters,
                      ek_tensor *const *gradients, ek_tensor *const *const states[EK_STEP_STATES],
                      const ek_step_numbers *numbers)
{
    tensor_list lists[2 + EK_STEP_STATES] = {(tensor_list)parameters, (tensor_list)gradients};
    const int operands = 2 + ek_step_states(rule);
    EK_TRY(ek_step_check(rule, count, parameters, states));
    for (int k = 2; k < operands; k++)
        lists[k] = (tensor_list)states[k - 2];
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int launched = 0;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype dtype = parameters[i]->dtype;
        i = list_gather(&list, lists, operands, count, i);
        if (list.count > 0)
            launched = ek_cuda_launch_step(&stream, dtype, rule, &list, numbers);
    }
    return ek_cuda_end(dev, &stream, "an optimizer's step", launched);
}
