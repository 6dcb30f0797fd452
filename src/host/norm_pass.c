/* norm_pass.c: passes over memory for normalisation. The rows are cut into blocks by the shape
 * alone and pass_join in order, so that statistics don't depend on threads. */
#ifndef EK_REAL
#include "host/norm.h"

enum { GRAIN = 16384 };

#define EK_FOR_REALS "host/norm_pass.c"
#include "kernels/for_reals.h"

/* ---- geometry ---- */

static bool pass_plan_rows(ek_norm_plan *plan, int64_t rows, int64_t stride)
{
    int64_t channels = plan->channels;
    bool join =
        stride == channels && channels * 2 <= EK_NORM_LANES && rows >= EK_NORM_LANES / channels;
    plan->lanes = join ? EK_NORM_LANES / channels : 1;
    plan->width = plan->lanes * channels;
    plan->rows = rows / plan->lanes;
    plan->rest = rows % plan->lanes * channels;
    plan->row_stride = stride * plan->lanes;
    int64_t columns = plan->width < EK_NORM_COLUMNS ? plan->width : EK_NORM_COLUMNS;
    int64_t step = ek_norm_short_rows(columns);
    int64_t steps = 32768 / (step * columns);
    plan->block_rows = step * (steps > 0 ? steps : 1);
    plan->blocks = (plan->rows + plan->block_rows - 1) / plan->block_rows;
    return true;
}

static void pass_cut_row(ek_norm_plan *plan, int64_t length, int64_t pieces)
{
    plan->planes = true;
    plan->blocks = plan->outer = 1;
    plan->channels = plan->width = pieces;
    plan->inner = plan->channel_stride = length / pieces;
}

static bool pass_plan_pieces(ek_norm_plan *plan, int64_t length)
{
    int64_t pieces = 1;
    for (int64_t n = 2; n <= 64 && length / n >= GRAIN / 2; n++)
        if (length % n == 0)
            pieces = n;
    pass_cut_row(plan, length, pieces);
    return true;
}

void ek_norm_pass_cut(ek_norm_pass *pass, int64_t pieces)
{
    ek_norm_plan *plan = &pass->job.plan;
    pass_cut_row(plan, plan->channels * plan->inner, pieces);
}

/* False if the memory is neither rows nor planes. */
static bool pass_plan(ek_norm_plan *plan, const ek_tensor *x, ek_norm_parts parts)
{
    *plan = (ek_norm_plan){.channels = x->shape[1], .samples = 1};
    if (parts != EK_NORM_BATCH) {
        plan->samples = x->shape[0];
        plan->sample_stride = x->stride[0];
    }
    int64_t shape[EK_MAX_DIMS] = {0};
    for (int d = 0; d < x->ndim; d++)
        shape[d] = (d == 1 && parts != EK_NORM_ROWS) || (d == 0 && parts != EK_NORM_BATCH)
                       ? 1
                       : x->shape[d];
    ek_walk walk;
    ek_walk_init_raw(&walk, 1, x->ndim, shape, (const int64_t *[]){x->stride});
    if (parts == EK_NORM_ROWS)
        return walk.ndim == 1 && (walk.count == 1 || walk.stride[0][0] == 1) &&
               pass_plan_pieces(plan, walk.count);
    if (walk.ndim == 1 && (x->stride[1] == 1 || plan->channels == 1))
        return pass_plan_rows(plan, walk.count,
                              walk.count == 1 ? plan->channels : walk.stride[0][0]);
    if (walk.ndim > 2 || walk.stride[0][walk.ndim - 1] != 1)
        return false;
    plan->planes = true;
    plan->blocks = 1;
    plan->width = plan->channels;
    plan->inner = walk.shape[walk.ndim - 1];
    plan->outer = walk.ndim == 2 ? walk.shape[0] : 1;
    plan->outer_stride = walk.ndim == 2 ? walk.stride[0][0] : 0;
    plan->channel_stride = x->stride[1];
    return true;
}

int ek_norm_pass_end(ek_norm_pass *pass, int rc)
{
    for (int i = 0; i < pass->count; i++)
        rc = ek_stage_end(&pass->stage[i], pass->dev, i == 0 && pass->has_output, rc);
    if (pass->parameters != NULL)
        ek_dev_free(pass->dev, pass->parameters, pass->parameter_bytes, EK_MEMORY_WORKSPACE);
    if (pass->sums != NULL)
        ek_dev_free(pass->dev, pass->sums, pass->sum_bytes, EK_MEMORY_WORKSPACE);
    return rc;
}

