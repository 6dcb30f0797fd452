/* reduce.c: reductions. The elements of an output are cut into blocks, whatever the number of
 * threads. Blocks are summed in f64 (integers in i64) and joined in order, so that results don't
 * depend on the number of threads. */
#include <math.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum {
    BLOCK = 8192, /* elements that one task adds up */
    LANES = 16,
    COLUMNS = 256, /* outputs of one task, if the innermost dimension is kept */
    NARROW = 32    /* with at most so many columns, several rows are added at a time */
};

typedef union value {
    double real;
    int64_t integer;
} value;

/* ---- kernels over contiguous runs ---- */

#define TAKE_SUM(a, v) ((a) + (v))
#define TAKE_SQUARE(a, v) ((a) + (v) * (v))
#define TAKE_MAX(a, v) ((((v) > (a)) | ((v) != (v))) ? (v) : (a))
#define TAKE_MIN(a, v) ((((v) < (a)) | ((v) != (v))) ? (v) : (a))
#define TAKE_PRODUCT(a, v) ((a) * (v))
/* Integers wrap. */
#define TAKE_SUM_I64(a, v) ((int64_t)((uint64_t)(a) + (uint64_t)(v)))
#define TAKE_SQUARE_I64(a, v) ((int64_t)((uint64_t)(a) + (uint64_t)(v) * (uint64_t)(v)))
#define TAKE_PRODUCT_I64(a, v) ((int64_t)((uint64_t)(a) * (uint64_t)(v)))

/* acc[j] = take(acc[j], row[j]) */
#define COLUMNS_LOOP(acc_type, type, take)     \
    do {                                       \
        acc_type *restrict acc = accumulators; \
        const type *restrict from = row;       \
        for (int64_t j = 0; j < n; j++) {      \
            acc_type v = (acc_type)from[j];    \
            acc[j] = take(acc[j], v);          \
        }                                      \
    } while (0)

#define BY_KIND(LOOP, acc_type, type, sum, square, product) \
    switch (kind) {                                         \
    case EK_REDUCE_SUM:                                     \
        LOOP(acc_type, type, sum);                          \
        break;                                              \
    case EK_REDUCE_SUM_SQUARES:                             \
        LOOP(acc_type, type, square);                       \
        break;                                              \
    case EK_REDUCE_MAX:                                     \
        LOOP(acc_type, type, TAKE_MAX);                     \
        break;                                              \
    case EK_REDUCE_MIN:                                     \
        LOOP(acc_type, type, TAKE_MIN);                     \
        break;                                              \
    case EK_REDUCE_PRODUCT:                                 \
        LOOP(acc_type, type, product);                      \
        break;                                              \
    }

/* Runs LOOP for the class `type` and the reduction `kind`. */
#define BY_CLASS(LOOP)                                                                   \
    switch (type) {                                                                      \
    case EK_CLASS_F32:                                                                   \
        BY_KIND(LOOP, double, float, TAKE_SUM, TAKE_SQUARE, TAKE_PRODUCT)                \
        break;                                                                           \
    case EK_CLASS_F64:                                                                   \
        BY_KIND(LOOP, double, double, TAKE_SUM, TAKE_SQUARE, TAKE_PRODUCT)               \
        break;                                                                           \
    case EK_CLASS_I64:                                                                   \
        BY_KIND(LOOP, int64_t, int64_t, TAKE_SUM_I64, TAKE_SQUARE_I64, TAKE_PRODUCT_I64) \
        break;                                                                           \
    }

EK_MULTIVERSION
static void reduce_add_row(ek_reduce_kind kind, ek_class type, void *accumulators, const void *row,
                           int64_t n){BY_CLASS(COLUMNS_LOOP)}

/* Adds four rows of f32, `stride` apart, in f32, and adds the sum to f64, which saves three of four
 * conversions. The error is one or two ulp of f32. */
EK_MULTIVERSION
    static void reduce_add_four(double *restrict acc, const float *row, int64_t stride, int64_t n)
{
    const float *a = row, *b = a + stride, *c = b + stride, *d = c + stride;
    for (int64_t j = 0; j < n; j++)
        acc[j] += (double)((a[j] + b[j]) + (c[j] + d[j]));
}

