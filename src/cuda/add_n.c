#include "cuda/add_n.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

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