int ek_norm_pass_begin(ek_norm_pass *pass, ek_dev *dev, const ek_tensor *const *tensors, int count,
                       bool has_output, ek_norm_parts parts)
{
    const ek_tensor *x = tensors[has_output ? 1 : 0];
    pass->dev = dev;
    pass->is_f64 = x->dtype == EK_F64;
    pass->has_output = has_output;
    pass->count = 0;
    pass->parameters = pass->sums = NULL;
    pass->job = (ek_norm_job){.relu = false};
    ek_dtype dtype = pass->is_f64 ? EK_F64 : EK_F32;
    bool keep = pass_plan(&pass->job.plan, x, parts);
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL)
            keep = keep && tensors[i]->dtype == dtype && ek_same_layout(tensors[i], x);
    for (int i = 0; i < count; i++) {
        int rc =
            ek_stage_begin(&pass->stage[i], dev, tensors[i], dtype, 1, keep, i > 0 || !has_output);
        if (rc < 0)
            return ek_norm_pass_end(pass, rc);
        pass->count++;
    }
    pass_plan(&pass->job.plan, pass->stage[has_output ? 1 : 0].tensor, parts);
    return 0;
}

void *ek_norm_pass_data(const ek_norm_pass *pass, int i)
{
    return pass->stage[i].tensor != NULL ? ek_tensor_address(pass->stage[i].tensor) : NULL;
}

int ek_norm_pass_begin_sums(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->job.plan;
    int64_t count = plan->samples * (plan->blocks > 0 ? plan->blocks : 1) * plan->width;
    pass->sum_bytes = (size_t)(2 * count) * sizeof(double);
    EK_TRY(ek_dev_alloc(pass->dev, pass->sum_bytes, EK_MEMORY_WORKSPACE, &pass->sums));
    pass->job.first = pass->sums;
    pass->job.second = pass->job.first + count;
    return 0;
}

/* ---- parameters, repeated over the columns ---- */

void ek_norm_pass_set(ek_norm_pass *pass, int parameter, int64_t sample, int64_t c, double value)
{
    const ek_norm_plan *plan = &pass->job.plan;
    for (int64_t lane = 0; lane < plan->lanes || lane == 0; lane++) {
        int64_t at = (parameter * plan->samples + sample) * plan->width + lane * plan->channels + c;
        if (pass->is_f64)
            ((double *)pass->parameters)[at] = value;
        else
            ((float *)pass->parameters)[at] = (float)value;
    }
}

int ek_norm_pass_begin_parameters(ek_norm_pass *pass)
{
    ek_norm_plan *plan = &pass->job.plan;
    size_t size = pass->is_f64 ? sizeof(double) : sizeof(float);
    pass->parameter_bytes = (size_t)(EK_NORM_PARAMETERS * plan->samples * plan->width) * size;
    EK_TRY(ek_dev_alloc(pass->dev, pass->parameter_bytes, EK_MEMORY_WORKSPACE, &pass->parameters));
    char *base = pass->parameters;
    size_t nbytes = (size_t)(plan->samples * plan->width) * size;
    pass->job.center = base;
    pass->job.scale = base + nbytes;
    pass->job.shift = base + 2 * nbytes;
    pass->job.slope = base + 3 * nbytes;
    return 0;
}

/* ---- running ---- */

void ek_norm_pass_sum(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->job.plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    int64_t task = plan->block_rows < plan->rows ? plan->block_rows : plan->rows;
    task *= plan->width < EK_NORM_COLUMNS ? plan->width : EK_NORM_COLUMNS;
    task += task == 0;
    if (plan->planes)
        ek_parallel_for(pass->dev, plan->samples * plan->channels,
                        1 + GRAIN / (plan->outer * plan->inner),
                        pass->is_f64 ? sum_planes_f64 : sum_planes_f32, &pass->job);
    else
        ek_parallel_for(pass->dev, plan->samples * plan->blocks * parts, 1 + GRAIN / task,
                        pass->is_f64 ? sum_rows_f64 : sum_rows_f32, &pass->job);
}

