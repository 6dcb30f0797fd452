/* random.c: the backend's slot for Philox numbers. */
#include "core/draw.h"
#include "cuda/launches.h"
#include "cuda/runtime.h"

int ek_cuda_draw(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_draw *draw)
{
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int launched = ek_cuda_launch_draw(&stream, draw, out->dtype, ek_count(out),
                                       ek_tensor_address(out), x ? ek_tensor_address(x) : NULL);
    return ek_cuda_end(dev, &stream, "draw", launched);
}
