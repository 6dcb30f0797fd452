/* norm_rows.c: normalisation with parameters per element, over rows of contiguous memory. With one
 * group (layer norm) a row is a sample, whose dimensions may have any order. If channels are single
 * elements, a row is a group of a sample. Weight and bias are copied to the order of a sample,
 * which is cheap, because they are as long as one sample. */
#ifndef EK_REAL
#include "host/host.h"
#include "host/norm.h"

enum {
    GRAIN = 16384,
    PART = 1024,     /* elements of one task */
    LANES = 16,      /* accumulators of a sum over a row */
    SHORT_ROWS = 32, /* rows that are summed in the tensor's own type */
    BLOCKS = 64      /* blocks of rows, at most; each has its own sums per element */
};

typedef struct rows_job {
    int64_t groups, rows, length; /* rows: samples times groups */
    int64_t stride;               /* distance of samples in memory */
    int64_t parts;                /* parts of a row */
    int64_t block_samples, blocks;
    const void *x, *dy, *weight, *bias;     /* weight and bias of all groups, or NULL */
    void *y;                                /* y or dx */
    double *center, *scale, *shift, *slope; /* one per row */
    double *first, *second;                 /* sums by row and part, or NULL */
    double *dweight, *dbias;                /* sums by block, group and element, or NULL */
} rows_job;

/* The offset of a row's parameters. */
static inline int64_t rows_own_offset(const rows_job *job, int64_t row)
{
    return row % job->groups * job->length;
}

static inline int64_t rows_offset(const rows_job *job, int64_t row)
{
    return row / job->groups * job->stride + rows_own_offset(job, row);
}

static inline int64_t rows_part_length(const rows_job *job, int64_t begin)
{
    return job->length - begin < PART ? job->length - begin : PART;
}

#define EK_FOR_REALS "host/norm_rows.c"
#include "kernels/for_reals.h"

/* ---- a call ---- */

typedef struct rows_call {
    ek_norm_pass pass;
    rows_job job;
    void *room; /* workspace */
    size_t nbytes;
} rows_call;

/* Takes `count` doubles from the room; NULL for none. */
static double *rows_take(double **room, int64_t count)
{
    double *at = *room;
    *room += count;
    return count > 0 ? at : NULL;
}

/* Allocates the parameters by row and, if asked for, weight and bias (`affine`), sums by row and
 * part, and sums by block and element (`elements`). */
static int rows_take_room(rows_call *call, bool affine, bool sums, bool elements)
{
    rows_job *job = &call->job;
    int64_t by_part = sums ? job->rows * job->parts : 0;
    int64_t sample = job->groups * job->length, by_element = elements ? job->blocks * sample : 0;
    int64_t count = 4 * job->rows + 2 * by_part + 2 * by_element + (affine ? 2 * sample : 0);
    call->nbytes = (size_t)count * sizeof(double);
    EK_TRY(ek_dev_alloc(call->pass.dev, call->nbytes, EK_MEMORY_WORKSPACE, &call->room));
    double *room = call->room;
    job->center = rows_take(&room, job->rows);
    job->scale = rows_take(&room, job->rows);
    job->shift = rows_take(&room, job->rows);
    job->slope = rows_take(&room, job->rows);
    job->first = rows_take(&room, by_part);
    job->second = rows_take(&room, by_part);
    job->dweight = rows_take(&room, by_element);
    job->dbias = rows_take(&room, by_element);
    job->weight = rows_take(&room, affine ? sample : 0);
    job->bias = rows_take(&room, affine ? sample : 0);
    return 0;
}

/* Makes `view`, on the caller's stack, show `data` as one sample of x, with its first `ndim`
 * dimensions; the others have size 1. */
static void rows_sample_view(ek_tensor *view, ek_storage *storage, const rows_call *call,
                             const ek_tensor *x, int ndim, const void *data, ek_dtype dtype)
{
    *storage = (ek_storage){.dev = call->pass.dev, .data = (void *)data};
    view->dtype = dtype;
    view->ndim = ndim;
    view->offset = 0;
    view->storage = storage;
    view->version = NULL;
    for (int d = 1; d <= ndim; d++) {
        view->shape[d - 1] = x->shape[d];
        view->stride[d - 1] = x->stride[d];
    }
}

