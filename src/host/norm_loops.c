/* norm_loops.c: the innermost loops of normalisation, over rows and planes (norm.h). Each function
 * takes part [begin, end) of the work; see ek_norm_job. */
#ifndef EK_REAL
#include "host/norm.h"

#include "host/host.h"

#define EK_ELEMENT EK_REAL
#define EK_GET(element) (element)
#define EK_PUT(value) (value)
#define EK_FOR_REALS "host/norm_loops.c"
#include "kernels/for_reals.h"
#undef EK_ELEMENT
#undef EK_GET
#undef EK_PUT

/* bf16 tensors, whose parameters are f32 */
#define EK_ELEMENT uint16_t
#define EK_GET(element) ek_float_of_bf16(element)
#define EK_PUT(value) ek_bf16_of(value)
#define EK_REAL float
#define EK_NAME(name) name##_bf16
#include "host/norm_loops.c"
#undef EK_ELEMENT
#undef EK_GET
#undef EK_PUT
#undef EK_REAL
#undef EK_NAME

#else /* for each EK_REAL that a tensor's EK_ELEMENT is computed in */

/* The address of element `at`; NULL for NULL. */
static inline const EK_ELEMENT *EK_NAME(norm_at)(const void *data, int64_t at)
{
    return data ? (const EK_ELEMENT *)data + at : NULL;
}

/* The same for parameters. */
static inline const EK_REAL *EK_NAME(norm_own)(const void *parameters, int64_t at)
{
    return parameters ? (const EK_REAL *)parameters + at : NULL;
}

static inline int64_t EK_NAME(norm_columns_of)(const ek_norm_plan *plan, int64_t part)
{
    int64_t rest = plan->width - part * EK_NORM_COLUMNS;
    return rest < EK_NORM_COLUMNS ? rest : EK_NORM_COLUMNS;
}

/* The offset of a column's first plane. Columns are channels, sample by sample. */
static inline int64_t EK_NAME(norm_plane_of)(const ek_norm_plan *plan, int64_t column)
{
    return column / plan->channels * plan->sample_stride +
           column % plan->channels * plan->channel_stride;
}

/* Starts to read n elements. Processors look ahead by themselves, but not from a page into the
 * next, and not along columns of wide rows. */
static inline void EK_NAME(norm_fetch)(const EK_ELEMENT *x, int64_t n)
{
    enum { LINE = 64 / sizeof(EK_ELEMENT) };
    for (int64_t i = 0; i < n; i += LINE)
        __builtin_prefetch(x + i);
}

/* ---- moments ---- */

/* The moments of each column. Blocks of few rows are summed in two passes, mean and then
 * deviations, while their rows are in the cache. A block then joins the rows before (Chan et al.).
 * */
EK_MULTIVERSION
static void EK_NAME(norm_moments_block)(const EK_ELEMENT *x, int64_t stride, int64_t rows,
                                        int64_t columns, double *mean, double *deviation)
{
    EK_REAL sum[EK_NORM_COLUMNS], rest[EK_NORM_COLUMNS], square[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns), ahead = ek_norm_rows_ahead(columns);
    ahead = ahead > step ? ahead : step; /* a block reads its own rows at once */
    for (int64_t c = 0; c < columns; c++)
        mean[c] = deviation[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t n = ek_smaller(rows - done, step);
        const EK_ELEMENT *block = x + done * stride;
        for (int64_t c = 0; c < columns; c++)
            sum[c] = rest[c] = square[c] = 0;
        for (int64_t r = 0; r < n; r++) {
            if (done + r + ahead < rows)
                EK_NAME(norm_fetch)(block + (r + ahead) * stride, columns);
            for (int64_t c = 0; c < columns; c++)
                sum[c] += EK_GET(block[r * stride + c]);
        }
        EK_REAL share = (EK_REAL)1 / (EK_REAL)n;
        for (int64_t c = 0; c < columns; c++)
            sum[c] *= share;
        for (int64_t r = 0; r < n; r++) {
            for (int64_t c = 0; c < columns; c++) {
                EK_REAL d = EK_GET(block[r * stride + c]) - sum[c];
                rest[c] += d;
                square[c] += d * d;
            }
        }
        double own = (double)n, before = (double)done;
        double part = own / (own + before), both = before * part;
        for (int64_t c = 0; c < columns; c++) {
            double residue = (double)rest[c] / own; /* the error of the rounded mean */
            double delta = (double)sum[c] + residue - mean[c];
            mean[c] += delta * part;
            deviation[c] += (double)square[c] - residue * residue * own + delta * delta * both;
        }
    }
}

