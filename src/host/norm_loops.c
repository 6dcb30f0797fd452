/* norm_loops.c: the innermost loops of normalisation, over rows and planes (norm.h). */
#ifndef EK_REAL
#include "host/norm.h"
#include "host/tile.h"

/* Prefetches `nbytes` bytes if `data` isn't NULL. Processors prefetch automatically, but not from
 * one page into the next, and not along columns of wide rows. */
static inline void norm_fetch(const void *data, int64_t nbytes)
{
    for (int64_t i = 0; data && i < nbytes; i += 64)
        __builtin_prefetch((const char *)data + i);
}

/* Returns the offset of a column's first plane. Columns are numbered sample by sample. */
static inline int64_t norm_plane_of(const ek_norm_plan *plan, int64_t column)
{
    return column / plan->channels * plan->sample_stride +
           column % plan->channels * plan->channel_stride;
}

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

/* Returns the address of element `at` of a tensor; NULL if the tensor is absent. */
static inline const EK_ELEMENT *EK_NAME(norm_at)(const ek_norm_pass *pass, int tensor, int64_t at)
{
    const EK_ELEMENT *data = pass->data[tensor];
    return data ? data + at : NULL;
}

/* Returns element i of dy, or 0 if there is a mask whose element is 0 or negative. */
static inline EK_REAL EK_NAME(norm_masked)(const EK_ELEMENT *dy, const EK_ELEMENT *mask, int64_t i)
{
    return mask && EK_GET(mask[i]) <= 0 ? 0 : EK_GET(dy[i]);
}

/* ---- moments ---- */

/* Computes the moments of each column. A block of few rows is summed in two passes, mean and then
 * deviations, while its rows are in the cache. Then its moments are joined to those of the rows
 * before (Chan et al. 1983). */
