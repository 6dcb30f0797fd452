/* norm_rows.c: normalisation of rows with parameters per element (layer norm and RMS norm), in one
 * pass over memory: a row's moments or sums are computed while level 1 cache holds the row. Longer
 * rows, other layouts, and 16 bits except in a residual are left to the passes of norm.h.
 *
 * Moments are summed in f64. The sums over a row's gradients are lanes of the tensor's own
 * type, and so are those by element over EK_NORM_SHORT_RUNS rows; f64 joins both. Rows are cut into
 * blocks by the shape alone, so that results don't depend on the number of threads. */
#ifndef EK_REAL
#include <math.h>

#include "host/host.h"
#include "host/norm.h"

enum {
    LONGEST = 4096, /* elements of a row */
    GRAIN = 8192,
    BLOCKS = 64, /* most blocks of rows with sums by element */
    LANES = 32
};

typedef struct rows_job {
    int64_t rows, size;
    double eps;
    const void *x, *residual, *weight, *bias, *dy; /* All but x may be NULL. */
    ek_dtype residual_dtype;
    void *out, *total;   /* Y or dx; dx may be NULL. */
    void *mean, *invstd; /* RMS norm has no mean. */
    int64_t blocks, block_rows;
    double *by_element; /* The sums of dy xhat, then of dy, of each block; NULL: not wanted. */
    char *partial;      /* These sums over a few rows, in x's type. */
    ek_tensor *dweight, *dbias;
} rows_job;

/* Returns true if x's elements, and those of the tensors that are given and have equally many
 * elements or as many as a row, are f32 or f64 in row-major order. `narrow` may have 16 bits. */
static bool rows_fit(const ek_tensor *x, const ek_tensor *const *tensors, int count,
                     const ek_tensor *narrow)
{
    const int64_t size = ek_count(x) / ek_larger(1, x->shape[0]);
    ek_shape shape = {.ndim = 0};
    bool fit = size > 0 && size <= LONGEST && (x->dtype == EK_F32 || x->dtype == EK_F64);
    for (int i = 0; i < count && fit; i++) {
        const ek_tensor *t = tensors[i];
        if (!t)
            continue;
        int64_t strides[EK_MAX_DIMS];
        shape.ndim = t->ndim;
        for (int d = 0; d < t->ndim; d++)
            shape.dims[d] = t->shape[d];
        ek_strides_of(&shape, EK_CONTIGUOUS, strides);
        const int64_t elements = ek_count(t);
        fit = (t->dtype == x->dtype || (t == narrow && x->dtype == EK_F32)) &&
              (elements == ek_count(x) || elements == size);
        for (int d = 0; d < t->ndim && fit; d++)
            fit = t->shape[d] == 1 || t->stride[d] == strides[d];
    }
    return fit;
}

static void *rows_address(const ek_tensor *tensor)
{
    return tensor ? ek_tensor_address(tensor) : NULL;
}

static rows_job rows_job_of(const ek_norm_args *args, const ek_tensor *out)
{
    const int64_t rows = args->x->shape[0];
    return (rows_job){.rows = rows,
                      .size = ek_count(args->x) / rows,
                      .x = rows_address(args->x),
                      .residual = rows_address(args->residual),
                      .residual_dtype = args->residual ? args->residual->dtype : args->x->dtype,
                      .weight = rows_address(args->weight),
                      .bias = rows_address(args->bias),
                      .dy = rows_address(args->dy),
                      .out = rows_address(out),
                      .total = rows_address(args->total),
                      .mean = rows_address(args->mean),
                      .invstd = rows_address(args->invstd)};
}

#define EK_FOR_REALS "host/norm_rows.c"
#include "kernels/for_reals.h"

int ek_host_norm_rows(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                      const ek_norm_args *args, double eps)
{
    const ek_tensor *const all[] = {args->x,      args->residual, args->total,
                                    args->weight, args->bias,     y};
    if (ek_count(y) == 0 || !rows_fit(args->x, all, 6, args->residual))
        return 0;
    rows_job job = rows_job_of(args, y);
    job.eps = eps;
    job.mean = rows_address(mean);
    job.invstd = rows_address(invstd);
    ek_parallel_for(dev, job.rows, 1 + GRAIN / job.size,
                    y->dtype == EK_F64 ? rows_apply_f64 : rows_apply_f32, &job);
    return 1;
}

