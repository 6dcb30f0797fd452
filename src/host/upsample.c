/* Bilinear and nearest upsampling as PyTorch 1.13 has it, and the exact adjoint. Both directions
 * are separable: rows are blended, then pixels within a row. */
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/stage.h"

/* Output position i = lower_share[i] * input lower[i] + upper_share[i] * input upper[i]; first[j]
 * is the first output that reads input j or one above it. */
typedef struct taps {
    int64_t in, out;
    int64_t *lower, *upper, *first;
    double *lower_share, *upper_share;
} taps;

typedef struct upsample_job {
    taps height, width;
    int64_t planes, k; /* dense (planes, H, W, k) */
    const void *x;     /* what is read: x, or dy */
    void *y;           /* what is written: y, or dx */
    void *scratch;     /* one row per part */
    int64_t scratch_row, parts;
} upsample_job;

#define EK_REAL float
#define EK_NAME(name) name##_f32
#include "host/upsample_real.h"
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include "host/upsample_real.h"
#undef EK_REAL
#undef EK_NAME

static size_t taps_nbytes(int64_t in, int64_t out)
{
    return (size_t)(in + 4 * out) * 8;
}

static char *taps_place(taps *t, char *memory, int64_t in, int64_t out)
{
    t->in = in;
    t->out = out;
    t->lower = (int64_t *)memory;
    t->upper = t->lower + out;
    t->lower_share = (double *)(t->upper + out);
    t->upper_share = t->lower_share + out;
    t->first = (int64_t *)(t->upper_share + out);
    return (char *)(t->first + in);
}

static void taps_fill(taps *t, bool is_f64, bool bilinear, bool align_corners)
{
    if (is_f64)
        fill_taps_f64(t, t->in, t->out, bilinear, align_corners);
    else
        fill_taps_f32(t, t->in, t->out, bilinear, align_corners);
    int64_t o = 0;
    for (int64_t i = 0; i < t->in; i++) {
        while (o < t->out && t->upper[o] < i)
            o++;
        t->first[i] = o;
    }
}

/* Dense in channels-last or row-major order. */
static bool is_dense_as(const ek_tensor *tensor, ek_memory_format format)
{
    int64_t strides[EK_MAX_DIMS];
    ek_shape shape = {.ndim = tensor->ndim};
    memcpy(shape.dims, tensor->shape, sizeof shape.dims);
    ek_strides_of(&shape, format, strides);
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] != 1 && tensor->stride[d] != strides[d])
            return false;
    return true;
}

/* `small` is the side before upsampling, `large` after; the gradient reads large and writes small.
 */
static int run(ek_dev *dev, ek_tensor *out, const ek_tensor *in, bool bilinear, bool align_corners,
               bool gradient)
{
    const ek_tensor *small = gradient ? out : in, *large = gradient ? in : out;
    if (ek_count(out) == 0)
        return 0;
    if (ek_count(in) == 0)
        return gradient ? ek_host_fill(dev, out, 0)
                        : EK_FAIL(EK_E_SHAPE, "upsampling of a tensor without elements");
    bool is_f64 = in->dtype == EK_F64;
    ek_dtype dtype = is_f64 ? EK_F64 : EK_F32;
    bool typed = in->dtype == dtype && out->dtype == dtype;
    bool last = typed && is_dense_as(in, EK_CHANNELS_LAST) && is_dense_as(out, EK_CHANNELS_LAST);
    bool first = typed && is_dense_as(in, EK_CONTIGUOUS) && is_dense_as(out, EK_CONTIGUOUS);
    ek_stage from, to;
    EK_TRY(ek_stage_begin(&from, dev, in, dtype, 1, last || first, true));
    int rc = ek_stage_begin(&to, dev, out, dtype, 1, last || first, false);
    if (rc < 0)
        return ek_stage_end(&from, dev, false, rc);

    upsample_job job = {.x = ek_tensor_address(from.tensor), .y = ek_tensor_address(to.tensor)};
    bool by_plane = first && !last;
    job.planes = by_plane ? small->shape[0] * small->shape[1] : small->shape[0];
    job.k = by_plane ? 1 : small->shape[1];
    int64_t rows = job.planes * out->shape[2];
    job.parts = ek_parallel_threads(dev);
    job.parts = job.parts < rows ? job.parts : rows;
    job.scratch_row =
        (large->shape[3] > small->shape[3] ? large->shape[3] : small->shape[3]) * job.k;
    size_t taps_bytes = taps_nbytes(small->shape[2], large->shape[2]) +
                        taps_nbytes(small->shape[3], large->shape[3]);
    size_t nbytes = taps_bytes + (size_t)(job.parts * job.scratch_row) * sizeof(double);
    void *memory;
    rc = ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &memory);
    if (rc >= 0) {
        char *next = taps_place(&job.height, memory, small->shape[2], large->shape[2]);
        job.scratch = taps_place(&job.width, next, small->shape[3], large->shape[3]);
        taps_fill(&job.height, is_f64, bilinear, align_corners);
        taps_fill(&job.width, is_f64, bilinear, align_corners);
        if (gradient)
            ek_parallel_for(dev, job.parts, 1, is_f64 ? gradient_part_f64 : gradient_part_f32,
                            &job);
        else
            ek_parallel_for(dev, job.parts, 1, is_f64 ? forward_part_f64 : forward_part_f32, &job);
        ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    }
    rc = ek_stage_end(&to, dev, true, rc);
    return ek_stage_end(&from, dev, false, rc);
}

int ek_host_upsample_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, bool bilinear,
                             bool align_corners)
{
    return run(dev, y, x, bilinear, align_corners, false);
}

int ek_host_upsample_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, bool bilinear,
                              bool align_corners)
{
    return run(dev, dx, dy, bilinear, align_corners, true);
}