/* The sum of a run of at most EK_TILE elements. */
EK_MULTIVERSION
static double EK_NAME(norm_run_sum)(const EK_ELEMENT *x, int64_t n)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)EK_GET(x[i + j]);
    for (; i < n; i++)
        sum += (double)EK_GET(x[i]);
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

EK_MULTIVERSION
static double EK_NAME(norm_run_deviation)(const EK_ELEMENT *x, int64_t n, double center)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double d = (double)EK_GET(x[i + j]) - center;
            lane[j] += d * d;
        }
    for (; i < n; i++)
        sum += ((double)EK_GET(x[i]) - center) * ((double)EK_GET(x[i]) - center);
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

/* The moments of column c. */
static void EK_NAME(norm_moments_plane)(const ek_norm_job *job, int64_t c)
{
    const ek_norm_plan *plan = &job->plan;
    const EK_ELEMENT *x = EK_NAME(norm_at)(job->x, EK_NAME(norm_plane_of)(plan, c));
    double count = 0, mean = 0, deviation = 0;
    for (int64_t o = 0; o < plan->outer; o++, x += plan->outer_stride)
        for (int64_t i = 0; i < plan->inner; i += EK_TILE) {
            int64_t n = ek_smaller(plan->inner - i, EK_TILE);
            double own = (double)n, own_mean = EK_NAME(norm_run_sum)(x + i, n) / own;
            double delta = own_mean - mean;
            deviation += EK_NAME(norm_run_deviation)(x + i, n, own_mean) +
                         delta * delta * count * own / (count + own);
            count += own;
            mean += delta * own / count;
        }
    job->first[c] = mean;
    job->second[c] = deviation;
}

/* ---- y = (x - center) * scale + shift ---- */

EK_MULTIVERSION
static void EK_NAME(norm_apply_row)(EK_ELEMENT *restrict y, const EK_ELEMENT *restrict x, int64_t n,
                                    const EK_REAL *restrict center, const EK_REAL *restrict scale,
                                    const EK_REAL *restrict shift, bool relu)
{
    if (relu) {
        for (int64_t c = 0; c < n; c++) {
            EK_REAL v = (EK_GET(x[c]) - center[c]) * scale[c] + shift[c];
            y[c] = EK_PUT(v <= 0 ? 0 : v);
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            y[c] = EK_PUT((EK_GET(x[c]) - center[c]) * scale[c] + shift[c]);
    }
}

EK_MULTIVERSION
static void EK_NAME(norm_apply_run)(EK_ELEMENT *restrict y, const EK_ELEMENT *restrict x, int64_t n,
                                    EK_REAL center, EK_REAL scale, EK_REAL shift, bool relu)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL v = (EK_GET(x[i]) - center) * scale + shift;
        y[i] = EK_PUT((relu & (v <= 0)) ? 0 : v);
    }
}

/* ---- sums of dy and dy * (x - center) ---- */