/* Copies a parameter to the order of a sample; fills with `otherwise` if there is no parameter. */
static int rows_load_parameter(const rows_call *call, const ek_tensor *x, const void *room,
                               const ek_tensor *parameter, double otherwise)
{
    ek_tensor view;
    ek_storage storage;
    rows_sample_view(&view, &storage, call, x, parameter ? parameter->ndim : x->ndim - 1, room,
                     call->pass.is_f64 ? EK_F64 : EK_F32);
    return parameter ? ek_host_copy(call->pass.dev, &view, parameter)
                     : ek_host_fill(call->pass.dev, &view, otherwise);
}

static int rows_end(rows_call *call, int rc)
{
    if (call->room)
        ek_dev_free(call->pass.dev, call->room, call->nbytes, EK_MEMORY_WORKSPACE);
    return ek_norm_pass_end(&call->pass, rc);
}

/* Fills the job's geometry, without the workspace. */
static void rows_set_geometry(rows_call *call, const ek_tensor *x, int64_t groups, bool elements)
{
    rows_job *job = &call->job;
    int64_t samples = x->shape[0];
    *job = (rows_job){.groups = groups,
                      .rows = samples * groups,
                      .stride = x->stride[0],
                      .length = ek_count(x) / (samples * groups),
                      .x = call->pass.job.x,
                      .dy = call->pass.job.dy,
                      .y = call->pass.job.y};
    job->parts = (job->length + PART - 1) / PART;
    job->block_samples = elements ? (samples + BLOCKS - 1) / BLOCKS : 1;
    if (elements && job->block_samples < SHORT_ROWS)
        job->block_samples = SHORT_ROWS;
    job->blocks = (samples + job->block_samples - 1) / job->block_samples;
}

/* Begins a call. y, dy, weight, bias and sums may be NULL. */
static int rows_begin(rows_call *call, ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                      const ek_tensor *dy, const ek_tensor *mean, const ek_tensor *invstd,
                      const ek_tensor *weight, const ek_tensor *bias, const ek_norm_sums *sums)
{
    call->room = NULL;
    EK_TRY(ek_norm_pass_begin(&call->pass, dev, y, x, dy, NULL, EK_NORM_ROWS));
    rows_job *job = &call->job;
    const ek_tensor *own = call->pass.stage[EK_NORM_X].tensor;
    bool affine = weight || bias, elements = sums && sums->dweight;
    rows_set_geometry(call, own, (mean ? mean : invstd)->shape[1], elements);
    int rc = rows_take_room(call, affine, sums && sums->sum, elements);
    if (rc >= 0 && affine)
        rc = rows_load_parameter(call, own, job->weight, weight, 1);
    if (rc >= 0 && affine)
        rc = rows_load_parameter(call, own, job->bias, bias, 0);
    if (rc < 0)
        return rows_end(call, rc);
    for (int64_t row = 0; row < job->rows; row++) {
        job->center[row] = ek_norm_value(mean, row, 0);
        job->scale[row] = ek_norm_value(invstd, row, 1);
    }
    return 0;
}

static void rows_over_parts(rows_call *call, int64_t tasks, int64_t rows, ek_parallel_body *f32,
                            ek_parallel_body *f64)
{
    int64_t n = rows * rows_part_length(&call->job, 0);
    ek_parallel_for(call->pass.dev, tasks * call->job.parts, 1 + GRAIN / n,
                    call->pass.is_f64 ? f64 : f32, &call->job);
}

/* ---- the kernels ---- */

int ek_norm_rows_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                       const ek_tensor *invstd, const ek_tensor *weight, const ek_tensor *bias)
{
    rows_call call;
    EK_TRY(rows_begin(&call, dev, y, x, NULL, mean, invstd, weight, bias, NULL));
    rows_over_parts(&call, call.job.rows, 1, rows_line_parts_f32, rows_line_parts_f64);
    return rows_end(&call, 0);
}

/* Adds the sums of all blocks to the first block. */
static void rows_join_blocks(void *context, int64_t begin, int64_t end)
{
    rows_job *job = context;
    for (int64_t block = 1; block < job->blocks; block++)
        for (int64_t i = begin; i < end; i++) {
            job->dweight[i] += job->dweight[block * job->groups * job->length + i];
            job->dbias[i] += job->dbias[block * job->groups * job->length + i];
        }
}

