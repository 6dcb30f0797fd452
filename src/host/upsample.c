/* upsample.c: bilinear and nearest upsampling as PyTorch 1.13 has it, and the exact adjoint. Both
 * directions are separable: rows are blended, then pixels within a row. */
#ifndef EK_REAL
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/stage.h"

/* The taps of one direction: output i is lower_share[i] * input lower[i] + upper_share[i] * input
 * upper[i]. first[j] is the first output that reads input j or a later one. */
typedef struct taps {
    int64_t in, out;
    int64_t *lower, *upper, *first;
    double *lower_share, *upper_share;
} taps;

typedef struct upsample_job {
    taps height, width;
    int64_t planes, k; /* images are dense (planes, H, W, k) */
    const void *x;     /* the input: x, or dy */
    void *y;           /* the output: y, or dx */
    void *scratch;     /* one row per part */
    int64_t scratch_row, parts;
} upsample_job;

#define EK_FOR_REALS "host/upsample.c"
#include "kernels/for_reals.h"

static size_t upsample_taps_nbytes(int64_t in, int64_t out)
{
    return (size_t)(in + 4 * out) * 8;
}

static char *upsample_taps_place(taps *t, char *memory, int64_t in, int64_t out)
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

static void upsample_taps_fill(taps *t, bool is_f64, bool bilinear, bool align_corners)
{
    if (is_f64)
        upsample_fill_taps_f64(t, t->in, t->out, bilinear, align_corners);
    else
        upsample_fill_taps_f32(t, t->in, t->out, bilinear, align_corners);
    int64_t o = 0;
    for (int64_t i = 0; i < t->in; i++) {
        while (o < t->out && t->upper[o] < i)
            o++;
        t->first[i] = o;
    }
}

/* `small` is the side before upsampling, `large` after; the gradient reads large and writes small.
 */
static int upsample_run(ek_dev *dev, ek_tensor *out, const ek_tensor *in, bool bilinear,
                        bool align_corners, bool gradient)
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
    bool last = typed && ek_tensor_is_contiguous(in, EK_CHANNELS_LAST) &&
                ek_tensor_is_contiguous(out, EK_CHANNELS_LAST);
    bool first = typed && ek_tensor_is_contiguous(in, EK_CONTIGUOUS) &&
                 ek_tensor_is_contiguous(out, EK_CONTIGUOUS);
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
    size_t taps_bytes = upsample_taps_nbytes(small->shape[2], large->shape[2]) +
                        upsample_taps_nbytes(small->shape[3], large->shape[3]);
    size_t nbytes = taps_bytes + (size_t)(job.parts * job.scratch_row) * sizeof(double);
    void *memory;
    rc = ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &memory);
    if (rc >= 0) {
        char *next = upsample_taps_place(&job.height, memory, small->shape[2], large->shape[2]);
        job.scratch = upsample_taps_place(&job.width, next, small->shape[3], large->shape[3]);
        upsample_taps_fill(&job.height, is_f64, bilinear, align_corners);
        upsample_taps_fill(&job.width, is_f64, bilinear, align_corners);
        ek_parallel_body *f32 = gradient ? upsample_gradient_part_f32 : upsample_forward_part_f32;
        ek_parallel_body *f64 = gradient ? upsample_gradient_part_f64 : upsample_forward_part_f64;
        ek_parallel_for(dev, job.parts, 1, is_f64 ? f64 : f32, &job);
        ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    }
    rc = ek_stage_end(&to, dev, true, rc);
    return ek_stage_end(&from, dev, false, rc);
}

int ek_host_upsample_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, bool bilinear,
                             bool align_corners)
{
    return upsample_run(dev, y, x, bilinear, align_corners, false);
}

int ek_host_upsample_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, bool bilinear,
                              bool align_corners)
{
    return upsample_run(dev, dx, dy, bilinear, align_corners, true);
}

#else /* for each EK_REAL */

/* Fills the taps from `in` to `out` positions with PyTorch's source index, computed in EK_REAL for
 * bilinear and in float for nearest. */
static void EK_NAME(upsample_fill_taps)(taps *t, int64_t in, int64_t out, bool bilinear,
                                        bool align_corners)
{
    EK_REAL scale = align_corners ? (out > 1 ? (EK_REAL)(in - 1) / (EK_REAL)(out - 1) : 0)
                                  : (EK_REAL)in / (EK_REAL)out;
    for (int64_t i = 0; i < out; i++) {
        int64_t at = i;
        EK_REAL upper = 0;
        if (bilinear && in != out) {
            EK_REAL source = align_corners ? scale * (EK_REAL)i
                                           : scale * ((EK_REAL)i + (EK_REAL)0.5) - (EK_REAL)0.5;
            source = source < 0 ? 0 : source;
            at = (int64_t)source;
            at = ek_smaller(at, in - 1);
            upper = source - (EK_REAL)at;
            upper = upper > 1 ? 1 : upper;
        } else if (in != out) {
            at = out == 2 * in ? i / 2 : (int64_t)((float)i * ((float)in / (float)out));
            at = ek_smaller(at, in - 1);
        }
        t->lower[i] = at;
        t->upper[i] = bilinear && at < in - 1 ? at + 1 : at;
        t->upper_share[i] = (double)upper;
        t->lower_share[i] = (double)(1 - upper);
    }
}