EK_MULTIVERSION
static void EK_NAME(norm_moments_block)(const EK_ELEMENT *x, int64_t stride, int64_t rows,
                                        int64_t columns, double *mean, double *deviation)
{
    EK_REAL sum[EK_NORM_COLUMNS], rest[EK_NORM_COLUMNS], square[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns), ahead = ek_norm_rows_ahead(columns);
    ahead = ek_larger(ahead, step); /* the next rows of this block are read soon anyway */
    for (int64_t c = 0; c < columns; c++)
        mean[c] = deviation[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t n = ek_smaller(rows - done, step);
        const EK_ELEMENT *block = x + done * stride;
        for (int64_t c = 0; c < columns; c++)
            sum[c] = rest[c] = square[c] = 0;
        for (int64_t r = 0; r < n; r++) {
            if (done + r + ahead < rows)
                norm_fetch(block + (r + ahead) * stride, columns * (int64_t)sizeof *x);
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

/* Returns the sum of x - center, or with `square` of its square, over at most EK_TILE elements. */
static inline double EK_NAME(norm_run_power)(const EK_ELEMENT *x, int64_t n, double center,
                                             bool square)
{
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double d = (double)EK_GET(x[i + j]) - center;
            lane[j] += square ? d * d : d;
        }
    for (; i < n; i++) {
        double d = (double)EK_GET(x[i]) - center;
        sum += square ? d * d : d;
    }
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

/* Returns the moments of at most EK_TILE elements. */
EK_MULTIVERSION
static ek_moments EK_NAME(norm_moments_run)(const EK_ELEMENT *x, int64_t n)
{
    const double mean = EK_NAME(norm_run_power)(x, n, 0, false) / (double)n;
    return (ek_moments){(double)n, mean, EK_NAME(norm_run_power)(x, n, mean, true)};
}

/* Computes the moments of column c. */
static void EK_NAME(norm_moments_plane)(const ek_norm_pass *pass, int64_t c)
{
    const ek_norm_plan *plan = &pass->plan;
    const EK_ELEMENT *x = EK_NAME(norm_at)(pass, EK_NORM_X, norm_plane_of(plan, c));
    ek_moments sum = {0, 0, 0};
    for (int64_t o = 0; o < plan->outer; o++, x += plan->outer_stride)
        for (int64_t i = 0; i < plan->inner; i += EK_TILE)
            sum = ek_moments_join(sum, EK_NAME(norm_moments_run)(x + i, ek_smaller(plan->inner - i,
                                                                                   EK_TILE)));
    pass->first[c] = sum.mean;
    pass->second[c] = sum.deviation;
}

/* ---- sums of dy and dy * (x - center) ---- */

static inline void EK_NAME(norm_add_row)(EK_REAL *restrict sum, EK_REAL *restrict product,
                                         const EK_ELEMENT *dy, const EK_ELEMENT *x,
                                         const EK_ELEMENT *mask, int64_t n,
                                         const EK_REAL *restrict center,
                                         const EK_REAL *restrict scale,
                                         const EK_REAL *restrict bias)
{
    for (int64_t c = 0; c < n; c++) {
        EK_REAL v = EK_NAME(norm_masked)(dy, mask, c);
        if (bias)
            v = EK_NORM_CUT(EK_GET(x[c]), center[c], scale[c], bias[c]) ? 0 : v;
        sum[c] += v;
        product[c] += v * (EK_GET(x[c]) - center[c]);
    }
}

EK_MULTIVERSION
static void EK_NAME(norm_reduce_block)(const EK_ELEMENT *dy, const EK_ELEMENT *x,
                                       const EK_ELEMENT *mask, int64_t stride, int64_t rows,
                                       int64_t columns, const EK_REAL *restrict center,
                                       const EK_REAL *restrict scale, const EK_REAL *restrict bias,
                                       double *first, double *second)
{
    EK_REAL sum[EK_NORM_COLUMNS], product[EK_NORM_COLUMNS];
    int64_t step = ek_norm_short_rows(columns), ahead = ek_norm_rows_ahead(columns);
    for (int64_t c = 0; c < columns; c++)
        first[c] = second[c] = 0;
    for (int64_t done = 0; done < rows; done += step) {
        int64_t last = ek_smaller(rows, done + step);
        for (int64_t c = 0; c < columns; c++)
            sum[c] = product[c] = 0;
        for (int64_t r = done; r < last; r++) {
            int64_t at = r * stride, next = at + ahead * stride;
            if (r + ahead < rows) {
                norm_fetch(dy + next, columns * (int64_t)sizeof *dy);
                norm_fetch(x + next, columns * (int64_t)sizeof *x);
                if (mask)
                    norm_fetch(mask + next, columns * (int64_t)sizeof *mask);
            }
            if (bias) {
                EK_NAME(norm_add_row)
                (sum, product, dy + at, x + at, NULL, columns, center, scale, bias);
            } else if (mask) {
                EK_NAME(norm_add_row)
                (sum, product, dy + at, x + at, mask + at, columns, center, NULL, NULL);
            } else {
                EK_NAME(norm_add_row)
                (sum, product, dy + at, x + at, NULL, columns, center, NULL, NULL);
            }
        }
        for (int64_t c = 0; c < columns; c++) {
            first[c] += (double)sum[c];
            second[c] += (double)product[c];
        }
    }
}

EK_MULTIVERSION
static void EK_NAME(norm_reduce_run)(const EK_ELEMENT *dy, const EK_ELEMENT *x,
                                     const EK_ELEMENT *mask, int64_t n, double center,
                                     double *first, double *second)
{
    double sum[8] = {0}, product[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double v = (double)EK_NAME(norm_masked)(dy, mask, i + j);
            sum[j] += v;
            product[j] += v * ((double)EK_GET(x[i + j]) - center);
        }
    for (int j = 0; i + j < n; j++) {
        double v = (double)EK_NAME(norm_masked)(dy, mask, i + j);
        sum[j] += v;
        product[j] += v * ((double)EK_GET(x[i + j]) - center);
    }
    for (int j = 0; j < 8; j++) {
        *first += sum[j];
        *second += product[j];
    }
}

/* Computes the sums of column c. */
static void EK_NAME(norm_reduce_plane)(const ek_norm_pass *pass, int64_t c)
{
    const ek_norm_plan *plan = &pass->plan;
    const EK_REAL center = ((const EK_REAL *)pass->parameters[EK_NORM_CENTER])[c];
    pass->first[c] = pass->second[c] = 0;
    for (int64_t o = 0; o < plan->outer; o++) {
        int64_t at = norm_plane_of(plan, c) + o * plan->outer_stride;
        EK_NAME(norm_reduce_run)
        (EK_NAME(norm_at)(pass, EK_NORM_DY, at), EK_NAME(norm_at)(pass, EK_NORM_X, at),
         EK_NAME(norm_at)(pass, EK_NORM_MASK, at), plan->inner, (double)center, &pass->first[c],
         &pass->second[c]);
    }
}

/* ---- sums over rows and planes: with dy, or moments ---- */

void EK_NAME(ek_norm_sum_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task / parts, column = task % parts * EK_NORM_COLUMNS;
        int64_t sample = block / plan->blocks, own = block % plan->blocks;
        int64_t columns = ek_smaller(ek_norm_block_width(plan, own) - column, EK_NORM_COLUMNS);
        int64_t row = ek_smaller(own * plan->block_rows, plan->rows);
        int64_t rows = ek_norm_block_rows(plan, own);
        int64_t at = sample * plan->sample_stride + row * plan->row_stride + column;
        const EK_ELEMENT *x = EK_NAME(norm_at)(pass, EK_NORM_X, at);
        const EK_ELEMENT *dy = EK_NAME(norm_at)(pass, EK_NORM_DY, at);
        double *first = pass->first + block * plan->width + column;
        double *second = pass->second + block * plan->width + column;
        if (!dy) {
            EK_NAME(norm_moments_block)(x, plan->row_stride, rows, columns, first, second);
        } else {
            const EK_REAL *of[EK_NORM_PARAMETERS];
            for (int k = 0; k < EK_NORM_PARAMETERS; k++)
                of[k] = (const EK_REAL *)pass->parameters[k] + sample * plan->width + column;
            EK_NAME(norm_reduce_block)
            (dy, x, EK_NAME(norm_at)(pass, EK_NORM_MASK, at), plan->row_stride, rows, columns,
             of[EK_NORM_CENTER], of[EK_NORM_SCALE], pass->again ? of[EK_NORM_BIAS] : NULL, first,
             second);
        }
    }
}

void EK_NAME(ek_norm_sum_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    for (int64_t c = begin; c < end; c++)
        (pass->args->dy ? EK_NAME(norm_reduce_plane) : EK_NAME(norm_moments_plane))(pass, c);
}

/* ---- lines: y = (x - center) * scale + shift, or dx = scale * dy - shift - (x - center) * slope.
 * If `each` is 1, each of n elements has its parameters. If it is 0, all have the same. ---- */

static inline void EK_NAME(norm_apply)(EK_ELEMENT *restrict y, const EK_ELEMENT *restrict x,
                                       int64_t n, const EK_REAL *restrict center,
                                       const EK_REAL *restrict scale, const EK_REAL *restrict shift,
                                       bool relu, int each)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL v = (EK_GET(x[i]) - center[i * each]) * scale[i * each] + shift[i * each];
        y[i] = EK_PUT((relu & (v <= 0)) ? 0 : v);
    }
}

