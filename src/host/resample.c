/* resample.c: resizes images (kernels/resample.h), and computes the adjoint of this map. Both are
 * products with a sparse matrix per direction, so that one kernel computes both from tables of the
 * matrices' rows: the kernel first sums rows of the input, then pixels within the summed row. */
#ifndef EK_REAL
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/resample.h"
#include "kernels/stage.h"

/* One direction's matrix. Row i has the columns index[t * rows + i] with the weights weight[t *
 * rows + i], for t < count[i]. Entries from count[i] to `width` have index 0 and weight 0. */
typedef struct resample_table {
    int64_t rows, width;
    int32_t *count, *index;
    void *weight;
    bool is_identity;
} resample_table;

typedef struct resample_job {
    resample_table table[3];
    int64_t from[3];   /* sizes of x */
    int64_t planes, k; /* images are dense (planes, D, H, W, k) */
    const void *x;
    void *y;
    void *scratch; /* a row of x per part */
    int64_t rows, parts;
} resample_job;

#define EK_FOR_REALS "host/resample.c"
#include "kernels/for_reals.h"

/* Counts the entries of each row that are not 0, and sets `width`, for all directions. */
static void resample_count(const ek_resample_axis *axes, bool adjoint, resample_table *tables)
{
    for (int d = 0; d < 3; d++) {
        const ek_resample_axis *axis = &axes[d];
        resample_table *table = &tables[d];
        memset(table->count, 0, (size_t)table->rows * sizeof *table->count);
        for (int64_t o = 0; o < axis->out; o++) {
            const ek_resample_row row = ek_resample_row_of(axis, o);
            for (int64_t j = row.first; j < row.end; j++)
                table->count[adjoint ? j : o] += ek_resample_weight(axis, &row, j) != 0;
        }
        table->width = 1;
        for (int64_t i = 0; i < table->rows; i++)
            table->width = ek_larger(table->width, table->count[i]);
    }
}

static int resample_check(const ek_tensor *tensor)
{
    for (int d = 2; d < tensor->ndim; d++)
        if (tensor->shape[d] > INT32_MAX)
            return EK_FAIL(EK_E_SHAPE, "images of %lld positions in a direction can't be resampled",
                           (long long)tensor->shape[d]);
    return 0;
}

static int resample_tables(ek_dev *dev, resample_job *job, const ek_tensor *out, const ek_tensor *x,
                           const ek_resample_params *params, bool is_f64, size_t *nbytes,
                           void **memory)
{
    ek_resample_axis axes[3];
    const int missing = 5 - x->ndim;
    size_t counts = 0, entries = 0, size = is_f64 ? sizeof(double) : sizeof(float);
    for (int d = 0; d < 3; d++) {
        ek_resample_params along = *params;
        int64_t from = d < missing ? 1 : x->shape[2 + d - missing];
        int64_t to = d < missing ? 1 : out->shape[2 + d - missing];
        along.factor[0] = d < missing ? 0 : params->factor[d - missing];
        axes[d] = ek_resample_axis_of(&along, 0, is_f64, params->adjoint ? to : from,
                                      params->adjoint ? from : to);
        job->from[d] = from;
        job->table[d].rows = to;
        counts += (size_t)to;
    }
    void *counted;
    EK_TRY(ek_dev_alloc(dev, counts * sizeof(int32_t), EK_MEMORY_WORKSPACE, &counted));
    for (int d = 0; d < 3; d++)
        job->table[d].count = d == 0 ? counted : job->table[d - 1].count + job->table[d - 1].rows;
    resample_count(axes, params->adjoint, job->table);
    for (int d = 0; d < 3; d++)
        entries += (size_t)(job->table[d].rows * job->table[d].width);
    const size_t scratch = ek_round_up((size_t)(job->from[2] * job->k) * size);
    const size_t tables =
        ek_round_up(entries * (size + sizeof(int32_t)) + counts * sizeof(int32_t));
    *nbytes = tables + (size_t)job->parts * scratch;
    int rc = ek_dev_alloc(dev, *nbytes, EK_MEMORY_WORKSPACE, memory);
    if (rc >= 0) {
        char *weights = *memory;
        int32_t *integers = (int32_t *)(weights + entries * size);
        for (int d = 0; d < 3; d++) {
            resample_table *table = &job->table[d];
            const int64_t cells = table->rows * table->width;
            table->weight = weights;
            table->index = integers;
            table->count = integers + cells;
            weights += (size_t)cells * size;
            integers += cells + table->rows;
            if (is_f64)
                resample_fill_f64(table, &axes[d], params->adjoint);
            else
                resample_fill_f32(table, &axes[d], params->adjoint);
        }
        job->scratch = (char *)*memory + tables;
    }
    ek_dev_free(dev, counted, counts * sizeof(int32_t), EK_MEMORY_WORKSPACE);
    return rc;
}