EK_MULTIVERSION
static void EK_NAME(norm_reduce_block)(const EK_ELEMENT *dy, const EK_ELEMENT *x,
                                       const EK_ELEMENT *mask, int64_t stride, int64_t rows,
                                       int64_t columns, const EK_REAL *restrict center,
                                       double *first, double *second)
{
    EK_REAL sum[EK_NORM_COLUMNS], product[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns), ahead = ek_norm_rows_ahead(columns);
    for (int64_t c = 0; c < columns; c++)
        first[c] = second[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t last = rows - done < step ? rows : done + step;
        for (int64_t c = 0; c < columns; c++)
            sum[c] = product[c] = 0;
        for (int64_t r = done; r < last; r++) {
            const EK_ELEMENT *g = dy + r * stride, *u = x + r * stride;
            if (r + ahead < rows) {
                EK_NAME(norm_fetch)(g + ahead * stride, columns);
                EK_NAME(norm_fetch)(u + ahead * stride, columns);
                if (mask)
                    EK_NAME(norm_fetch)(mask + (r + ahead) * stride, columns);
            }
            if (mask) {
                const EK_ELEMENT *m = mask + r * stride;
                for (int64_t c = 0; c < columns; c++) {
                    EK_REAL v = EK_GET(m[c]) <= 0 ? 0 : EK_GET(g[c]);
                    sum[c] += v;
                    product[c] += v * (EK_GET(u[c]) - center[c]);
                }
            } else {
                for (int64_t c = 0; c < columns; c++) {
                    EK_REAL v = EK_GET(g[c]);
                    sum[c] += v;
                    product[c] += v * (EK_GET(u[c]) - center[c]);
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
static void EK_NAME(norm_reduce_run)(const EK_ELEMENT *g, const EK_ELEMENT *x,
                                     const EK_ELEMENT *mask, int64_t n, double center,
                                     double *first, double *second)
{
    double sum[8] = {0}, product[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double v = !mask || !(EK_GET(mask[i + j]) <= 0) ? (double)EK_GET(g[i + j]) : 0;
            sum[j] += v;
            product[j] += v * ((double)EK_GET(x[i + j]) - center);
        }
    for (int j = 0; i + j < n; j++) {
        double v = !mask || !(EK_GET(mask[i + j]) <= 0) ? (double)EK_GET(g[i + j]) : 0;
        sum[j] += v;
        product[j] += v * ((double)EK_GET(x[i + j]) - center);
    }
    for (int j = 0; j < 8; j++) {
        *first += sum[j];
        *second += product[j];
    }
}

/* The sums of column c. */
static void EK_NAME(norm_reduce_plane)(const ek_norm_job *job, int64_t c)
{
    const ek_norm_plan *plan = &job->plan;
    double center = (double)((const EK_REAL *)job->center)[c];
    job->first[c] = job->second[c] = 0;
    for (int64_t o = 0; o < plan->outer; o++) {
        int64_t at = EK_NAME(norm_plane_of)(plan, c) + o * plan->outer_stride;
        EK_NAME(norm_reduce_run)
        (EK_NAME(norm_at)(job->dy, at), EK_NAME(norm_at)(job->x, at),
         EK_NAME(norm_at)(job->mask, at), plan->inner, center, &job->first[c], &job->second[c]);
    }
}

/* ---- sums over rows and planes: with dy, or moments ---- */

void EK_NAME(ek_norm_sum_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    for (int64_t task = begin; task < end; task++) {
        int64_t place = task / parts, column = task % parts * EK_NORM_COLUMNS;
        int64_t columns = EK_NAME(norm_columns_of)(plan, task % parts);
        int64_t sample = place / plan->blocks, row = place % plan->blocks * plan->block_rows;
        int64_t rows = ek_smaller(plan->rows - row, plan->block_rows);
        int64_t at = sample * plan->sample_stride + row * plan->row_stride + column;
        const EK_ELEMENT *x = EK_NAME(norm_at)(job->x, at);
        double *first = job->first + place * plan->width + column;
        double *second = job->second + place * plan->width + column;
        if (!job->dy) {
            EK_NAME(norm_moments_block)(x, plan->row_stride, rows, columns, first, second);
        } else {
            EK_NAME(norm_reduce_block)
            (EK_NAME(norm_at)(job->dy, at), x, EK_NAME(norm_at)(job->mask, at), plan->row_stride,
             rows, columns, (const EK_REAL *)job->center + sample * plan->width + column, first,
             second);
        }
    }
}

void EK_NAME(ek_norm_sum_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    for (int64_t c = begin; c < end; c++)
        (!job->dy ? EK_NAME(norm_moments_plane) : EK_NAME(norm_reduce_plane))(job, c);
}

/* ---- dx = scale * dy - shift - (x - center) * slope ---- */

EK_MULTIVERSION
static void EK_NAME(norm_gradient_row)(EK_ELEMENT *restrict dx, const EK_ELEMENT *restrict dy,
                                       const EK_ELEMENT *restrict x,
                                       const EK_ELEMENT *restrict mask, int64_t n,
                                       const EK_REAL *restrict center,
                                       const EK_REAL *restrict scale, const EK_REAL *restrict shift,
                                       const EK_REAL *restrict slope)
{
    if (!shift) {
        for (int64_t c = 0; c < n; c++)
            dx[c] = EK_PUT(scale[c] * (!mask || !(EK_GET(mask[c]) <= 0) ? EK_GET(dy[c]) : 0));
    } else if (mask) {
        for (int64_t c = 0; c < n; c++) {
            EK_REAL g = EK_GET(mask[c]) <= 0 ? 0 : EK_GET(dy[c]);
            dx[c] = EK_PUT(scale[c] * g - shift[c] - (EK_GET(x[c]) - center[c]) * slope[c]);
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            dx[c] =
                EK_PUT(scale[c] * EK_GET(dy[c]) - shift[c] - (EK_GET(x[c]) - center[c]) * slope[c]);
    }
}

EK_MULTIVERSION
static void EK_NAME(norm_gradient_run)(EK_ELEMENT *restrict dx, const EK_ELEMENT *restrict dy,
                                       const EK_ELEMENT *restrict x,
                                       const EK_ELEMENT *restrict mask, int64_t n, EK_REAL center,
                                       EK_REAL scale, EK_REAL shift, EK_REAL slope)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL g = !mask || !(EK_GET(mask[i]) <= 0) ? EK_GET(dy[i]) : 0;
        dx[i] = EK_PUT(scale * g - shift - (EK_GET(x[i]) - center) * slope);
    }
}

/* ---- lines over rows and planes: dx with dy, else y ---- */

/* A part is a joined row; the last row of a sample may be shorter. */
void EK_NAME(ek_norm_line_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    int64_t rows = plan->rows + (plan->rest > 0), ahead = ek_norm_rows_ahead(plan->width);
    for (int64_t part = begin; part < end; part++) {
        int64_t sample = part / rows, r = part % rows, own = sample * plan->width;
        int64_t at = sample * plan->sample_stride + r * plan->row_stride;
        int64_t n = r < plan->rows ? plan->width : plan->rest;
        int64_t next = at + ahead * plan->row_stride;
        EK_ELEMENT *y = (EK_ELEMENT *)job->y + at;
        const EK_ELEMENT *x = EK_NAME(norm_at)(job->x, at);
        const EK_REAL *center = EK_NAME(norm_own)(job->center, own);
        const EK_REAL *scale = EK_NAME(norm_own)(job->scale, own);
        const EK_REAL *shift = EK_NAME(norm_own)(job->shift, own);
        if (!job->dy) {
            EK_NAME(norm_apply_row)(y, x, n, center, scale, shift, job->relu);
        } else {
            if (r + ahead < plan->rows) {
                EK_NAME(norm_fetch)(EK_NAME(norm_at)(job->dy, next), n);
                EK_NAME(norm_fetch)(x + ahead * plan->row_stride, n);
                if (job->mask)
                    EK_NAME(norm_fetch)(EK_NAME(norm_at)(job->mask, next), n);
            }
            EK_NAME(norm_gradient_row)
            (y, EK_NAME(norm_at)(job->dy, at), x, EK_NAME(norm_at)(job->mask, at), n, center, scale,
             shift, EK_NAME(norm_own)(job->slope, own));
        }
    }
}

void EK_NAME(ek_norm_line_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_job *job = context;
    const ek_norm_plan *plan = &job->plan;
    for (int64_t p = begin; p < end; p++) {
        int64_t o = p / plan->channels % plan->outer;
        int64_t c = p / plan->channels / plan->outer * plan->channels + p % plan->channels;
        int64_t at = EK_NAME(norm_plane_of)(plan, c) + o * plan->outer_stride;
        EK_ELEMENT *y = (EK_ELEMENT *)job->y + at;
        EK_REAL center = ((const EK_REAL *)job->center)[c];
        EK_REAL scale = ((const EK_REAL *)job->scale)[c];
        EK_REAL shift = job->shift ? ((const EK_REAL *)job->shift)[c] : 0;
        const EK_ELEMENT *x = EK_NAME(norm_at)(job->x, at);
        if (!job->dy) {
            EK_NAME(norm_apply_run)(y, x, plan->inner, center, scale, shift, job->relu);
        } else {
            EK_NAME(norm_gradient_run)
            (y, EK_NAME(norm_at)(job->dy, at), x, EK_NAME(norm_at)(job->mask, at), plan->inner,
             center, scale, shift, job->shift ? ((const EK_REAL *)job->slope)[c] : 0);
        }
    }
}

#endif