/* row = a u + b v */
EK_MULTIVERSION
static void EK_NAME(upsample_blend)(int64_t n, EK_REAL *restrict row, EK_REAL a,
                                    const EK_REAL *restrict u, EK_REAL b, const EK_REAL *restrict v)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = a * u[i] + b * v[i];
}

/* row += a u */
EK_MULTIVERSION
static void EK_NAME(upsample_accumulate)(int64_t n, EK_REAL *restrict row, EK_REAL a,
                                         const EK_REAL *restrict u)
{
    for (int64_t i = 0; i < n; i++)
        row[i] += a * u[i];
}

/* Makes one row of y from one row of x. Pixels have k elements. An element with share 0 isn't read,
 * because it may be infinite. */
EK_MULTIVERSION
static void EK_NAME(upsample_spread)(const taps *t, int64_t k, EK_REAL *restrict y,
                                     const EK_REAL *restrict x)
{
    for (int64_t i = 0; i < t->out; i++) {
        const EK_REAL *u = x + t->lower[i] * k, *v = x + t->upper[i] * k;
        EK_REAL a = (EK_REAL)t->lower_share[i], b = (EK_REAL)t->upper_share[i];
        if (b == 0) {
            for (int64_t c = 0; c < k; c++)
                y[i * k + c] = u[c];
            continue;
        }
        for (int64_t c = 0; c < k; c++)
            y[i * k + c] = a * u[c] + b * v[c];
    }
}

/* The adjoint of upsample_spread: adds dy to dx. */
EK_MULTIVERSION
static void EK_NAME(upsample_collect)(const taps *t, int64_t k, EK_REAL *restrict dx,
                                      const EK_REAL *restrict dy)
{
    for (int64_t i = 0; i < t->out; i++) {
        EK_REAL *u = dx + t->lower[i] * k, *v = dx + t->upper[i] * k;
        EK_REAL a = (EK_REAL)t->lower_share[i], b = (EK_REAL)t->upper_share[i];
        for (int64_t c = 0; c < k; c++)
            u[c] += a * dy[i * k + c];
        if (b != 0)
            for (int64_t c = 0; c < k; c++)
                v[c] += b * dy[i * k + c];
    }
}

static void EK_NAME(upsample_forward_part)(void *context, int64_t begin, int64_t end)
{
    const upsample_job *job = context;
    const taps *h = &job->height, *w = &job->width;
    int64_t x_row = w->in * job->k, y_row = w->out * job->k;
    for (int64_t part = begin; part < end; part++) {
        EK_REAL *blended = (EK_REAL *)job->scratch + part * job->scratch_row;
        int64_t last = job->planes * h->out * (part + 1) / job->parts;
        for (int64_t r = job->planes * h->out * part / job->parts; r < last; r++) {
            int64_t i = r % h->out;
            const EK_REAL *plane = (const EK_REAL *)job->x + r / h->out * h->in * x_row;
            const EK_REAL *row = plane + h->lower[i] * x_row;
            if (h->upper_share[i] != 0) {
                EK_NAME(upsample_blend)
                (x_row, blended, (EK_REAL)h->lower_share[i], row, (EK_REAL)h->upper_share[i],
                 plane + h->upper[i] * x_row);
                row = blended;
            }
            EK_NAME(upsample_spread)(w, job->k, (EK_REAL *)job->y + r * y_row, row);
        }
    }
}

/* Each row of dx gathers the rows of dy that read it, then their pixels. */
static void EK_NAME(upsample_gradient_part)(void *context, int64_t begin, int64_t end)
{
    const upsample_job *job = context;
    const taps *h = &job->height, *w = &job->width;
    int64_t x_row = w->in * job->k, y_row = w->out * job->k;
    for (int64_t part = begin; part < end; part++) {
        EK_REAL *sum = (EK_REAL *)job->scratch + part * job->scratch_row;
        int64_t last = job->planes * h->in * (part + 1) / job->parts;
        for (int64_t r = job->planes * h->in * part / job->parts; r < last; r++) {
            int64_t i = r % h->in;
            const EK_REAL *plane = (const EK_REAL *)job->x + r / h->in * h->out * y_row;
            EK_REAL *dx = (EK_REAL *)job->y + r * x_row;
            memset(dx, 0, (size_t)x_row * sizeof(EK_REAL));
            memset(sum, 0, (size_t)y_row * sizeof(EK_REAL));
            for (int64_t o = h->first[i]; o < h->out && h->lower[o] <= i; o++) {
                double share = (h->lower[o] == i ? h->lower_share[o] : 0) +
                               (h->upper[o] == i ? h->upper_share[o] : 0);
                if (share != 0)
                    EK_NAME(upsample_accumulate)(y_row, sum, (EK_REAL)share, plane + o * y_row);
            }
            EK_NAME(upsample_collect)(w, job->k, dx, sum);
        }
    }
}

#endif
