/* fill.c: the bytes of a value, and how they get into memory. */
#include "cuda/fill.h"

#include <string.h>

#include "cuda/cuda.h"
#include "cuda/runtime.h"
#include "kernels/formulas.h"

/* As the host converts: by way of the type that the dtype is computed in. */
static ek_cuda_pattern pattern_of(ek_dtype dtype, double value)
{
    ek_cuda_pattern pattern;
    const float narrow = (float)value;
    for (int i = 0; i < 16 / (int)ek_dtype_size(dtype); i++) {
        switch (dtype) {
        case EK_F32:
            pattern.u32[i] = ek_bits_of(narrow);
            break;
        case EK_F64:
            memcpy(&pattern.u64[i], &value, sizeof value);
            break;
        case EK_BF16:
            pattern.u16[i] = ek_bf16_of(narrow);
            break;
        case EK_I64:
            pattern.u64[i] = (uint64_t)ek_i64_of(value);
            break;
        case EK_U8:
            pattern.u8[i] = (uint8_t)ek_i64_of(value);
            break;
        }
    }
    return pattern;
}

static bool is_one_byte(const ek_cuda_pattern *pattern)
{
    for (int i = 1; i < 16; i++)
        if (pattern->u8[i] != pattern->u8[0])
            return false;
    return true;
}

int ek_cuda_fill(ek_dev *dev, ek_tensor *out, double value)
{
    ek_cuda_queue queue;
    EK_TRY(ek_cuda_begin(dev, &queue));
    ek_cuda_walk walk = ek_cuda_walk_of(1, (const ek_tensor *[]){out});
    ek_cuda_pattern pattern = pattern_of(out->dtype, value);
    size_t size = ek_dtype_size(out->dtype);
    int launched = 0;
    if (walk.count > 0 && walk.flat && is_one_byte(&pattern))
        launched = (int)cudaMemsetAsync(walk.data[0], pattern.u8[0], (size_t)walk.count * size,
                                        queue.stream);
    else if (walk.count > 0)
        launched = ek_cuda_launch_fill(&queue, &walk, size, &pattern);
    return ek_cuda_end(dev, &queue, "fill", launched);
}