void ek_norm_pass_apply(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->job.plan;
    if (plan->planes)
        ek_parallel_for(pass->dev, plan->samples * plan->outer * plan->channels,
                        1 + GRAIN / plan->inner, pass->is_f64 ? line_planes_f64 : line_planes_f32,
                        &pass->job);
    else
        ek_parallel_for(pass->dev, plan->samples * (plan->rows + (plan->rest > 0)),
                        1 + GRAIN / plan->width, pass->is_f64 ? line_rows_f64 : line_rows_f32,
                        &pass->job);
}

/* Element `at` of x, dy or the mask. */
static double pass_value(const ek_norm_pass *pass, const void *values, int64_t at)
{
    return pass->is_f64 ? ((const double *)values)[at] : (double)((const float *)values)[at];
}

/* ---- moments ---- */

static ek_moments pass_join(ek_moments a, ek_moments b)
{
    if (b.count == 0)
        return a;
    double count = a.count + b.count, delta = b.mean - a.mean, part = b.count / count;
    return (ek_moments){count, a.mean + delta * part,
                        a.deviation + b.deviation + delta * delta * a.count * part};
}

/* The rows after the last pass_join one: fewer than there are lanes. */
static ek_moments pass_rest_moments(const ek_norm_pass *pass, int64_t sample, int64_t c)
{
    const ek_norm_plan *plan = &pass->job.plan;
    ek_moments sum = {0, 0, 0};
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = sample * plan->sample_stride + plan->rows * plan->row_stride + i;
        double x = pass->is_f64 ? ((const double *)pass->job.x)[at]
                                : (double)((const float *)pass->job.x)[at];
        sum = pass_join(sum, (ek_moments){1, x, 0});
    }
    return sum;
}

ek_moments ek_norm_moments(const ek_norm_pass *pass, int64_t sample, int64_t c)
{
    const ek_norm_job *job = &pass->job;
    const ek_norm_plan *plan = &job->plan;
    const int64_t column = sample * plan->channels + c;
    if (plan->planes)
        return (ek_moments){(double)(plan->outer * plan->inner), job->first[column],
                            job->second[column]};
    ek_moments sum = {0, 0, 0};
    for (int64_t block = 0; block < plan->blocks; block++) {
        int64_t begin = block * plan->block_rows;
        int64_t rows =
            plan->rows - begin < plan->block_rows ? plan->rows - begin : plan->block_rows;
        for (int64_t lane = 0; lane < plan->lanes; lane++) {
            int64_t at = (sample * plan->blocks + block) * plan->width + lane * plan->channels + c;
            sum = pass_join(sum, (ek_moments){(double)rows, job->first[at], job->second[at]});
        }
    }
    return pass_join(sum, pass_rest_moments(pass, sample, c));
}

/* ---- reduce ---- */

static void pass_rest_sums(const ek_norm_pass *pass, int64_t sample, int64_t c, double *first,
                           double *second)
{
    const ek_norm_job *job = &pass->job;
    const ek_norm_plan *plan = &job->plan;
    const double center = pass_value(pass, job->center, sample * plan->width + c);
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = sample * plan->sample_stride + plan->rows * plan->row_stride + i;
        if (job->mask == NULL || !(pass_value(pass, job->mask, at) <= 0)) {
            double dy = pass_value(pass, job->dy, at);
            *first += dy;
            *second += dy * (pass_value(pass, job->x, at) - center);
        }
    }
}

void ek_norm_sums_of(const ek_norm_pass *pass, int64_t sample, int64_t c, double *first,
                     double *second)
{
    const ek_norm_plan *plan = &pass->job.plan;
    *first = *second = 0;
    for (int64_t block = 0; block < plan->blocks; block++) {
        int64_t begin = (sample * plan->blocks + block) * plan->width;
        for (int64_t at = c; at < plan->width; at += plan->channels) {
            *first += pass->job.first[begin + at];
            *second += pass->job.second[begin + at];
        }
    }
    pass_rest_sums(pass, sample, c, first, second);
}

#else /* for each EK_REAL */

static inline int64_t EK_NAME(columns_of)(const ek_norm_plan *plan, int64_t part)
{
    int64_t rest = plan->width - part * EK_NORM_COLUMNS;
    return rest < EK_NORM_COLUMNS ? rest : EK_NORM_COLUMNS;
}

