/* upsample.c: nearest and bilinear upsampling, and the adjoint. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* The scale as the host and PyTorch compute it: in the dtype for bilinear, in float for nearest. */
static double upsample_scale_of(int64_t in, int64_t out, bool in_f64, bool align_corners)
{
    if (align_corners && out <= 1)
        return 0;
    int64_t n = align_corners ? in - 1 : in, m = align_corners ? out - 1 : out;
    return in_f64 ? (double)n / (double)m : (double)((float)n / (float)m);
}

static ek_cuda_upsample upsample_job(const ek_tensor *small, const ek_tensor *large, bool bilinear,
                                     bool align_corners)
{
    ek_cuda_upsample job = {.small = ek_cuda_image_of(small),
                            .large = ek_cuda_image_of(large),
                            .bilinear = bilinear,
                            .align_corners = align_corners};
    job.wide = job.small.wide || job.large.wide;
    bool in_f64 = bilinear && small->dtype == EK_F64;
    for (int i = 0; i < 2; i++) {
        int64_t in = small->shape[2 + i], out = large->shape[2 + i];
        job.scale[i] = upsample_scale_of(in, out, in_f64, align_corners);
        job.inverse[i] = job.scale[i] > 0 ? 1 / job.scale[i] : 0;
        job.wide = job.wide || in >= 1 << 30 || out >= 1 << 30;
    }
    return job;
}

int ek_cuda_upsample_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, bool bilinear,
                             bool align_corners)
{
    ek_cuda_stream stream;
    if (ek_count(y) == 0)
        return 0;
    if (ek_count(x) == 0)
        return EK_FAIL(EK_E_SHAPE, "upsampling of a tensor without elements");
    ek_cuda_upsample job = upsample_job(x, y, bilinear, align_corners);
    EK_TRY(ek_cuda_begin(dev, &stream));
    return ek_cuda_end(dev, &stream, "upsample_forward",
                       ek_cuda_launch_upsample_forward(&stream, &job));
}

int ek_cuda_upsample_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, bool bilinear,
                              bool align_corners)
{
    ek_cuda_stream stream;
    if (ek_count(dx) == 0)
        return 0;
    if (ek_count(dy) == 0)
        return ek_cuda_fill(dev, dx, 0);
    ek_cuda_upsample job = upsample_job(dx, dy, bilinear, align_corners);
    EK_TRY(ek_cuda_begin(dev, &stream));
    return ek_cuda_end(dev, &stream, "upsample_gradient",
                       ek_cuda_launch_upsample_gradient(&stream, &job));
}
