/* resample.c: images of another size, and the adjoint. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* Places the tables into one block of memory. Returns its size; `memory` may be NULL. */
static size_t resample_place(ek_cuda_resample_job *job, size_t element, char *memory)
{
    size_t at = 0;
    for (int d = 0; d < 3; d++) {
        const ek_resample_axis *axis = &job->axis[d];
        ek_cuda_resample_table *table = &job->table[d];
        table->weight = memory ? memory + at : NULL;
        at += (size_t)axis->out * (size_t)table->taps * element;
    }
    for (int d = 0; d < 3; d++) {
        const ek_resample_axis *axis = &job->axis[d];
        ek_cuda_resample_table *table = &job->table[d];
        table->first = memory ? (int32_t *)(memory + at) : NULL;
        table->begin = memory ? table->first + axis->out : NULL;
        table->end = memory ? table->begin + (job->adjoint ? axis->in : 0) : NULL;
        at += (size_t)(axis->out + (job->adjoint ? 2 * axis->in : 0)) * sizeof(int32_t);
    }
    return at;
}

static int resample_axes(ek_cuda_resample_job *job, const ek_tensor *out, const ek_tensor *x,
                         const ek_resample_params *params)
{
    const int missing = 5 - x->ndim;
    for (int d = 0; d < 3; d++) {
        ek_resample_params along = *params;
        along.factor[0] = d < missing ? 0 : params->factor[d - missing];
        int64_t from = d < missing ? 1 : x->shape[2 + d - missing];
        int64_t to = d < missing ? 1 : out->shape[2 + d - missing];
        if (from > INT32_MAX || to > INT32_MAX)
            return EK_FAIL(EK_E_SHAPE, "images of %lld positions in a direction can't be resampled",
                           (long long)(from > to ? from : to));
        job->axis[d] =
            ek_resample_axis_of(&along, 0, x->dtype == EK_F64, params->adjoint ? to : from,
                                params->adjoint ? from : to);
        job->table[d].taps = (int32_t)ek_resample_taps(&job->axis[d]);
        job->wide = job->wide || from >= 1 << 30 || to >= 1 << 30;
    }
    return 0;
}

int ek_cuda_resample(ek_dev *dev, ek_tensor *out, const ek_tensor *x,
                     const ek_resample_params *params)
{
    const char *name = params->adjoint ? "resample_adjoint" : "resample";
    ek_cuda_resample_job job = {.from = ek_cuda_image_of(x),
                                .to = ek_cuda_image_of(out),
                                .adjoint = params->adjoint};
    if (ek_count(out) == 0)
        return 0;
    job.wide = job.from.wide || job.to.wide;
    EK_TRY(resample_axes(&job, out, x, params));
    const size_t element = x->dtype == EK_F64 ? sizeof(double) : sizeof(float);
    const size_t nbytes = resample_place(&job, element, NULL);
    void *memory;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &memory));
    resample_place(&job, element, memory);
    ek_cuda_stream stream;
    int rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0)
        rc = ek_cuda_end(dev, &stream, name, ek_cuda_launch_resample(&stream, &job));
    ek_cuda_scratch_free(dev, memory, nbytes);
    return rc;
}