/* Reduces a run of n elements to LANES accumulators, which the caller joins. */
#define LANES_LOOP(acc_type, type, take)            \
    do {                                            \
        acc_type *restrict lanes = accumulators;    \
        acc_type acc[LANES];                        \
        const type *restrict from = row;            \
        for (int j = 0; j < LANES; j++)             \
            acc[j] = lanes[j];                      \
        int64_t i = 0;                              \
        for (; i + LANES <= n; i += LANES)          \
            for (int j = 0; j < LANES; j++) {       \
                acc_type v = (acc_type)from[i + j]; \
                acc[j] = take(acc[j], v);           \
            }                                       \
        for (int j = 0; i + j < n; j++) {           \
            acc_type v = (acc_type)from[i + j];     \
            acc[j] = take(acc[j], v);               \
        }                                           \
        for (int j = 0; j < LANES; j++)             \
            lanes[j] = acc[j];                      \
    } while (0)

EK_MULTIVERSION
static void reduce_add_run(ek_reduce_kind kind, ek_class type, void *accumulators, const void *row,
                           int64_t n)
{
    BY_CLASS(LANES_LOOP)
}

/* ---- accumulators ---- */

/* Returns the value with which an accumulator begins: 0 for sums. */
static value reduce_start_of(ek_reduce_kind kind, ek_class type)
{
    static const value starts[][2] = {[EK_REDUCE_MAX] = {{.real = -INFINITY},
                                                         {.integer = INT64_MIN}},
                                      [EK_REDUCE_MIN] = {{.real = INFINITY},
                                                         {.integer = INT64_MAX}},
                                      [EK_REDUCE_PRODUCT] = {{.real = 1}, {.integer = 1}}};
    return starts[kind][type == EK_CLASS_I64];
}

/* Joins n accumulators to those of `into`. Sums of squares join like sums. */
static void reduce_join(ek_reduce_kind kind, ek_class type, value *into, const value *from,
                        int64_t n)
{
    reduce_add_row(kind == EK_REDUCE_SUM_SQUARES ? EK_REDUCE_SUM : kind,
                   type == EK_CLASS_I64 ? EK_CLASS_I64 : EK_CLASS_F64, into, from, n);
}

/* ---- the plan ---- */

typedef struct reduce_job {
    ek_reduce_kind kind;
    ek_class type;
    ek_operand x, out;
    bool in_place;                           /* rows of x are read in place */
    ek_walk kept, reduced;                   /* outer dimensions; operand 0 is x, 1 is out */
    int64_t inner, inner_stride, out_stride; /* the innermost dimension */
    bool inner_kept;
    int64_t rows_per_block, runs_per_row; /* one of the two is 1 */
    int64_t blocks, column_parts;
    int side_by_side; /* rows added at once */
    value *partial;   /* [kept][block][inner or 1] */
} reduce_job;

static void reduce_split(reduce_job *job, const ek_walk *walk)
{
    int64_t shape[2][EK_MAX_DIMS], stride[2][2][EK_MAX_DIMS];
    int ndim[2] = {0, 0};
    int last = walk->ndim - 1;
    job->inner = walk->shape[last];
    job->inner_stride = walk->stride[0][last];
    job->out_stride = walk->stride[1][last];
    job->inner_kept = job->out_stride != 0;
    for (int d = 0; d < last; d++) {
        int side = walk->stride[1][d] == 0;
        int at = ndim[side]++;
        shape[side][at] = walk->shape[d];
        stride[side][0][at] = walk->stride[0][d];
        stride[side][1][at] = walk->stride[1][d];
    }
    ek_walk_init_raw(&job->kept, 2, ndim[0], shape[0],
                     (const int64_t *[]){stride[0][0], stride[0][1]});
    ek_walk_init_raw(&job->reduced, 2, ndim[1], shape[1],
                     (const int64_t *[]){stride[1][0], stride[1][1]});
}

static void reduce_cut(reduce_job *job)
{
    int64_t rows = job->reduced.count;
    int64_t width = job->inner_kept && job->inner > COLUMNS ? COLUMNS : job->inner;
    job->rows_per_block = width > 0 && width < BLOCK ? BLOCK / width : 1;
    job->runs_per_row = job->inner_kept ? 1 : (job->inner + BLOCK - 1) / BLOCK;
    if (job->runs_per_row > 1)
        job->rows_per_block = 1;
    job->blocks = (rows + job->rows_per_block - 1) / job->rows_per_block * job->runs_per_row;
    if (job->blocks < 1)
        job->blocks = 1;
    job->column_parts = job->inner_kept ? (job->inner + COLUMNS - 1) / COLUMNS : 1;
    int last = job->reduced.ndim - 1;
    job->side_by_side = 1;
    if (job->inner_kept && job->inner <= NARROW && job->in_place &&
        job->reduced.stride[0][last] == job->inner)
        job->side_by_side = (int)(2 * NARROW / job->inner);
}