EK_MULTIVERSION
static void EK_NAME(norm_apply_line)(EK_ELEMENT *restrict y, const EK_ELEMENT *restrict x,
                                     int64_t n, const EK_REAL *restrict center,
                                     const EK_REAL *restrict scale, const EK_REAL *restrict shift,
                                     bool relu, bool each)
{
    if (!each)
        EK_NAME(norm_apply)(y, x, n, center, scale, shift, relu, 0);
    else if (relu)
        EK_NAME(norm_apply)(y, x, n, center, scale, shift, true, 1);
    else
        EK_NAME(norm_apply)(y, x, n, center, scale, shift, false, 1);
}

static inline void
EK_NAME(norm_gradient)(EK_ELEMENT *restrict dx, const EK_ELEMENT *restrict dy,
                       const EK_ELEMENT *restrict x, const EK_ELEMENT *restrict mask, int64_t n,
                       const EK_REAL *restrict center, const EK_REAL *restrict scale,
                       const EK_REAL *restrict shift, const EK_REAL *restrict slope,
                       const EK_REAL *restrict bias, int each)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL v = EK_NAME(norm_masked)(dy, mask, i), from = EK_GET(x[i]) - center[i * each];
        if (bias)
            v = EK_NORM_CUT(EK_GET(x[i]), center[i], scale[i], bias[i]) ? 0 : v;
        dx[i] = EK_PUT(scale[i * each] * v - shift[i * each] - from * slope[i * each]);
    }
}