int ek_host_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                               const ek_norm_args *args)
{
    const ek_tensor *x = args->x;
    const ek_tensor *const all[] = {x,  args->residual, args->weight, sums->dweight, sums->dbias,
                                    dx, args->dy};
    if (ek_count(x) == 0 || !rows_fit(x, all, 7, NULL))
        return 0;
    rows_job job = rows_job_of(args, dx);
    job.dweight = sums->dweight;
    job.dbias = sums->dbias;
    job.block_rows = ek_larger(ek_divide_up(job.rows, BLOCKS),
                               ek_smaller(EK_NORM_SHORT_RUNS, 1 + GRAIN / job.size));
    job.blocks = ek_divide_up(job.rows, job.block_rows);
    const bool wide = x->dtype == EK_F64;
    const size_t count = (size_t)(2 * job.blocks * job.size);
    const size_t nbytes = job.dweight ? count * (sizeof(double) + ek_dtype_size(x->dtype)) : 0;
    void *room = NULL;
    if (job.dweight) {
        EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &room));
        job.by_element = room;
        job.partial = (char *)room + count * sizeof(double);
    }
    ek_parallel_for(dev, job.blocks, 1 + GRAIN / (job.block_rows * job.size),
                    wide ? rows_gradient_f64 : rows_gradient_f32, &job);
    if (job.dweight) {
        ek_parallel_for(dev, job.size, 1 + GRAIN / job.blocks, wide ? rows_join_f64 : rows_join_f32,
                        &job);
        ek_dev_free(dev, room, nbytes, EK_MEMORY_WORKSPACE);
    }
    return 1;
}

#else /* for each EK_REAL */

/* Returns the sum of the lanes, in pairs. */
EK_FORMULA double EK_NAME(rows_fold)(double *lane)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/* Returns the sum of x - center, or with `square` of its square. */
EK_FORMULA double EK_NAME(rows_power)(const EK_REAL *x, int64_t size, double center, bool square)
{
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const double d = (double)x[i + j] - center;
            lane[j] += square ? d * d : d;
        }
    for (int j = 0; i + j < size; j++) {
        const double d = (double)x[i + j] - center;
        lane[j] += square ? d * d : d;
    }
    return EK_NAME(rows_fold)(lane);
}

EK_MULTIVERSION
static void EK_NAME(rows_apply)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    const int64_t size = job->size;
    const EK_REAL *weight = job->weight, *bias = job->bias;
    for (int64_t r = begin; r < end; r++) {
        const EK_REAL *x = (const EK_REAL *)job->x + r * size;
        EK_REAL *restrict y = (EK_REAL *)job->out + r * size;
        if (job->residual) {
            const EK_REAL *residual = job->residual;
            const uint16_t *narrow = job->residual;
            EK_REAL *restrict total = (EK_REAL *)job->total + r * size;
            if (ek_dtype_is_narrow(job->residual_dtype))
                for (int64_t i = 0; i < size; i++)
                    total[i] = x[i] + (EK_REAL)ek_float_of_narrow(job->residual_dtype,
                                                                  narrow[r * size + i]);
            else
                for (int64_t i = 0; i < size; i++)
                    total[i] = x[i] + residual[r * size + i];
            x = total;
        }
        const double mean = job->mean ? EK_NAME(rows_power)(x, size, 0, false) / (double)size : 0;
        const double square = EK_NAME(rows_power)(x, size, mean, true) / (double)size;
        const EK_REAL center = (EK_REAL)mean, scale = (EK_REAL)(1 / sqrt(square + job->eps));
        if (job->mean)
            ((EK_REAL *)job->mean)[r] = center;
        ((EK_REAL *)job->invstd)[r] = scale;
        if (weight && bias)
            for (int64_t i = 0; i < size; i++)
                y[i] = (x[i] - center) * scale * weight[i] + bias[i];
        else
            for (int64_t i = 0; i < size; i++)
                y[i] = (x[i] - center) * scale * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
    }
}

/* gcc 12 keeps arrays of lanes in memory here, but not vectors. */
typedef EK_REAL EK_NAME(rows_vector)
    __attribute__((vector_size(32), aligned(sizeof(EK_REAL)), may_alias));

/* Adds weight dy and weight dy (x - center) of one vector to two sums. */
EK_FORMULA void EK_NAME(rows_sum)(EK_NAME(rows_vector) * sum, EK_NAME(rows_vector) * product,
                                  const EK_REAL *dy, const EK_REAL *x, const EK_REAL *weight,
                                  EK_REAL center)
{
    EK_NAME(rows_vector) g = *(const EK_NAME(rows_vector) *)(const void *)dy;
    if (weight)
        g *= *(const EK_NAME(rows_vector) *)(const void *)weight;
    *sum += g;
    *product += g * (*(const EK_NAME(rows_vector) *)(const void *)x - center);
}

/* A row's line for dx = scale weight dy - shift - (x - center) slope. */
typedef struct EK_NAME(rows_line) {
    EK_REAL center, scale, shift, slope;
} EK_NAME(rows_line);

