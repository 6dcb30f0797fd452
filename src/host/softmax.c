/* softmax.c: softmax and log-softmax along one dimension, and their gradients. */
#ifndef EK_REAL
#include "host/axis.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/formulas.h"

/* A block has at most ROWS rows. Rows shorter than NARROW are computed together. */
enum { ROWS = 512, NARROW = 32 };

/* Computes rows of `out` from rows of one or two tensors. */
typedef void softmax_body(int64_t rows, int64_t size, void *out, const void *a, const void *b,
                          bool logarithm);

typedef struct softmax_job {
    ek_axis axis;
    ek_axis_operand operand[3]; /* 0 is the output */
    softmax_body *body;
    bool logarithm;
} softmax_job;

#define EK_FOR_REALS "host/softmax.c"
#include "kernels/for_reals.h"

static void softmax_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    const softmax_job *job = context;
    const ek_axis *axis = &job->axis;
    ek_cursor cursor;
    ek_cursor_init(&axis->walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *in[3] = {NULL};
        for (int k = 1; k < axis->walk.operands; k++)
            in[k] = ek_axis_load(axis, &cursor, &job->operand[k], rows, slots[k]);
        void *out = ek_axis_target(axis, &cursor, &job->operand[0], rows, slots[0]);
        job->body(rows, axis->size, out, in[1], in[2], job->logarithm);
        ek_axis_store(axis, &cursor, &job->operand[0], rows, out, slots[0]);
        ek_cursor_advance(&axis->walk, &cursor, rows);
        begin += rows;
    }
}

/* Tensor 0 is the output. */
static int softmax_run(ek_dev *dev, const ek_tensor *const *tensors, int count, int dim,
                       bool logarithm, softmax_body *f32, softmax_body *f64)
{
    static const bool has_axis[] = {true, true, true};
    if (ek_count(tensors[0]) == 0)
        return 0;
    softmax_job job = {.logarithm = logarithm};
    EK_TRY(ek_axis_begin(&job.axis, dev, tensors, has_axis, count, dim));
    for (int k = 0; k < count; k++)
        job.operand[k] = ek_axis_operand_of(&job.axis, k, tensors[k], dim);
    job.body = job.axis.type == EK_CLASS_F32 ? f32 : f64;
    ek_axis_for(&job.axis, dev, softmax_part, &job);
    ek_axis_end(&job.axis, dev);
    return 0;
}

int ek_host_softmax(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim, bool logarithm)
{
    return softmax_run(dev, (const ek_tensor *[]){y, x}, 2, dim, logarithm, softmax_block_f32,
                       softmax_block_f64);
}

int ek_host_softmax_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *y,
                             int dim, bool logarithm)
{
    return softmax_run(dev, (const ek_tensor *[]){dx, dy, y}, 3, dim, logarithm,
                       softmax_gradient_block_f32, softmax_gradient_block_f64);
}

#else /* for each EK_REAL */

/* ---- the stable exponentials of softmax and cross entropy ---- */

/* 32 bytes of numbers at any address: gcc 12 doesn't vectorise a maximum that keeps NaN. */
typedef EK_REAL EK_NAME(softmax_vector)
    __attribute__((vector_size(32), aligned(sizeof(EK_REAL)), may_alias));

/* Returns the largest element of a row; NaN if the row has a NaN. */
EK_MULTIVERSION
static EK_REAL EK_NAME(softmax_largest_of)(int64_t size, const EK_REAL *row)
{
    enum { VECTOR = 32 / sizeof(EK_REAL), VECTORS = 8 / VECTOR };
    EK_NAME(softmax_vector) m[VECTORS];
    int64_t c = 0;
    for (int k = 0; k < VECTORS; k++)
        m[k] = row[0] - (EK_NAME(softmax_vector)){0};
    for (; c + 8 <= size; c += 8)
        for (int k = 0; k < VECTORS; k++) {
            const EK_NAME(softmax_vector) *x = (const void *)(row + c + k * VECTOR);
            const __typeof__(*x > m[k]) larger = (*x > m[k]) | (*x != *x);
            m[k] = (EK_NAME(softmax_vector))((larger & (__typeof__(larger))*x) |
                                             (~larger & (__typeof__(larger))m[k]));
        }
    EK_REAL most = m[0][0];
    for (int j = 1; j < 8; j++) {
        const EK_REAL next = m[j / VECTOR][j % VECTOR];
        most = ((next > most) | (next != next)) ? next : most;
    }
    for (; c < size; c++)
        most = ((row[c] > most) | (row[c] != row[c])) ? row[c] : most;
    return most;
}