/* Where the first plane of a column begins; columns are channels, sample by sample. */
static inline int64_t EK_NAME(plane_of)(const ek_norm_plan *plan, int64_t column)
{
    return column / plan->channels * plan->sample_stride +
           column % plan->channels * plan->channel_stride;
}

/* ---- moments ---- */

/* Joins n values of mean m / n and squared deviations s to those of `count` values (Chan et al.).
 * The short sums are two-pass: exact mean first, then deviations, while the rows are in the cache.
 */
EK_MULTIVERSION
static void EK_NAME(moments_block)(const EK_REAL *x, int64_t stride, int64_t rows, int64_t columns,
                                   double *mean, double *deviation)
{
    EK_REAL sum[EK_NORM_COLUMNS], rest[EK_NORM_COLUMNS], square[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns);
    for (int64_t c = 0; c < columns; c++)
        mean[c] = deviation[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t n = rows - done < step ? rows - done : step;
        const EK_REAL *block = x + done * stride;
        for (int64_t c = 0; c < columns; c++)
            sum[c] = rest[c] = square[c] = 0;
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c < columns; c++)
                sum[c] += block[r * stride + c];
        EK_REAL share = (EK_REAL)1 / (EK_REAL)n;
        for (int64_t c = 0; c < columns; c++)
            sum[c] *= share;
        for (int64_t r = 0; r < n; r++) {
            for (int64_t c = 0; c < columns; c++) {
                EK_REAL d = block[r * stride + c] - sum[c];
                rest[c] += d;
                square[c] += d * d;
            }
        }
        double own = (double)n, before = (double)done;
        double part = own / (own + before), both = before * part;
        for (int64_t c = 0; c < columns; c++) {
            double residue = (double)rest[c] / own; /* of the rounded mean */
            double delta = (double)sum[c] + residue - mean[c];
            mean[c] += delta * part;
            deviation[c] += (double)square[c] - residue * residue * own + delta * delta * both;
        }
    }
}

/* One run of a plane, of at most EK_TILE elements: sum, or sum of squared deviations from `center`.
 */
EK_MULTIVERSION
static double EK_NAME(run_sum)(const EK_REAL *x, int64_t n)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)x[i + j];
    for (; i < n; i++)
        sum += (double)x[i];
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

EK_MULTIVERSION
static double EK_NAME(run_deviation)(const EK_REAL *x, int64_t n, double center)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double d = (double)x[i + j] - center;
            lane[j] += d * d;
        }
    for (; i < n; i++)
        sum += ((double)x[i] - center) * ((double)x[i] - center);
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

/* The moments of column c. */
static void EK_NAME(moments_plane)(const ek_norm_job *job, int64_t c)
{
    const ek_norm_plan *plan = &job->plan;
    const EK_REAL *x = (const EK_REAL *)job->x + EK_NAME(plane_of)(plan, c);
    double count = 0, mean = 0, deviation = 0;
    for (int64_t o = 0; o < plan->outer; o++, x += plan->outer_stride)
        for (int64_t i = 0; i < plan->inner; i += EK_TILE) {
            int64_t n = plan->inner - i < EK_TILE ? plan->inner - i : EK_TILE;
            double own = (double)n, own_mean = EK_NAME(run_sum)(x + i, n) / own;
            double delta = own_mean - mean;
            deviation += EK_NAME(run_deviation)(x + i, n, own_mean) +
                         delta * delta * count * own / (count + own);
            count += own;
            mean += delta * own / count;
        }
    job->first[c] = mean;
    job->second[c] = deviation;
}

/* ---- y = (x - center) scale + shift ---- */

EK_MULTIVERSION
static void EK_NAME(apply_row)(EK_REAL *restrict y, const EK_REAL *restrict x, int64_t n,
                               const EK_REAL *restrict center, const EK_REAL *restrict scale,
                               const EK_REAL *restrict shift, bool relu)
{
    if (relu) {
        for (int64_t c = 0; c < n; c++) {
            EK_REAL v = (x[c] - center[c]) * scale[c] + shift[c];
            y[c] = v <= 0 ? 0 : v;
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            y[c] = (x[c] - center[c]) * scale[c] + shift[c];
    }
}

EK_MULTIVERSION
static void EK_NAME(apply_run)(EK_REAL *restrict y, const EK_REAL *restrict x, int64_t n,
                               EK_REAL center, EK_REAL scale, EK_REAL shift, bool relu)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL v = (x[i] - center) * scale + shift;
        y[i] = (relu & (v <= 0)) ? 0 : v;
    }
}