EK_FORMULA EK_NAME(rows_line)
    EK_NAME(rows_line_of)(const rows_job *job, int64_t r, const EK_REAL *dy, const EK_REAL *x,
                          const EK_REAL *weight)
{
    enum { VECTOR = 32 / sizeof(EK_REAL) };
    const EK_REAL *means = job->mean, *scales = job->invstd;
    EK_NAME(rows_line) line = {.center = means ? means[r] : 0, .scale = scales[r]};
    EK_NAME(rows_vector) sums[2] = {{0}, {0}}, products[2] = {{0}, {0}};
    double sum = 0, product = 0;
    int64_t i = 0;
    for (; i + 2 * VECTOR <= job->size; i += 2 * VECTOR)
        for (int64_t k = 0; k < 2; k++)
            EK_NAME(rows_sum)
    (&sums[k], &products[k], dy + i + k * VECTOR, x + i + k * VECTOR,
     weight ? weight + i + k * VECTOR : NULL, line.center);
    for (; i < job->size; i++) {
        const EK_REAL g = weight ? dy[i] * weight[i] : dy[i];
        sum += (double)g;
        product += (double)(g * (x[i] - line.center));
    }
    sums[0] += sums[1];
    products[0] += products[1];
    for (int j = 0; j < VECTOR; j++) {
        sum += (double)sums[0][j];
        product += (double)products[0][j];
    }
    const double scale = (double)line.scale, share = scale / (double)job->size;
    line.slope = (EK_REAL)(share * scale * scale * product);
    line.shift = means ? (EK_REAL)(share * sum) : 0;
    return line;
}

/* Adds a row's dy xhat and dy to the sums by element. */
EK_FORMULA void EK_NAME(rows_add)(int64_t size, const EK_REAL *restrict dy,
                                  const EK_REAL *restrict x, EK_NAME(rows_line) line,
                                  EK_REAL *restrict product, EK_REAL *restrict sum)
{
    for (int64_t i = 0; i < size; i++) {
        product[i] += dy[i] * ((x[i] - line.center) * line.scale);
        sum[i] += dy[i];
    }
}

EK_FORMULA void EK_NAME(rows_write)(int64_t size, EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                    const EK_REAL *restrict x, EK_NAME(rows_line) line,
                                    const EK_REAL *weight, const EK_REAL *residual)
{
    for (int64_t i = 0; i < size; i++) {
        const EK_REAL v = (weight ? line.scale * weight[i] : line.scale) * dy[i] - line.shift -
                          (x[i] - line.center) * line.slope;
        dx[i] = residual ? v + residual[i] : v;
    }
}

/* Computes the blocks [begin, end) of rows. */
EK_MULTIVERSION
static void EK_NAME(rows_gradient)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    const int64_t size = job->size;
    for (int64_t block = begin; block < end; block++) {
        const int64_t at = job->by_element ? block * 2 * size : 0;
        double *sums = job->by_element + at;
        EK_REAL *partial = (EK_REAL *)(void *)job->partial + at;
        const int64_t first = block * job->block_rows;
        const int64_t last = ek_smaller(first + job->block_rows, job->rows);
        for (int64_t i = 0; i < 2 * size && job->by_element; i++)
            sums[i] = 0, partial[i] = 0;
        for (int64_t r = first; r < last; r++) {
            const EK_REAL *x = (const EK_REAL *)job->x + r * size;
            const EK_REAL *dy = (const EK_REAL *)job->dy + r * size;
            const EK_REAL *weight = job->weight, *residual = job->residual;
            EK_REAL *dx = job->out ? (EK_REAL *)job->out + r * size : NULL;
            const EK_NAME(rows_line) line = weight ? EK_NAME(rows_line_of)(job, r, dy, x, weight)
                                                   : EK_NAME(rows_line_of)(job, r, dy, x, NULL);
            if (job->by_element)
                EK_NAME(rows_add)(size, dy, x, line, partial, partial + size);
            if (dx && weight && residual)
                EK_NAME(rows_write)(size, dx, dy, x, line, weight, residual + r * size);
            else if (dx && weight)
                EK_NAME(rows_write)(size, dx, dy, x, line, weight, NULL);
            else if (dx)
                EK_NAME(rows_write)
            (size, dx, dy, x, line, NULL, residual ? residual + r * size : NULL);
            if (job->by_element && ((r + 1 - first) % EK_NORM_SHORT_RUNS == 0 || r + 1 == last))
                for (int64_t i = 0; i < 2 * size; i++) {
                    sums[i] += (double)partial[i];
                    partial[i] = 0;
                }
        }
    }
}

/* Stores the sums of the elements [begin, end) over all blocks. */
static void EK_NAME(rows_join)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    EK_REAL *const into[] = {ek_tensor_address(job->dweight), ek_tensor_address(job->dbias)};
    for (int k = 0; k < 2; k++) {
        double *sums = job->by_element + k * job->size;
        for (int64_t block = 1; block < job->blocks; block++)
            for (int64_t i = begin; i < end; i++)
                sums[i] += sums[block * 2 * job->size + i];
        for (int64_t i = begin; i < end; i++)
            into[k][i] = (EK_REAL)sums[i];
    }
}

#endif
