/* copy.c: chooses the kernel of a copy; converts a value to bytes and fills memory with them. */
#include <string.h>

#include "core/dtypes.h"
#include "cuda/launches.h"
#include "cuda/runtime.h"

int ek_cuda_copy(ek_dev *dev, ek_tensor *out, const ek_tensor *x)
{
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    ek_cuda_walk walk = ek_cuda_walk_of(2, (const ek_tensor *[]){out, x});
    size_t size = ek_dtype_size(out->dtype);
    int launched = 0;
    if (walk.count == 0)
        launched = 0;
    else if (out->dtype != x->dtype)
        launched = ek_cuda_launch_convert(&stream, &walk);
    else if (!walk.flat)
        launched = ek_cuda_launch_copy(&stream, &walk, size);
    else if (walk.data[0] != walk.data[1])
        launched = (int)cudaMemcpyAsync(walk.data[0], walk.data[1], (size_t)walk.count * size,
                                        cudaMemcpyDeviceToDevice, stream.handle);
    return ek_cuda_end(dev, &stream, "copy", launched);
}

/* Returns the bytes of a value, converted through the dtype's computing type as on the host. */
static ek_cuda_pattern pattern_of(ek_dtype dtype, double value)
{
    ek_cuda_pattern pattern;
    for (int i = 0; i < 16 / (int)ek_dtype_size(dtype); i++) {
        switch (dtype) {
#define PATTERN(label, text, type, ...)                                                  \
    case EK_##label: {                                                                   \
        type element = EK_##label##_OF_REAL(value);                                      \
        memcpy((char *)&pattern + (size_t)i * sizeof element, &element, sizeof element); \
        break;                                                                           \
    }
            EK_DTYPE_ROWS(PATTERN)
#undef PATTERN
        }
    }
    return pattern;
}

static bool pattern_is_one_byte(const ek_cuda_pattern *pattern)
{
    for (int i = 1; i < 16; i++)
        if (pattern->u8[i] != pattern->u8[0])
            return false;
    return true;
}

int ek_cuda_fill(ek_dev *dev, ek_tensor *out, double value)
{
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    ek_cuda_walk walk = ek_cuda_walk_of(1, (const ek_tensor *[]){out});
    ek_cuda_pattern pattern = pattern_of(out->dtype, value);
    size_t size = ek_dtype_size(out->dtype);
    int launched = 0;
    if (walk.count > 0 && walk.flat && pattern_is_one_byte(&pattern))
        launched = (int)cudaMemsetAsync(walk.data[0], pattern.u8[0], (size_t)walk.count * size,
                                        stream.handle);
    else if (walk.count > 0)
        launched = ek_cuda_launch_fill(&stream, &walk, size, &pattern);
    return ek_cuda_end(dev, &stream, "fill", launched);
}