int ek_host_resample(ek_dev *dev, ek_tensor *out, const ek_tensor *x,
                     const ek_resample_params *params)
{
    bool is_f64 = x->dtype == EK_F64;
    ek_dtype dtype = is_f64 ? EK_F64 : EK_F32;
    bool typed = x->dtype == dtype && out->dtype == dtype;
    bool last = typed && ek_is_channels_last(x) && ek_is_channels_last(out);
    bool first = typed && ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                 ek_tensor_is_contiguous(out, EK_CONTIGUOUS);
    if (ek_count(out) == 0)
        return 0;
    EK_TRY(resample_check(x));
    EK_TRY(resample_check(out));
    ek_stage from, to;
    EK_TRY(ek_stage_begin(&from, dev, x, dtype, 1, last || first, true));
    int rc = ek_stage_begin(&to, dev, out, dtype, 1, last || first, false);
    if (rc < 0)
        return ek_stage_end(&from, dev, false, rc);

    resample_job job = {.x = ek_tensor_address(from.tensor), .y = ek_tensor_address(to.tensor)};
    bool by_plane = first && !last;
    job.planes = by_plane ? x->shape[0] * x->shape[1] : x->shape[0];
    job.k = by_plane ? 1 : x->shape[1];
    job.rows = job.planes * (out->ndim == 5 ? out->shape[2] : 1) * out->shape[out->ndim - 2];
    job.parts = ek_smaller(ek_parallel_threads(dev), job.rows);
    size_t nbytes;
    void *memory;
    rc = resample_tables(dev, &job, out, x, params, is_f64, &nbytes, &memory);
    if (rc >= 0) {
        ek_parallel_for(dev, job.parts, 1, is_f64 ? resample_part_f64 : resample_part_f32, &job);
        ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    }
    rc = ek_stage_end(&to, dev, true, rc);
    return ek_stage_end(&from, dev, false, rc);
}

#else /* for each EK_REAL */
#include "host/taps.h"

static void EK_NAME(resample_fill)(resample_table *table, const ek_resample_axis *axis,
                                   bool adjoint)
{
    EK_REAL *weights = table->weight;
    const int64_t rows = table->rows;
    memset(table->count, 0, (size_t)rows * sizeof *table->count);
    memset(table->index, 0, (size_t)(rows * table->width) * sizeof *table->index);
    memset(weights, 0, (size_t)(rows * table->width) * sizeof *weights);
    table->is_identity = axis->in == axis->out;
    for (int64_t o = 0; o < axis->out; o++) {
        const ek_resample_row row = ek_resample_row_of(axis, o);
        const double norm = ek_resample_norm(axis, &row);
        for (int64_t j = row.first; j < row.end; j++) {
            const double weight = ek_resample_weight(axis, &row, j);
            if (weight == 0)
                continue;
            const int64_t i = adjoint ? j : o, at = table->count[i]++ * rows + i;
            table->index[at] = (int32_t)(adjoint ? o : j);
            weights[at] = (EK_REAL)(weight * norm);
            table->is_identity = table->is_identity && j == o && weights[at] == 1;
        }
    }
}

/* Computes a row of y from a row of x. Pixels have k elements. */
static inline __attribute__((always_inline)) void
EK_NAME(resample_row)(const resample_table *table, int64_t k, EK_REAL *y, const EK_REAL *x)
{
    const EK_REAL *weight = table->weight;
    const int64_t rows = table->rows;
    if (k == 1) {
        EK_NAME(taps_gather)(rows, rows, table->width, y, table->index, weight, x);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        EK_NAME(taps_sum) sum = {.n = k, .y = y + i * k};
        for (int64_t t = 0; t < table->count[i]; t++)
            EK_NAME(taps_push)(&sum, weight[t * rows + i], x + table->index[t * rows + i] * k);
        EK_NAME(taps_end)(&sum);
    }
}

/* Returns row (d, h) of a result, which is a sum over rows of `plane`, in `row`. If the sum is one
 * row with weight 1, returns that row of `plane` instead, unless `copies` is true. */
static inline __attribute__((always_inline)) const EK_REAL *
EK_NAME(resample_rows)(const resample_job *job, int64_t d, int64_t h, EK_REAL *row,
                       const EK_REAL *plane, bool copies)
{
    const resample_table *depth = &job->table[0], *height = &job->table[1];
    const int64_t size = job->from[2] * job->k;
    const EK_REAL *of_depth = depth->weight, *of_height = height->weight;
    if (!copies && depth->count[d] == 1 && height->count[h] == 1 && of_depth[d] == 1 &&
        of_height[h] == 1)
        return plane + (depth->index[d] * job->from[1] + height->index[h]) * size;
    EK_NAME(taps_sum) sum = {.n = size, .y = row};
    for (int64_t s = 0; s < depth->count[d]; s++)
        for (int64_t t = 0; t < height->count[h]; t++) {
            const int64_t a = s * depth->rows + d, b = t * height->rows + h;
            EK_NAME(taps_push)
            (&sum, of_depth[a] * of_height[b],
             plane + (depth->index[a] * job->from[1] + height->index[b]) * size);
        }
    EK_NAME(taps_end)(&sum);
    return row;
}

EK_MULTIVERSION
static void EK_NAME(resample_part)(void *context, int64_t begin, int64_t end)
{
    const resample_job *job = context;
    const int64_t height = job->table[1].rows, depth = job->table[0].rows;
    const int64_t from_row = job->from[2] * job->k, to_row = job->table[2].rows * job->k;
    const size_t scratch = ek_round_up((size_t)from_row * sizeof(EK_REAL));
    const bool is_whole = job->table[2].is_identity;
    for (int64_t part = begin; part < end; part++) {
        EK_REAL *summed = (EK_REAL *)((char *)job->scratch + (size_t)part * scratch);
        const int64_t last = ek_part_of(job->rows, part + 1, job->parts);
        for (int64_t r = ek_part_of(job->rows, part, job->parts); r < last; r++) {
            const EK_REAL *plane = (const EK_REAL *)job->x +
                                   r / (height * depth) * job->from[0] * job->from[1] * from_row;
            EK_REAL *y = (EK_REAL *)job->y + r * to_row;
            const EK_REAL *row = EK_NAME(resample_rows)(job, r / height % depth, r % height,
                                                        is_whole ? y : summed, plane, is_whole);
            if (!is_whole)
                EK_NAME(resample_row)(&job->table[2], job->k, y, row);
        }
    }
}

#endif
