/* lists.c: sums of many tensors, optimizer steps, norms. Lists are cut to what one launch takes. */
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
        for (int k = 0; data && k < operands; k++) /* an addend may be absent */
            data[k] = lists[k][i] ? ek_tensor_address(lists[k][i]) : NULL;
    }
    return i;
}

/* ---- sums ---- */

int ek_cuda_add_n(ek_dev *dev, int count, ek_tensor *const *outs, const ek_tensor *const *inputs,
                  int addends)
{
    tensor_list lists[1 + EK_MAX_DEVICES] = {(tensor_list)outs};
    if (addends < 1 || addends > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; 1 to %d are possible", addends,
                       EK_MAX_DEVICES);
    for (int k = 0; k < addends; k++)
        lists[1 + k] = inputs + (ptrdiff_t)k * count;
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int launched = 0;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        ek_dtype from = addends > 1 ? outs[0]->dtype : inputs[0]->dtype;
        i = list_gather(&list, lists, 1 + addends, count, i);
        launched = ek_cuda_launch_add_n(&stream, outs[0]->dtype, from, &list);
    }
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
        i = list_gather(&list, lists, operands, count, i);
        launched = ek_cuda_launch_step(&stream, parameters[0]->dtype, rule, &list, numbers);
    }
    return ek_cuda_end(dev, &stream, "an optimizer's step", launched);
}

/* ---- norms of gradients ---- */

static int list_launch_norm(const ek_cuda_stream *stream, int count, ek_tensor *const *x, double p,
                            double *partial, const double *factor)
{
    int launched = 0;
    for (int i = 0; i < count && launched == 0;) {
        ek_cuda_list list;
        i = list_gather(&list, &(tensor_list){(tensor_list)x}, 1, count, i);
        launched = ek_cuda_launch_norm(stream, x[0]->dtype, &list, p, partial, factor);
        partial += factor ? 0 : list.first[list.count];
    }
    return launched;
}

int ek_cuda_norm_list(ek_dev *dev, ek_tensor *out, int count, ek_tensor *const *x,
                      const ek_tensor *sums, double p, double max_norm)
{
    int64_t terms = sums ? ek_count(sums) : 0;
    for (int i = 0; i < count; i++)
        terms += (ek_count(x[i]) + EK_CUDA_LIST_CHUNK - 1) / EK_CUDA_LIST_CHUNK;
    const size_t nbytes = sums ? 0 : (size_t)terms * sizeof(double);
    void *partial;
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &partial));
    int rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0) {
        const double *from = sums ? ek_tensor_address(sums) : partial;
        double *to = ek_tensor_address(out);
        rc = list_launch_norm(&stream, count, x, p, partial, NULL);
        rc = rc ? rc : ek_cuda_launch_norm_join(&stream, from, terms, p, max_norm, to);
        rc = ek_cuda_end(dev, &stream, "a norm", rc);
    }
    ek_cuda_scratch_free(dev, partial, nbytes);
    return rc;
}

int ek_cuda_scale_list(ek_dev *dev, int count, ek_tensor *const *x, const ek_tensor *factor)
{
    EK_CUDA_RUN(dev, "scaling",
                list_launch_norm(&stream, count, x, 1, NULL, ek_tensor_address(factor)));
}