static const char *reduce_address(const reduce_job *job, int64_t offset)
{
    return (const char *)job->x.data + offset * (int64_t)ek_dtype_size(job->x.dtype);
}

/* ---- the innermost dimension is reduced ---- */

static value reduce_block(const reduce_job *job, int64_t base, int64_t block)
{
    value lanes[LANES];
    for (int j = 0; j < LANES; j++)
        lanes[j] = reduce_start_of(job->kind, job->type);
    int64_t row = block / job->runs_per_row * job->rows_per_block;
    int64_t end = row + job->rows_per_block;
    end = ek_smaller(end, job->reduced.count);
    int64_t from = block % job->runs_per_row * BLOCK;
    int64_t to = job->runs_per_row > 1 && from + BLOCK < job->inner ? from + BLOCK : job->inner;
    ek_cursor cursor;
    ek_cursor_init(&job->reduced, &cursor, row);
    for (; row < end; row++) {
        int64_t offset = base + cursor.offset[0];
        if (job->in_place) {
            reduce_add_run(job->kind, job->type, lanes, reduce_address(job, offset + from),
                           to - from);
        } else {
            ek_tile tile;
            for (int64_t i = from; i < to; i += EK_TILE) {
                int64_t n = ek_smaller(to - i, EK_TILE);
                ek_row_load(job->type, &tile, job->x.dtype,
                            reduce_address(job, offset + i * job->inner_stride), job->inner_stride,
                            n);
                reduce_add_run(job->kind, job->type, lanes, &tile, n);
            }
        }
        ek_cursor_advance(&job->reduced, &cursor, 1);
    }
    for (int width = LANES / 2; width > 0; width /= 2)
        reduce_join(job->kind, job->type, lanes, lanes + width, width);
    return lanes[0];
}

static void reduce_inner(void *context, int64_t begin, int64_t end)
{
    const reduce_job *job = context;
    ek_cursor cursor;
    ek_cursor_init(&job->kept, &cursor, begin / job->blocks);
    for (int64_t task = begin, block = begin % job->blocks; task < end; task++) {
        job->partial[task] = reduce_block(job, cursor.offset[0], block);
        if (++block == job->blocks) {
            ek_cursor_advance(&job->kept, &cursor, 1);
            block = 0;
        }
    }
}

/* ---- the innermost dimension is kept ---- */

static void reduce_columns(const reduce_job *job, int64_t base, int64_t block, int64_t column,
                           int64_t n, value *result)
{
    value acc[COLUMNS];
    int group = job->side_by_side;
    bool four = job->kind == EK_REDUCE_SUM && job->type == EK_CLASS_F32 && job->in_place;
    int64_t row_stride = job->reduced.stride[0][job->reduced.ndim - 1] * group;
    for (int64_t j = 0; j < n * group; j++)
        acc[j] = reduce_start_of(job->kind, job->type);
    int64_t row = block * job->rows_per_block;
    int64_t end = row + job->rows_per_block;
    end = ek_smaller(end, job->reduced.count);
    ek_cursor cursor;
    ek_cursor_init(&job->reduced, &cursor, row);
    while (row < end) {
        int64_t offset = base + cursor.offset[0] + column * job->inner_stride;
        int64_t rows = ek_cursor_run(&job->reduced, &cursor, end - row);
        if (four && rows >= 4 * group) {
            reduce_add_four(&acc[0].real, (const float *)reduce_address(job, offset), row_stride,
                            n * group);
            ek_cursor_advance(&job->reduced, &cursor, 4 * group);
            row += 4 * group;
            continue;
        }
        rows = rows < group ? 1 : group;
        ek_tile tile;
        const void *from = &tile;
        if (job->in_place)
            from = reduce_address(job, offset);
        else
            ek_row_load(job->type, &tile, job->x.dtype, reduce_address(job, offset),
                        job->inner_stride, n);
        reduce_add_row(job->kind, job->type, acc, from, n * rows);
        ek_cursor_advance(&job->reduced, &cursor, rows);
        row += rows;
    }
    for (int g = 1; g < group; g++)
        reduce_join(job->kind, job->type, acc, acc + g * n, n);
    memcpy(result, acc, (size_t)n * sizeof *acc);
}

