/* copy.c: which way a copy goes. */
#include "cuda/copy.h"

#include "cuda/cuda.h"
#include "cuda/runtime.h"

int ek_cuda_copy(ek_dev *dev, ek_tensor *out, const ek_tensor *x)
{
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    ek_cuda_walk walk = ek_cuda_walk_of(2, (const ek_tensor *[]){out, x});
    size_t size = ek_dtype_size(out->dtype);
    int launched = 0;
    if (walk.count == 0)
        launched = 0;
    else if (out->dtype != x->dtype)
        launched = ek_cuda_launch_convert(&queue, &walk);
    else if (!walk.flat)
        launched = ek_cuda_launch_copy(&queue, &walk, size);
    else if (walk.data[0] != walk.data[1])
        launched = (int)cudaMemcpyAsync(walk.data[0], walk.data[1], (size_t)walk.count * size,
                                        cudaMemcpyDeviceToDevice, queue.stream);
    return ek_cuda_end(dev, &queue, "copy", launched);
}