static int rows_store_elements(rows_call *call, const ek_tensor *x, ek_tensor *into, double *sums)
{
    ek_tensor view;
    ek_storage storage;
    rows_sample_view(&view, &storage, call, x, into->ndim, sums, EK_F64);
    return ek_host_copy(call->pass.dev, into, &view);
}

static void rows_store_sums(const rows_job *job, ek_tensor *sum, ek_tensor *sum_xhat)
{
    for (int64_t row = 0; row < job->rows; row++) {
        double first = 0, second = 0;
        for (int64_t part = row * job->parts; part < (row + 1) * job->parts; part++) {
            first += job->first[part];
            second += job->second[part];
        }
        ek_norm_store(sum, row, first);
        ek_norm_store(sum_xhat, row, second * job->scale[row]);
    }
}

int ek_norm_rows_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_tensor *dy,
                        const ek_tensor *x, const ek_tensor *mean, const ek_tensor *invstd,
                        const ek_tensor *weight)
{
    rows_call call;
    EK_TRY(rows_begin(&call, dev, NULL, x, dy, mean, invstd, weight, NULL, sums));
    rows_job *job = &call.job;
    rows_over_parts(&call, job->blocks * job->groups, job->block_samples, rows_reduce_parts_f32,
                    rows_reduce_parts_f64);
    if (sums->sum)
        rows_store_sums(job, sums->sum, sums->sum_xhat);
    int rc = 0;
    if (sums->dweight) {
        const ek_tensor *sample = call.pass.stage[EK_NORM_X].tensor;
        ek_parallel_for(dev, job->groups * job->length, 1 + GRAIN / job->blocks, rows_join_blocks,
                        job);
        rc = rows_store_elements(&call, sample, sums->dweight, job->dweight);
        if (rc >= 0)
            rc = rows_store_elements(&call, sample, sums->dbias, job->dbias);
    }
    return rows_end(&call, rc);
}

int ek_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                          const ek_tensor *mean, const ek_tensor *invstd, const ek_tensor *weight,
                          const ek_tensor *sum, const ek_tensor *sum_xhat)
{
    rows_call call;
    EK_TRY(rows_begin(&call, dev, dx, x, dy, mean, invstd, weight, NULL, NULL));
    rows_job *job = &call.job;
    for (int64_t row = 0; row < job->rows; row++) {
        double share = job->scale[row] / (double)job->length;
        job->shift[row] = share * ek_norm_value(sum, row, 0);
        job->slope[row] = share * job->scale[row] * ek_norm_value(sum_xhat, row, 0);
    }
    rows_over_parts(&call, job->rows, 1, rows_line_parts_f32, rows_line_parts_f64);
    return rows_end(&call, 0);
}

#else /* for each EK_REAL */

/* ---- y = (x - center) * scale * weight + bias ---- */

EK_MULTIVERSION
static void EK_NAME(rows_apply_part)(EK_REAL *restrict y, const EK_REAL *restrict x, int64_t n,
                                     EK_REAL center, EK_REAL scale, const EK_REAL *restrict weight,
                                     const EK_REAL *restrict bias)
{
    if (weight) {
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - center) * scale * weight[i] + bias[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - center) * scale;
    }
}

/* ---- sums ---- */

/* Sums weight * dy and weight * dy * (x - center) over a part of a row. Each lane adds at most PART
 * / LANES values, so the tensor's own type is precise enough. */
EK_MULTIVERSION
static void EK_NAME(rows_sum_part)(const EK_REAL *dy, const EK_REAL *x, int64_t n, EK_REAL center,
                                   const EK_REAL *weight, double *first, double *second)
{
    EK_REAL sum[LANES] = {0}, product[LANES] = {0};
    int64_t i = 0;
    if (weight) {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                EK_REAL g = weight[i + j] * dy[i + j];
                sum[j] += g;
                product[j] += g * (x[i + j] - center);
            }
    } else {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                sum[j] += dy[i + j];
                product[j] += dy[i + j] * (x[i + j] - center);
            }
    }
    for (int j = 0; i + j < n; j++) {
        EK_REAL g = weight ? weight[i + j] * dy[i + j] : dy[i + j];
        sum[j] += g;
        product[j] += g * (x[i + j] - center);
    }
    *first = *second = 0;
    for (int j = 0; j < LANES; j++) {
        *first += (double)sum[j];
        *second += (double)product[j];
    }
}