static void reduce_outer(void *context, int64_t begin, int64_t end)
{
    const reduce_job *job = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t part = task % job->column_parts;
        int64_t block = task / job->column_parts % job->blocks;
        int64_t kept = task / job->column_parts / job->blocks;
        int64_t column = part * COLUMNS;
        int64_t n = ek_smaller(job->inner - column, COLUMNS);
        ek_cursor cursor;
        ek_cursor_init(&job->kept, &cursor, kept);
        reduce_columns(job, cursor.offset[0], block, column, n,
                       job->partial + (kept * job->blocks + block) * job->inner + column);
    }
}

/* ---- joining blocks ---- */

static void reduce_finish(void *context, int64_t begin, int64_t end)
{
    const reduce_job *job = context;
    int64_t width = job->inner_kept ? job->inner : 1;
    ek_class result = job->type == EK_CLASS_I64 ? EK_CLASS_I64 : EK_CLASS_F64;
    ek_cursor cursor;
    ek_cursor_init(&job->kept, &cursor, begin);
    /* Outputs of one number from one block lie side by side. */
    const bool numbers = !job->inner_kept && job->blocks == 1;
    const int64_t stride = numbers ? job->kept.stride[1][job->kept.ndim - 1] : job->out_stride;
    for (int64_t kept = begin, n; kept < end; kept += n) {
        n = numbers ? ek_cursor_run(&job->kept, &cursor, end - kept) : 1;
        value *sums =
            job->partial + kept * job->blocks * width; /* the first block's sums become the total */
        for (int64_t block = 1; block < job->blocks; block++)
            reduce_join(job->kind, job->type, sums, sums + block * width, width);
        int64_t offset = cursor.offset[1] * (int64_t)ek_dtype_size(job->out.dtype);
        ek_row_store(result, sums, job->out.dtype, (char *)job->out.data + offset, stride,
                     n * width);
        ek_cursor_advance(&job->kept, &cursor, n);
    }
}

int ek_host_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *out, const ek_tensor *x)
{
    int64_t out_stride[EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        out_stride[d] = out->shape[d] == 1 ? 0 : out->stride[d];
    if (ek_count(out) == 0)
        return 0;
    if (ek_count(x) == 0) {
        double number = 0;
        EK_TRY(ek_reduce_nothing(kind, &number));
        return ek_host_fill(dev, out, number);
    }
    ek_walk walk;
    ek_walk_init_raw(&walk, 2, x->ndim, x->shape, (const int64_t *[]){x->stride, out_stride});
    if (walk.count == 1)
        walk.stride[1][0] = 0;
    reduce_job job; /* not zeroed: its walks are long */
    job.kind = kind;
    job.type = ek_class_of(x->dtype);
    job.x = (ek_operand){.dtype = x->dtype, .data = ek_tensor_address(x)};
    job.out = (ek_operand){.dtype = out->dtype, .data = ek_tensor_address(out)};
    reduce_split(&job, &walk);
    job.in_place = ek_class_is_dtype(job.type, x->dtype) && job.inner_stride == 1;
    reduce_cut(&job);
    int64_t tasks = job.kept.count * job.blocks;
    size_t nbytes = (size_t)(tasks * (job.inner_kept ? job.inner : 1)) * sizeof(value);
    void *partial;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &partial));
    job.partial = partial;
    int64_t work = walk.count / tasks + 1; /* elements per task */
    if (job.inner_kept)
        ek_parallel_for(dev, tasks * job.column_parts,
                        1 + 2 * BLOCK * job.column_parts / (work + job.column_parts), reduce_outer,
                        &job);
    else
        ek_parallel_for(dev, tasks, 1 + 2 * BLOCK / work, reduce_inner, &job);
    ek_parallel_for(dev, job.kept.count, 1 + 2 * BLOCK * job.kept.count / (ek_count(out) * 4),
                    reduce_finish, &job);
    ek_dev_free(dev, partial, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}
