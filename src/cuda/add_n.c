#include "cuda/add_n.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

/* More addends than one launch takes: what is there so far is the first of the next. So bf16 is
 * rounded once a launch. */
int ek_cuda_add_n(ek_dev *dev, ek_tensor *out, const ek_tensor *const *inputs, int count)
{
    if (count < 1)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; at least 1 is needed", count);
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    void *target = ek_tensor_address(out);
    int64_t elements = ek_count(out);
    int done = 0, launched = 0;
    while (done < count && elements > 0 && launched == 0) {
        ek_cuda_addends addends = {.count = 0};
        if (done > 0)
            addends.data[addends.count++] = target;
        while (addends.count < EK_CUDA_ADDENDS && done < count)
            addends.data[addends.count++] = ek_tensor_address(inputs[done++]);
        launched = ek_cuda_launch_add_n(&queue, out->dtype, target, &addends, elements);
    }
    return ek_cuda_end(dev, &queue, "add_n", launched);
}