EK_MULTIVERSION
static void EK_NAME(rows_add_part)(EK_REAL *restrict sum, EK_REAL *restrict product,
                                   const EK_REAL *restrict dy, const EK_REAL *restrict x, int64_t n,
                                   EK_REAL center, EK_REAL scale)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i] += dy[i];
        product[i] += dy[i] * ((x[i] - center) * scale);
    }
}

/* For one part of the rows of a block and group: the sums over each row, and the sums of each
 * element over the rows. */
static void EK_NAME(rows_reduce_block)(const rows_job *job, int64_t block, int64_t group,
                                       int64_t part)
{
    EK_REAL sum[PART], product[PART];
    int64_t i = part * PART, n = rows_part_length(job, i);
    int64_t own = group * job->length + i, at = block * job->groups * job->length + own;
    int64_t samples = job->rows / job->groups, first = block * job->block_samples;
    int64_t last = ek_smaller(first + job->block_samples, samples);
    const EK_REAL *weight = job->weight ? (const EK_REAL *)job->weight + own : NULL;
    double *dbias = job->dbias ? job->dbias + at : NULL;
    double *dweight = job->dweight ? job->dweight + at : NULL;
    for (int64_t k = 0; k < n && dbias; k++)
        dbias[k] = dweight[k] = 0;
    for (int64_t begin = first; begin < last; begin += SHORT_ROWS) {
        int64_t end = ek_smaller(begin + SHORT_ROWS, last);
        for (int64_t k = 0; k < n; k++)
            sum[k] = product[k] = 0;
        for (int64_t sample = begin; sample < end; sample++) {
            int64_t row = sample * job->groups + group, place = sample * job->stride + own;
            const EK_REAL *dy = (const EK_REAL *)job->dy + place;
            const EK_REAL *x = (const EK_REAL *)job->x + place;
            EK_REAL center = (EK_REAL)job->center[row];
            if (job->first) {
                int64_t into = row * job->parts + part;
                EK_NAME(rows_sum_part)
                (dy, x, n, center, weight, &job->first[into], &job->second[into]);
            }
            if (dbias)
                EK_NAME(rows_add_part)(sum, product, dy, x, n, center, (EK_REAL)job->scale[row]);
        }
        for (int64_t k = 0; k < n && dbias; k++) {
            dbias[k] += (double)sum[k];
            dweight[k] += (double)product[k];
        }
    }
}

static void EK_NAME(rows_reduce_parts)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t task = begin; task < end; task++)
        EK_NAME(rows_reduce_block)
    (job, task / job->parts / job->groups, task / job->parts % job->groups, task % job->parts);
}

/* ---- dx = scale * weight * dy - shift - (x - center) * slope ---- */

EK_MULTIVERSION
static void EK_NAME(rows_gradient_part)(EK_REAL *restrict y, const EK_REAL *restrict dy,
                                        const EK_REAL *restrict x, int64_t n, EK_REAL center,
                                        EK_REAL scale, EK_REAL shift, EK_REAL slope,
                                        const EK_REAL *restrict weight)
{
    if (weight) {
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * weight[i] * dy[i] - shift - (x[i] - center) * slope;
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * dy[i] - shift - (x[i] - center) * slope;
    }
}

/* Makes dx if there is dy, else y. */
static void EK_NAME(rows_line_parts)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task / job->parts, i = task % job->parts * PART;
        int64_t at = rows_offset(job, row) + i, own = rows_own_offset(job, row) + i;
        int64_t n = rows_part_length(job, i);
        const EK_REAL *x = (const EK_REAL *)job->x + at;
        const EK_REAL *weight = job->weight ? (const EK_REAL *)job->weight + own : NULL;
        const EK_REAL *bias = job->bias ? (const EK_REAL *)job->bias + own : NULL;
        EK_REAL *y = (EK_REAL *)job->y + at, center = (EK_REAL)job->center[row];
        EK_REAL scale = (EK_REAL)job->scale[row];
        if (!job->dy) {
            EK_NAME(rows_apply_part)(y, x, n, center, scale, weight, bias);
        } else {
            EK_NAME(rows_gradient_part)
            (y, (const EK_REAL *)job->dy + at, x, n, center, scale, (EK_REAL)job->shift[row],
             (EK_REAL)job->slope[row], weight);
        }
    }
}

#endif