/* Returns the sum of x, or of x y if y isn't NULL. */
EK_MULTIVERSION
static double EK_NAME(softmax_sum_of)(int64_t size, const EK_REAL *x, const EK_REAL *y)
{
    double lane[8] = {0}, total = 0;
    int64_t c = 0;
    for (; c + 8 <= size; c += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += y ? (double)x[c + j] * (double)y[c + j] : (double)x[c + j];
    for (int j = 0; j < 8; j++)
        total += lane[j];
    for (; c < size; c++)
        total += y ? (double)x[c] * (double)y[c] : (double)x[c];
    return total;
}

/* Computes e = exp(x - largest) of each row, its largest element, and the sum of e. If a row has a
 * NaN, its largest element is NaN. */
EK_MULTIVERSION
static void EK_NAME(softmax_exponentials)(int64_t rows, int64_t size, const EK_REAL *restrict x,
                                          EK_REAL *restrict e, EK_REAL *restrict largest,
                                          EK_REAL *restrict sum)
{
    if (size < NARROW) { /* all rows at once: a row alone is too short for vectors */
        for (int64_t r = 0; r < rows; r++)
            largest[r] = x[r * size];
        for (int64_t c = 1; c < size; c++)
            for (int64_t r = 0; r < rows; r++) {
                EK_REAL v = x[r * size + c];
                largest[r] = ((v > largest[r]) | (v != v)) ? v : largest[r];
            }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                e[r * size + c] = x[r * size + c] - largest[r];
        for (int64_t i = 0; i < rows * size; i++)
            e[i] = EK_NAME(ek_exp)(e[i]);
        for (int64_t r = 0; r < rows; r++)
            sum[r] = e[r * size];
        for (int64_t c = 1; c < size; c++)
            for (int64_t r = 0; r < rows; r++)
                sum[r] += e[r * size + c];
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const EK_REAL *row = x + r * size;
        EK_REAL most = EK_NAME(softmax_largest_of)(size, row);
        largest[r] = most;
        for (int64_t c = 0; c < size; c++)
            e[r * size + c] = row[c] - most;
    }
    for (int64_t i = 0; i < rows * size; i++)
        e[i] = EK_NAME(ek_exp)(e[i]);
    for (int64_t r = 0; r < rows; r++)
        sum[r] = (EK_REAL)EK_NAME(softmax_sum_of)(size, e + r * size, NULL);
}

/* Returns the sum of exp(x - most) over one long row, computed tile by tile. */
EK_MULTIVERSION
static EK_REAL EK_NAME(softmax_exponential_sum)(int64_t size, const EK_REAL *restrict row,
                                                EK_REAL most)
{
    EK_REAL e[EK_TILE];
    double total = 0;
    for (int64_t at = 0; at < size; at += EK_TILE) {
        const int64_t n = ek_smaller(size - at, EK_TILE);
        for (int64_t i = 0; i < n; i++)
            e[i] = row[at + i] - most;
        for (int64_t i = 0; i < n; i++)
            e[i] = EK_NAME(ek_exp)(e[i]);
        total += EK_NAME(softmax_sum_of)(n, e, NULL);
    }
    return (EK_REAL)total;
}

void EK_NAME(ek_exp_sums)(int64_t rows, int64_t size, const EK_REAL *x, EK_REAL *largest,
                          EK_REAL *sum)
{
    if (rows * size <= EK_TILE) {
        EK_REAL e[EK_TILE];
        EK_NAME(softmax_exponentials)(rows, size, x, e, largest, sum);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        largest[r] = EK_NAME(softmax_largest_of)(size, x + r * size);
        sum[r] = EK_NAME(softmax_exponential_sum)(size, x + r * size, largest[r]);
    }
}

/* ---- softmax ---- */

/* Computes y = exp(x - largest) / sum, or with `logarithm` y = x - largest - log(sum). */
EK_MULTIVERSION
static void EK_NAME(softmax_block)(int64_t rows, int64_t size, void *out, const void *in,
                                   const void *none, bool logarithm)
{
    (void)none;
    EK_REAL *restrict y = out, largest[ROWS], sum[ROWS];
    const EK_REAL *restrict x = in;
    EK_NAME(softmax_exponentials)(rows, size, x, y, largest, sum);
    for (int64_t r = 0; r < rows; r++)
        sum[r] = logarithm ? EK_NAME(ek_log)(sum[r]) : 1 / sum[r];
    if (logarithm) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                y[r * size + c] = x[r * size + c] - largest[r] - sum[r];
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                y[r * size + c] *= sum[r];
    }
}

EK_MULTIVERSION
static void EK_NAME(softmax_gradient_row)(int64_t size, EK_REAL *restrict dx,
                                          const EK_REAL *restrict dy, const EK_REAL *restrict y,
                                          EK_REAL sum, bool logarithm)
{
    if (logarithm)
        for (int64_t c = 0; c < size; c++)
            dx[c] = dy[c] - EK_NAME(ek_exp)(y[c]) * sum;
    else
        for (int64_t c = 0; c < size; c++)
            dx[c] = y[c] * (dy[c] - sum);
}

static void EK_NAME(softmax_gradient_block)(int64_t rows, int64_t size, void *out, const void *in,
                                            const void *of, bool logarithm)
{
    for (int64_t r = 0; r < rows; r++) {
        EK_REAL *dx = (EK_REAL *)out + r * size;
        const EK_REAL *dy = (const EK_REAL *)in + r * size, *y = (const EK_REAL *)of + r * size;
        const double sum = EK_NAME(softmax_sum_of)(size, dy, logarithm ? NULL : y);
        EK_NAME(softmax_gradient_row)(size, dx, dy, y, (EK_REAL)sum, logarithm);
    }
}

#endif