/* ---- sums of dy and dy (x - center) ---- */

EK_MULTIVERSION
static void EK_NAME(reduce_block)(const EK_REAL *dy, const EK_REAL *x, const EK_REAL *mask,
                                  int64_t stride, int64_t rows, int64_t columns,
                                  const EK_REAL *restrict center, double *first, double *second)
{
    EK_REAL sum[EK_NORM_COLUMNS], product[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns);
    for (int64_t c = 0; c < columns; c++)
        first[c] = second[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t last = rows - done < step ? rows : done + step;
        for (int64_t c = 0; c < columns; c++)
            sum[c] = product[c] = 0;
        for (int64_t r = done; r < last; r++) {
            const EK_REAL *g = dy + r * stride, *u = x + r * stride;
            if (mask != NULL) {
                const EK_REAL *m = mask + r * stride;
                for (int64_t c = 0; c < columns; c++) {
                    EK_REAL v = m[c] <= 0 ? 0 : g[c];
                    sum[c] += v;
                    product[c] += v * (u[c] - center[c]);
                }
            } else {
                for (int64_t c = 0; c < columns; c++) {
                    sum[c] += g[c];
                    product[c] += g[c] * (u[c] - center[c]);
                }
            }
        }
        for (int64_t c = 0; c < columns; c++) {
            first[c] += (double)sum[c];
            second[c] += (double)product[c];
        }
    }
}

EK_MULTIVERSION
static void EK_NAME(reduce_run)(const EK_REAL *g, const EK_REAL *x, const EK_REAL *mask, int64_t n,
                                double center, double *first, double *second)
{
    double sum[8] = {0}, product[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double v = mask == NULL || !(mask[i + j] <= 0) ? (double)g[i + j] : 0;
            sum[j] += v;
            product[j] += v * ((double)x[i + j] - center);
        }
    for (int j = 0; i + j < n; j++) {
        double v = mask == NULL || !(mask[i + j] <= 0) ? (double)g[i + j] : 0;
        sum[j] += v;
        product[j] += v * ((double)x[i + j] - center);
    }
    for (int j = 0; j < 8; j++) {
        *first += sum[j];
        *second += product[j];
    }
}

/* The sums of column c. */
static void EK_NAME(reduce_plane)(const ek_norm_job *job, int64_t c)
{
    const ek_norm_plan *plan = &job->plan;
    const double center = (double)((const EK_REAL *)job->center)[c];
    job->first[c] = job->second[c] = 0;
    for (int64_t o = 0; o < plan->outer; o++) {
        int64_t at = EK_NAME(plane_of)(plan, c) + o * plan->outer_stride;
        EK_NAME(reduce_run)
        ((const EK_REAL *)job->dy + at, (const EK_REAL *)job->x + at,
         job->mask != NULL ? (const EK_REAL *)job->mask + at : NULL, plan->inner, center,
         &job->first[c], &job->second[c]);
    }
}

/* ---- both kinds of sums: with dy, or moments ---- */

static void EK_NAME(sum_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    for (int64_t task = begin; task < end; task++) {
        int64_t place = task / parts, column = task % parts * EK_NORM_COLUMNS;
        int64_t columns = EK_NAME(columns_of)(plan, task % parts);
        int64_t sample = place / plan->blocks, row = place % plan->blocks * plan->block_rows;
        int64_t rows = plan->rows - row < plan->block_rows ? plan->rows - row : plan->block_rows;
        int64_t at = sample * plan->sample_stride + row * plan->row_stride + column;
        const EK_REAL *x = (const EK_REAL *)job->x + at;
        double *first = job->first + place * plan->width + column;
        double *second = job->second + place * plan->width + column;
        if (job->dy == NULL) {
            EK_NAME(moments_block)(x, plan->row_stride, rows, columns, first, second);
        } else {
            EK_NAME(reduce_block)
            ((const EK_REAL *)job->dy + at, x,
             job->mask != NULL ? (const EK_REAL *)job->mask + at : NULL, plan->row_stride, rows,
             columns, (const EK_REAL *)job->center + sample * plan->width + column, first, second);
        }
    }
}

