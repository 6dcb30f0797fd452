/* scan.c: linear recurrences along a dimension: cumulative sums and products. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

int ek_cuda_scan(ek_dev *dev, ek_tensor *out, const ek_tensor *a, const ek_tensor *b, int dim,
                 bool reverse)
{
    const ek_tensor *tensors[] = {out, a ? a : out, b ? b : out};
    if (ek_count(out) == 0)
        return 0;
    ek_cuda_scan_job job = {.dtype = out->dtype,
                            .out = ek_tensor_address(out),
                            .a = a ? ek_tensor_address(a) : NULL,
                            .b = b ? ek_tensor_address(b) : NULL,
                            .size = ek_cuda_size_along(out, dim),
                            .count = ek_count(out),
                            .reverse = reverse};
    for (int k = 0; k < 3; k++)
        job.stride[k] = ek_cuda_stride_along(tensors[k], dim);
    job.by_size = ek_cuda_long_divisor_of((uint64_t)job.size);
    ek_cuda_strides_without(&job.lines, 3, tensors, NULL, dim);
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    void *scratch;
    size_t nbytes = ek_cuda_scan_nbytes(&stream, &job);
    int rc = ek_cuda_scratch(dev, nbytes, &scratch);
    if (rc >= 0)
        rc = ek_cuda_launch_scan(&stream, &job, scratch);
    rc = ek_cuda_end(dev, &stream, "scan", rc);
    if (scratch)
        ek_cuda_scratch_free(dev, scratch, nbytes);
    return rc;
}