/* Writes dx, or scale * dy if slope is NULL. */
EK_MULTIVERSION
static void
EK_NAME(norm_gradient_line)(EK_ELEMENT *restrict dx, const EK_ELEMENT *restrict dy,
                            const EK_ELEMENT *restrict x, const EK_ELEMENT *restrict mask,
                            int64_t n, const EK_REAL *restrict center,
                            const EK_REAL *restrict scale, const EK_REAL *restrict shift,
                            const EK_REAL *restrict slope, const EK_REAL *restrict bias, bool each)
{
    if (!slope)
        for (int64_t i = 0; i < n; i++) {
            EK_REAL v = EK_NAME(norm_masked)(dy, mask, i);
            if (bias)
                v = EK_NORM_CUT(EK_GET(x[i]), center[i], scale[i], bias[i]) ? 0 : v;
            dx[i] = EK_PUT(scale[each ? i : 0] * v);
        }
    else if (!each)
        EK_NAME(norm_gradient)(dx, dy, x, mask, n, center, scale, shift, slope, NULL, 0);
    else if (bias)
        EK_NAME(norm_gradient)(dx, dy, x, NULL, n, center, scale, shift, slope, bias, 1);
    else if (mask)
        EK_NAME(norm_gradient)(dx, dy, x, mask, n, center, scale, shift, slope, NULL, 1);
    else
        EK_NAME(norm_gradient)(dx, dy, x, NULL, n, center, scale, shift, slope, NULL, 1);
}

/* ---- lines over rows and planes ---- */

/* Writes n elements from `at` on. The first has the parameters of column c. With `each`, every
 * further element has the next column's parameters, else all have the first's. */
static inline void EK_NAME(norm_line)(const ek_norm_pass *pass, int64_t at, int64_t n, int64_t c,
                                      bool each)
{
    EK_ELEMENT *y = (EK_ELEMENT *)pass->data[EK_NORM_OUT] + at;
    const EK_ELEMENT *x = EK_NAME(norm_at)(pass, EK_NORM_X, at);
    const EK_ELEMENT *dy = EK_NAME(norm_at)(pass, EK_NORM_DY, at);
    const EK_ELEMENT *mask = EK_NAME(norm_at)(pass, EK_NORM_MASK, at);
    const EK_REAL *center = (const EK_REAL *)pass->parameters[EK_NORM_CENTER] + c;
    const EK_REAL *scale = (const EK_REAL *)pass->parameters[EK_NORM_SCALE] + c;
    const EK_REAL *shift = (const EK_REAL *)pass->parameters[EK_NORM_SHIFT] + c;
    const EK_REAL *slope = (const EK_REAL *)pass->parameters[EK_NORM_SLOPE] + c;
    const EK_REAL *bias = (const EK_REAL *)pass->parameters[EK_NORM_BIAS] + c;
    if (!dy) {
        EK_NAME(norm_apply_line)(y, x, n, center, scale, shift, pass->args->relu, each);
    } else {
        EK_NAME(norm_gradient_line)
        (y, dy, x, mask, n, center, scale, shift, pass->args->sum_xhat ? slope : NULL,
         pass->again ? bias : NULL, each);
    }
}

/* A task is a joined row; the last row of a sample may be shorter. */
void EK_NAME(ek_norm_line_rows)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    int64_t rows = plan->rows + (plan->rest > 0), ahead = ek_norm_rows_ahead(plan->width);
    for (int64_t task = begin; task < end; task++) {
        int64_t sample = task / rows, r = task % rows;
        int64_t at = sample * plan->sample_stride + r * plan->row_stride;
        int64_t n = r < plan->rows ? plan->width : plan->rest;
        if (pass->args->dy && r + ahead < plan->rows)
            for (int i = EK_NORM_X; i <= EK_NORM_MASK; i++)
                norm_fetch(EK_NAME(norm_at)(pass, i, at + ahead * plan->row_stride),
                           n * (int64_t)sizeof(EK_ELEMENT));
        EK_NAME(norm_line)(pass, at, n, sample * plan->width, true);
    }
}

void EK_NAME(ek_norm_line_planes)(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    for (int64_t p = begin; p < end; p++) {
        int64_t o = p / plan->channels % plan->outer;
        int64_t c = p / plan->channels / plan->outer * plan->channels + p % plan->channels;
        int64_t at = norm_plane_of(plan, c) + o * plan->outer_stride;
        EK_NAME(norm_line)(pass, at, plan->inner, c, false);
    }
}

#endif