static void EK_NAME(sum_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    for (int64_t c = begin; c < end; c++)
        (job->dy == NULL ? EK_NAME(moments_plane) : EK_NAME(reduce_plane))(job, c);
}

/* ---- dx = scale dy - shift - (x - center) slope ---- */

EK_MULTIVERSION
static void EK_NAME(gradient_row)(EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                  const EK_REAL *restrict x, const EK_REAL *restrict mask,
                                  int64_t n, const EK_REAL *restrict center,
                                  const EK_REAL *restrict scale, const EK_REAL *restrict shift,
                                  const EK_REAL *restrict slope)
{
    if (shift == NULL) {
        for (int64_t c = 0; c < n; c++)
            dx[c] = scale[c] * (mask == NULL || !(mask[c] <= 0) ? dy[c] : 0);
    } else if (mask != NULL) {
        for (int64_t c = 0; c < n; c++) {
            EK_REAL g = mask[c] <= 0 ? 0 : dy[c];
            dx[c] = scale[c] * g - shift[c] - (x[c] - center[c]) * slope[c];
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            dx[c] = scale[c] * dy[c] - shift[c] - (x[c] - center[c]) * slope[c];
    }
}

EK_MULTIVERSION
static void EK_NAME(gradient_run)(EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                  const EK_REAL *restrict x, const EK_REAL *restrict mask,
                                  int64_t n, EK_REAL center, EK_REAL scale, EK_REAL shift,
                                  EK_REAL slope)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL g = mask == NULL || !(mask[i] <= 0) ? dy[i] : 0;
        dx[i] = scale * g - shift - (x[i] - center) * slope;
    }
}

/* ---- both kinds of elements: with dy, or from x alone ---- */

/* Parts are joined rows, the last of a sample shorter. */
static void EK_NAME(line_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    const int64_t rows = plan->rows + (plan->rest > 0);
    for (int64_t part = begin; part < end; part++) {
        int64_t sample = part / rows, r = part % rows, own = sample * plan->width;
        int64_t at = sample * plan->sample_stride + r * plan->row_stride;
        int64_t n = r < plan->rows ? plan->width : plan->rest;
        EK_REAL *y = (EK_REAL *)job->y + at;
        const EK_REAL *x = (const EK_REAL *)job->x + at;
        const EK_REAL *center = (const EK_REAL *)job->center + own;
        const EK_REAL *scale = (const EK_REAL *)job->scale + own;
        const EK_REAL *shift = job->shift != NULL ? (const EK_REAL *)job->shift + own : NULL;
        if (job->dy == NULL) {
            EK_NAME(apply_row)(y, x, n, center, scale, shift, job->relu);
        } else {
            EK_NAME(gradient_row)
            (y, (const EK_REAL *)job->dy + at, x,
             job->mask != NULL ? (const EK_REAL *)job->mask + at : NULL, n, center, scale, shift,
             shift != NULL ? (const EK_REAL *)job->slope + own : NULL);
        }
    }
}

static void EK_NAME(line_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    for (int64_t p = begin; p < end; p++) {
        int64_t o = p / plan->channels % plan->outer;
        int64_t c = p / plan->channels / plan->outer * plan->channels + p % plan->channels;
        int64_t at = EK_NAME(plane_of)(plan, c) + o * plan->outer_stride;
        EK_REAL *y = (EK_REAL *)job->y + at, center = ((const EK_REAL *)job->center)[c];
        EK_REAL scale = ((const EK_REAL *)job->scale)[c];
        EK_REAL shift = job->shift != NULL ? ((const EK_REAL *)job->shift)[c] : 0;
        const EK_REAL *x = (const EK_REAL *)job->x + at;
        if (job->dy == NULL) {
            EK_NAME(apply_run)(y, x, plan->inner, center, scale, shift, job->relu);
        } else {
            EK_NAME(gradient_run)
            (y, (const EK_REAL *)job->dy + at, x,
             job->mask != NULL ? (const EK_REAL *)job->mask + at : NULL, plan->inner, center, scale,
             shift, job->shift != NULL ? ((const EK_REAL *)job->slope)[c] : 0);
        }
    }
}

#endif
